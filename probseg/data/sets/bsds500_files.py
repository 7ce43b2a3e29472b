"""Conversion of the BSDS500 archive to the files of `probseg.data.BSDS500`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from probseg.data.sets.mat_files import broken_as_data_error, load_mat
from probseg.errors import DataError

IN_GRABCUT = (
    21077, 24077, 37073, 65019, 69020, 86016, 106024, 124084, 153077, 153093, 181079, 189080,
    208001, 209070, 227092, 271008, 304074, 326038, 376043, 388016,
)  # fmt: skip
"""Photographs of BSDS500 that are in GrabCut, which calls 124084 by mistake 124080."""

IN_BERKELEY = (
    3096, 8023, 12003, 21077, 23080, 24077, 25098, 35008, 35010, 35058, 37073, 38082, 38092,
    41033, 42012, 42049, 42078, 43070, 43074, 56028, 58060, 62096, 65019, 65074, 65132, 66053,
    69020, 69040, 78004, 85048, 86016, 89072, 90076, 92059, 97033, 101085, 101087, 102061,
    106024, 108005, 108070, 108082, 109053, 118035, 123074, 124084, 126007, 130026, 134035,
    135037, 138078, 151087, 153077, 157055, 160068, 163014, 163062, 167062, 170057, 175043,
    181079, 187029, 188063, 189011, 189080, 196015, 196073, 198023, 208001, 209070, 216053,
    216066, 227092, 229036, 239007, 253027, 253036, 253055, 268002, 271031, 271035, 285079,
    286092, 291000, 293029, 296059, 299091, 300091, 302008, 304034, 304074, 310007, 372047,
    376020, 376043, 388016,
)  # fmt: skip
"""Photographs of BSDS500 that are in Berkeley."""


def convert(folder: Path) -> None:
    """Replace `groundTruth/` by `labels/` and write the list of test photographs.

    The maps of `groundTruth/<split>/<id>.mat` become `labels/<split>/<id>_a<k>.png` with the
    same region numbers, one file per annotator k; `splits/exclude_from_training.tsv` names the
    photographs that GrabCut and Berkeley share with BSDS500.

    Args:
        folder: The folder `BSDS500/data` of the archive.

    Raises:
        DataError: If a file of maps cannot be read, or there are none.
    """
    files = sorted((folder / "groundTruth").glob("*/*.mat"))
    if not files:
        msg = f"{folder / 'groundTruth'}: no .mat files of BSDS500; fetch the archive again"
        raise DataError(msg)
    for path in files:
        place = folder / "labels" / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        with broken_as_data_error(path, "maps of BSDS500"):
            maps = [
                entry["Segmentation"][0, 0] for entry in load_mat(path, "groundTruth").ravel()
            ]  # each (H, W)
        for k, regions in enumerate(maps):
            if regions.max() > 255:
                msg = f"{path}: {regions.max()} regions, but the maps of BSDS500 have at most 255"
                raise DataError(msg)
            Image.fromarray(regions.astype(np.uint8)).save(place / f"{path.stem}_a{k}.png")
    shutil.rmtree(folder / "groundTruth")
    rows = ["bsds_id\tin_grabcut\tin_berkeley"]
    rows += [
        f"{photo}\t{int(photo in IN_GRABCUT)}\t{int(photo in IN_BERKELEY)}"
        for photo in sorted({*IN_GRABCUT, *IN_BERKELEY})
    ]
    (folder / "splits").mkdir(exist_ok=True)
    text = "\n".join(rows) + "\n"
    (folder / "splits" / "exclude_from_training.tsv").write_text(text, encoding="utf-8")
