"""The recipe for many machines: what its workers write, without the engine that starts them."""

import importlib.util
import json
from pathlib import Path

import fsspec
import pytest
import torch

from probseg.zoo import store
from support.fakes import draw_scene, micro_model, save
from support.micro import described
from support.runs import command

RECIPE = Path(__file__).parent.parent / "docs" / "recipes" / "shards.py"
RESULTS = "memory://recipe/results"


@pytest.fixture
def recipe():
    spec = importlib.util.spec_from_file_location("shards", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    fsspec.filesystem("memory").rm("/recipe", recursive=True)


def test_shards_together_have_the_masks_of_one_folder(recipe, tmp_path):
    torch.manual_seed(1)  # whose masks are neither empty nor full
    store.save(micro_model("micro_csa"), described("micro_csa"), tmp_path / "net")
    for n in range(5):
        save(draw_scene(48, 64, seed=n)[0], tmp_path / "photos" / f"{n}.png")
    (tmp_path / "photos" / "1.png").write_bytes(b"broken")
    boxes = [{"box": [5, 6, 40, 40]}, {"box": [20, 6, 60, 40]}]
    prompts = {f"{n}.png": boxes for n in [*range(5), "absent"]}
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    model = ("--model", str(tmp_path / "net"))
    whole = ("predict", tmp_path / "photos", "--prompts", tmp_path / "prompts.json", *model)
    with pytest.raises(SystemExit):
        command(*whole, "--output", tmp_path / "whole")

    photographs, shards = f"file://{tmp_path}/photos", "memory://recipe/shards"
    names = recipe.split(tmp_path / "prompts.json", shards, photographs=2)
    assert names == recipe.waiting(shards, RESULTS) == ["00000.json", "00001.json", "00002.json"]
    with pytest.raises(SystemExit, match="count as shards"):
        recipe.split(tmp_path / "prompts.json", shards, photographs=5)
    first = recipe.predict_shard(names[0], shards, photographs, RESULTS, model)
    assert (first["shard"], first["status"]) == ("00000.json", 1)
    assert "2 photographs: 1 done, 1 failed" in first["text"]
    wrong = recipe.predict_shard(names[1], shards, photographs, RESULTS, ["--model", "absent"])
    assert wrong["status"] == 2
    assert "absent" in wrong["text"]
    assert recipe.waiting(shards, RESULTS) == names[1:]  # a run that was stopped goes on there
    statuses = [
        recipe.predict_shard(name, shards, photographs, RESULTS, model)["status"]
        for name in recipe.waiting(shards, RESULTS)
    ]
    assert statuses == [0, 1]
    assert not recipe.waiting(shards, RESULTS)
    storage = fsspec.filesystem("memory")
    written = {Path(path).name: storage.cat(path) for path in storage.glob("/recipe/**/*.png")}
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole" / "masks").iterdir()}
    assert written == files
    assert len(files) == 8
    assert "failed: absent.png: " in storage.cat("/recipe/results/00002/summary.txt").decode()


@pytest.mark.parametrize("text", ['{"images": [], "annotations": []}', "image,x,y", "[]"])
def test_prompts_of_another_form_are_refused(recipe, tmp_path, text):
    (tmp_path / "prompts").write_text(text)
    with pytest.raises(SystemExit, match="neither CSV nor COCO"):
        recipe.split(tmp_path / "prompts", "memory://recipe/shards", photographs=2)
