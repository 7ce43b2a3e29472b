"""The wheel: what is in it, and that it works away from the checkout."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, repository):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*command, "--outdir", str(folder), str(repository)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder into which the wheel was unpacked, as pip installs a package without extensions."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_the_package_and_its_assets_are_inside_and_nothing_else(wheel, repository):
    assert wheel.stat().st_size <= 40e6  # of which four models have 37
    expected = {"probseg/py.typed"}
    for room in ("probseg", "configs", "zoo"):
        paths = [
            path.relative_to(repository).as_posix()
            for path in (repository / room).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]
        assert paths, f"{repository / room} is empty"
        expected |= {path if room == "probseg" else f"probseg/assets/{path}" for path in paths}
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        read = {name.rpartition("/")[2]: name for name in inside if ".dist-info/" in name}
        metadata, entries = (
            archive.read(read[name]).decode() for name in ("METADATA", "entry_points.txt")
        )
    assert {name for name in inside if ".dist-info/" not in name} == expected
    assert read["LICENSE"].endswith("/licenses/LICENSE")
    assert "probseg = probseg.cli:main" in entries
    assert "probseg = probseg.annotate.tools:napari.yaml" in entries
    for line in (
        "Name: probseg",
        "License-Expression: Apache-2.0",
        "lightning!=2.6.2,!=2.6.3,<3,>=2.6",
    ):
        assert line in metadata


def test_an_installed_package_finds_its_own_files_and_needs_no_network(installed, tmp_path):
    code = """
import json
import probseg
from probseg.cli.invocation import with_shipped_configs
from probseg.data import SamplePhotos
from probseg.paths import configs_dir, zoo_dir
photos = SamplePhotos()
predictor = probseg.Predictor.from_pretrained("lite2_unet_prop")
predictor.set_image(photos[0].image)
print(json.dumps({
    "shapes": [predictor.predict([probseg.Click(9, 9)]).binary.shape, photos[0].mask.shape],
    "places": list(map(str, (probseg.__file__, configs_dir(), zoo_dir()))),
    "models": probseg.list_models(),
    "pretrained": probseg.list_models(pretrained=True),
    "quickstart": with_shipped_configs(["configs/quickstart.yaml"]),
}))
"""
    environment = {
        "PYTHONPATH": str(installed),
        "OMP_NUM_THREADS": "1",
        "PROBSEG_OFFLINE": "1",
        "PROBSEG_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    package = installed / "probseg"
    assets = package / "assets"
    expected = [package / "__init__.py", assets / "configs", assets / "zoo"]
    assert found["places"] == list(map(str, expected))
    assert found["quickstart"] == [str(assets / "configs" / "quickstart.yaml")]
    assert "lite2_unet_prop" in found["models"]
    assert "lite2_unet_prop.objects" in found["pretrained"]
    assert found["shapes"][0] == found["shapes"][1]
    assert not (tmp_path / "cache").exists()
