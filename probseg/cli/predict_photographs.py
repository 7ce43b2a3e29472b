"""Predictions of photographs and folders, with what `probseg.cli.predict` has parsed."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path, PurePosixPath

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.utilities import rank_zero_only

from probseg import __version__
from probseg.callbacks.predictions import ANNOTATIONS, PredictionWriter, picture, write_picture
from probseg.cli.faults import interruption, silence_notices
from probseg.data.layout import preview, unread_folders
from probseg.data.prompts import PromptedImage, PromptedObject, PromptFile, read_prompts
from probseg.errors import UsageError
from probseg.evaluation.protocols import PROTOCOLS
from probseg.formats import COCO, MASKS, OVERLAYS, png, run_lengths
from probseg.formats.colours import distinct_colours
from probseg.formats.mask_names import photograph_files, refuse_name
from probseg.geometry import RECOMMENDED_ZOOM, ZOOMS
from probseg.interact.photograph import as_photograph
from probseg.kinds import TASKS, find
from probseg.models import Network, task_of
from probseg.paths import FOLLOW, alone_in, follows, leads_out, write_text
from probseg.picture_formats import (
    IMAGE_SUFFIXES,
    UNREAD_SUFFIXES,
    list_pictures,
    of_one_stem,
    refuse_only_unread,
    second_of_a_stem,
)
from probseg.tasks.prediction import Job, Photo, Prediction, PredictionData, prompted_state
from probseg.texts import one_line, tell
from probseg.zoo import create_model
from probseg.zoo.trained import description_for, weights_digest

LISTED_FAILURES = 20  # failures that are listed; the records in `.probseg/` have them all


def predict_photograph(options: argparse.Namespace, pixels: npt.NDArray[np.uint8]) -> None:
    """Write the result of one photograph: `pixels`, RGB, uint8, shape `(H, W, 3)`."""
    (kind,) = options.formats
    semantic = _is_semantic(options)
    if semantic and kind == COCO:
        raise UsageError(f"--format coco: {options.model} gives class maps, not objects; use masks")
    output: Path = options.output
    if not semantic and not options.clicks and not options.boxes:
        raise UsageError(f"{options.images}: no prompt; give at least one --click or a --box")
    prompted = PromptedObject("1", 1, (*options.clicks, *options.boxes))
    if not semantic:
        try:
            prompted_state(as_photograph(pixels), prompted)
        except ValueError as error:
            raise UsageError(str(error)) from error
    image = PromptedImage(options.images.name, () if semantic else (prompted,))
    task = _build_task(_load_network(options), 1).to(options.device)
    with torch.inference_mode():
        (answer,) = task.predict_step([Photo(Job(image, options.images, ""), pixels)], 0)
    for reason in answer.failed.values():
        raise UsageError(f"{options.images}: {reason}")
    if kind == OVERLAYS:
        write_picture(output, picture(answer))
    elif answer.labels is not None:
        png.write_index(output, answer.labels, distinct_colours(256))
    elif kind == MASKS:
        png.write_binary(output, answer.masks[0].mask())
    else:
        write_text(output, json.dumps(run_lengths.encode(answer.masks[0])) + "\n")
    tell(f"{output}\n")


def predict_folder(options: argparse.Namespace) -> None:
    """Write the results of a folder of photographs."""
    prompts = _prompts_of_folder(options)
    network = _load_network(options)
    weights = weights_digest(network.state_dict())
    paths = {image.file: options.images / image.file for image in prompts.images}
    twins = of_one_stem(sorted(paths.values()))  # their masks would have the same names
    rules = [__version__, PROTOCOLS["probseg"].version, asdict(ZOOMS[RECOMMENDED_ZOOM])]
    jobs = []
    for image in prompts.images:
        path = paths[image.file]
        refusal = second_of_a_stem(twins[path]) if path in twins else None
        if leads_out(path, options.images) and not follows(path):
            refusal = FOLLOW
        stat = path.stat() if path.is_file() and not refusal else None
        state = None if stat is None else [stat.st_size, stat.st_mtime_ns]
        # All that the files of a photograph depend on.
        subject = json.dumps([image, state, weights, sorted(options.formats), rules])
        digest = "" if refusal else hashlib.sha256(subject.encode()).hexdigest()
        jobs.append(Job(image, path, digest, refusal))
    of = (prompts.categories, options.formats, options.workers)
    writer = PredictionWriter(options.output, options.images, jobs, *of)
    writer.refuse_foreign_files()
    with ExitStack() as owned:
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            options.output.mkdir(parents=True, exist_ok=True)
            owned.enter_context(alone_in(options.output, "predict"))
        before = sum(not outcome.reasons for outcome in writer.outcomes())
        waiting = [job for job in jobs if not writer.finished(job)]  # before any process writes
        if waiting:
            silence_notices()
            several = options.processes * options.nodes > 1
            index = options.device.partition(":")[2]
            trainer = L.Trainer(
                accelerator=options.device.partition(":")[0],
                devices=[int(index)] if index else options.processes,
                num_nodes=options.nodes,
                strategy="ddp" if several else "auto",
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=sys.stderr.isatty(),
                use_distributed_sampler=False,  # the data module divides the photographs
                callbacks=[writer],
            )
            data = PredictionData(waiting, options.batch_size, options.workers)
            task = _build_task(network, options.batch_size)
            try:
                trainer.predict(task, data, return_predictions=False)
                trainer.strategy.barrier()
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                stopped = interruption(error, trainer.received_sigterm)
                if stopped is None:
                    raise
                tell(f"probseg: stopped by {stopped[1]}; the same command continues\n", sys.stderr)
                raise SystemExit(stopped[0]) from error
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            _report(writer, prompts, before, options)


def _prompts_of_folder(options: argparse.Namespace) -> PromptFile:
    """Return the photographs of a folder with their prompts; class maps need no prompts."""
    if _is_semantic(options):
        if options.prompts is not None or COCO in options.formats:
            raise UsageError(
                f"--model {options.model}: is for semantic segmentation, which takes no --prompts "
                "and writes no coco; leave them out"
            )
        if not list_pictures(options.images):
            refuse_only_unread(options.images)
            raise UsageError(
                f"{options.images}: has no file with a suffix of {', '.join(IMAGE_SUFFIXES)}"
            )
        pictures = list_pictures(options.images, IMAGE_SUFFIXES + UNREAD_SUFFIXES)
        for path in pictures:
            refuse_name(path.name)
        return PromptFile(tuple(PromptedImage(path.name, ()) for path in pictures), {})
    if options.prompts is None:
        raise UsageError(
            f"--prompts is missing: {options.model} needs boxes or clicks on the photographs"
        )
    prompts = read_prompts(options.prompts)
    files = [image.file for image in prompts.images]
    if not any((options.images / file).is_file() for file in files):
        raise UsageError(
            f"{options.images}: has none of the {len(files)} photographs of {options.prompts}, "
            f"{files[0]!r} for instance"
        )
    for file, number in Counter(files).items():
        if number > 1:
            raise UsageError(
                f"{options.prompts}: lists {file} {number} times; make one entry of them"
            )
    return prompts


def _report(
    writer: PredictionWriter, prompts: PromptFile, before: int, options: argparse.Namespace
) -> None:
    """Write what covers all photographs, and print what was done and what was not.

    `before` is the number of photographs that were done before. The status is 1 for failures.
    """
    if COCO in options.formats:
        writer.write_annotations()
    outcomes = list(writer.outcomes())
    failed = [outcome for outcome in outcomes if outcome.reasons]
    prompted = [PurePosixPath(image.file).as_posix() for image in prompts.images]
    there = photograph_files(options.images, prompted)
    skipped = sorted({*prompts.empty, *there}.difference(prompted))
    done = len(outcomes) - len(failed)
    photographs = _count_line("photograph", done, len(failed), len(skipped), before)
    lines = [f"{options.output}: {photographs}"]
    if prompts.categories:
        objects = sum(o.done for o in outcomes), sum(o.failed for o in outcomes)
        lines.append(f"{options.output}: {_count_line('object', *objects, prompts.crowds)}")
    if COCO not in options.formats and (options.output / ANNOTATIONS).exists():
        lines.append(f"{options.output / ANNOTATIONS}: was there before, and has not been changed")
    if skipped:
        lines.append(f"skipped, as they have no prompt: {preview(skipped)}")
    places = {(options.images / file).parent for file in prompted} | {options.output}
    nested = [
        path.name
        for path in unread_folders(options.images)
        if not any(place.resolve().is_relative_to(path.resolve()) for place in places)
    ]
    if nested:
        lines.append(f"not looked into, as they are folders: {preview(nested)}")
    if prompts.crowds:
        lines.append(f"skipped, as they are crowds: {prompts.crowds} annotations")
    reasons = [f"failed: {what}: {why}" for o in failed for what, why in o.reasons.items()]
    lines += reasons[:LISTED_FAILURES]
    if len(reasons) > LISTED_FAILURES:
        lines.append(f"failed: {len(reasons) - LISTED_FAILURES} more")
    tell("".join(f"{one_line(line)}\n" for line in lines))
    if reasons:
        sys.stdout.flush()
        raise SystemExit(1)


def _count_line(what: str, done: int, failed: int, skipped: int, before: int = 0) -> str:
    """Return a line with a sum and its parts."""
    total = done + failed + skipped
    earlier = f" ({before} of them before)" if before else ""
    rest = f", {skipped} skipped" if skipped else ""
    return f"{total} {what}{'' if total == 1 else 's'}: {done} done{earlier}, {failed} failed{rest}"


def _is_semantic(options: argparse.Namespace) -> bool:
    """Return whether the model is for classes, by its description; refuse clicks for one."""
    semantic = task_of(description_for(options.model)) == "semantic"
    if semantic and (options.clicks or options.boxes):
        raise UsageError(
            f"--model {options.model}: is for semantic segmentation and takes no click or box"
        )
    return semantic


def _load_network(options: argparse.Namespace) -> Network:
    return create_model(options.model, pretrained=True).to(memory_format=torch.channels_last)


def _build_task(network: Network, batch_size: int) -> Prediction:
    kind: type[Prediction] = find(TASKS[network.task].prediction)
    return kind(network, batch_size).eval()
