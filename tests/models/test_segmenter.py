"""The road from image and prompts to logits."""

import copy
import math
from functools import partial

import pytest
import torch
from fakes import Coarse, micro_model
from hypothesis import given
from hypothesis import strategies as st
from recording import Recorder, Through
from torch import nn

from probseg.clicks import ClickMaps
from probseg.heads import ConvHead, Head
from probseg.models import Segmenter, build, override, read_preset
from probseg.models.encoded import moved_prompts
from probseg.types import Prompts

MODELS = ["micro_conv", "micro_csa"]


def prompts(batch=1, points=(), labels=(), boxes=None):
    """The same clicks for every image."""
    return Prompts(
        torch.tensor(points, dtype=torch.float32).reshape(1, -1, 2).repeat(batch, 1, 1),
        torch.tensor(labels, dtype=torch.long).reshape(1, -1).repeat(batch, 1),
        torch.full((batch, 4), math.nan) if boxes is None else torch.tensor(boxes).float(),
    )


class Paint(Head):
    """Logits above zero where one of the click maps is drawn."""

    def __init__(self, inputs, value_channels, channel=1):
        super().__init__()
        self.channel = channel

    def forward(self, features, clicks, value_features=None):
        assert value_features is None
        assert torch.equal(features[:, 1:], clicks)
        return features[:, self.channel : self.channel + 1] - 0.5


def painter(channel, working_size=None, **maps):
    head = partial(Paint, channel=channel)
    return Segmenter(Recorder(), Through, head, ClickMaps(**maps), working_size)


def centroid(logits):
    rows, columns = torch.nonzero(logits[0, 0] > 0, as_tuple=True)
    assert rows.numel(), "nothing was painted"
    return columns.float().mean().item(), rows.float().mean().item()


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(0)
    return micro_model(request.param)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 2), (37, 53), (64, 32)])
def test_logits_have_the_size_of_the_image(model, size):
    with torch.no_grad():
        logits = model(torch.rand(2, 3, *size), prompts(2, [(0, 0)], [1]))
    assert logits.shape == (2, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


def test_images_of_a_batch_do_not_see_each_other(model):
    images = torch.rand(3, 3, 37, 53)
    points = torch.rand(3, 4, 2) * 36
    labels = torch.tensor([[1, 0, -1, -1], [1, 1, 0, 0], [-1, -1, -1, -1]])
    boxes = torch.tensor([[3.0, 4.0, 30.0, 20.0], [math.nan] * 4, [0.0, 0.0, 53.0, 37.0]])
    given_prompts = Prompts(points, labels, boxes)
    with torch.no_grad():
        together = model(images, given_prompts)
        for i in range(3):
            alone = model(images[i : i + 1], Prompts(*(t[i : i + 1] for t in given_prompts[:3])))
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=1e-4)


def test_padding_of_the_clicks_changes_nothing(model):
    image = torch.rand(1, 3, 40, 40)
    with torch.no_grad():
        padded = model(image, prompts(1, [(5, 9), (30, 30), (0, 0)], [1, -1, -1]))
        plain = model(image, prompts(1, [(5, 9)], [1]))
    assert torch.equal(padded, plain)


@pytest.mark.parametrize("label", [0, 1])
def test_clicks_and_boxes_change_the_logits(model, label):
    image = torch.rand(1, 3, 40, 40)
    with torch.no_grad():
        none = model(image, prompts())
        assert not torch.equal(none, model(image, prompts(1, [(20, 20)], [label])))
        assert not torch.equal(none, model(image, prompts(boxes=[[5, 5, 30, 30]])))


def test_autocast_gives_float32_logits_close_to_the_exact_ones(model):
    image, clicks = torch.rand(1, 3, 40, 40), prompts(1, [(20, 20)], [1])
    with torch.no_grad():
        exact = model(image, clicks)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(image, clicks)
    assert half.dtype == torch.float32
    assert (half - exact).abs().max() < 0.1 * exact.abs().max() + 0.1


def test_all_parameters_learn(model):
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # timm begins some at 0, which stops the gradient
            nn.init.ones_(module.weight)
    clicks = prompts(2, [(10, 10), (30, 20)], [1, 0], [[5, 5, 30, 30]] * 2)
    model(torch.rand(2, 3, 48, 48), clicks).square().sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without


def test_images_are_normalised_as_the_backbone_asks():
    model = painter(1)
    image = torch.rand(1, 3, 4, 5)
    model(image, prompts())
    mean, std = torch.tensor(Recorder.mean), torch.tensor(Recorder.std)
    expected = (image - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(model.backbone.seen[:, :3], expected)


def test_normalisation_is_not_part_of_the_weights():
    assert not {"mean", "std"} & set(micro_model().state_dict())


def test_click_maps_reach_backbone_and_head_in_order():
    model = painter(0)
    clicks = prompts(1, [(1, 1), (7, 3)], [1, 0], [[2, 0, 5, 4]])
    model(torch.rand(1, 3, 5, 9), clicks)
    assert torch.equal(model.backbone.seen[:, 3:], ClickMaps()(clicks, (5, 9)))


@given(data=st.data())
def test_a_reduced_image_keeps_clicks_at_their_place(data):
    height, width = data.draw(st.integers(20, 150)), data.draw(st.integers(20, 150))
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    working_size = data.draw(st.integers(10, 100))
    logits = painter(1, working_size, radius=1.0)(
        torch.zeros(1, 3, height, width), prompts(1, [(x, y)], [1])
    )
    assert logits.shape == (1, 1, height, width)
    pixel = max(1, max(height, width) / working_size)  # one pixel of the reduced image
    px, py = centroid(logits)
    assert abs(px - x) <= 1.5 * pixel
    assert abs(py - y) <= 1.5 * pixel


@given(data=st.data())
def test_a_reduced_image_keeps_boxes_at_their_place(data):
    height, width = data.draw(st.integers(20, 150)), data.draw(st.integers(20, 150))
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    working_size = data.draw(st.integers(10, 100))
    model = painter(0, working_size, box="filled")
    logits = model(torch.zeros(1, 3, height, width), prompts(boxes=[[x0, y0, x1, y1]]))[0, 0]
    # Between four pixels, a single one of them leaves a quarter of its 1 - 0.5.
    painted = logits > (0 if (logits > 0).any() else -0.3)
    pixel = max(1, max(height, width) / working_size)
    columns, rows = painted.any(dim=0).nonzero(), painted.any(dim=1).nonzero()
    assert columns.numel(), "the box vanished"
    for got, expected in (
        (columns.min(), x0), (columns.max() + 1, x1), (rows.min(), y0), (rows.max() + 1, y1)
    ):  # fmt: skip
        assert abs(got.item() - expected) <= 1.5 * pixel


def test_a_click_in_the_middle_stays_in_the_middle():
    # Whole numbers are pixel centres: without the half pixel, the click would drift by 1.5 pixels.
    clicks = prompts(1, [(199.5, 99.5)], [1])
    encoded = painter(1, working_size=100).encode(torch.zeros(1, 3, 200, 400))
    assert (encoded.size, encoded.working_size) == ((200, 400), (50, 100))
    assert encoded.image.shape == (1, 3, 50, 100)
    moved = moved_prompts(clicks, encoded.size, encoded.working_size)
    assert moved.points.tolist() == [[[49.5, 24.5]]]


def test_boxes_are_reduced_as_borders():
    moved = moved_prompts(prompts(boxes=[[0, 40, 400, 200]]), (200, 400), (50, 100))
    assert moved.boxes.tolist() == [[0, 10, 100, 50]]
    assert moved_prompts(prompts(), (9, 9), (4, 4)).boxes.isnan().all()


def test_reduction_keeps_at_least_one_pixel():
    model = painter(1, working_size=30)
    assert model.encode(torch.zeros(1, 3, 1, 300)).image.shape == (1, 3, 1, 30)
    assert model(torch.zeros(1, 3, 1, 300), prompts(1, [(150, 0)], [1])).shape == (1, 1, 1, 300)


def test_the_network_works_at_the_working_size():
    model = painter(1, working_size=50)
    model(torch.rand(1, 3, 80, 200), prompts())
    assert model.backbone.seen.shape[-2:] == (20, 50)
    model(torch.rand(1, 3, 30, 50), prompts())
    assert model.backbone.seen.shape[-2:] == (30, 50)  # never enlarged


def test_small_images_are_not_touched_by_the_working_size():
    model = micro_model()
    image, clicks = torch.rand(1, 3, 30, 50), prompts(1, [(3, 4)], [1])
    with torch.no_grad():
        expected = model(image, clicks)
        model.working_size = 50
        assert torch.equal(model(image, clicks), expected)


def test_reduction_averages_instead_of_picking_pixels():
    image = torch.zeros(1, 3, 64, 64)
    image[..., ::8] = 1  # lines that fall between the pixels of the reduced image
    model = painter(1, working_size=8)
    small = model.encode(image).image * model.std + model.mean
    assert (small[..., 2:-2] - 1 / 8).abs().max() < 0.05


def image(*shape):
    return torch.rand(shape)


@pytest.mark.parametrize(
    ("picture", "given_prompts", "parts"),
    [
        (image(3, 8, 8), prompts(), ["image", "(B, 3, H, W)", "(3, 8, 8)"]),
        (image(1, 4, 8, 8), prompts(), ["image", "(B, 3, H, W)", "(1, 4, 8, 8)"]),
        (image(1, 3, 8, 8).byte(), prompts(), ["image", "float in [0, 1]", "uint8"]),
        (torch.tensor(0.0), prompts(), ["image", "(B, 3, H, W)", "()"]),
        (image(2, 3, 8, 8), prompts(1), ["prompts", "2 images", "boxes (B, 4)", "(1, 4)"]),
        (
            image(1, 3, 8, 8),
            prompts(1, [(1, 1)], [1])._replace(points=torch.zeros(1, 2, 2)),
            ["points (B, S, 2)", "labels (B, S)", "(1, 2, 2)", "(1, 1)"],
        ),
        (
            image(1, 3, 8, 8),
            prompts()._replace(labels=torch.zeros(1, dtype=torch.long)),
            ["labels (B, S)", "(1,)"],
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(picture, given_prompts, parts):
    with pytest.raises(ValueError, match="must") as caught:
        painter(1)(picture, given_prompts)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("size", [0, -5])
def test_working_size_must_be_positive(size):
    with pytest.raises(ValueError, match=f"working_size must be a positive.* or None, got {size}"):
        painter(1, working_size=size)


def test_click_maps_default_to_disks_of_radius_8():
    model = Segmenter(Recorder(), Through, Paint)
    assert isinstance(model, nn.Module)
    assert (model.click_maps.clicks, model.click_maps.radius) == ("disk", 8)


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet34", "resnet50", "mobilenetv3_small_100", "convnext_atto"]
)
def test_any_timm_backbone_segments_odd_sizes(name):
    changes = {"backbone": {"name": name}, "working_size": None}
    model = build(override(read_preset("resnet18_csa"), changes)).eval()
    clicks = Prompts(
        torch.tensor([[[20.0, 10.0]]]), torch.tensor([[1]]), torch.tensor([[5.0, 3.0, 40.0, 30.0]])
    )
    with torch.no_grad():
        logits = model(torch.rand(1, 3, 45, 61), clicks)
    assert logits.shape == (1, 1, 45, 61)
    assert logits.isfinite().all()


@pytest.mark.parametrize("entry", ["stem", "head"])
def test_images_are_filled_up_to_whole_cells(entry):
    model = micro_model("micro_csa", prompts=entry).eval()
    image = torch.rand(1, 3, 37, 54)
    mean = model.mean.expand(3, 40, 56).clone()[None]
    mean[..., :37, :54] = image
    given = prompts(1, [(50, 30), (10, 5)], [1, 0], [[30, 20, 54, 37]])
    with torch.no_grad():
        torch.testing.assert_close(model(image, given), model(mean, given)[..., :37, :54])
        assert model.encode(image).image.shape == (1, 3, 40, 56)


# --- images of their own sizes in one call ------------------------------------------------------

SMALL = micro_model("micro_csa", working_size=40)
MANY = ["micro_conv", "micro_csa", "micro_fast", "micro_prob_botnet"]


@pytest.mark.parametrize("working_size", [None, 30])
@pytest.mark.parametrize("name", MANY)
def test_many_images_are_computed_as_each_alone(name, working_size):
    torch.manual_seed(0)
    model = micro_model(name, working_size=working_size).double()
    sizes = [(37, 53), (40, 54), (37, 53), (39, 56)]
    assert len({model.grid(size) for size in sizes}) == 1
    images = [torch.rand(3, *size) for size in sizes]
    asked = [
        prompts(1, [(5, 9), (30, 30)], [1, 0], [[2, 3, 40, 30]]),
        prompts(),
        prompts(1, [(50, 3)], [1]),
        prompts(boxes=[[0, 0, 50, 30]]),
    ]
    with torch.no_grad():
        encoded = model.encode_each(images)
        together = model.decode_each(encoded, asked)
        some = model.decode_each([encoded[2], encoded[0]], [asked[0], asked[3]])
        assert len(encoded) == len(together) == 4
        for image, given_prompts, one, answer in zip(images, asked, encoded, together, strict=True):
            alone = model.encode(image[None])
            assert (one.size, one.working_size) == (alone.size, alone.working_size)
            torch.testing.assert_close(one.image, alone.image, rtol=0, atol=0)
            assert (one.decoded is None) == (alone.decoded is None) == (name != "micro_fast")
            expected = model(image[None], given_prompts)[0, 0]
            assert answer.shape == image.shape[1:]
            assert answer.dtype == torch.float32
            torch.testing.assert_close(answer, expected, rtol=1e-6, atol=1e-7)
        for answer, image, given_prompts in zip(
            some, (images[2], images[0]), (asked[0], asked[3]), strict=True
        ):
            torch.testing.assert_close(
                answer, model(image[None], given_prompts)[0, 0], rtol=1e-6, atol=1e-7
            )
    assert not torch.equal(together[0], together[2])


@given(height=st.integers(1, 90), width=st.integers(1, 90), working_size=st.integers(1, 60))
def test_the_grid_is_the_size_that_the_network_sees(height, width, working_size):
    for model in (painter(1), painter(1, working_size), SMALL):
        seen = model.encode(torch.zeros(1, 3, height, width)).image.shape[-2:]
        assert model.grid((height, width)) == tuple(seen)
        (one,) = model.encode_each([torch.zeros(3, height, width)])
        assert one.image.shape[-2:] == seen


def test_the_grid_is_whole_cells():
    assert SMALL.grid((1, 1)) == (4, 4)
    assert SMALL.grid((36, 40)) == (36, 40)
    assert SMALL.grid((37, 39)) == (40, 40)
    assert SMALL.grid((80, 40)) == (40, 20)


def test_images_of_other_grids_do_not_share_a_call():
    images = [torch.zeros(3, 20, 20), torch.zeros(3, 24, 20)]
    with pytest.raises(RuntimeError, match=r"[Ss]izes of tensors must match"):
        SMALL.encode_each(images)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (prompts(2, [(1, 1)], [1]), r"1 images: .*got \(2, 1, 2\), \(2, 1\) and \(2, 4\)"),
        (prompts()._replace(boxes=torch.zeros(4)), r"boxes \(B, 4\), got .*\(4,\)"),
        (prompts()._replace(previous=torch.zeros(1, 1, 8, 8)), "previous: expected None"),
    ],
)
def test_prompts_of_each_are_a_batch_of_one(asked, message):
    with torch.no_grad():
        encoded = SMALL.encode_each([torch.zeros(3, 8, 8)] * 2)
        with pytest.raises(ValueError, match=message):
            SMALL.decode_each(encoded, [prompts(), asked])
        with pytest.raises(ValueError, match="zip"):
            SMALL.decode_each(encoded, [prompts()])


def test_features_of_a_loss_are_left_out_of_each():
    torch.manual_seed(0)
    backbone = micro_model("micro_fast").backbone
    model = Segmenter(backbone, Coarse, ConvHead, prompts="head").eval()
    images = [torch.rand(3, 20, 24), torch.rand(3, 19, 23)]
    with torch.no_grad():
        assert model.encode(images[0][None]).decoded.auxiliary is not None
        for image, one in zip(images, model.encode_each(images), strict=True):
            assert one.decoded.auxiliary is None
            assert one.decoded.features.shape[0] == one.image.shape[0] == 1
            whole = model.encode(image[None]).decoded.features
            torch.testing.assert_close(one.decoded.features, whole, rtol=1e-4, atol=1e-5)
