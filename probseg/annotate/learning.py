"""Learning from finished photographs: a training beside the page, and the model that it makes.

Each learning has a folder with a number, `.probseg/learned/N`: a copy of the photographs and masks,
the run, and the model. What the page shows is read from there, whatever was killed meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from probseg.annotate.steps import RequestError
from probseg.descriptions import RECOMMENDED
from probseg.formats.mask_names import MaskNames, stem_of, too_long
from probseg.paths import cache_dir, digest, replacing, write_text
from probseg.texts import read_text, tell
from probseg.zoo.index import WEIGHTS
from probseg.zoo.trained import LAST, Run, read_trained

LEARNED = Path(".probseg") / "learned"
"""The folder of all learnings, in that of the masks."""

NAME = f"{RECOMMENDED}.mine"
"""Name of the folder of a model that was learned."""

RESULT, LOG = "learned.json", "log.txt"

COMMAND = (sys.executable, "-m", "probseg.annotate.learning")
"""Command that learns, before its arguments: see `main`."""

TELLING = 1.0  # seconds between two news of a learning
PATIENCE = 10.0  # seconds that a training has to end when it is told to
MOST_MINUTES = 24 * 60
FEWEST = 2  # photographs, one of which is held out
MANY_OBJECTS = 40  # with fewer, trainings take small batches, so that an epoch has several steps


class Example(NamedTuple):
    """A finished photograph: its file, its name in the folder, and the PNG of each object."""

    path: Path
    name: str
    masks: Sequence[bytes]


class Learning:
    """The learnings of a folder, of which one runs at a time; any thread may call all methods."""

    def __init__(self, place: Path, tell: Callable[[], None]) -> None:
        self._place, self._tell = place, tell
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = threading.Thread()
        self._began, self._minutes = 0.0, 0.0

    @property
    def models(self) -> dict[str, Path]:
        """Folders of the models that were learned, by their names; the newest is the last one."""
        return {
            f"{NAME} {folder.name}": folder / NAME
            for folder in _numbered(self._place)
            if _sentence(folder) is not None and (folder / NAME / WEIGHTS).is_file()
        }

    def status(self) -> dict[str, Any]:
        """Return what a page shows: `state`, and minutes, a sentence, a curve or a model's name."""
        newest = next(reversed(_numbered(self._place)), None)
        with self._lock:
            if self._process is not None:
                gone, curve = (time.monotonic() - self._began) / 60, _curve(newest)
                return {"state": "running", "gone": gone, "minutes": self._minutes, "curve": curve}
        if newest is None:
            return {"state": "none"}
        if (sentence := _sentence(newest)) is not None:
            names = (name for name, model in self.models.items() if model.parent == newest)
            found = {"model": next(names, None), "curve": _curve(newest)}
            return {"state": "done", "sentence": sentence, **found}
        fault = _fault(newest)
        return {"state": "failed", "sentence": fault} if fault else {"state": "interrupted"}

    def start(self, minutes: object, examples: Sequence[Example], first: Path | None) -> None:
        """Begin to learn, from a model or the recommended one; or go on where it was interrupted.

        Raises:
            RequestError: If it is learning already, for wrong minutes, or too few photographs.
        """
        if (
            isinstance(minutes, bool)
            or not isinstance(minutes, int | float)
            or not 0 < minutes <= MOST_MINUTES
        ):
            raise RequestError(f"`minutes` must be above 0, up to {MOST_MINUTES}, got {minutes!r}")
        with self._starting:  # other requests ask for the status, while files are copied
            if self._process is not None:
                raise RequestError("it is learning already; wait for its end, or stop it")
            newest = next(reversed(_numbered(self._place)), None)
            if newest is None or not _has_checkpoint(newest) or _is_over(newest):
                newest = self._place / str(1 if newest is None else int(newest.name) + 1)
                _copy(examples, newest)
            words = [*COMMAND, str(newest), str(minutes), *([] if first is None else [str(first)])]
            with (newest / LOG).open("wb") as log:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,  # which is closed when this process ends in any way
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            with self._lock:
                self._process = process
                self._began, self._minutes = time.monotonic(), float(minutes)
            self._watcher = threading.Thread(target=self._watch, args=[process], daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        """End the training, and wait for it."""
        with self._starting:
            process = self._process
        if process is not None:
            assert process.stdin is not None, "it has a pipe"
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
            self._watcher.join()

    def forget(self, used: str) -> None:
        """Delete all learnings but the newest one and that of the model that is used."""
        numbered = _numbered(self._place)
        for folder in numbered[:-1]:
            if _is_over(numbered[-1]) and f"{NAME} {folder.name}" != used:
                shutil.rmtree(folder)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Say how far a training is until it ends."""
        while process.poll() is None:
            self._tell()
            with suppress(subprocess.TimeoutExpired):
                process.wait(TELLING)
        with self._lock:
            self._process = None
        self._tell()


def trust(model: Path) -> None:
    """Note outside of the folder, which may come from others, that a person chose this model."""
    with suppress(OSError):  # it is then not used at the next start
        mark = _mark(model)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def is_trusted(model: Path) -> bool:
    """Say whether a person of this machine chose this model before."""
    return _mark(model).is_file()


def _mark(model: Path) -> Path:
    return cache_dir() / "learned" / digest(model / WEIGHTS)


def _numbered(place: Path) -> list[Path]:
    """Return the folders of all learnings, the newest last."""
    folders = [path for path in place.glob("*") if path.name.isdecimal() and path.name.isascii()]
    return sorted(folders, key=lambda path: int(path.name))


def _copy(examples: Sequence[Example], place: Path) -> None:
    """Write photographs and masks as trainings read them; what the page changes stays apart."""
    if len(examples) < FEWEST:
        raise RequestError(
            f"at least {FEWEST} photographs with objects must be done, got {len(examples)}; press "
            "Done on more"
        )
    files = [one.name.replace("%", "%25").replace("/", "%2F") for one in examples]
    files = [  # "%12.jpg" is no other's name
        f"%{n}{Path(file).suffix}" if too_long(file) else file for n, file in enumerate(files)
    ]
    names = MaskNames(map(stem_of, files))
    with replacing(place) as draft:
        for folder in ("images", "masks"):
            (draft / folder).mkdir(parents=True)
        for file, one in zip(files, examples, strict=True):
            shutil.copyfile(one.path, draft / "images" / file)
            stems = names.first(stem_of(file), len(one.masks))
            for stem, png in zip(stems, one.masks, strict=True):
                (draft / "masks" / f"{stem}.png").write_bytes(png)


def _has_checkpoint(place: Path) -> bool:
    """Say whether there is something to go on from after an interruption."""
    return any(place.glob(f"run/version_*/checkpoints/{LAST}"))


def _sentence(place: Path) -> str | None:
    """Return what came out of a learning; None if it has no end."""
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        return str(json.loads(read_text(place / RESULT))["sentence"])
    return None


def _curve(place: Path | None) -> list[tuple[float, float]]:
    """Return minutes and score of each validation so far, that of the start first."""
    if place is not None:
        with suppress(OSError, ValueError, TypeError, RecursionError):
            curves = (Run(run).curve for run in place.glob("run/version_*"))
            return max(curves, key=len, default=[])
    return []


def _fault(place: Path) -> str:
    """Return what a training said of its fault; empty if it was interrupted."""
    log = place / LOG
    lines = log.read_text("utf-8", "replace").splitlines() if log.is_file() else []
    return next((line[16:] for line in lines if line.startswith("probseg: error: ")), "")


def _is_over(place: Path) -> bool:
    return _sentence(place) is not None or bool(_fault(place))


def main(arguments: Sequence[str]) -> None:
    """Learn in a folder for some minutes, from a model folder or the recommended model.

    The process has the lowest priority, and ends with the one that holds its standard input.
    """
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(19)
    place, minutes, *first = arguments
    try:
        _learn(Path(place), float(minutes), *first)
    except Exception as error:
        tell(f"probseg: error: {str(error) or type(error).__name__}\n", sys.stderr)
        raise


def _end_with_the_server() -> None:
    """Wait for the end of the standard input, then end as after a signal, or at once."""
    os.read(sys.stdin.fileno(), 1)  # no lock, which the end of the interpreter would meet
    signal.raise_signal(signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


def _learn(place: Path, minutes: float, first: str | None = None) -> None:
    """Train, write a model folder if the network is better, and then the result."""
    import probseg
    from probseg.cli import main as probseg_verb

    objects = len([*(place / "masks").iterdir()])
    settings: Mapping[str, Any] = {
        "trainer.logger.init_args.save_dir": place,
        "trainer.logger.init_args.name": "run",
        "trainer.enable_progress_bar": False,
        "data.num_workers": 0,
        **({"data.batch_size": 4} if objects < MANY_OBJECTS else {}),
        **({} if first is None else {"model.model.init_args.name": first}),
        **({"ckpt_path": "last"} if _has_checkpoint(place) else {}),
    }
    run = probseg.train(place, settings, minutes=minutes)
    if run.better:
        photographs = len([*(place / "images").iterdir()])
        facts = {
            "description": f"{RECOMMENDED}, trained on the objects of one folder.",
            "data": [
                f"{objects} objects of {photographs} photographs of the folder, own licence; "
                "some of them were held out"
            ],
            "license": "other",
            "hardware": platform.processor() or platform.machine() or "unknown",
            "hours": round(max([at for at, _ in run.curve], default=minutes) / 60, 2),
            "limits": ["made for the objects of one folder", run.sentence],
            "recipe": f"probseg fit --config configs/experiment/folder.yaml --minutes {minutes:g}",
            "seed": 0,  # of the configuration
            "commit": read_trained(run).commit or f"version {probseg.__version__}",
        }
        write_text(place / "facts.json", json.dumps(facts))
        words = ("--facts", place / "facts.json", "--preset", RECOMMENDED, "--zoo", place)
        if status := probseg_verb(["zoo", "publish", *map(str, (run, NAME, *words))]):
            raise SystemExit(status)
    write_text(place / RESULT, json.dumps({"sentence": run.sentence}))


if __name__ == "__main__":
    main(sys.argv[1:])
