"""What a run says: errors of its options, faults from outside, and what it keeps quiet about.

Faults from outside are memory, dead processes, signals and full disks.
"""

from __future__ import annotations

import difflib
import logging
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from probseg import backbones, data, heads, losses
from probseg.errors import USER_ERRORS, UnknownNameError, UsageError, history
from probseg.models import list_presets
from probseg.zoo.trained import LAST

# exit statuses after SIGTERM and Ctrl-C: 128 and the number of the signal, as shells have it
TERMINATED, INTERRUPTED = 143, 130
CROP_STEP = 32  # sides of crops that are proposed are multiples of this, in pixels

IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback")
DEAD_WORKER = re.compile(
    r"(DataLoader worker \(pid.*\)|Pin memory thread) (is killed by signal|exited unexpectedly)"
    r"|no batch has come for \d+ s"
)
LOST_PROCESS = re.compile(r"Connection (closed|reset) by peer")
NO_SHARED_MEMORY = re.compile(
    r"unable to (allocate|open|write|mmap|resize).*(shared memory|torch_)"
)
NO_DEVICE_MEMORY = re.compile(r"(CUDA error: out of memory|_STATUS_ALLOC_FAILED)")
NO_HOST_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")

_USER_ERRORS = {f"{kind.__module__}.{kind.__qualname__}" for kind in USER_ERRORS}

_REPETITIONS = re.compile(
    r"^\s*(Does not validate against|Subtypes:|Errors:|- Expected a <class 'NoneType'>|"
    r"Given value type:|Given value: (Namespace|NestedArg)\()"
)
"""Lines of the parser's messages about types, of which each class argument has several."""

# the end of some of its messages, with all arguments of a class
_VALUE = re.compile(r" Got value: Namespace\(.*")

_UNKNOWN = re.compile(
    r"(?:Group '(?P<group>[\w.]+)' does not accept option|does not accept option|Option"
    r"|unrecognized arguments:) (?:'|--)(?P<name>[\w.]+)"
)
"""The parser's messages about an option that it does not know."""

_NO_CLASS = re.compile(r"Expected a dot import path string: ([\w.]+)")
_KEY = re.compile(r'Parser key "([\w.]+)"')
_EXPECTED = re.compile(r"Expected a (?:<class '(\w+)'>|typing\.Literal\[(.*?)\])")
_GIVEN = re.compile(r"(?:Got|Given) value: (.+)")
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}

_KINDS: dict[str, type] = {
    "callbacks": Callback,
    "logger": Logger,
    "optimizer": Optimizer,
    "lr_scheduler": LRScheduler,
}  # bases of the classes of an option

_OF_CLASS = re.compile(r"class_path[ =]'([\w.]+)'")

_ABOUT_DESIGN = (
    # Raised inside Lightning, about torch.
    (r"`isinstance\(treespec, LeafSpec\)`", FutureWarning),
    # The arguments come both ways on purpose: processes that Lightning starts read sys.argv.
    ("LightningCLI's args parameter", UserWarning),
    # Normalisations with `fixed_statistics` or `frozen`; all others are set to training before.
    (r"Found \d+ module\(s\) in eval mode at the start of training", UserWarning),
    # The summary of the weights counts float32, which they stay in.
    (r"Precision bf16-mixed is not supported by the model summary", UserWarning),
    # The stage of the curriculum is the same in all processes.
    (r"It is recommended to use `self.log\('train/stage'", UserWarning),
    # Reading an object takes a few per cent of clicking through it.
    (r"The '(val|test|predict)_dataloader' does not have many workers", UserWarning),
)

_ABOUT_CHECKPOINTS = (
    r"Checkpoint directory .* exists and is not empty",  # of the run that continues
    r"The dirpath has changed from",  # an evaluation has a folder of its own
)


def silence_notices() -> None:
    """Silence advertisements of Lightning, and warnings about what is as it should be."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(lambda record: "Tip:" not in record.getMessage())
    for pattern, category in _ABOUT_DESIGN:
        warnings.filterwarnings("ignore", pattern, category)


def silence_notices_about_checkpoints() -> None:
    """Silence warnings that are of use only where a new training begins."""
    for pattern in _ABOUT_CHECKPOINTS:
        warnings.filterwarnings("ignore", pattern, UserWarning)


def explain_options(error: Exception, options: Iterable[str]) -> str:
    """Shorten the message of a verb's parser; add the options that an unknown one may have meant.

    The message names the class that lacks the option if it is an argument of a class. Of a file
    with a fault, which the parser reads twice, the message is the one before it reports a loop.
    """
    message = str(error)
    for link in history(error):
        if str(link).startswith("Config file loop") and isinstance(link.__context__, ValueError):
            message = message.replace(str(link), str(link.__context__))
    if stray := re.search(r"unrecognized arguments: ([^-\s]\S*)", message):
        return f"{stray[1]}: no option; `test` and `validate` take a model right after the verb"
    lines = [line for line in message.splitlines() if not _REPETITIONS.match(line)]
    short = "\n".join(_VALUE.sub("", line) for line in lines)
    unknown = _UNKNOWN.search(message)
    no_class, option = _NO_CLASS.findall(message), f"--{'.'.join(_KEY.findall(message))}"
    # A value of a wrong type: there is one name for all types that the argument takes.
    found = _EXPECTED.findall(message)
    expected = {_WORDS.get(kind, choices and f"one of {choices}") for kind, choices in found} - {""}
    given = no_class or _GIVEN.findall(short)
    is_class = no_class and not expected <= {_WORDS["int"], _WORDS["float"]}
    if unknown is None and len(expected) == 1 and given and not is_class:
        return f"{option} must be {expected.pop()}, got {given[-1]}"
    # A class that does not exist: the name is near that of one, or of a preset.
    if no_class and "." not in no_class[-1]:
        kinds = [kind for name, kind in _KINDS.items() if name in option.split(".")]
        packages = () if kinds else (backbones, data, heads, losses)
        for kind in kinds:  # which grows
            kinds += kind.__subclasses__()
        names = {kind.__name__ for kind in kinds if kind not in _KINDS.values()}.union(
            list_presets() if packages else (),
            *(
                [name for name in package.__all__ if isinstance(getattr(package, name), type)]
                for package in packages
            ),
        )
        if difflib.get_close_matches(no_class[-1], names):
            return str(UnknownNameError(f"class of {option}", no_class[-1], names))
    if unknown is None:
        return short
    # An option that does not exist: of the verb, of a group, or of a class that its message names.
    name = unknown["name"]
    before = _OF_CLASS.findall(message, 0, unknown.start())
    # The parser names the class of a callable argument, such as an optimizer, after its options.
    after = _OF_CLASS.search(message.splitlines()[message.count("\n", 0, unknown.start())])
    if after is not None or before:
        name = name.partition(".")[0]
        module, _, called_name = (after[1] if after is not None else before[-1]).rpartition(".")
        called = getattr(import_module(module), called_name)
        parser = ArgumentParser()
        is_class = isinstance(called, type)
        add = parser.add_class_arguments if is_class else parser.add_function_arguments
        options = add(called, fail_untyped=False)
    elif unknown["group"] is not None:
        name = f"{unknown['group']}.{name}"
    return f"{short}\n{UnknownNameError('option', name, options)}"


def explain(
    error: BaseException, verb: str, config: Namespace, last: Path | None
) -> UsageError | None:
    """Say what has ended a run and what to try, in view of its configuration and last checkpoint.

    None for an exception that is not known here: it is to keep its traceback.
    """
    kind, message = _in_worker(error)
    if kind in _USER_ERRORS:
        return UsageError(message)
    if isinstance(error, MisconfigurationException):  # Lightning's, about settings of a user
        return UsageError(str(error))
    if isinstance(error, RuntimeError) and "conditioned on metric" in str(error):
        return UsageError(f"--trainer.callbacks: {error}")  # Lightning names those that there are
    reason = _of_dead_worker(error)
    link: BaseException | None = error
    while link is not None and reason is None:  # along `raise ... from`, not errors under handling
        kind, message = _in_worker(link)
        if kind.endswith("MemoryError") or (kind and NO_HOST_MEMORY.search(message)):
            reason = message
        elif isinstance(link, RuntimeError) and NO_SHARED_MEMORY.search(str(link)):
            reason = str(link)
        elif not kind:
            text, of_runtime = str(link), isinstance(link, RuntimeError)
            if of_runtime and LOST_PROCESS.search(text):
                return UsageError(
                    f"another process of this run has ended ({_in_short(text)}): its own message, "
                    "above or in the log of its machine, says why; then "
                    f"{how_to_continue(verb, last)}"
                )
            no_device = of_runtime and NO_DEVICE_MEMORY.search(text)
            if isinstance(link, torch.OutOfMemoryError) or no_device:
                return UsageError(_no_memory("GPU", text, verb, config))
            if isinstance(link, MemoryError) or (of_runtime and NO_HOST_MEMORY.search(text)):
                return UsageError(_no_memory("machine", text, verb, config))
        link = link.__cause__
    if reason is None:
        return None
    workers = _data(config, "num_workers") or 0
    ended = "does not answer" if reason.startswith("no batch") else "has died"
    return UsageError(
        f"a process that reads data {ended} ({_in_short(reason)}): most often because the machine "
        "has no memory left, or because /dev/shm, where these processes put the images, is too "
        "small, as it is in containers by default. Have fewer of them (now --data.num_workers "
        f"{workers}; try {workers // 2}, with 0 the main process reads), or start the container "
        f"with --shm-size=8g or --ipc=host; then {how_to_continue(verb, last)}"
    )


def interruption(error: BaseException, sigterm: bool) -> tuple[int, str] | None:
    """Return exit status and cause if a run was ended by a signal to its process, else None.

    Lightning raises `SIGTERMException`, or after Ctrl-C a SystemExit of status 1; code that was
    interrupted may raise others. Where all processes of a run get SIGTERM, those that read the data
    may be the first to end.
    """
    if isinstance(error, SIGTERMException) or (sigterm and _of_dead_worker(error) is not None):
        return TERMINATED, "SIGTERM"
    if any(isinstance(link, KeyboardInterrupt) for link in history(error)):
        return INTERRUPTED, "Ctrl-C"
    return None


def how_to_continue(verb: str, last: Path | None) -> str:
    """Say how to continue a run that was stopped, as the end of a sentence."""
    if verb == "test":
        return "the same command starts again, and takes over what was evaluated by clicks"
    if verb == "validate":
        return "the same command starts again"
    if last is None:
        return f"no {LAST} has been written yet: start again with the same command"
    return f"the same command with `--ckpt_path last` continues from {last}"


def _of_dead_worker(error: BaseException) -> str | None:
    """Return the message about a dead process that reads data, or None.

    A handler of signals raises it wherever the main thread is, where it may be caught and another
    error be raised. The first one of the chain names the signal. A process that dies closes its
    sockets before the system calls it dead; in between, torch passes on the error of the socket.
    """
    links = [*history(error)][::-1]
    for link in links:
        if isinstance(link, RuntimeError) and DEAD_WORKER.search(str(link)):
            return str(link)
    for link in links:
        frames = [frame for frame, _ in traceback.walk_tb(link.__traceback__)][-1:]
        of_connection = [frame.f_globals["__name__"] for frame in frames] == [connection.__name__]
        if isinstance(link, OSError | EOFError) and of_connection:
            return f"{type(link).__name__} on its connection"
    return None


def _in_worker(error: BaseException) -> tuple[str, str]:
    """Return the full name and message of an exception in a worker process; else two empty texts.

    torch sends it as a traceback in a message.
    """
    text = str(error)
    if not IN_WORKER.match(text):
        return "", ""
    # After the frames, which are indented, comes the exception, whose message may have many lines.
    lines = text.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    first = next((i for i, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    kind, _, message = "\n".join(lines[first:]).partition(": ")
    return kind, message


def _no_memory(where: str, text: str, verb: str, config: Namespace) -> str:
    """Say for how much the memory of the GPU or machine is too small, and what takes less."""
    trainer = config.trainer
    size = f"devices: {trainer.devices}, precision: {trainer.precision or '32-true'}"
    batch, crop = _data(config, "batch_size"), _data(config, "crop_size")
    together = _data(config, "eval_batch_size")
    if verb == "fit" and batch is not None and crop is not None:
        height, width = (crop, crop) if isinstance(crop, int) else crop
        size = f"batches of {batch} crops of {height} x {width} pixels per device ({size})"
    elif together is not None:
        size = f"{together} objects at a time ({size})"
    first = f"the {where} lacks memory for {size} ({_in_short(text)}). Try, in this order:"
    return "\n  ".join([first, *_proposals(verb, config, where)])


def _proposals(verb: str, config: Namespace, where: str) -> Iterator[str]:
    """Yield options that take less memory, those that change the training least before others."""
    trainer = config.trainer
    batch, crop = _data(config, "batch_size"), _data(config, "crop_size")
    together = _data(config, "eval_batch_size")
    if verb == "fit" and batch is not None and batch > 1:
        parts = next(n for n in range(2, batch + 1) if batch % n == 0)
        steps = parts * (trainer.accumulate_grad_batches or 1)
        yield (
            f"--data.batch_size {batch // parts} --trainer.accumulate_grad_batches {steps} (the "
            f"same global batch, but batch normalisation sees {batch // parts} crops at a time)"
        )
    if where == "GPU" and str(trainer.precision or "32-true") in ("32", "32-true"):
        yield "--trainer.precision bf16-mixed"
    if verb == "fit" and crop is not None:
        sides = [crop] if isinstance(crop, int) else list(crop)
        smaller = [side * 3 // 4 // CROP_STEP * CROP_STEP for side in sides]
        if min(smaller) >= 2 * CROP_STEP:  # else too small to train on
            yield f"--data.crop_size {smaller[0] if isinstance(crop, int) else smaller}"
    if together is not None and together > 1:
        when = " if it happened in a validation" if verb == "fit" else ""
        yield f"--data.eval_batch_size {together // 2}{when}"
    if verb == "fit" and where == "machine" and _data(config, "num_workers"):
        yield "--data.num_workers 0"
    yield f"a smaller network, or a larger {where}"


def _data(config: Namespace, name: str) -> Any:  # noqa: ANN401 (whatever the argument is)
    """Return an argument of the data module, or None if it has no such argument."""
    return (config.data.get("init_args") or Namespace()).get(name)


def _in_short(text: str) -> str:
    """Return the requested memory, or else the first line of a message."""
    request = re.search(r"[Tt]ried to allocate [\d.]+ \w+", text)
    return request.group() if request else text.strip().partition("\n")[0].rstrip(" .")
