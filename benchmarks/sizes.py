"""What the annotation page does for one action, however much lies around it.

`python -m benchmarks.sizes` fills folders with 500, 5,000 and 50,000 photographs of one object, and
with 20, 200 and 1,000 objects on one photograph. It prints for each action seconds, files that
are opened or listed, thousands of steps of the database, and kilobytes written, and their growth.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from probseg.annotate import files
from probseg.annotate.answers import ModelHost
from probseg.annotate.folder import SETTLED
from probseg.annotate.photographs import Photograph, stamp_of
from probseg.annotate.sessions import Sessions
from probseg.annotate.store import Fingerprint, Finished, Store

SIZE = (120, 160)
CLICK = {"type": "click", "x": 80, "y": 60, "positive": True}
STROKE = {"type": "brush", "positive": True, "radius": 9, "points": [[80, 90]]}  # has pixels always
EVERY = 10  # steps of the database after which they are counted

_opened: Counter[int] = Counter()  # files that were opened or listed, by thread


class Cost(NamedTuple):
    """What an action took."""

    seconds: float
    files: int  # that were opened or listed
    rows: float  # thousands of steps of the database, each of which looks at a value at most
    written: float  # kilobytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photographs", type=int, nargs="*", default=[500, 5000, 50_000])
    parser.add_argument("--objects", type=int, nargs="*", default=[20, 200, 1000])
    parser.add_argument("--model", default="lite0_unet_prop")
    options = parser.parse_args()
    host = ModelHost(options.model)
    for what, sizes in (("photographs", options.photographs), ("objects", options.objects)):
        costs = [_measured(host, **{what: size}) for size in sizes]
        for action in costs[0] if costs else ():
            sys.stdout.write(f"{what} {' / '.join(map(str, sizes))}, {action}: ")
            for field, *values in zip(Cost._fields, *(cost[action] for cost in costs), strict=True):
                row = " / ".join(f"{value:.4g}" for value in values)
                sys.stdout.write(f"{field} {row} {growth(sizes, values)}; ")
            sys.stdout.write("\n")


def growth(sizes: Sequence[int], values: Sequence[float]) -> str:
    """Say how values grow with sizes, from the first to the last one."""
    first, last = (max(1e-3, values[place]) for place in (0, -1))
    power = math.log(last / first) / math.log(sizes[-1] / sizes[0] if len(sizes) > 1 else 2)
    return "constant" if power < 0.25 else "linear" if power < 1.25 else "quadratic"


def _measured(host: ModelHost, photographs: int = 1, objects: int = 1) -> dict[str, Cost]:
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place), photographs, objects)
        return measure(Path(place), host)


def fill(folder: Path, photographs: int, objects: int = 1) -> None:
    """Draw photographs, each with an object in the database, and the first with many."""
    content, random = io.BytesIO(), np.random.default_rng(0)
    Image.fromarray(random.integers(0, 255, (*SIZE, 3), np.uint8)).save(content, "PNG")
    store = Store(folder / files.DATABASE)
    for number in range(photographs):
        name = f"{number:06d}.png"
        path = folder / name
        path.write_bytes(content.getvalue())
        with store.change(name, None):
            for _ in range(1 if number else objects):
                y, x = random.integers(0, SIZE[0] // 5), random.integers(0, SIZE[1])
                labels = np.zeros(SIZE, np.uint8)
                labels[y : y + 3, x : x + 3] = 1
                store.add_finished(name, Finished.from_labels(labels), f"class {number % 7}")
            store.set_fingerprint(name, Fingerprint(*SIZE, *stamp_of(path), "digest", "pixels"))
    store.close()


def measure(folder: Path, host: ModelHost) -> dict[str, Cost]:
    """Return the costs of actions on the first photograph of a folder, by their names."""
    time.sleep(SETTLED / 1e9)  # else files are compared with their digests, which are none
    first = Sessions(folder, None, host)
    first._reading.join()  # notes until when all files are known
    first.close()  # writes the masks
    time.sleep(SETTLED / 1e9)  # else folders are listed again and again
    files.DELAY, delay = 1e6, files.DELAY  # annotations.json is written by another thread
    began = time.perf_counter()
    sessions = Sessions(folder, None, host)
    costs = {"start": Cost(time.perf_counter() - began, 0, 0, 0)}
    began = time.perf_counter()
    sessions.begin()
    costs["session"] = Cost(time.perf_counter() - began, 0, 0, 0)
    sessions._reading.join()  # SQLite's hook of `counted` and a second thread lock each other up
    try:
        costs |= _actions(sessions, sessions.photographs[0])
    finally:
        files.DELAY = delay
        sessions.close()
    return costs


def _actions(sessions: Sessions, photograph: Photograph) -> dict[str, Cost]:
    def act(action: dict[str, Any]) -> Callable[[], bytes]:
        revision = sessions.describe(photograph)["revision"]
        return lambda: sessions.act(photograph, {"revision": revision, "action": action})

    costs = {"open": counted(sessions, lambda: sessions.open(photograph))}
    listed = [str(one["id"]) for one in sessions.describe(photograph)["objects"]]
    first = int(listed[0])
    costs["masks"] = counted(sessions, lambda: sessions.masks(photograph, ",".join(listed)))
    costs["tile"] = counted(sessions, lambda: sessions.small_masks(photograph))
    sessions.answers.open(photograph)
    actions: dict[str, dict[str, Any]] = {
        "click": CLICK,
        "stroke": STROKE,
        "finish": {"type": "finish"},
        "undo": {"type": "undo"},
        "redo": {"type": "redo"},
        "next": {**CLICK, "x": 30},
        "cancel": {"type": "cancel"},
        "reopen": {"type": "reopen", "object": first},
        "close": {"type": "cancel"},
        "label": {"type": "label", "object": first, "label": "class 3"},
        "state": {"type": "state", "state": "done"},
        "delete": {"type": "delete", "object": int(listed[-1])},
    }
    for name, action in actions.items():
        costs[name] = counted(sessions, act(action))
    return costs


def counted(sessions: Sessions, call: Callable[[], object]) -> Cost:
    """Return the costs of a call in this thread."""
    if not _opened:
        sys.addaudithook(_hear)
    thread, steps = threading.get_ident(), Counter[int]()
    sessions.store._db.set_progress_handler(lambda: steps.update([threading.get_ident()]), EVERY)
    before = Counter(_opened), _written(), time.perf_counter()
    call()
    seconds, written = time.perf_counter() - before[2], _written() - before[1]
    sessions.store._db.set_progress_handler(None, EVERY)
    opened = _opened[thread] - before[0][thread] - 2  # those of `_written`
    return Cost(seconds, opened, EVERY * steps[thread] / 1000, written / 1000)


def _hear(event: str, _: object) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        _opened[threading.get_ident()] += 1


def _written() -> int:
    """Return the bytes that this thread has written."""
    rows = Path("/proc/thread-self/io").read_text().split()
    return int(rows[rows.index("wchar:") + 1])


if __name__ == "__main__":
    main()
