import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import Dim

import probseg
from probseg import geometry
from probseg.clicks.propagated import seeds
from probseg.errors import UsageError
from probseg.export import ClassRunner, Runner, export_model, folder
from probseg.export import cases as cases_module
from probseg.export import runner as runner_module
from probseg.export.graphs import Replaced, adaptive_avg_pool2d, solve
from probseg.export.parity import measure
from probseg.export.targets import TARGETS
from probseg.geometry import RECOMMENDED_ZOOM
from probseg.interact.photograph import as_photograph
from probseg.models import build, read_preset
from probseg.paths import digest
from probseg.zoo.store import save
from support.fakes import draw_scene
from support.micro import FUSION, described
from support.runs import command, usage_error

SIDE = 64
WITHOUT_ONNX = [name for name in TARGETS["onnx"].packages if importlib.util.find_spec(name) is None]
needs_onnx = pytest.mark.skipif(
    bool(WITHOUT_ONNX), reason=f"{', '.join(WITHOUT_ONNX)} not installed: the extra [export]"
)

CLICKS = [[(20, 31, True)], [(50, 60, False)], [(90.5, 12.25, True), (1, 2, False)]]
"""Asked one after the other."""

ALONE = """
import sys
sys.modules["torch"] = sys.modules["probseg"] = None  # cannot be imported
sys.path.insert(0, sys.argv[1])
import numpy as np
from runner import Runner
runner = Runner(sys.argv[1], threads=1)
runner.set_image(np.load(sys.argv[2]))
answers = [runner.predict(clicks) for clicks in ASKED]
np.save(sys.argv[3], np.stack(answers))
""".replace("ASKED", repr(CLICKS))


def network(name, **changes):
    """A micro network whose classifier adapts to clicks where it can, in evaluation mode."""
    changes |= {"head": {"click_iterations": 2}} if name == "micro_previous" else {}
    model = build(described(name, **changes)).eval()
    model.working_size = SIDE
    return model


def assert_equal_but_for_rounding(parity):
    """Assert equal logits; a random network's zoom may take another window for one answer."""
    assert parity.logit_difference < 1e-5
    assert parity.differing_pixels <= parity.pixels / parity.answers


def picture():
    """An image larger than the working size and the windows of the zoom."""
    return draw_scene(3 * SIDE, 4 * SIDE, seed=3)[0]


class Shifted:
    """Answers as a network does whose logits are larger by a number."""

    def __init__(self, model, more):
        self.model = model
        self.zoom, self.more = RECOMMENDED_ZOOM, more

    def note(self, *hooked):
        self.answer = SimpleNamespace(logits=(hooked[-1][0, 0] + self.more).numpy())

    def set_image(self, image):
        self.predictor = probseg.Predictor(self.model, zoom=self.zoom)
        self.predictor.model.head.register_forward_hook(self.note)
        self.predictor.set_image(image)

    def predict(self, clicks, box):
        return self.predictor.predict(clicks, box).probability


@pytest.mark.parametrize("more", [-0.5, 0.5])
def test_logits_may_be_neither_larger_nor_smaller(more):
    model = network("micro_csa")
    parity = measure(model, Shifted(model, more))
    assert parity.logit_difference == pytest.approx(0.5, rel=1e-4)
    assert parity.differing_pixels == 0


def predicted(model, image, asked):
    """Probabilities that the network itself gives."""
    predictor = probseg.Predictor(model)
    predictor.set_image(image)
    return [
        predictor.predict([probseg.Click(*click) for click in clicks]).probability
        for clicks in asked
    ]


@pytest.fixture(
    scope="module",
    params=[
        "micro_csa_bp5",
        pytest.param("micro_previous", marks=pytest.mark.slow),  # as a page: test_web_page.py
        pytest.param("micro_fast", marks=pytest.mark.slow),
        pytest.param("micro_prob_botnet", marks=pytest.mark.slow),
    ],
)
def exported(request, tmp_path_factory):
    """A network, the folder of its graphs, and their parity."""
    torch.manual_seed(0)
    model, path = network(request.param), tmp_path_factory.mktemp("export") / "graphs"
    parity = export_model(model, path, name=request.param)
    return model, path, parity


@needs_onnx
def test_graphs_answer_as_the_network_does_without_torch(exported, tmp_path):
    model, path, _ = exported
    np.save(tmp_path / "image.npy", picture())
    program = [sys.executable, "-c", ALONE, path, tmp_path / "image.npy", tmp_path / "answers.npy"]
    subprocess.run(program, check=True, cwd=tmp_path)
    expected = predicted(model, picture(), CLICKS)
    np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), expected, atol=1e-4)
    assert np.ptp(expected[-1]) > 1e-3


@needs_onnx
def test_a_box_in_which_next_to_nothing_is_seen_is_asked_for_again(exported, monkeypatch):
    model, path, _ = exported
    box, answers = (30, 30, 90, 90), {}
    for least in (0, 99):  # times the box: no answer misses it, or each
        monkeypatch.setattr(geometry, "LEAST_OF_A_BOX", least)
        runner, predictor = Runner(path), probseg.Predictor(model)
        for one in (runner, predictor):
            one.set_image(picture())
        answers[least] = runner.predict(box=box)
        expected = predictor.predict(box=box).probability
        np.testing.assert_allclose(answers[least], expected, atol=1e-4)
        assert not runner.clicks
    assert np.abs(answers[0] - answers[99]).max() > 1e-3


@needs_onnx
def test_writing_into_what_was_handed_out_changes_no_later_answer(exported):
    _, path, _ = exported
    answers = []
    for spoilt in (False, True):
        runner, image = Runner(path), picture()
        runner.set_image(image)
        for clicks in CLICKS:
            if spoilt:
                image[...] = 0
            answers.append(runner.predict(clicks).copy())
            answer = runner.answer
            handed = [*answer.feed.values(), answer.logits, answer.values] if spoilt else []
            for array in handed:
                if array.flags.writeable:
                    array[...] = 0
        # Without the copy of the image a second encoding would differ.
        answers.append(runner.predict(box=(30, 30, 90, 90)))
    np.testing.assert_array_equal(answers[: len(CLICKS) + 1], answers[len(CLICKS) + 1 :])


@needs_onnx
def test_description(exported):
    model, path, parity = exported
    about = json.loads((path / "export.json").read_text(encoding="utf-8"))
    assert (about["working_size"], about["parity"]) == (SIDE, parity._asdict())
    parts = ["whole"] if model.prompts_enter == "stem" else ["encode", "click"]
    assert list(about["graphs"]) == parts
    files = {graph["file"]: graph["sha256"] for graph in about["graphs"].values()}
    assert files == {name: digest(path / name) for name in files}
    written = {*files, "export.json", "runner.py", "geometry.py", "LICENSE", "NOTICE"}
    assert {file.name for file in path.iterdir()} == written
    inputs = {one["name"]: one["shape"] for one in about["graphs"][parts[-1]]["inputs"]}
    image = about["graphs"][parts[0]]["inputs"][0]
    assert image["shape"] == [1, 3, "height", "width"]
    assert inputs["points"] == [1, "clicks", 2]
    assert ("previous" in inputs) == model.previous_mask
    assert parity.answers == 39
    assert_equal_but_for_rounding(parity)
    assert parity.logit_difference < 1e-3 * max(1, parity.largest_logit)


@needs_onnx
def test_graphs_have_documented_names_no_idle_inputs_and_no_traces_of_this_machine(exported):
    import onnx

    _, path, _ = exported
    about = json.loads((path / "export.json").read_text(encoding="utf-8"))
    for graph in about["graphs"].values():
        content = (path / graph["file"]).read_bytes()
        assert not re.search(rb"\.py\b|site-packages|/work/|File \"", content)
        written = onnx.load(path / graph["file"])
        onnx.checker.check_model(written, full_check=True)
        assert [(one.domain, one.version) for one in written.opset_import] == [("", 18)]
        used = {name for node in written.graph.node for name in node.input}
        both = ((graph["inputs"], written.graph.input), (graph["outputs"], written.graph.output))
        for known, values in both:
            shapes = {
                one.name: [dim.dim_param or dim.dim_value for dim in one.type.tensor_type.shape.dim]
                for one in values
            }
            assert shapes == {one["name"]: one["shape"] for one in known}
        assert {one.name for one in written.graph.input} <= used


@needs_onnx
def test_wrong_questions(exported):
    _, path, _ = exported
    runner = Runner(path)
    with pytest.raises(ValueError, match="image"):
        runner.set_image(np.zeros((8, 8), np.uint8))
    with pytest.raises(ValueError, match="`image` must be an array, got str"):
        runner.set_image("photo.jpg")
    with pytest.raises(FileNotFoundError, match="folder of `probseg export`"):
        Runner(path / "nope")
    runner.set_image(picture())
    signs = ([(9, 9, sign)] for sign in (-1, 2, "x"))
    for wrong in ([(9, 9)], (9, 9, True), [("a", 9, True)], *signs):
        with pytest.raises(ValueError, match=r"`clicks` must be a list of \(x, y, positive\)"):
            runner.predict(wrong)
    with pytest.raises(ValueError, match="clicks"):
        runner.predict()
    with pytest.raises(ValueError, match="click"):
        runner.predict([(4 * SIDE, 0, True)])
    with pytest.raises(ValueError, match="box"):
        runner.predict(box=(5, 5, 5, 9))
    first = runner.predict([(9, 9, True)])
    runner.reset()
    assert np.array_equal(runner.predict(np.array([[9, 9, 1]], np.uint8)), first)


def test_programs_of_torch(tmp_path):
    torch.manual_seed(0)
    quality = {"class_path": "probseg.heads.MaskQuality"}  # of which no graph has anything
    model = network("micro_conv", prompts="head", fusion=FUSION, quality=quality)
    parity = export_model(model, tmp_path / "graphs", to="torch")
    assert_equal_but_for_rounding(parity)
    assert {"runner.py", "geometry.py"} < {file.name for file in (tmp_path / "graphs").iterdir()}
    for file in (tmp_path / "graphs").glob("*.pt2"):
        with zipfile.ZipFile(file) as archive:
            content = b"".join(map(archive.read, archive.namelist()))
        assert not re.search(rb"site-packages|/work/|File \"", content)
    runner = Runner(tmp_path / "graphs")
    runner.set_image(picture())
    answers = [runner.predict(clicks) for clicks in CLICKS]
    np.testing.assert_allclose(answers, predicted(model, picture(), CLICKS), atol=1e-4)
    narrow = draw_scene(6, 200, seed=3)[0]  # of one cell
    runner.set_image(narrow)
    clicks = [[(90, 3, True)], [(20, 1, False)]]
    answers = [runner.predict(asked) for asked in clicks]
    np.testing.assert_allclose(answers, predicted(model, narrow, clicks), atol=1e-4)


def test_graphs_of_another_network_are_not_left(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model, other = (network("micro_conv", prompts="head", fusion=FUSION) for _ in range(2))
    trace = folder.trace
    monkeypatch.setattr(folder, "trace", lambda model, *how: trace(other, *how))
    with pytest.raises(UsageError, match="logits"):
        export_model(model, tmp_path / "graphs", to="torch")
    assert not list(tmp_path.iterdir())


def test_graphs_of_one_square(tmp_path, monkeypatch):
    trace = folder.trace

    def traced(model, size, fixed):
        if not fixed:
            raise UserError(UserErrorType.CONSTRAINT_VIOLATION, "a size decides")
        return trace(model, size, fixed)

    monkeypatch.setattr(folder, "trace", traced)
    model = network("micro_conv", prompts="head", fusion=FUSION)
    with pytest.raises(UsageError, match="--fixed"):
        export_model(model, tmp_path / "graphs", to="torch")
    assert_equal_but_for_rounding(export_model(model, tmp_path / "graphs", to="torch", fixed=True))
    about = json.loads((tmp_path / "graphs" / "export.json").read_text(encoding="utf-8"))
    image = next(iter(about["graphs"].values()))["inputs"][0]
    assert (image["shape"], about["cell"]) == ([1, 3, SIDE, SIDE], SIDE)


def test_what_cannot_be_exported_is_refused_before_work(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="output"):
        export_model(network("micro_fast"), tmp_path, to="torch")
    model = build(described("micro_conv")).eval()
    with pytest.raises(UsageError, match="size"):
        export_model(model, tmp_path / "graphs", to="torch")
    model.refinement = torch.nn.Identity()
    with pytest.raises(UsageError, match="refinement"):
        export_model(model, tmp_path / "graphs", to="torch", size=SIDE)
    monkeypatch.setattr(folder, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape('pip install -e ".[export]"')):
        export_model(model, tmp_path / "graphs")


def test_command(tmp_path, capsys):
    description = described("micro_previous")
    save(build(description), description, tmp_path / "model")
    arguments = ("export", f"{tmp_path}/model/", "--to=torch", f"--output={tmp_path / 'graphs'}")
    assert command(*arguments, "--size=40", "--fixed", "--click-iterations=1") == 0
    about = json.loads((tmp_path / "graphs" / "export.json").read_text(encoding="utf-8"))
    assert (about["working_size"], about["settings"]["click_iterations"]) == (40, 1)
    assert about["graphs"]["whole"]["inputs"][0]["shape"] == [1, 3, about["cell"], about["cell"]]
    printed = capsys.readouterr()
    assert "39 answers compared" in printed.out
    steps = [step.split()[0] for step in printed.err.splitlines()]
    assert steps == ["writing", "tracing", "writing", "comparing"]
    assert "output" in usage_error(capsys, *arguments)
    key = ("--output", tmp_path / "other", "--key-iterations=1")
    assert "key_iterations" in usage_error(capsys, *arguments[:3], *key)


def drawn(seed):
    """The picture of a recorded case, by the words of `docs/export.md`, and its runs as masks."""
    state = seed

    def draw(least, most):
        nonlocal state
        state = (1664525 * state + 1013904223) % 2**32
        return least + (state >> 16) % (most - least)

    h, w = draw(60, 500), draw(60, 500)
    x0, y0 = draw(w // 4, 3 * w // 4), draw(h // 4, 3 * h // 4)
    a, b = draw(w // 8, w // 4), draw(h // 8, h // 4)
    ground, ellipse = ([draw(0, 240) for _ in range(3)] for _ in range(2))
    rows = [
        [
            [
                colour + (7919 * x + 104729 * y + 31 * x * y) % 16
                for colour in (
                    ellipse
                    if (x - x0) ** 2 * b**2 + (y - y0) ** 2 * a**2 <= a**2 * b**2
                    else ground
                )
            ]
            for x in range(w)
        ]
        for y in range(h)
    ]
    return np.array(rows, np.uint8)


def test_recorded_cases_are_answers_of_the_predictor(tmp_path, monkeypatch):
    assert cases_module.NUMBER == 20
    monkeypatch.setattr(cases_module, "NUMBER", 3)
    torch.manual_seed(0)
    model = network("micro_csa_bp5")
    export_model(model, tmp_path / "graphs", to="torch", cases=True)
    cases = json.loads((tmp_path / "graphs" / "cases.json").read_text(encoding="utf-8"))
    assert len(cases) == 3
    for case in cases:
        image = drawn(case["seed"])
        assert list(image.shape[:2]) == case["size"]
        predictor = probseg.Predictor(model)
        predictor.set_image(image)
        for step in case["steps"]:
            mask = predictor.predict([tuple(click) for click in step["clicks"]], step["box"]).binary
            runs = step["runs"]
            recorded = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(mask.shape)
            assert (mask != recorded).mean() < 1e-3


@needs_onnx
@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_classes_of_pixels(tmp_path, to):
    """A network for semantic segmentation, for images of any size."""
    torch.manual_seed(0)
    model = build(read_preset("micro_emanet", "semantic")).eval()
    names = [f"class {n}" for n in range(model.num_classes)]
    parity = export_model(model, tmp_path / "graphs", to=to, classes=names)
    assert parity.logit_difference < 1e-4
    runner = ClassRunner(tmp_path / "graphs")
    assert runner.classes == names
    for size in ((60, 91), (16, 33)):
        image = draw_scene(*size, seed=1)[0]
        with torch.no_grad():
            pixels = torch.from_numpy(image).permute(2, 0, 1)[None] / 255
            expected = model(pixels).argmax(dim=1)[0].numpy()
        assert (runner.predict(image) != expected).sum() <= 2
    with pytest.raises(UsageError, match="classes"):
        export_model(model, tmp_path / "other", to=to, classes=["one"])
    with pytest.raises(UsageError, match="size"):
        export_model(model, tmp_path / "other", to=to, size=SIDE)
    with pytest.raises(UsageError, match="semantic"):
        export_model(network("micro_conv"), tmp_path / "other", to=to, classes=["one"])


@needs_onnx
@pytest.mark.slow
def test_halved_weights_keep_the_masks(tmp_path):
    torch.manual_seed(0)
    model = network("micro_fast")
    answers, sizes = [], []
    for precision in ("float32", "float16"):
        path = tmp_path / precision
        parity = export_model(model, path, precision=precision)
        assert parity.mean_iou >= 0.99
        runner = Runner(path)
        runner.set_image(picture())
        answers.append(np.stack([runner.predict(clicks) for clicks in CLICKS]))
        sizes.append(sum(file.stat().st_size for file in path.glob("*.onnx")))
        about = json.loads((path / "export.json").read_text(encoding="utf-8"))
        assert about["precision"] == precision
    weights = sum(weight.numel() for weight in model.parameters())
    assert weights < sizes[0] - sizes[1] < 2 * weights
    assert 0 < np.abs(answers[0] - answers[1]).max() < 0.02


@needs_onnx
@pytest.mark.slow
def test_weights_are_not_halved_where_masks_suffer(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model, other = network("micro_fast"), network("micro_fast")
    trace = folder.trace
    monkeypatch.setattr(folder, "trace", lambda model, *how: trace(other, *how))
    with pytest.raises(UsageError, match=r"mean IoU of 0\.99, got 0\.\d{4}"):
        export_model(model, tmp_path / "graphs", precision="float16")
    with pytest.raises(UsageError, match="precision"):
        export_model(model, tmp_path / "graphs", to="torch", precision="float16")
    assert not list(tmp_path.iterdir())


@needs_onnx
@pytest.mark.slow
def test_the_shipped_model(tmp_path):
    model = probseg.create_model("lite0_unet_prop", pretrained=True)
    parity = export_model(model, tmp_path / "graphs", name="lite0_unet_prop")
    assert parity.logit_difference < 2e-3
    assert parity.differing_pixels < 1e-5 * parity.pixels


def test_solutions_of_the_classifiers_systems():
    rows = 30 * torch.randn(2, 50, 33)
    matrix = 10 * torch.eye(33) + rows.mT @ rows / 50
    target = torch.randn(2, 33)
    expected = torch.linalg.solve(matrix.double(), target.double())
    torch.testing.assert_close(solve(matrix, target).double(), expected, rtol=1e-3, atol=1e-5)


def test_copies_of_a_large_photograph_are_those_of_probseg(tmp_path, monkeypatch):
    """By OpenCV; without it, a level lower or higher here and there."""
    about = {"graphs": {}, **folder.geometry_settings()}
    (tmp_path / "export.json").write_text(json.dumps(about), encoding="utf-8")
    large = np.random.default_rng(0).integers(0, 256, (1501, 2243, 3), np.uint8)
    expected = as_photograph(large).levels[1:]
    copies = []
    for missing in (False, True):
        if missing:
            monkeypatch.setattr(runner_module, "find_spec", lambda name: None)
        runner = Runner(tmp_path)
        runner.set_image(large)
        copies.append(runner.copies)
    for ours, theirs, without in zip(copies[0], expected, copies[1], strict=True):
        np.testing.assert_array_equal(ours, theirs.permute(1, 2, 0))
        assert np.abs(ours.astype(int) - without).max() <= 1


class Seeds(torch.nn.Module):
    def forward(self, points, maps):
        return seeds(points, torch.tensor([[1, 0, -1]]), (maps.shape[0], maps.shape[1]))


def test_seeds_of_clicks_are_right_for_each_size():
    """They once took the longer side of the size at which they were traced."""
    given = torch.tensor([[[9.0, 4.0], [30.0, 20.0], [0.0, 0.0]]])
    sides = {0: Dim("rows"), 1: Dim("columns")}
    traced = torch.export.export(
        Seeds(), (given, torch.zeros(12, 10)), dynamic_shapes=(None, sides)
    ).module()
    for size in ((12, 10), (40, 30), (30, 200)):
        maps = torch.zeros(size)
        for ours, theirs in zip(traced(given, maps), Seeds()(given, maps), strict=True):
            assert torch.equal(ours, theirs)


def test_pooling_is_replaced_inside_of_the_context():
    """A product of matrices is float32 arithmetic in another order than a mean."""
    maps = torch.randn(1, 64, 30, 30)
    with Replaced():
        pooled = F.adaptive_avg_pool2d(maps, 7)
    assert torch.equal(pooled, adaptive_avg_pool2d(maps, 7))
    assert not torch.equal(pooled, F.adaptive_avg_pool2d(maps, 7))
