"""The files of a web page that runs exported graphs in the browser, without a server program."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from PIL import Image
from skimage.data import coffee

from probseg.errors import UsageError
from probseg.page import SHARED

RUNTIME = "onnxruntime-web@1.30.0"
"""npm package of ONNX Runtime Web, MIT licence."""

RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
"""Its files for graphs on the processor."""

PAGE = Path(__file__).parent / "page"

OWN_FILES = (
    *(PAGE / name for name in ("index.html", "page.js", "runner.js")),
    *(SHARED / name for name in ("canvas.js", "page.css", "icon.svg")),
)


def write_page(folder: Path) -> None:
    """Write the page, ONNX Runtime Web and a photograph into a folder.

    Args:
        folder: Existing folder of the graphs.

    Raises:
        UsageError: If npm is not installed, or cannot fetch ONNX Runtime Web.
    """
    npm = shutil.which("npm")
    if npm is None:
        msg = f"npm, which fetches {RUNTIME}, must be installed, got none; install Node.js"
        raise UsageError(msg)
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", RUNTIME, "--pack-destination", temporary]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = (
                f"`npm pack {RUNTIME}` must succeed, got status {done.returncode}: "
                f"{done.stderr.strip()[-500:]}; check the network and npm's settings"
            )
            raise UsageError(msg)
        (packed,) = Path(temporary).glob("*.tgz")
        with tarfile.open(packed) as archive:
            for name in RUNTIME_FILES:
                found = archive.extractfile(f"package/dist/{name}")
                assert found is not None, "a file"
                (folder / name).write_bytes(found.read())
    for path in OWN_FILES:
        shutil.copyfile(path, folder / path.name)
    Image.fromarray(coffee()).save(folder / "photo.png")
