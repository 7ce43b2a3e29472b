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

from probseg.annotate import output
from probseg.annotate.errors import MissingError, RequestError
from probseg.annotate.photographs import Photograph, stored_labels
from probseg.annotate.settings import LONGEST_LABEL, MOST_LABELS, is_label
from probseg.annotate.steps import (
    CHECKS,
    StoredStep,
    as_step,
    check_polygons,
    check_snap,
    check_step,
    stored_patch,
)
from probseg.annotate.store import State, StoredObject
from probseg.errors import DataError
from probseg.formats import polygons
from probseg.interact.session import Answer
from probseg.interact.steps import Patch, Stroke, fill_holes, islands, remove_islands, snapped

if TYPE_CHECKING:
    from probseg.annotate.sessions import Sessions

STATES: tuple[State, ...] = get_args(State)

NO_OBJECT = "no object is open; click on one first"
NO_PIXEL = "the object has no pixel; click on it, or clear it"

Request = Mapping[str, Any]


def add_step(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Answer a click or a box, and add it to the open object or to a new one."""
    one = sessions.store.open_object(photograph.name)
    _add(sessions, photograph, one, checked_step(action, photograph))
    return False


def paint(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Add a stroke; one with `snap` is stored as the patch that it is with the present answer."""
    one = sessions.store.open_object(photograph.name)
    step = checked_step(action, photograph)
    try:
        snap = check_snap(action)
    except ValueError as error:
        raise RequestError(str(error)) from error
    if snap:
        session = sessions.answers.session(photograph, one)
        image = session.photograph.full.permute(1, 2, 0).cpu().numpy()
        stroke, state = as_step(step), session.answer.state
        assert isinstance(stroke, Stroke), "its type is that of a stroke"
        step = stored_patch(snapped(stroke, image, state.probability))
    _add(sessions, photograph, one, step)
    return False


def edit(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Fill the holes of the open object, or remove its parts that nobody clicked on, as a step."""
    one = _open_object(sessions, photograph, NO_OBJECT)
    session = sessions.answers.session(photograph, one)
    mask = _drawn(sessions, photograph, session.answer)
    if action["type"] == "fill_holes":
        patch, otherwise = fill_holes(mask), "the object has no hole"
    else:
        patch, otherwise = remove_islands(mask, session.clicks), "the object has no stray part"
    if not patch.pixels.any():
        raise RequestError(otherwise)
    _patch(sessions, photograph, one, patch)
    return False


def reshape(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Give the open object what an outline gained, and take away what it lost, as steps.

    Where the outline is as it was the mask stays as it is, however much the outline is simplified.
    """
    one = _open_object(sessions, photograph, NO_OBJECT)
    size = _readable_size(photograph)
    try:
        before = polygons.fill(check_polygons(action, "before", size), size)
        after = polygons.fill(check_polygons(action, "after", size), size)
    except ValueError as error:
        raise RequestError(str(error)) from error
    for patch in (Patch(after & ~before), Patch(before & ~after, positive=False)):
        if patch.pixels.any():
            one = _patch(sessions, photograph, one, patch)
    return False


def split(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Make each part of a finished object one object; the largest part keeps what was done.

    The open object is finished before.
    """
    one = _finished_object(sessions, photograph, action.get("object"))
    mask = _finished_mask(one, photograph)
    parts = islands(mask)
    largest = next(parts)
    if np.array_equal(largest, mask):
        msg = "the object has one part"
        raise RequestError(msg)
    _close_object(sessions, photograph, {})
    _patch_finished(sessions, photograph, one, Patch(mask & ~largest, positive=False))
    for part in parts:
        mask_file = output.finished(part.astype(np.uint8))
        sessions.store.add_finished(photograph.name, mask_file, one.label)
    return True


def merge(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Make two finished objects one, with the label of the first.

    The open object is finished before, while `other` still has its pixels.
    """
    one = _finished_object(sessions, photograph, action.get("object"))
    other = _finished_object(sessions, photograph, action.get("other"))
    if one.id == other.id:
        msg = "`other` must be another object than `object`"
        raise RequestError(msg)
    _close_object(sessions, photograph, {})
    sessions.store.delete(other.id)
    _patch_finished(sessions, photograph, one, Patch(_finished_mask(other, photograph)))
    return True


def copy(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Begin an object with the mask and the label of a finished one of another photograph."""
    source = sessions.photograph(str(action.get("photo")))
    one = _finished_object(sessions, source, action.get("object"))
    if source.size != photograph.size:
        msg = (
            f"{source.name} has the size {source.size}, {photograph.name} {photograph.size}; "
            "objects are copied between photographs of one size"
        )
        raise RequestError(msg)
    closed = _close_object(sessions, photograph, {})
    sessions.store.begin(photograph.name, one.label, one.mask)
    return closed


def undo(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Take the last change of the photograph back, whatever it was."""
    return _move(sessions, photograph, sessions.store.undo, "nothing to undo")


def redo(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Bring the change back that was taken back last."""
    return _move(sessions, photograph, sessions.store.redo, "nothing to redo")


def clear(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Delete all steps of the open object."""
    one = _open_object(sessions, photograph, "nothing to clear: no object is open")
    sessions.store.clear(one.id)
    return False


def cancel(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Delete the open object, or leave it as it was before it was opened again."""
    one = _open_object(sessions, photograph, "nothing to cancel: no object is open")
    sessions.answers.drop(photograph)
    if one.mask is None:
        sessions.store.delete(one.id)
    else:
        sessions.store.close_again(one.id)
    return one.mask is not None


def finish(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Close the open object with its mask and perhaps a label."""
    one = _open_object(sessions, photograph, NO_OBJECT)
    _finish(sessions, photograph, one, checked_label(action.get("label", one.label)))
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
    one = find_object(sessions, photograph, action.get("object"))
    if not one.open:
        _close_object(sessions, photograph, {})
        sessions.store.reopen(one.id)
    return True


def delete(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Delete an object."""
    sessions.store.delete(find_object(sessions, photograph, action.get("object")).id)
    return True


def set_label(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Set the class of an object."""
    one = find_object(sessions, photograph, action.get("object"))
    _set_label(sessions, one, checked_label(action.get("label")))
    return True


ACTIONS: dict[str, Callable[[Sessions, Photograph, Request], bool]] = {
    **dict.fromkeys(CHECKS, add_step),
    "brush": paint,
    "fill_holes": edit,
    "remove_islands": edit,
    "reshape": reshape,
    "split": split,
    "merge": merge,
    "copy": copy,
    "undo": undo,
    "redo": redo,
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
    """Carry out an action of any type; return whether finished objects changed.

    Raises:
        RequestError: If the action is unknown or cannot be carried out.
        MissingError: If there is no such object.
        DataError: If the photograph cannot be read.
    """
    kind = action.get("type")
    if not isinstance(kind, str) or kind not in ACTIONS:
        msg = f"unknown action {kind!r:.200}; known are {list(ACTIONS)}"
        raise RequestError(msg)
    return ACTIONS[kind](sessions, photograph, action)


def checked_step(action: Request, photograph: Photograph) -> StoredStep:
    """Validate a step on a photograph; see `check_step`."""
    try:
        return check_step(action, _readable_size(photograph))
    except (TypeError, ValueError) as error:
        raise RequestError(str(error)) from error


def checked_label(label: object) -> str | None:
    """Return a label without spaces around it; None for no label, of which nothing is left."""
    name = label.strip() if isinstance(label, str) else label
    if name is None or name == "":
        return None
    if not isinstance(name, str) or not is_label(name):
        msg = f"`label` must be text of at most {LONGEST_LABEL} characters, got {label!r:.200}"
        raise RequestError(msg)
    return name


def find_object(sessions: Sessions, photograph: Photograph, number: object) -> StoredObject:
    """Return an object of a photograph by its number.

    Raises:
        MissingError: If there is none.
    """
    for one in sessions.store.objects(photograph.name):
        if type(number) is int and one.id == number:
            return one
    raise MissingError(str(number))


def _readable_size(photograph: Photograph) -> tuple[int, int]:
    if photograph.size is None:
        raise DataError(photograph.error)
    return photograph.size


def _finished_object(sessions: Sessions, photograph: Photograph, number: object) -> StoredObject:
    """Return a finished object by its number."""
    one = find_object(sessions, photograph, number)
    if one.mask is None or one.open:
        msg = f"object {one.id} of {photograph.name} is not finished"
        raise RequestError(msg)
    return one


def _finished_mask(one: StoredObject, photograph: Photograph) -> npt.NDArray[np.bool_]:
    assert one.mask is not None, "it is finished"
    mask: npt.NDArray[np.bool_] = stored_labels(one.mask, photograph) == 1
    return mask


def _patch_finished(
    sessions: Sessions, photograph: Photograph, one: StoredObject, patch: Patch
) -> None:
    """Open a finished object, give it a patch, and finish it; no other one is open."""
    sessions.answers.drop_finished(photograph)  # this one is not among them meanwhile
    sessions.store.reopen(one.id)
    _finish(sessions, photograph, _patch(sessions, photograph, one, patch), one.label)


def _open_object(sessions: Sessions, photograph: Photograph, otherwise: str) -> StoredObject:
    one = sessions.store.open_object(photograph.name)
    if one is None:
        raise RequestError(otherwise)
    return one


def _add(
    sessions: Sessions, photograph: Photograph, one: StoredObject | None, step: StoredStep
) -> None:
    """Answer a step, and add it to the open object or, if that is None, to a new one."""
    sessions.answers.session(photograph, one).add(as_step(step))
    number = sessions.store.begin(photograph.name) if one is None else one.id
    sessions.store.add_step(number, step)
    sessions.answers.stored(photograph, number, step)


def _patch(
    sessions: Sessions, photograph: Photograph, one: StoredObject, patch: Patch
) -> StoredObject:
    """Add a patch to the open object; return the object with this step."""
    step = stored_patch(patch)
    _add(sessions, photograph, one, step)
    return replace(one, steps=(*one.steps, step))


def _drawn(sessions: Sessions, photograph: Photograph, answer: Answer) -> npt.NDArray[np.bool_]:
    """Return the mask of an answer, which must have a pixel."""
    mask = sessions.answers.mask(photograph, answer)
    if mask is None or not mask.any():
        raise RequestError(NO_PIXEL)
    return mask


def _move(
    sessions: Sessions, photograph: Photograph, move: Callable[[str], bool], otherwise: str
) -> bool:
    """Move in the history of a photograph; an error says `otherwise` where it ends."""

    def finished() -> list[tuple[object, ...]]:
        rejected = sessions.store.photograph(photograph.name).state == "rejected"
        objects = [one for one in sessions.store.objects(photograph.name) if one.mask is not None]
        return [(rejected,), *((one.id, one.open, one.label, one.mask) for one in objects)]

    before = finished()
    if not move(photograph.name):
        raise RequestError(otherwise)
    changed = finished() != before
    if changed:
        sessions.answers.drop(photograph)
    return changed


def _close_object(sessions: Sessions, photograph: Photograph, action: Request) -> bool:
    """Finish the open object, if there is one; without any prompt it is deleted.

    Args:
        sessions: All photographs.
        photograph: The photograph.
        action: Perhaps with a `label` for the object.

    Returns:
        Whether there was one.

    Raises:
        RequestError: If the prompts give no pixel.
    """
    one = sessions.store.open_object(photograph.name)
    if one is None:
        return False
    if sessions.answers.session(photograph, one).answer.mask is None:
        sessions.store.delete(one.id)
    else:
        label = checked_label(action.get("label", one.label))
        _finish(sessions, photograph, one, label)
    return True


def _finish(
    sessions: Sessions, photograph: Photograph, one: StoredObject, label: str | None
) -> None:
    answer = sessions.answers.session(photograph, one).answer
    mask = _drawn(sessions, photograph, answer)
    labels = mask.astype(np.uint8)
    if one.mask is not None:
        labels[(stored_labels(one.mask, photograph) == 255) & ~mask] = 255
    _set_label(sessions, one, label)
    quality = one.quality
    if one.kept != len(one.steps):  # otherwise the mask is the stored one
        quality = None if answer.mask is None else round(answer.mask.quality, 3)
    sessions.store.finish(one.id, output.finished(labels), sessions.answerer.name, quality)
    sessions.answers.drop(photograph)


def _set_label(sessions: Sessions, one: StoredObject, label: str | None) -> None:
    """Set the class of an object, which can be chosen from now on."""
    sessions.store.set_label(one.id, label)
    known = sessions.labels
    if label is not None and label not in known and len(known) < MOST_LABELS:
        sessions.labels.append(label)
        sessions.store.set_setting("labels", sessions.labels)
