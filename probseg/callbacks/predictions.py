"""Files of predicted masks, photograph by photograph: a killed prediction can go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities.exceptions import SIGTERMException
from PIL import Image

from probseg.formats import coco, png, run_lengths
from probseg.formats.colours import distinct_colours, overlay
from probseg.formats.results import MASKS, OVERLAYS
from probseg.paths import replacing, write_text
from probseg.tasks.prediction import Answer, Job

ANNOTATIONS = "annotations.json"


class PredictionWriter(L.Callback):
    """Writes the answers of each photograph, and at the end what all of them make together.

    `.probseg/FILE.json` says of each photograph that all its files are there, and with which
    prompts and network they were made.

    Args:
        folder: Of all files.
        jobs: All photographs, finished ones too.
        categories: Ids of the labels.
        formats: Some of `FORMATS`.
    """

    def __init__(
        self,
        folder: Path,
        jobs: Sequence[Job],
        categories: Mapping[str, int],
        formats: Sequence[str],
    ) -> None:
        self.folder = folder
        self.jobs = jobs
        self.categories = categories
        self.formats = formats

    def finished(self, job: Job) -> bool:
        """Return whether all files of a photograph are there, made with these prompts."""
        record = self._record(job)
        return record.get("digest") == job.digest and all(
            (self.folder / file).is_file() for file in record["files"]
        )

    def on_predict_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401 (Lightning's signature)
        batch: Any,  # noqa: ANN401
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write the files of the photographs, and then that they are there.

        Raises:
            SIGTERMException: If the process is to end, which Lightning only notes.
        """
        for answer in outputs:
            self._write(answer)
        if trainer.received_sigterm:
            raise SIGTERMException

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
                        "category_id": self.categories[prompted.label],
                        "segmentation": rle,
                        **coco.measures(rle),
                    }
                )
        coco.write(self.folder / ANNOTATIONS, images, annotations, coco.numbered(self.categories))

    def failures(self) -> Iterator[tuple[str, str]]:
        """Yield photograph, and object if it is one, with the reason why there is no answer."""
        for job in self.jobs:
            record = self._record(job)
            for key, reason in record.get("failed", {}).items():
                yield f"{job.image.file}, object {key}" if key else job.image.file, reason

    def _write(self, answer: Answer) -> None:
        job, pixels = answer.photo.job, answer.photo.pixels
        if pixels is None:
            self._keep(job, {"digest": None, "failed": {"": answer.photo.error}})
            return
        stem = Path(job.image.file).with_suffix("")
        files = []
        if MASKS in self.formats:
            if answer.labels is not None:
                files.append(Path(MASKS, f"{stem}.png"))
                png.write_index(self.folder / files[-1], answer.labels, distinct_colours(256))
            for place, rle in answer.masks.items():
                files.append(Path(MASKS, f"{stem}_{place + 1}.png"))
                png.write_binary(self.folder / files[-1], run_lengths.decode(rle))
        if OVERLAYS in self.formats:
            files.append(Path(OVERLAYS, f"{stem}.png"))
            write_picture(self.folder / files[-1], picture(answer))
        names = [file.as_posix() for file in files]
        for file in set(self._record(job).get("files", ())) - set(names):
            (self.folder / file).unlink(missing_ok=True)  # of objects that are no more
        record = {
            "digest": job.digest,
            "size": pixels.shape[:2],
            "files": names,
            "masks": answer.masks,
            "failed": answer.failed,
        }
        self._keep(job, record)

    def _keep(self, job: Job, record: Mapping[str, Any]) -> None:
        write_text(self._place(job), json.dumps(record))

    def _record(self, job: Job) -> dict[str, Any]:
        place = self._place(job)
        if not place.is_file():
            return {}
        record: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return record

    def _place(self, job: Job) -> Path:
        return self.folder / ".probseg" / f"{job.image.file}.json"


def picture(answer: Answer) -> npt.NDArray[np.uint8]:
    """Lay the masks of an answer over its photograph, each in its colour.

    Returns:
        RGB, uint8, shape `(H, W, 3)`.
    """
    shown = answer.photo.pixels
    assert shown is not None, "an answer has a photograph"
    colours = distinct_colours(256)
    if answer.labels is not None:
        everywhere = np.ones(answer.labels.shape, dtype=np.bool_)
        return overlay(shown, colours[answer.labels], everywhere)
    for place, rle in answer.masks.items():
        shown = overlay(shown, colours[place % len(colours)], run_lengths.decode(rle))
    return shown


def write_picture(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    """Write RGB, uint8 of shape `(H, W, 3)`, as a PNG; the file appears whole."""
    with replacing(path) as unfinished:
        Image.fromarray(pixels).save(unfinished, "PNG")
