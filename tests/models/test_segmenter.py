"""The road from image and prompts to logits."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.clicks import ClickMaps
from probseg.heads import ConvHead, Head
from probseg.models import Segmenter, build, override, read_preset
from probseg.models.network import SegmenterModel, moved_prompts
from probseg.types import Prompts
from support.fakes import Coarse, micro_model
from support.micro import FUSION
from support.network_cases import assert_all_learn, opened, prompts
from support.recording import Recorder, Through
from support.refusals import refused
from support.rows import each

KINDS = [(name, entry) for name in ("micro_conv", "micro_csa") for entry in ("stem", "head")]
SIZES = [(1, 1), (1, 9), (37, 53), (64, 32)]


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


@pytest.fixture(scope="module", params=KINDS, ids=" at the ".join)
def model(request):
    torch.manual_seed(0)
    name, entry = request.param
    return micro_model(name, prompts=entry, **({"fusion": FUSION} if entry == "head" else {}))


@each("working_size", [None, 30])
@each("size", SIZES)
def test_encoding_and_decoding_is_the_whole_road(model, size, working_size):
    model, image = copy.deepcopy(model), torch.rand(2, 3, *size)
    model.working_size = working_size
    given = prompts((0, 0, 1), (8, 0, 0), box=(0, 0, 6, 1), batch=2)
    with torch.no_grad():
        logits = model(image, given)
        assert torch.equal(model.decode(model.encode(image), given), logits)
    assert logits.shape == (2, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


def test_images_of_a_batch_do_not_see_each_other(model):
    images = torch.rand(3, 3, 37, 53)
    points = torch.rand(3, 4, 2) * 36
    labels = torch.tensor([[1, 0, -1, -1], [1, 1, 0, 0], [-1, -1, -1, -1]])
    boxes = torch.tensor([[3.0, 4.0, 30.0, 20.0], [math.nan] * 4, [0.0, 0.0, 53.0, 37.0]])
    asked = Prompts(points, labels, boxes)
    with torch.no_grad():
        together = model(images, asked)
        for i in range(3):
            alone = model(images[i : i + 1], Prompts(*(t[i : i + 1] for t in asked[:3])))
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=1e-4)


def test_logits_depend_on_clicks_and_boxes_and_not_on_padding(model):
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        asked = (
            prompts(),
            prompts((20, 20, 1)),
            prompts((20, 20, 0)),
            prompts((44, 20, 1)),
            prompts(box=(5, 5, 30, 30)),
        )
        seen = [model.decode(encoded, given) for given in asked]
        for i, logits in enumerate(seen):
            assert not any(torch.equal(logits, later) for later in seen[i + 1 :])
        padded = model.decode(encoded, prompts((20, 20, 1), (30, 30, -1), (0, 0, -1)))
    assert torch.equal(padded, seen[1]), "in any order"


def test_autocast_gives_float32_logits_close_to_the_exact_ones(model):
    image, clicks = torch.rand(1, 3, 40, 40), prompts((20, 20, 1))
    with torch.no_grad():
        exact = model(image, clicks)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(image, clicks)
    assert half.dtype == torch.float32
    assert not torch.equal(half, exact)
    assert (half - exact).abs().max() < 0.1 * exact.abs().max() + 0.1


def test_all_parameters_learn(model):
    model = opened(copy.deepcopy(model).train())
    clicks = prompts((10, 10, 1), (30, 20, 0), box=(5, 5, 30, 30), batch=2)
    model(torch.rand(2, 3, 48, 48), clicks).square().sum().backward()
    assert_all_learn(model)


def test_images_are_normalised_as_the_backbone_asks():
    model = painter(1)
    image = torch.rand(1, 3, 4, 5)
    model(image, prompts())
    mean, std = torch.tensor(Recorder.mean), torch.tensor(Recorder.std)
    expected = (image - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(model.backbone.seen[:, :3], expected)


def test_click_maps_reach_backbone_and_head_in_order():
    model = painter(0)
    clicks = prompts((1, 1, 1), (7, 3, 0), box=(2, 0, 5, 4))
    model(torch.rand(1, 3, 5, 9), clicks)
    assert torch.equal(model.backbone.seen[:, 3:], ClickMaps()(clicks, (5, 9)))


@given(data=st.data())
def test_a_reduced_image_keeps_clicks_at_their_place(data):
    height, width = data.draw(st.integers(20, 150)), data.draw(st.integers(20, 150))
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    working_size = data.draw(st.integers(10, 100))
    logits = painter(1, working_size, radius=1.0)(
        torch.zeros(1, 3, height, width), prompts((x, y, 1))
    )
    assert logits.shape == (1, 1, height, width)
    pixel = max(1, max(height, width) / working_size)  # one pixel of the reduced image
    px, py = centroid(logits)
    assert abs(px - x) <= 1.5 * pixel
    assert abs(py - y) <= 1.5 * pixel


def test_prompts_move_with_the_reduced_image():
    # Whole numbers are pixel centres: without the half pixel, the click would drift by 1.5 pixels.
    clicks = prompts((199.5, 99.5, 1), box=(0, 40, 400, 200))
    encoded = painter(1, working_size=100).encode(torch.zeros(1, 3, 200, 400))
    assert (encoded.size, encoded.working_size) == ((200, 400), (50, 100))
    moved = moved_prompts(clicks, encoded.size, encoded.working_size)
    assert moved.points.tolist() == [[[49.5, 24.5]]]
    assert moved.boxes.tolist() == [[0, 10, 100, 50]]
    assert moved_prompts(prompts(), (9, 9), (4, 4)).boxes.isnan().all()


@each(
    ("sizing", "size", "seen"),
    [
        ("reduce", (80, 200), (20, 50)),
        ("reduce", (30, 50), (30, 50)),
        ("reduce", (1, 300), (1, 50)),
        ("reduce", (12, 20), (12, 20)),
        ("fit", (12, 20), (30, 50)),
        ("fit", (80, 200), (20, 50)),
        ("stretch", (12, 20), (50, 50)),
    ],
)
def test_the_network_works_at_the_working_size(sizing, size, seen):
    model = painter(1, working_size=50)
    model.sizing = sizing
    logits = model(torch.rand(1, 3, *size), prompts((0, 0, 1)))
    assert model.backbone.seen.shape[-2:] == seen
    assert logits.shape[-2:] == size


def test_reduction_averages_instead_of_picking_pixels():
    image = torch.zeros(1, 3, 64, 64)
    image[..., ::8] = 1  # lines that fall between the pixels of the reduced image
    model = painter(1, working_size=8)
    small = model.encode(image).image * model.std + model.mean
    assert (small[..., 2:-2] - 1 / 8).abs().max() < 0.05


def test_wrong_input_is_refused():
    fine, model = torch.rand(1, 3, 8, 8), painter(1)
    for image in (fine[0], torch.rand(1, 4, 8, 8), fine.byte(), torch.tensor(0.0)):
        refused(ValueError, partial(model, image, prompts()), "`image`", tuple(image.shape))
    for given_prompts in (
        prompts(batch=2),
        prompts((1, 1, 1))._replace(points=torch.zeros(1, 2, 2)),
        prompts()._replace(labels=torch.zeros(1, dtype=torch.long)),
        prompts()._replace(boxes=torch.zeros(4)),
    ):
        refused(ValueError, partial(model, fine, given_prompts), "`prompts`")


def test_wrong_arguments_are_named():
    for size in (0, -5):
        refused(ValueError, partial(painter, 1, working_size=size), "`working_size`", size)
    refused(ValueError, lambda: micro_model("micro_csa", fusion=FUSION), "fusion", "'stem'")
    refused(ValueError, lambda: micro_model("micro_csa", prompts="middle"), "`prompts`")


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_100", "convnext_atto"])
def test_any_timm_backbone_segments_odd_sizes(name):
    changes = {"backbone": {"name": name}, "working_size": None}
    model = build(override(read_preset("resnet18_csa"), changes)).eval()
    with torch.no_grad():
        logits = model(torch.rand(1, 3, 45, 61), prompts((20, 10, 1), box=(5, 3, 40, 30)))
    assert logits.shape == (1, 1, 45, 61)
    assert logits.isfinite().all()


@pytest.mark.parametrize("entry", ["stem", "head"])
def test_images_are_filled_up_to_whole_cells(entry):
    model = micro_model("micro_csa", prompts=entry).eval()
    image = torch.rand(1, 3, 37, 54)
    mean = model.mean.expand(3, 64, 64).clone()[None]
    mean[..., :37, :54] = image
    asked = prompts((50, 30, 1), (10, 5, 0), box=(30, 20, 54, 37))
    with torch.no_grad():
        torch.testing.assert_close(model(image, asked), model(mean, asked)[..., :37, :54])
        assert model.encode(image).image.shape == (1, 3, 64, 64), "of the coarsest map"


def test_cells_may_be_those_of_the_finest_map_alone():
    model = micro_model("micro_csa", cell=8)
    assert model.prepared(torch.rand(1, 3, 37, 54)).image.shape == (1, 3, 40, 56)
    for cell in (0, 6):
        refused(ValueError, partial(micro_model, "micro_csa", cell=cell), "`cell`", 4, cell)


SMALL = micro_model("micro_csa", working_size=40)
GRAPH_CUT = {"class_path": "probseg.heads.GraphCut", "init_args": {"units": 4, "smoothness": 2.0}}
MANY = [
    *((name, {}) for name in ("micro_conv", "micro_csa", "micro_fast", "micro_prob_botnet")),
    *((name, {"previous_mask": True}) for name in ("micro_csa", "micro_fast")),
    ("micro_conv", {"refinement": GRAPH_CUT}),
]


@each("working_size", [None, 30])
@each(("name", "changes"), MANY)
def test_many_images_are_computed_as_each_alone(name, changes, working_size):
    torch.manual_seed(0)
    model = micro_model(name, working_size=working_size, **changes)
    near = {"rtol": 1e-4, "atol": 1e-4}
    if model.refinement is None:  # which is float32
        model, near = model.double(), {"rtol": 1e-6, "atol": 1e-7}
    sizes = [(37, 53), (40, 54), (37, 53), (39, 56)]
    assert len({SegmenterModel(model).grid(size) for size in sizes}) == 1
    images = [torch.rand(3, *size) for size in sizes]
    asked = [
        prompts((5, 9, 1), (30, 30, 0), box=(2, 3, 40, 30)),
        prompts(),
        prompts((50, 3, 1)),
        prompts(box=(0, 0, 50, 30)),
    ]
    if model.previous_mask:
        asked[1] = asked[1]._replace(previous=torch.rand(1, 1, *sizes[1]))
        asked[2] = asked[2]._replace(previous=torch.rand(1, 1, *sizes[2]))
    with torch.no_grad():
        encoded = SegmenterModel(model).encode_each(images)
        together, _ = SegmenterModel(model).decode_each(encoded, asked)
        some, _ = SegmenterModel(model).decode_each([encoded[2], encoded[0]], [asked[2], asked[0]])
        for image, given_prompts, one, answer in zip(images, asked, encoded, together, strict=True):
            alone = model.encode(image[None])
            assert (one.size, one.working_size) == (alone.size, alone.working_size)
            assert torch.equal(one.image, alone.image)
            for maps in (one.decoder_maps, alone.decoder_maps):
                assert (maps is None) == (name != "micro_fast")
            expected = model(image[None], given_prompts)[0, 0]
            assert answer.dtype == torch.float32
            torch.testing.assert_close(answer, expected, **near)
    for answer, other in zip(some, (together[2], together[0]), strict=True):
        torch.testing.assert_close(answer, other, **near)
    assert not torch.equal(together[0], together[2])


@given(height=st.integers(1, 90), width=st.integers(1, 90), working_size=st.integers(1, 60))
def test_the_grid_is_the_size_that_the_network_sees(height, width, working_size):
    for model in (painter(1), painter(1, working_size), SMALL):
        seen = model.encode(torch.zeros(1, 3, height, width)).image.shape[-2:]
        assert SegmenterModel(model).grid((height, width)) == tuple(seen)


def test_prompts_move_with_each_side_of_the_image():
    """As edges of boxes and centres of pixels, along each axis by the scale of that axis."""
    moved = moved_prompts(
        prompts((-0.5, -0.5, 1), (29.5, 9.5, 0), box=(0, 0, 30, 10)), (10, 30), (40, 15)
    )
    assert moved.boxes.tolist() == [[0, 0, 15, 40]]
    assert moved.points.tolist() == [[[-0.5, -0.5], [14.5, 39.5]]]


@each(
    ("asked", "name"),
    [
        (prompts((1, 1, 1), batch=2), "`prompts`"),
        (prompts()._replace(boxes=torch.zeros(4)), "`prompts`"),
        (prompts(previous=torch.zeros(1, 1, 8, 8)), "previous"),
    ],
)
def test_prompts_of_each_are_a_batch_of_one(asked, name):
    with torch.no_grad():
        encoded = SegmenterModel(SMALL).encode_each([torch.zeros(3, 8, 8)] * 2)
        with pytest.raises(ValueError, match=name):
            SegmenterModel(SMALL).decode_each(encoded, [prompts(), asked])
        with pytest.raises(ValueError, match="zip"):
            SegmenterModel(SMALL).decode_each(encoded, [prompts()])


def test_features_of_a_loss_are_left_out_of_each():
    torch.manual_seed(0)
    backbone = micro_model("micro_fast").backbone
    model = Segmenter(backbone, Coarse, ConvHead, prompts="head").eval()
    images = [torch.rand(3, 20, 24), torch.rand(3, 19, 23)]
    with torch.no_grad():
        assert model.encode(images[0][None]).decoder_maps.auxiliary is not None
        for image, one in zip(images, SegmenterModel(model).encode_each(images), strict=True):
            assert one.decoder_maps.auxiliary is None
            assert one.decoder_maps.features.shape[0] == one.image.shape[0] == 1
            whole = model.encode(image[None]).decoder_maps.features
            torch.testing.assert_close(one.decoder_maps.features, whole, rtol=1e-4, atol=1e-5)
