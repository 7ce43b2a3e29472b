"""The wheel: what is in it, and that it works away from the checkout."""

import json
import os
import subprocess
import sys
import zipfile

import pytest


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
    """A folder into which the wheel was installed."""
    target = tmp_path_factory.mktemp("installed")
    offline = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    return target


def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_configurations_and_zoo_are_inside(wheel, repository):
    inside = files(wheel)
    for room in ("configs", "zoo"):
        shipped = [path for path in (repository / room).rglob("*") if path.is_file()]
        assert shipped, f"{repository / room} is empty"
        for path in shipped:
            assert f"probseg/assets/{path.relative_to(repository).as_posix()}" in inside


def test_all_modules_and_their_data_are_inside(wheel, repository):
    inside = files(wheel)
    for path in (repository / "probseg").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(repository).as_posix() in inside
    assert "probseg/py.typed" in inside


def test_nothing_else_is_inside(wheel):
    tops = {name.split("/")[0] for name in files(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"probseg"}
    assert not any("test" in name or "__pycache__" in name for name in files(wheel))


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        (scripts,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
        assert "probseg = probseg.cli:main" in archive.read(scripts).decode()
        assert any(n.endswith("/licenses/LICENSE") for n in archive.namelist())
    assert "Name: probseg" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "lightning!=2.6.2,!=2.6.3,<3,>=2.6" in metadata


def test_an_installed_package_finds_its_own_files_and_needs_no_network(installed, tmp_path):
    code = """
import json, sys
import probseg
from probseg.cli.trainer import with_shipped_configs
from probseg.paths import configs_dir, zoo_dir
photo = __import__("probseg.data").data.SamplePhotos()[0].image
predictor = probseg.Predictor.from_pretrained("lite0_unet_prop")
predictor.set_image(photo)
print(json.dumps({
    "same size": predictor.predict([probseg.Click(9, 9)]).binary.shape == photo.shape[:2],
    "package": probseg.__file__,
    "configs": str(configs_dir()),
    "zoo": str(zoo_dir()),
    "models": probseg.list_models(),
    "pretrained": probseg.list_models(pretrained=True),
    "quickstart": with_shipped_configs(["configs/quickstart.yaml"]),
    "photos": len(__import__("probseg.data").data.SamplePhotos()),
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(installed),
            "OMP_NUM_THREADS": "1",
            "PROBSEG_OFFLINE": "1",
            "PROBSEG_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["package"] == str(installed / "probseg" / "__init__.py")
    assert told["configs"] == str(installed / "probseg" / "assets" / "configs")
    assert told["zoo"] == str(installed / "probseg" / "assets" / "zoo")
    assert "lite0_unet_prop" in told["models"]
    assert "lite0_unet_prop.objects" in told["pretrained"]
    assert told["same size"]
    assert not (tmp_path / "cache").exists()
    assert told["quickstart"] == [f"{told['configs']}/quickstart.yaml"]
    assert told["photos"] > 0
