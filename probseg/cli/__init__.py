"""The doors: the command line, and `train`. Slow imports are deferred to what needs them."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import probseg
from probseg.cli.help import short_help
from probseg.kinds import Registry
from probseg.texts import tell

if TYPE_CHECKING:
    from probseg.zoo.trained import Run

USAGE = """\
usage: probseg [-h] [--version] VERB ...

Click-based interactive image segmentation with probabilistic attention, and semantic segmentation
with EM attention.

training and evaluation:
  fit        train a model          probseg fit --config configs/experiment/folder.yaml \\
                                                --data.root my_folder
  validate   short evaluation       probseg validate --config RUN/config.yaml --ckpt_path CKPT
  test       evaluation by clicks, or of the classes of pixels
                                    probseg test --config configs/quickstart.yaml
  compare    which results are better
                                    probseg compare RUN_A RUN_B
  ablate     train settings and seeds, and compare them
                                    probseg ablate ablation.yaml

use:
  predict    masks of photographs by clicks and boxes, or the classes of their pixels
                                    probseg predict photo.jpg --click 120,90 --output mask.png

data:
  data       list, fetch and check data sets, convert masks
                                    probseg data fetch GrabCut

annotation:
  annotate   label photographs by clicks, in a browser
                                    probseg annotate my_photographs
  serve      a model for Label Studio or CVAT
                                    probseg serve label-studio --images my_photographs

models:
  zoo        list, show, fetch, verify and publish models
                                    probseg zoo list
  tune       choose how a model adapts at inference
                                    probseg tune lite2_unet_prop --data my_folder
  bench      measure models         probseg bench model resnet18_csa
  export     write a model as ONNX or torch.export graphs, or as a web page
                                    probseg export lite2_unet_prop --to onnx --output exported

Each verb explains itself: probseg VERB --help. All settings of a run: add --print_config.
Each verb takes --megapixels N: photographs of up to N million pixels are read (otherwise 89).
"""


TRAINER = ("fit", "validate", "test")
"""Verbs that read configurations."""

VERBS: Mapping[str, Callable[[Sequence[str]], object]] = Registry(
    "verb",
    {
        **{verb: f"probseg.cli.invocation.{verb}" for verb in TRAINER},
        "ablate": "probseg.cli.ablate.run",
        "compare": "probseg.cli.compare.run",
        "data": "probseg.cli.data.run",
        "predict": "probseg.cli.predict.run",
        "zoo": "probseg.cli.zoo.run",
    },
)
"""The function of each verb, which takes its options."""


class _Notices(logging.Handler):
    """Prints what the library logs as lines `probseg: ...`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to `sys.stderr`, which progress bars replace while they are shown."""
        tell(f"probseg: {_indented(self.format(record))}\n", sys.stderr)


NOTICES = _Notices()


def say_what_is_logged() -> None:
    """Print what the library logs, as `probseg: ...`."""
    logging.getLogger("probseg").addHandler(NOTICES)
    logging.getLogger("probseg").setLevel(logging.INFO)


def _indented(text: str) -> str:
    """Indent all lines but the first: a line break in a file's name must not fake a message."""
    return text.replace("\n", "\n  ")


@contextmanager
def _ending_in_order(verb: str) -> Iterator[None]:
    """Let SIGTERM end a verb as an error does, and SIGHUP, of a closed terminal, do the same.

    Ignored signals stay ignored. Loops over batches have their own way to end after SIGTERM. A full
    disk is one sentence in the threads of loggers, too.
    """
    from probseg.errors import disk_fault

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    def explain(fault: threading.ExceptHookArgs) -> None:
        explained = fault.exc_value and disk_fault(fault.exc_value)
        if explained:
            tell(f"probseg: {_indented(str(explained))}\n", sys.stderr)
        else:
            print_traceback(fault)

    hangup = getattr(signal, "SIGHUP", None)  # absent on Windows
    ways = {hangup: lambda *_: signal.raise_signal(signal.SIGTERM)} if hangup else {}
    if verb not in (*TRAINER, "predict"):  # also process 1 of a container ends then
        ways[signal.SIGTERM] = end
    if threading.current_thread() is not threading.main_thread():
        ways.clear()
    ours = [number for number in ways if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, ways[number])
    print_traceback, threading.excepthook = threading.excepthook, explain
    try:
        yield
    finally:
        threading.excepthook = print_traceback
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _any_terminal() -> None:
    """Let the standard streams take any text, whatever their encoding is, and if they are closed.

    A file that is opened would take the number of a closed one, and what libraries print.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _with_megapixels(arguments: Sequence[str]) -> list[str]:
    """Take the option `--megapixels` out, for this process and those that it starts."""
    rest = list(arguments)
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--megapixels":
            value = value if equals else "".join(arguments[place + 1 : place + 2])
            if not value.isdecimal():
                tell(f"probseg: error: {name} must be a whole number, got {value!r}\n", sys.stderr)
                raise SystemExit(2)
            os.environ["PROBSEG_MEGAPIXELS"] = value  # which `probseg.images` reads
            del rest[place : place + 2 - len(equals)]
    return rest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of the process, and return the exit status.

    It is 0; 2 for wrong usage or wrong input, which is explained on stderr; 130 after Ctrl-C.
    SIGTERM and SIGHUP raise a SystemExit of status 143, Ctrl-C in a training or evaluation one of
    130, and `--help` one of 0.
    """
    # Threads that wait by spinning are six times slower beside another process that wants the
    # processor. OpenMP asks when torch is loaded, which the verbs do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Of Pillow, about photographs that probseg refuses in its own words.
    warnings.filterwarnings("ignore", r"Image size .* exceeds limit")
    _any_terminal()
    say_what_is_logged()
    arguments = _with_megapixels(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        tell(USAGE)
        return 0
    verb, *options = arguments
    if verb == "--version":
        tell(f"probseg {probseg.__version__}\n")
        return 0
    short = short_help(arguments)
    if short is not None:
        tell(short)
        return 0
    from probseg.errors import check_name, disk_fault, user_error

    try:
        check_name("verb", verb, VERBS)
        with _ending_in_order(verb):
            VERBS[verb](options)
    except Exception as error:
        explained = user_error(error) or disk_fault(error)
        if explained is None and isinstance(error, MemoryError):
            explained = MemoryError(f"there is not enough memory ({error or 'none was left'})")
        if explained is None:
            raise
        tell(f"probseg: error: {_indented(str(explained))}\n", sys.stderr)
        return 2
    except KeyboardInterrupt:
        tell("\nprobseg: stopped by Ctrl-C\n", sys.stderr)
        return 130
    return 0


def train(
    folder: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    minutes: float | None = None,
    config: Path | str = "configs/experiment/folder.yaml",
) -> Run:
    """Train on a folder with `images/` and `masks/`, as `probseg fit --data.root FOLDER` does.

    Args:
        folder: See `probseg.data.ImageMaskFolder`.
        settings: Options of `probseg fit` by their names, as `{"trainer.max_epochs": 5}`;
            `{"ckpt_path": "last"}` goes on with a training that was interrupted.
        minutes: Length of the training; by default that of the configuration.
        config: A configuration, of those that ship with probseg or of your own.

    Returns:
        The folder of the run, a path and a name of its model: `Predictor.from_pretrained(run)`.
        `run.before` and `run.after` are mean clicks to 90 % on the objects held out, `run.saved`
        has the difference and its 95 % interval, `(clicks, low, high)`, and `run.sentence` says so.
        They are None where nothing was compared, `saved` also on less than 20 photographs.

    Raises:
        ValueError: For wrong settings or data, in the words of the command line.
        SystemExit: After a signal to stop, as the command line.
    """
    from probseg.cli.invocation import as_options, run
    from probseg.zoo.trained import Run

    say_what_is_logged()
    budget = {} if minutes is None else {"minutes": minutes}
    values = {"data.root": folder, **budget, **(settings or {})}
    try:
        cli = run("fit", ["--config", str(config), *as_options(values)])
    except SystemExit as end:
        if (finished := getattr(end, "run", None)) is None:
            raise
        return Run(finished)
    from probseg.callbacks.run_folder import run_folder

    return Run(run_folder(cli.trainer).absolute())
