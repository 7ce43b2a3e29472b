"""What clients change in a photograph: a method of `Change` for each type of action.

It is called inside of a transaction and under the lock of `Sessions`, and returns whether
finished objects changed. An error undoes what it has stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from probseg.annotate.database import LONGEST_COMMENT, LONGEST_LABEL, MOST_LABELS, is_label
from probseg.annotate.photographs import Photograph, readable_size, sized, stored_labels
from probseg.annotate.steps import (
    RequestError,
    StoredStep,
    as_step,
    check_polygons,
    check_truth,
    stored_patch,
    stored_step,
)
from probseg.annotate.store import Finished, MissingError, State, StoredObject
from probseg.formats import polygons
from probseg.interact.session import Answer
from probseg.interact.steps import fill_holes, islands, remove_islands, snap, with_touching
from probseg.metrics.masks import iou
from probseg.types import Patch, Stroke

if TYPE_CHECKING:
    from probseg.annotate.sessions import Sessions

STATES: tuple[State, ...] = get_args(State)

ALIKE = 0.95
"""IoU from which on two masks look alike."""

HALF = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON can have, and no file."""

NO_OBJECT = "no object is open; click on one first"
NO_PIXEL = "the object has no pixel; click on it, or clear it"


def checked_label(label: object) -> str | None:
    """Return a label without spaces around it; None for no label, of which nothing is left."""
    name = label.strip() if isinstance(label, str) else label
    if name is None or name == "":
        return None
    if not isinstance(name, str) or not is_label(name):
        raise RequestError(
            f"`label` must be text of at most {LONGEST_LABEL} characters, got {label!r:.200}"
        )
    return name


@dataclass
class Change:
    """An action of a client on a photograph; a method for each type of action."""

    sessions: Sessions
    photograph: Photograph
    action: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.name = self.photograph.name
        self.store, self.answers = self.sessions.store, self.sessions.answers

    def add_step(self) -> bool:
        """Answer a click, a box or a stroke, and add it to the open object or to a new one.

        A stroke with `snap` keeps to contours and edges; it is stored as the pixels that are left.
        With `object` a stroke edits a finished object; the open one is finished before.
        """
        edited = None
        if self.action["type"] == "brush" and self.action.get("object") is not None:
            edited, _ = self._finished_object("object")
            self._close_object()
            self.answers.drop_finished(self.photograph)  # this one is not among them meanwhile
            self.store.reopen(edited.id)
        current = self.store.open_object(self.name)
        step = stored_step(self.action, readable_size(self.photograph))
        if step["type"] == "brush" and check_truth(self.action, "snap", otherwise=False):
            session = self.answers.session(self.photograph, current)
            image = session.photograph.full.permute(1, 2, 0).cpu().numpy()
            stroke, state = as_step(step), session.answer.state
            assert isinstance(stroke, Stroke), "its type is that of a stroke"
            step = stored_patch(snap(stroke, image, state.probability))
        self._add(current, step)
        if edited is not None:
            self._finish(self._open_object(NO_OBJECT), edited.label)
        return edited is not None

    def edit(self) -> bool:
        """Fill the holes of the open object, or remove its parts that nobody clicked on."""
        current = self._open_object(NO_OBJECT)
        session = self.answers.session(self.photograph, current)
        mask = self._drawn(session.answer)
        if self.action["type"] == "fill_holes":
            patch, otherwise = fill_holes(mask), "the object has no hole"
        else:
            patch, otherwise = remove_islands(mask, session.clicks), "the object has no stray part"
        if not patch.pixels.any():
            raise RequestError(otherwise)
        self._patch(current, patch)
        return False

    def rescale(self) -> bool:
        """Answer the first click at another scale: `by` 1 a larger mask, -1 a smaller one, 0 round.

        Scales whose masks look alike count once.
        """
        current, by = self._open_object(NO_OBJECT), self.action.get("by", 0)
        if by not in (-1, 0, 1):
            raise RequestError(
                f"`by` must be 1 for a larger mask, -1 for a smaller one or 0, got {by!r:.200}"
            )
        session = self.answers.session(self.photograph, current)
        answers = session.scales()
        if not answers:
            raise RequestError(
                "other sizes are offered after the first click on an object, before further ones"
            )
        masks = {0: self._drawn(session.answer)}
        for number, answer in enumerate(answers, start=1):
            mask = self.answers.mask(self.photograph, answer)
            if mask is None or not mask.any():
                continue
            if all(iou(other, mask.astype(np.uint8)) < ALIKE for other in masks.values()):
                masks[number] = mask
        order = sorted(masks, key=lambda number: int(masks[number].sum()))
        place = order.index(0) + (by or 1)
        if len(order) == 1 or (by and not 0 <= place < len(order)):
            which = {1: "larger", -1: "smaller", 0: "other"}[by]
            raise RequestError(
                f"the model has no {which} mask for this click; correct it by further clicks"
            )
        self._add(current, {"type": "scale", "number": order[place % len(order)] - 1})
        return False

    def reshape(self) -> bool:
        """Give the open object what an outline gained, and take away what it lost, as steps.

        Where the outline is as it was the mask stays, however much the outline is simplified; but
        what lies between mask and outline goes with what was gained or lost beside it.
        """
        current = self._open_object(NO_OBJECT)
        size = readable_size(self.photograph)
        before, after = (
            polygons.fill(check_polygons(self.action, name, size), size)
            for name in ("before", "after")
        )
        mask = self._drawn(self.answers.session(self.photograph, current).answer)
        for patch in (
            Patch(with_touching(after & ~before, before & after & ~mask)),
            Patch(with_touching(before & ~after, mask & ~before & ~after), positive=False),
        ):
            if patch.pixels.any():
                current = self._patch(current, patch)
        return False

    def split(self) -> bool:
        """Make each part of a finished object one object; the largest part keeps what was done.

        The open object is finished before.
        """
        stored, mask = self._finished_object("object")
        parts = islands(mask)
        largest = next(parts)
        if np.array_equal(largest, mask):
            raise RequestError("the object has one part")
        self._close_object()
        self._patch_finished(stored, Patch(mask & ~largest, positive=False))
        for part in parts:
            pixels = Finished.from_labels(part.astype(np.uint8))
            self.store.add_finished(self.name, pixels, stored.label)
        return True

    def merge(self) -> bool:
        """Make two finished objects one, with the label of the first.

        The open object is finished before, while `other` still has its pixels.
        """
        stored, _ = self._finished_object("object")
        other, mask = self._finished_object("other")
        if stored.id == other.id:
            raise RequestError("`other` must be another object than `object`")
        self._close_object()
        self.store.delete(other.id)
        self._patch_finished(stored, Patch(mask))
        return True

    def copy(self) -> bool:
        """Begin an object with the mask and the label of a finished one of another photograph."""
        source = self.sessions.photograph(str(self.action.get("photo")))
        stored, _ = self._finished_object("object", source)
        if source.size != self.photograph.size:
            raise RequestError(
                f"{source.name} has {sized(source.size)}, {self.name} "
                f"{sized(self.photograph.size)}; objects are copied between photographs of one "
                "size"
            )
        closed = self._close_object()
        self.store.begin(self.name, stored.label, stored.mask)
        return closed

    def undo_or_redo(self) -> bool:
        """Take back the last change of the photograph, whatever it was, or redo it."""
        before, kind = self.store.in_files(self.name), self.action["type"]
        if not (self.store.undo if kind == "undo" else self.store.redo)(self.name):
            raise RequestError(f"nothing to {kind}")
        changed = self.store.in_files(self.name) != before
        if changed:
            self.answers.drop(self.photograph)
        return changed

    def clear(self) -> bool:
        """Delete all steps of the open object."""
        current = self._open_object("nothing to clear: no object is open")
        self.store.clear(current.id)
        return False

    def cancel(self) -> bool:
        """Delete the open object, or leave it as it was before it was opened again.

        A decision that was withdrawn when it was opened holds again.
        """
        current = self._open_object("nothing to cancel: no object is open")
        self.answers.drop(self.photograph)
        self.store.decide_again(self.name, current.id)
        if current.mask is None:
            self.store.delete(current.id)
        else:
            self.store.close_again(current.id)
        return current.mask is not None or self.store.photograph(self.name).state == "rejected"

    def finish(self) -> bool:
        """Close the open object with its mask and perhaps a label."""
        current = self._open_object(NO_OBJECT)
        self._finish(current, self._label(current))
        return True

    def set_state(self) -> bool:
        """Set the state of the photograph; one that is done has no open object.

        One that is sent back may have a comment, which stays until the next decision.
        """
        state = self.action.get("state")
        if state not in STATES:
            raise RequestError(f"`state` must be one of {list(STATES)}, got {state!r}")
        closes = state not in ("open", "review", "returned")
        closed = closes and self._close_object()
        before = self.store.photograph(self.name).state
        self.store.set_state(self.name, state)
        if state in ("returned", "accepted", "rejected"):
            comment = self.action.get("comment") or ""
            whole = isinstance(comment, str) and not HALF.search(comment)
            if not whole or len(comment) > LONGEST_COMMENT:
                raise RequestError(
                    f"`comment` must be text of at most {LONGEST_COMMENT} whole characters"
                )
            self.store.set_comment(self.name, (state == "returned" and comment) or None)
        return closed or "rejected" in {before} ^ {state}

    def reopen(self) -> bool:
        """Open a finished object, whose mask is the answer from now on."""
        stored = self._find_object("object", self.photograph)
        if not stored.open:
            self._close_object()
            self.store.reopen(stored.id)
        return True

    def delete(self) -> bool:
        """Delete an object."""
        self.store.delete(self._find_object("object", self.photograph).id)
        return True

    def set_label(self) -> bool:
        """Set the class of an object, by default of the open one."""
        if "object" in self.action:
            stored = self._find_object("object", self.photograph)
        else:
            stored = self._open_object(NO_OBJECT)
        self._set_label(stored, self._label())
        return stored.mask is not None

    def _label(self, current: StoredObject | None = None) -> str | None:
        """Return the label of the action, or else that of an object that is closed by it."""
        closes = current is not None and self.action["type"] not in ("finish", "state")
        if closes or "label" not in self.action:
            return current.label if current else None
        return self.sessions.current_label(self.action["label"])

    def _find_object(self, key: str, photograph: Photograph) -> StoredObject:
        """Return the object that an argument of the action has the number of."""
        number = self.action.get(key)
        stored = None
        if type(number) is int and abs(number) < 1 << 63:
            stored = self.store.find(photograph.name, number)
        if stored is None:
            raise MissingError(str(number))
        return stored

    def _finished_object(
        self, key: str, photograph: Photograph | None = None
    ) -> tuple[StoredObject, npt.NDArray[np.bool_]]:
        """Return a finished object, perhaps of another photograph, and its mask `(H, W)`."""
        photograph = photograph or self.photograph
        stored = self._find_object(key, photograph)
        if stored.mask is None or stored.open:
            raise RequestError(f"object {stored.id} of {photograph.name} is not finished")
        return stored, stored_labels(stored.mask, photograph) == 1

    def _open_object(self, otherwise: str) -> StoredObject:
        current = self.store.open_object(self.name)
        if current is None:
            raise RequestError(otherwise)
        return current

    def _add(self, current: StoredObject | None, step: StoredStep) -> None:
        """Answer a step, and add it to the open object or, if that is None, to a new one."""
        self.answers.session(self.photograph, current).add(as_step(step))
        number = self.store.begin(self.name, self._label()) if current is None else current.id
        self.store.add_step(number, step)
        self.answers.record_step(self.photograph, number, step)

    def _patch(self, current: StoredObject, patch: Patch) -> StoredObject:
        """Add a patch to the open object; return the object with this step."""
        step = stored_patch(patch)
        self._add(current, step)
        return replace(current, steps=(*current.steps, step))

    def _patch_finished(self, stored: StoredObject, patch: Patch) -> None:
        """Open a finished object, give it a patch, and finish it; no other one is open."""
        self.answers.drop_finished(self.photograph)  # this one is not among them meanwhile
        self.store.reopen(stored.id)
        self._finish(self._patch(stored, patch), stored.label)

    def _drawn(self, answer: Answer) -> npt.NDArray[np.bool_]:
        """Return the mask of an answer, which must have a pixel."""
        mask = self.answers.mask(self.photograph, answer)
        if mask is None or not mask.any():
            raise RequestError(NO_PIXEL)
        return mask

    def _close_object(self) -> bool:
        """Finish the open object, or delete it if it has no prompt; return whether there is one."""
        current = self.store.open_object(self.name)
        if current is None:
            return False
        if self.answers.session(self.photograph, current).answer.mask is None:
            self.store.delete(current.id)
        else:
            self._finish(current, self._label(current))
        return True

    def _finish(self, current: StoredObject, label: str | None) -> None:
        answer = self.answers.session(self.photograph, current).answer
        mask = self._drawn(answer)
        labels = mask.astype(np.uint8)
        if current.mask is not None:  # pixels that a file said to ignore stay ignored
            labels[(stored_labels(current.mask, self.photograph) == 255) & ~mask] = 255
        self._set_label(current, label)
        quality = current.quality
        if current.kept != len(current.steps):  # otherwise the mask is the stored one
            quality = None if answer.mask is None else round(answer.mask.quality, 3)
        model = self.sessions.model_host.name
        self.store.finish(current.id, Finished.from_labels(labels), model, quality)
        self.answers.drop(self.photograph)

    def _set_label(self, stored: StoredObject, label: str | None) -> None:
        """Set the class of an object, which can be chosen from now on."""
        self.store.set_label(stored.id, label)
        if len(self.sessions.labels) < MOST_LABELS:
            self.sessions.set_labels([*self.sessions.labels, label])


ACTIONS: dict[str, Callable[[Change], bool]] = {
    **dict.fromkeys(("click", "box", "brush"), Change.add_step),
    "fill_holes": Change.edit,
    "remove_islands": Change.edit,
    "reshape": Change.reshape,
    "scale": Change.rescale,
    "split": Change.split,
    "merge": Change.merge,
    "copy": Change.copy,
    "undo": Change.undo_or_redo,
    "redo": Change.undo_or_redo,
    "clear": Change.clear,
    "cancel": Change.cancel,
    "finish": Change.finish,
    "state": Change.set_state,
    "reopen": Change.reopen,
    "delete": Change.delete,
    "label": Change.set_label,
}
"""Actions by type."""


def carry_out(sessions: Sessions, photograph: Photograph, action: Mapping[str, Any]) -> bool:
    """Carry out an action of any type; return whether finished objects changed."""
    kind = action.get("type")
    if not isinstance(kind, str) or kind not in ACTIONS:
        raise RequestError(f"unknown action {kind!r:.200}; known are {list(ACTIONS)}")
    return ACTIONS[kind](Change(sessions, photograph, action))
