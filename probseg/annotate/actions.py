"""What clients change in a photograph: one function for each type of action.

A function is called inside of a transaction and under the lock of `Sessions`, and returns whether
finished objects changed. An error undoes what it has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from probseg.annotate.database import LONGEST_LABEL, MOST_LABELS, is_label
from probseg.annotate.files import finished
from probseg.annotate.photographs import Photograph, stored_labels
from probseg.annotate.steps import (
    CHECKS,
    RequestError,
    StoredStep,
    as_step,
    check_polygons,
    check_step,
    check_truth,
    stored_patch,
)
from probseg.annotate.store import MissingError, State, StoredObject
from probseg.errors import DataError
from probseg.formats import polygons
from probseg.interact.session import Answer
from probseg.interact.snapping import snapped
from probseg.interact.steps import Patch, Stroke, fill_holes, islands, remove_islands

if TYPE_CHECKING:
    from probseg.annotate.sessions import Sessions

STATES: tuple[State, ...] = get_args(State)

NO_OBJECT = "no object is open; click on one first"
NO_PIXEL = "the object has no pixel; click on it, or clear it"

Request = Mapping[str, Any]


def add_step(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Answer a click, a box or a stroke, and add it to the open object or to a new one.

    A stroke with `snap` keeps to contours and edges, and is stored as the pixels that it has then.
    """
    current = sessions.store.open_object(photograph.name)
    step = check_step(action, readable_size(photograph))
    if step["type"] == "brush" and check_truth(action, "snap", otherwise=False):
        session = sessions.answers.session(photograph, current)
        image = session.photograph.full.permute(1, 2, 0).cpu().numpy()
        stroke, state = as_step(step), session.answer.state
        assert isinstance(stroke, Stroke), "its type is that of a stroke"
        step = stored_patch(snapped(stroke, image, state.probability))
    _add(sessions, photograph, current, step)
    return False


def edit(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Fill the holes of the open object, or remove its parts that nobody clicked on, as a step."""
    current = _open_object(sessions, photograph, NO_OBJECT)
    session = sessions.answers.session(photograph, current)
    mask = _drawn(sessions, photograph, session.answer)
    if action["type"] == "fill_holes":
        patch, otherwise = fill_holes(mask), "the object has no hole"
    else:
        patch, otherwise = remove_islands(mask, session.clicks), "the object has no stray part"
    if not patch.pixels.any():
        raise RequestError(otherwise)
    _patch(sessions, photograph, current, patch)
    return False


def reshape(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Give the open object what an outline gained, and take away what it lost, as steps.

    Where the outline is as it was the mask stays as it is, however much the outline is simplified.
    """
    current = _open_object(sessions, photograph, NO_OBJECT)
    size = readable_size(photograph)
    before, after = (
        polygons.fill(check_polygons(action, name, size), size) for name in ("before", "after")
    )
    for patch in (Patch(after & ~before), Patch(before & ~after, positive=False)):
        if patch.pixels.any():
            current = _patch(sessions, photograph, current, patch)
    return False


def split(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Make each part of a finished object one object; the largest part keeps what was done.

    The open object is finished before.
    """
    stored, mask = _finished_object(sessions, photograph, action.get("object"))
    parts = islands(mask)
    largest = next(parts)
    if np.array_equal(largest, mask):
        msg = "the object has one part"
        raise RequestError(msg)
    _close_object(sessions, photograph, {})
    _patch_finished(sessions, photograph, stored, Patch(mask & ~largest, positive=False))
    for part in parts:
        sessions.store.add_finished(photograph.name, finished(part.astype(np.uint8)), stored.label)
    return True


def merge(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Make two finished objects one, with the label of the first.

    The open object is finished before, while `other` still has its pixels.
    """
    stored, _ = _finished_object(sessions, photograph, action.get("object"))
    other, mask = _finished_object(sessions, photograph, action.get("other"))
    if stored.id == other.id:
        msg = "`other` must be another object than `object`"
        raise RequestError(msg)
    _close_object(sessions, photograph, {})
    sessions.store.delete(other.id)
    _patch_finished(sessions, photograph, stored, Patch(mask))
    return True


def copy(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Begin an object with the mask and the label of a finished one of another photograph."""
    source = sessions.photograph(str(action.get("photo")))
    stored, _ = _finished_object(sessions, source, action.get("object"))
    if source.size != photograph.size:
        msg = (
            f"{source.name} has the size {source.size}, {photograph.name} {photograph.size}; "
            "objects are copied between photographs of one size"
        )
        raise RequestError(msg)
    closed = _close_object(sessions, photograph, {})
    sessions.store.begin(photograph.name, stored.label, stored.mask)
    return closed


def move(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Take the last change of the photograph back, whatever it was, or redo it."""

    def in_files() -> list[tuple[object, ...]]:
        rejected = sessions.store.photograph(photograph.name).state == "rejected"
        objects = [one for one in sessions.store.objects(photograph.name) if one.mask is not None]
        return [(rejected,), *((one.id, one.open, one.label, one.mask) for one in objects)]

    before, kind = in_files(), action["type"]
    if not (sessions.store.undo if kind == "undo" else sessions.store.redo)(photograph.name):
        msg = f"nothing to {kind}"
        raise RequestError(msg)
    changed = in_files() != before
    if changed:
        sessions.answers.drop(photograph)
    return changed


def clear(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Delete all steps of the open object."""
    current = _open_object(sessions, photograph, "nothing to clear: no object is open")
    sessions.store.clear(current.id)
    return False


def cancel(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Delete the open object, or leave it as it was before it was opened again."""
    current = _open_object(sessions, photograph, "nothing to cancel: no object is open")
    sessions.answers.drop(photograph)
    if current.mask is None:
        sessions.store.delete(current.id)
    else:
        sessions.store.close_again(current.id)
    return current.mask is not None


def finish(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Close the open object with its mask and perhaps a label."""
    current = _open_object(sessions, photograph, NO_OBJECT)
    _finish(sessions, photograph, current, checked_label(action.get("label", current.label)))
    return True


def set_state(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Set the state of the photograph; one that is done has no open object."""
    state = action.get("state")
    if state not in STATES:
        msg = f"`state` must be one of {list(STATES)}, got {state!r}"
        raise RequestError(msg)
    closes = state not in ("open", "review", "returned")
    closed = closes and _close_object(sessions, photograph, action)
    before = sessions.store.photograph(photograph.name).state
    sessions.store.set_state(photograph.name, state)
    return closed or "rejected" in {before} ^ {state}


def reopen(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Open a finished object, whose mask is the answer from now on."""
    stored = _find_object(sessions, photograph, action.get("object"))
    if not stored.open:
        _close_object(sessions, photograph, {})
        sessions.store.reopen(stored.id)
    return True


def delete(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Delete an object."""
    sessions.store.delete(_find_object(sessions, photograph, action.get("object")).id)
    return True


def set_label(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Set the class of an object."""
    stored = _find_object(sessions, photograph, action.get("object"))
    _set_label(sessions, stored, checked_label(action.get("label")))
    return True


ACTIONS: dict[str, Callable[[Sessions, Photograph, Request], bool]] = {
    **dict.fromkeys(CHECKS, add_step),
    "fill_holes": edit,
    "remove_islands": edit,
    "reshape": reshape,
    "split": split,
    "merge": merge,
    "copy": copy,
    "undo": move,
    "redo": move,
    "clear": clear,
    "cancel": cancel,
    "finish": finish,
    "state": set_state,
    "reopen": reopen,
    "delete": delete,
    "label": set_label,
}
"""Actions by type."""


def carry_out(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Carry out an action of any type; return whether finished objects changed."""
    kind = action.get("type")
    if not isinstance(kind, str) or kind not in ACTIONS:
        msg = f"unknown action {kind!r:.200}; known are {list(ACTIONS)}"
        raise RequestError(msg)
    return ACTIONS[kind](sessions, photograph, action)


def readable_size(photograph: Photograph) -> tuple[int, int]:
    """Return `(H, W)` of a photograph that can be read."""
    if photograph.size is None:
        raise DataError(photograph.error)
    return photograph.size


def checked_label(label: object) -> str | None:
    """Return a label without spaces around it; None for no label, of which nothing is left."""
    name = label.strip() if isinstance(label, str) else label
    if name is None or name == "":
        return None
    if not isinstance(name, str) or not is_label(name):
        msg = f"`label` must be text of at most {LONGEST_LABEL} characters, got {label!r:.200}"
        raise RequestError(msg)
    return name


def _find_object(sessions: Sessions, photograph: Photograph, number: object) -> StoredObject:
    """Return an object of a photograph by its number."""
    for stored in sessions.store.objects(photograph.name):
        if type(number) is int and stored.id == number:
            return stored
    raise MissingError(str(number))


def _finished_object(
    sessions: Sessions, photograph: Photograph, number: object
) -> tuple[StoredObject, npt.NDArray[np.bool_]]:
    """Return a finished object by its number, and its mask `(H, W)`."""
    stored = _find_object(sessions, photograph, number)
    if stored.mask is None or stored.open:
        msg = f"object {stored.id} of {photograph.name} is not finished"
        raise RequestError(msg)
    return stored, stored_labels(stored.mask, photograph) == 1


def _open_object(sessions: Sessions, photograph: Photograph, otherwise: str) -> StoredObject:
    current = sessions.store.open_object(photograph.name)
    if current is None:
        raise RequestError(otherwise)
    return current


def _add(
    sessions: Sessions, photograph: Photograph, current: StoredObject | None, step: StoredStep
) -> None:
    """Answer a step, and add it to the open object or, if that is None, to a new one."""
    sessions.answers.session(photograph, current).add(as_step(step))
    number = sessions.store.begin(photograph.name) if current is None else current.id
    sessions.store.add_step(number, step)
    sessions.answers.stored(photograph, number, step)


def _patch(
    sessions: Sessions, photograph: Photograph, current: StoredObject, patch: Patch
) -> StoredObject:
    """Add a patch to the open object; return the object with this step."""
    step = stored_patch(patch)
    _add(sessions, photograph, current, step)
    return replace(current, steps=(*current.steps, step))


def _patch_finished(
    sessions: Sessions, photograph: Photograph, stored: StoredObject, patch: Patch
) -> None:
    """Open a finished object, give it a patch, and finish it; no other one is open."""
    sessions.answers.drop_finished(photograph)  # this one is not among them meanwhile
    sessions.store.reopen(stored.id)
    _finish(sessions, photograph, _patch(sessions, photograph, stored, patch), stored.label)


def _drawn(sessions: Sessions, photograph: Photograph, answer: Answer) -> npt.NDArray[np.bool_]:
    """Return the mask of an answer, which must have a pixel."""
    mask = sessions.answers.mask(photograph, answer)
    if mask is None or not mask.any():
        raise RequestError(NO_PIXEL)
    return mask


def _close_object(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Finish the open object, perhaps with the label of an action; return whether there was one.

    Without any prompt it is deleted.
    """
    current = sessions.store.open_object(photograph.name)
    if current is None:
        return False
    if sessions.answers.session(photograph, current).answer.mask is None:
        sessions.store.delete(current.id)
    else:
        label = checked_label(action.get("label", current.label))
        _finish(sessions, photograph, current, label)
    return True


def _finish(
    sessions: Sessions, photograph: Photograph, current: StoredObject, label: str | None
) -> None:
    answer = sessions.answers.session(photograph, current).answer
    mask = _drawn(sessions, photograph, answer)
    labels = mask.astype(np.uint8)
    if current.mask is not None:  # pixels that a file said to ignore stay ignored
        labels[(stored_labels(current.mask, photograph) == 255) & ~mask] = 255
    _set_label(sessions, current, label)
    quality = current.quality
    if current.kept != len(current.steps):  # otherwise the mask is the stored one
        quality = None if answer.mask is None else round(answer.mask.quality, 3)
    sessions.store.finish(current.id, finished(labels), sessions.answerer.name, quality)
    sessions.answers.drop(photograph)


def _set_label(sessions: Sessions, stored: StoredObject, label: str | None) -> None:
    """Set the class of an object, which can be chosen from now on."""
    sessions.store.set_label(stored.id, label)
    known = sessions.labels
    if label is not None and label not in known and len(known) < MOST_LABELS:
        sessions.labels.append(label)
        sessions.store.set_setting("labels", sessions.labels)
