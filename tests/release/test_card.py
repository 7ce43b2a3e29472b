"""Cards as people and the Hugging Face hub read them."""

import dataclasses

import pytest
import yaml
from huggingface_hub import ModelCard

from probseg.release.card import BEGIN, END, render_card, render_table
from probseg.release.evaluations import Evaluation, all_figures, read_evaluations
from probseg.zoo.index import CARD, WEIGHTS, Metric, read_index
from support.runs import command
from support.zoos import PUBLISHED, add_model

PROTOCOL = {"name": "ritm", "version": 1, "description": "Clicks alone.", "box": False}

CLICKS = Evaluation(
    key="Toy/ritm+flip=True",
    dataset="Toy",
    protocol=PROTOCOL,
    options={"seed": 4, "adaptation": None},
    data=None,
    count={"objects": 14, "trials": 3},
    figures={"miou@1": Metric(0.51234, 0.0123), "noc@90": Metric(7.567, 0.5)},
    parity={"miou@1": -0.0004, "noc@90": 0.0},
)
CLASSES = Evaluation(
    key="CamVid",
    dataset="CamVid",
    protocol=None,
    options={},
    data=None,
    count={"photographs": 233},
    figures={"miou": Metric(0.6123, None), "pixel_accuracy": Metric(0.9, None)},
)


@pytest.fixture
def entry(tmp_path):
    return add_model(tmp_path, "micro_csa.mine", input={"working_size": 192, "previous_mask": True})


def test_front_matter_is_what_the_hub_reads(entry):
    card = ModelCard(render_card(entry, [CLICKS]))
    assert card.data.license == entry.license
    assert card.data.library_name == "probseg"
    assert card.data.pipeline_tag == "image-segmentation"
    assert "interactive-segmentation" in card.data.tags
    assert card.data.model_name == "micro_csa.mine"
    clicks, noc = card.data.eval_results
    for result in (clicks, noc):
        assert result.task_type == "image-segmentation"
        assert (result.dataset_name, result.dataset_config) == ("Toy", "ritm+flip=True")
    assert (clicks.metric_type, clicks.metric_name) == ("mean_iou", "mIoU@1")
    assert clicks.metric_value == pytest.approx(0.5123)
    assert (noc.metric_type, noc.metric_name, noc.metric_value) == ("noc", "NoC@90", 7.567)


def test_tables(entry):
    card = render_card(entry, [CLICKS], [dataclasses.replace(CLICKS, figures={})])
    for told in (entry.description, entry.files[WEIGHTS].sha256, *entry.data, *entry.limits):
        assert told in card
    for told in (
        'from_pretrained("micro_csa.mine")',
        f"```bash\n{entry.recipe}\n```",
        "Seed 7, commit `abcdef`, 0.5 h. one core.",
        "Works at 192 pixels on the longer side",
        "the previous mask is an input, too",
    ):
        assert told in card, told
    unmeasured = render_card(entry, [])
    assert "model-index" not in yaml.safe_load(unmeasured.split("---")[1])
    assert "Nothing was measured on published data." in unmeasured
    assert "**Toy/ritm+flip=True**, 14 objects x 3 trials:" in card
    assert "| data | mIoU@1 | NoC@90 |\n|:--|--:|--:|\n| Toy | 51.2 ± 1.2 | 7.57 ± 0.50 |" in card
    assert "| Toy, untrained |  |  |" in card
    assert "Protocol `ritm` (version 1): Clicks alone. Seed 4." in card
    assert "no figure moved by more than 0.04 points or 0.000 clicks" in card


def test_semantic_models(tmp_path):
    given = {"input": {"num_classes": 11}}
    entry = add_model(tmp_path, "micro_emanet.streets", **given)
    text = render_card(entry, [CLASSES])
    assert "| data | mIoU | pixel accuracy |\n|:--|--:|--:|\n| CamVid | 61.2 | 90.0 |" in text
    assert "**CamVid**, 233 photographs:" in text
    assert 'create_model("micro_emanet.streets", pretrained=True)' in text
    assert "11 classes." in text
    assert "was not checked" in text
    (miou, accuracy) = ModelCard(text).data.eval_results
    assert (miou.metric_type, miou.dataset_config) == ("mean_iou", "default")
    assert accuracy.metric_type == "pixel_accuracy"


@pytest.mark.parametrize("root", PUBLISHED)
def test_cards_are_valid_and_have_the_figures_of_the_index(root):
    for name, entry in read_index(root).items():
        text, evaluations = (root / name / CARD).read_text("utf-8"), read_evaluations(root / name)
        assert text == render_card(entry, evaluations), f"{name}: the card is out of date"
        figures = all_figures(evaluations)
        assert figures
        assert figures.keys() == entry.metrics.keys()
        for key, figure in figures.items():
            assert entry.metrics[key].value == pytest.approx(figure.value, abs=1e-4)
        assert len(ModelCard(text).data.eval_results) == len(figures)


METRICS = {
    "GrabCut/gabbur2021/miou@0": Metric(0.7507, 0.0262),
    "GrabCut/gabbur2021/miou@5": Metric(0.8904, 0.0129),
    "GrabCut/ritm/noc@85": Metric(7.58, None),
    "GrabCut/ritm/noc@90": Metric(11.34, 1.1012),
    "SamplePhotos/ritm/noc@90": Metric(1.0, None),
}


@pytest.fixture
def zoo(tmp_path):
    described = {"description": "A net | of two parts, trained on ellipses.", "metrics": METRICS}
    add_model(tmp_path, "micro_csa.one", parameters=6_900_803, **described)
    return tmp_path


def cells(line):
    return [cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")]


def test_cells(zoo):
    streets = {"CamVid/miou": Metric(0.6123, None), "CamVid/pixel_accuracy": Metric(0.9, None)}
    add_model(zoo, "micro_emanet.streets", metrics=streets)
    header, _, row, streets = render_table(read_index(zoo).values()).splitlines()
    size = read_index(zoo)["micro_csa.one"].nbytes
    assert dict(zip(cells(header), cells(row), strict=True)) == {
        "model": "`micro_csa.one`",
        "task": "interactive",
        "parameters": "6.90 M",
        "MB": f"{size / 1e6:.1f}",
        "mIoU@0": "75.1 ± 2.6",
        "mIoU@5": "89.0 ± 1.3",
        "NoC@85": "7.58",
        "NoC@90": "11.34 ± 1.10",
        "mIoU of classes": "",
        "what it is": "A net / of two parts",
    }
    assert cells(streets)[4:9] == ["", "", "", "", "61.2 (CamVid)"]


def test_a_page_gets_the_table_of_the_index(zoo, capsys):
    page = zoo / "README.md"
    page.write_text(f"# Models\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    table = ("zoo", "table", "--zoo", zoo)
    assert command(*table, "--into", page, "--check") == 2
    assert "README.md: its table is not that of the zoo; run `probseg zoo table --into" in (
        capsys.readouterr().err
    )
    assert "old" in page.read_text()
    assert command(*table, "--into", page) == 0
    assert command(*table, "--into", page, "--check") == 0
    expected = render_table(read_index(zoo).values())
    assert page.read_text() == f"# Models\n\n{BEGIN}\n\n{expected}\n{END}\n\nMore.\n"
    assert command(*table) == 0
    assert capsys.readouterr().out == expected
    for text in ("", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n" * 2):
        page.write_text(text)
        assert command(*table, "--into", page) == 2
        assert "README.md: expected one line <!-- zoo: begin -->" in capsys.readouterr().err
        assert page.read_text() == text
