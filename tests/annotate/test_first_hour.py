"""What an annotator meets in the first hour: sizes of first masks, crumbs, boxes."""

from __future__ import annotations

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image

from probseg import Predictor
from probseg.annotate.answers import ModelHost
from probseg.annotate.steps import as_step
from probseg.images import read_image
from probseg.interact import InteractionLoop, Session
from probseg.interact import begin as begin_interaction
from probseg.interact.steps import tidy
from probseg.types import BoxStep, Click
from support.annotate_client import MODEL, again, begin, draw_photographs
from support.pages import Disks


@pytest.fixture(scope="module")
def model_host():
    return ModelHost(MODEL)


@pytest.fixture
def client(tmp_path, model_host):
    Image.fromarray(skimage.data.cat()).save(tmp_path / "cat.png")
    client = begin(tmp_path, model_host)
    yield client
    client.sessions.close()


def test_the_first_mask_is_answered_at_each_of_its_scales_in_turn(client):
    header, first = client.click(220, 150)
    assert header["current"]["scales"] == 3
    assert 0 < header["current"]["quality"] <= 1
    masks = [first]
    while len(masks) == 1 or not np.array_equal(masks[-1], first):
        assert len(masks) < 4, "the third press is back at the first mask"
        masks.append(client.act({"type": "scale"})[1])
    sizes = sorted({int(mask.sum()) for mask in masks})
    assert len(sizes) == len(masks) - 1 > 1
    while "no smaller" not in (refusal := _refused_or_none(client, -1) or ""):
        pass
    assert "no smaller mask" in refusal
    assert int(client.mask().sum()) == sizes[0]
    assert int(client.act({"type": "scale", "by": 1})[1].sum()) == sizes[1]
    assert int(client.act({"type": "undo"})[1].sum()) == sizes[0]
    anew = again(client)
    assert int(anew.mask().sum()) == sizes[0], "a server that starts anew knows the scale"
    prompts = anew.sessions.store.open_object("cat.png").steps
    predictor = Predictor.from_pretrained(MODEL)
    predictor.set_image(read_image(anew.sessions.photographs[0].path))
    for prompt in prompts:
        answer = predictor.session.add(as_step(prompt))
    assert np.array_equal(tidy(answer.mask.binary, answer.state.clicks), anew.mask())
    anew.click(10, 10, False)
    assert "before further ones" in anew.refused({"type": "scale"})
    anew.sessions.close()


def _refused_or_none(client, by):
    body = {"action": {"type": "scale", "by": by}}
    body["revision"] = client.get(client.path())["revision"]
    answer = client.http.post(f"{client.path()}/actions", json=body)
    return None if answer.status_code == 200 else answer.json()["error"]


def test_crumbs_and_tiny_holes_go_unless_somebody_clicked_on_them():
    mask = np.zeros((120, 140), np.bool_)
    mask[10:90, 10:90] = True
    mask[40:43, 40:43] = mask[60:80, 60:80] = False  # a tiny hole and a large one
    mask[100:103, 100:103] = mask[100:115, 10:25] = True  # a crumb and a part
    tidied = tidy(mask, [Click(15, 15)])
    assert tidied[41, 41]
    assert not tidied[70, 70]
    assert not tidied[101, 101]
    assert tidied[110, 15]
    kept = tidy(mask, [Click(101, 101), Click(41, 41, False)])
    assert np.array_equal(kept, mask)
    whole = np.ones((20, 30), np.bool_)
    assert np.array_equal(tidy(whole, []), whole)
    assert not tidy(~whole, []).any()


class Crumbs(Disks):
    """Answers with a disk, a crumb beside it, and nothing at all in a box."""

    def _logits(self, image, prompts):
        logits = super()._logits(image, prompts._replace(boxes=prompts.boxes * float("nan")))
        if len(prompts.points[0]):
            logits[2:4, 2:4] = 3.0
        return logits


def test_masks_of_the_page_are_tidy_and_read_ones_stay_as_they_are(tmp_path):
    folder, brought = draw_photographs(tmp_path / "photos", 2), np.zeros((96, 128), np.uint8)
    brought[30:60, 30:60], brought[90, 90] = 255, 255
    (folder / "masks").mkdir()
    Image.fromarray(brought).save(folder / "masks" / "photo1_1.png")
    model_host = ModelHost(MODEL)
    model_host.zoom, model_host.model = None, Crumbs()
    client = begin(folder, model_host)
    _, mask = client.click(64, 48)
    assert mask[48, 64]
    assert not mask[2, 2]
    stroke = {"type": "brush", "radius": 1, "points": [[100.5, 5.5]], "positive": True}
    assert client.act(stroke)[1][5, 100], "what was drawn by hand is no crumb"
    settings = client.http.post("/api/settings", json={"tidy": False}).json()["settings"]
    assert settings["tidy"] is False
    assert client.mask()[2, 2]
    client.http.post("/api/settings", json={"tidy": True})
    number = client.get(client.path(1))["objects"][0]["id"]
    _, mask = client.act({"type": "reopen", "object": number}, n=1)
    assert np.array_equal(mask, brought == 255)
    assert not again(client).mask()[2, 2]
    client.sessions.close()


def test_a_box_is_not_answered_by_nothing():
    state = begin_interaction(torch.zeros(3, 80, 100, dtype=torch.uint8))
    session = Session(InteractionLoop(Crumbs()), state)
    mask = session.add(BoxStep((20, 20, 60, 60))).mask.binary
    assert mask[40, 40]
    assert session.clicks == ()
    assert session.add(Click(45, 40)).state.clicks == (Click(45, 40),)
