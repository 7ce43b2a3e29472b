"""Files of predicted masks, photograph by photograph: a killed prediction can continue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,  # pydantic needs it before Python 3.12
)

import lightning as L
import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities.exceptions import SIGTERMException
from PIL import Image
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from probseg.callbacks.base import end_together
from probseg.data.prompts import PromptedImage
from probseg.errors import UsageError
from probseg.formats import COCO, MASKS, OVERLAYS, coco, png, run_lengths
from probseg.formats.colours import distinct_colours, overlay
from probseg.formats.mask_names import mask_names, stem_of
from probseg.images import MAX_PIXELS
from probseg.paths import leads_out, replacing, write_text
from probseg.tasks.prediction import Job, PhotoResult
from probseg.texts import count, read_json

ANNOTATIONS = "annotations.json"


class Outcome(NamedTuple):
    """What came of a photograph."""

    file: str  # its path inside the folder of photographs
    done: int  # objects with a mask
    failed: int  # objects without
    reasons: Mapping[str, str]  # of failures, by photograph or object; empty where all are done


_Side = Annotated[int, Field(ge=1, le=MAX_PIXELS)]


class _RunLengths(TypedDict):
    size: tuple[_Side, _Side]
    counts: Annotated[str, Field(pattern="^[0-o]*[0-O]$")]  # others end the process in pycocotools


class _Unfinished(TypedDict):
    digest: None
    files: list[str]
    failed: NotRequired[dict[str, str]]


class _Finished(TypedDict):
    digest: str
    files: list[str]
    size: tuple[_Side, _Side]
    masks: dict[str, _RunLengths | None]
    qualities: NotRequired[dict[str, float]]
    failed: dict[str, str]


# schema of a photograph's record, which may be in a folder that others have sent
_RECORD: TypeAdapter[Any] = TypeAdapter(_Finished | _Unfinished)


class PredictionWriter(L.Callback):
    """Writes the answers of each photograph, and at the end the files that cover all of them.

    Threads write the files of a batch while the next one is answered.

    `.probseg/FILE.json` says of each photograph that all its files are there, and with which
    prompts and network they were made; `.probseg/.annotations` lists the photographs of
    `annotations.json`. `jobs` are all photographs, finished ones too; `categories` are names of
    the classes by their ids; the files of `threads` photographs are written at once.
    """

    def __init__(
        self,
        folder: Path,
        photographs: Path,
        jobs: Sequence[Job],
        categories: Mapping[int, str],
        formats: Sequence[str],
        threads: int = 1,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._writing: list[Future[None]] = []
        self.folder = folder
        self.jobs = jobs
        self.categories = categories
        self.formats = formats
        self._names = mask_names(photographs, [stem_of(job.image.file) for job in jobs])
        self._writers: dict[str, str] = {}
        for job in jobs:
            for file in () if job.refusal else self._planned(job):
                self._writers.setdefault(file, job.image.file)

    def finished(self, job: Job) -> bool:
        """Return whether all files of a photograph are there, made with these prompts."""
        record = self._record(job)
        files = {file for file in record.get("files", ()) if self._is_asked(file)}
        return (
            record.get("digest") == job.digest
            and files <= set(self._planned(job))
            and all((self.folder / file).is_file() for file in files)
        )

    def refuse_foreign_files(self) -> None:
        """Raise a `UsageError` rather than replace files, or annotations, of other work."""
        places = {(self.folder / file).parent for file in self._writers}
        for place in (*places, *(self._place(job).parent for job in self.jobs)):
            if leads_out(place, self.folder):
                raise UsageError(
                    f"--output {self.folder}: {place} is a link out of the folder; remove it"
                )
        own = {file for job in self.jobs for file in self._record(job).get("files", ())}
        strangers = [
            file for file in self._writers if file not in own and (self.folder / file).exists()
        ]
        if strangers:
            raise UsageError(
                f"--output {self.folder}: {strangers[0]} ({len(strangers)} such files) is there "
                "already, and not from these photographs; choose another folder"
            )
        if COCO in self.formats and (self.folder / ANNOTATIONS).exists():
            listed = None
            with suppress(ValueError):  # it is missing, or something else has changed it
                listed = read_json(self._list)
            if not isinstance(listed, list):
                raise UsageError(
                    f"--output {self.folder}: {ANNOTATIONS} is there already, and from no "
                    "prediction; choose another folder"
                )
            others = sorted(set(listed).difference(job.image.file for job in self.jobs))
            if others:
                raise UsageError(
                    f"--output {self.folder}: {ANNOTATIONS} has {count(len(others), 'photograph')} "
                    f"not among these, {others[0]!r} for instance; rename it, or choose another "
                    "folder"
                )

    def on_predict_start(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Handle SIGTERM."""
        end_together(trainer)

    def on_predict_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401 (Lightning's signature)
        batch: Any,  # noqa: ANN401
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Begin to write the files of the photographs, once the batch before is written.

        Raises:
            OSError: If files of the batch before cannot be written.
            SIGTERMException: If the process is to end, which Lightning only notes.
        """
        self._settle()
        self._writing = [self._pool.submit(self._write, result) for result in outputs]
        if trainer.received_sigterm:
            self._settle()
            raise SIGTERMException

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Wait until the last batch is written.

        Raises:
            OSError: If files of it cannot be written.
        """
        self._settle()

    def _settle(self) -> None:
        """Wait for all files of the batch, so that none stays a half one; then raise the error."""
        wait(self._writing)
        for written in self._writing:
            written.result()
        self._writing = []

    def write_annotations(self) -> None:
        """Write one COCO file from all that is recorded, once all processes have ended."""
        images: list[coco.Entry] = []
        annotations: list[coco.Entry] = []
        for number, job in enumerate(self.jobs, start=1):
            record = self._record(job)
            if record.get("digest") != job.digest:
                continue
            key = number if job.image.key is None else job.image.key
            height, width = record["size"]
            images.append(
                {"id": key, "file_name": job.image.file, "height": height, "width": width}
            )
            for place, rle in record["masks"].items():
                prompted = job.image.objects[int(place)]
                own = None if job.image.key is None else int(prompted.key)
                annotations.append(
                    {
                        "id": len(annotations) + 1 if own is None else own,
                        "image_id": key,
                        "category_id": prompted.category,
                        "segmentation": rle,
                        **coco.measures(rle),
                        "score": record["qualities"][place],
                    }
                )
        categories = [{"id": key, "name": name} for key, name in self.categories.items()]
        write_text(self._list, json.dumps([job.image.file for job in self.jobs]))
        coco.write(self.folder / ANNOTATIONS, images, annotations, categories)

    def outcomes(self) -> Iterator[Outcome]:
        """Yield what has become of each photograph, as the files say."""
        for job in self.jobs:
            record, objects = self._record(job), len(job.image.objects)
            failed: dict[str, str] = record.get("failed", {})
            if "" in failed:
                yield Outcome(job.image.file, 0, objects, {job.image.file: failed[""]})
            elif self.finished(job):
                reasons = {f"{job.image.file}, object {key}": why for key, why in failed.items()}
                assert len(record["masks"]) + len(failed) == objects, "one or the other"
                yield Outcome(job.image.file, len(record["masks"]), len(failed), reasons)
            else:
                reason = "has no result; all processes must see the same folders"
                yield Outcome(job.image.file, 0, objects, {job.image.file: reason})

    def _write(self, result: PhotoResult) -> None:
        """Write the files of a photograph, and then that they are there."""
        job, pixels = result.photo.job, result.photo.pixels
        before = set(self._record(job).get("files", ()))
        record: dict[str, Any] = {"digest": None, "failed": {"": result.photo.error}, "files": []}
        if pixels is not None:
            self._keep(job, {"digest": None, "files": sorted(before.union(self._planned(job)))})
            record = {
                "digest": job.digest,
                "size": pixels.shape[:2],
                "files": list(self._write_files(result)),
                "masks": {
                    place: run_lengths.encode(region) if COCO in self.formats else None
                    for place, region in result.masks.items()
                },
                "qualities": result.qualities,
                "failed": result.failed,
            }
        others = {file for file in before if not self._is_asked(file)}
        record["files"] = sorted({*record["files"], *others})
        for file in before.difference(record["files"]):  # of objects that are no more
            own = self._writers.get(file, job.image.file) == job.image.file
            if own and not leads_out(self.folder / file, self.folder):
                (self.folder / file).unlink(missing_ok=True)
        self._keep(job, record)

    def _is_asked(self, file: str) -> bool:
        """Whether a file is of the formats of this call; those of earlier ones stay."""
        return file.partition("/")[0] in self.formats

    def _write_files(self, result: PhotoResult) -> Iterator[str]:
        """Write the files of a photograph; yields their paths inside the folder."""
        image = result.photo.job.image
        masks = self._masks(image)
        if MASKS in self.formats and result.labels is not None:
            png.write_index(self.folder / masks[0], result.labels, distinct_colours(256))
            yield masks[0]
        for place, region in result.masks.items() if MASKS in self.formats else ():
            png.write_binary(self.folder / masks[place], region.mask())
            yield masks[place]
        if OVERLAYS in self.formats:
            write_picture(self.folder / _overlay(image), picture(result))
            yield _overlay(image)

    def _planned(self, job: Job) -> list[str]:
        """Return the paths of the files of a photograph, if no object fails."""
        masks = self._masks(job.image) if MASKS in self.formats else ()
        return [*masks, *([_overlay(job.image)] if OVERLAYS in self.formats else ())]

    def _masks(self, image: PromptedImage) -> list[str]:
        """Return the paths of the masks of a photograph, or of its class map."""
        stem, objects = stem_of(image.file), len(image.objects)
        return [f"{MASKS}/{name}.png" for name in self._names.first(stem, objects) or (stem,)]

    def _keep(self, job: Job, record: Mapping[str, Any]) -> None:
        write_text(self._place(job), json.dumps(record))

    def _record(self, job: Job) -> dict[str, Any]:
        try:
            record: dict[str, Any] = _RECORD.validate_json(self._place(job).read_bytes())
        except (FileNotFoundError, ValueError):  # or something else has changed it
            return {}
        return record

    @property
    def _list(self) -> Path:
        return self.folder / ".probseg" / ".annotations"  # no photograph begins with a dot

    def _place(self, job: Job) -> Path:
        return self.folder / ".probseg" / f"{job.image.file}.json"


def _overlay(image: PromptedImage) -> str:
    return f"{OVERLAYS}/{stem_of(image.file)}.png"


def picture(result: PhotoResult) -> npt.NDArray[np.uint8]:
    """Lay the masks of a result over its photograph, each in its colour: RGB, `(H, W, 3)`."""
    shown = result.photo.pixels
    assert shown is not None, "only what was read is drawn"
    colours = distinct_colours(256)
    if result.labels is not None:
        everywhere = np.ones(result.labels.shape, dtype=np.bool_)
        return overlay(shown, colours[result.labels], everywhere)
    for place, region in result.masks.items():
        shown = overlay(shown, colours[place % len(colours)], region.mask())
    return shown


def write_picture(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    """Write RGB, uint8 of shape `(H, W, 3)`, as a PNG; the file appears whole."""
    with replacing(path) as unfinished:
        Image.fromarray(pixels).save(unfinished, "PNG")
