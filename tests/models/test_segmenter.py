"""The road from image and prompts to logits, wherever prompts enter."""

import copy
import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from probseg.backbones import PromptStem, rgb_parameters
from probseg.clicks import ClickMaps
from probseg.heads import ConvHead, Head, PromptFusion
from probseg.models import Segmenter
from probseg.models.network import SegmenterModel, resize_maps, resize_prompts
from probseg.types import FeatureInfo, Prompts
from support.fakes import Coarse, micro_model
from support.micro import FUSION
from support.network_cases import Recorder, Through, assert_all_learn, opened, prompts
from support.refusals import refused
from support.rows import each

UNET = {
    "backbone": {"name": "test_efficientnet.r160_in1k"},
    "decoder": {"widths": [8, 8, 12, 16]},
    "working_size": 64,
}
NETWORKS = {
    **{f"{name} at the stem": (name, {}) for name in ("micro_conv", "micro_csa")},
    "micro_conv at the head": ("micro_conv", {"prompts": "head", "fusion": FUSION}),
    "micro_csa at the head": (
        "micro_csa",
        {"prompts": "head", "fusion": FUSION, "previous_mask": True},
    ),
    "lite0_unet": ("lite0_unet", UNET),
    "lite0_unet_prop": ("lite0_unet_prop", UNET),
}


def network(name, **changes):
    """A network whose layers have outputs of a usual size."""
    of, own = NETWORKS[name]
    torch.manual_seed(0)
    model = opened(micro_model(of, **{**own, **changes}))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.rand(4, 3, 64, 64), asked(model, (64, 64), 4))
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


def asked(model, size, batch=1, seed=0, clicks=3):
    """Clicks, a box in every other image, and a previous mask where one is taken."""
    random = torch.Generator().manual_seed(seed)
    height, width = size
    boxes = torch.full((batch, 4), math.nan)
    boxes[1::2] = torch.tensor([0.2 * width, 0.1 * height, 0.8 * width, 0.7 * height])
    points = torch.rand(batch, clicks, 2, generator=random) * torch.tensor([width, height])
    labels = torch.tensor([1, 0, 1, -1])[:clicks].repeat(batch, 1)
    before = torch.rand(batch, 1, *size, generator=random) if model.previous_mask else None
    return Prompts(points, labels, boxes, before)


@pytest.fixture(scope="module", params=NETWORKS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return network(name)


@each("working_size", [None, 30])
@each("size", [(1, 1), (1, 9), (37, 53), (130, 75)])
def test_encoding_and_decoding_is_the_whole_road(model, size, working_size):
    model, image = copy.deepcopy(model), torch.rand(2, 3, *size)
    model.working_size = working_size
    given = asked(model, size, 2)
    with torch.no_grad():
        logits = model(image, given)
        assert torch.equal(model.decode(model.encode(image), given), logits)
        given = asked(model, size, 6)
        repeated = model.decode(model.encode(image).repeat(3), given)
        several = model(image.repeat_interleave(3, dim=0), given)
    assert logits.shape == (2, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    torch.testing.assert_close(repeated, several, atol=1e-4, rtol=1e-3)


def test_a_click_costs_what_depends_on_it(model):
    parts = ("backbone", "decoder", "fusion", "head")
    model, calls = copy.deepcopy(model), []
    for part in parts:
        if (module := getattr(model, part)) is not None:
            module.register_forward_hook(lambda *_, part=part: calls.append(part))
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 40))
        before = calls.copy()
        for _ in range(2):
            model.decode(encoded, asked(model, (40, 40)))
    first, later = (parts[:2], parts[2:]) if model.fusion else ((), (*parts[:2], "head"))
    assert (before, calls) == ([*first], [*first, *later, *later])
    assert (encoded.decoder_maps is None) == (model.prompts_enter == "stem")


def test_logits_depend_on_each_kind_of_prompt_and_not_on_padding(model):
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        given = [
            prompts(),
            prompts((20, 20, 1)),
            prompts((20, 20, 0)),
            prompts((44, 20, 1)),
            prompts(box=(5, 5, 30, 30)),
        ]
        if model.previous_mask:
            zeros = torch.zeros(1, 1, 40, 56)
            given += [prompts(previous=zeros + 0.5), prompts(previous=torch.rand(1, 1, 40, 56))]
            assert torch.equal(
                model.decode(encoded, given[0]), model.decode(encoded, prompts(previous=zeros))
            )
        seen = [model.decode(encoded, one) for one in given]
        for i, logits in enumerate(seen):
            assert all((logits - later).abs().max() > 1e-6 for later in seen[i + 1 :])
        padded = model.decode(encoded, prompts((20, 20, 1), (30, 30, -1), (0, 0, -1)))
    torch.testing.assert_close(padded, seen[1], msg="in any order")


def test_half_precision_gives_float32_logits_close_to_the_exact_ones(model):
    image, given = torch.rand(1, 3, 48, 48), asked(model, (48, 48))
    with torch.no_grad():
        exact = model(image, given)
        with torch.autocast("cpu", torch.bfloat16):
            encoded = model.encode(image)
            answers = [model.decode(encoded, given)]
        answers.append(copy.deepcopy(model).bfloat16()(image, given))
        if encoded.decoder_maps is not None:
            answers.append(model.decode(encoded, given))
    for half in answers:
        assert half.dtype == torch.float32
        assert not torch.equal(half, exact)
        assert (half - exact).abs().max() < 0.1 * exact.abs().max() + 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_in_half_precision_are_reduced(dtype):
    maps = torch.rand(1, 3, 90, 130, generator=torch.Generator().manual_seed(0))
    small = resize_maps(maps.to(dtype), (45, 64))
    assert small.dtype == dtype
    torch.testing.assert_close(small.float(), resize_maps(maps, (45, 64)), atol=1e-2, rtol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_one_column_is_resized_as_one_row(layout):
    maps = torch.rand(1, 3, 512, 2, generator=torch.Generator().manual_seed(0))
    maps[..., 1] = maps[..., 0]
    column = resize_maps(maps.to(memory_format=layout), (320, 1))
    torch.testing.assert_close(column, resize_maps(maps, (320, 2))[..., :1])
    assert resize_maps(maps, (1, 1)).shape == (1, 3, 1, 1)


def test_all_parameters_learn(model):
    model = copy.deepcopy(model).train()
    encoded = model.encode(torch.rand(2, 3, 64, 48)).repeat(2)
    logits = model.decode(encoded, asked(model, (64, 48), 4))
    (logits * torch.randn_like(logits)).sum().backward()
    assert_all_learn(model)


GRAPH_CUT = {"class_path": "probseg.heads.GraphCut", "init_args": {"units": 4, "smoothness": 2.0}}


@each("working_size", [None, 30])
@each(
    ("name", "changes"),
    [
        *((name, {}) for name in NETWORKS),
        ("micro_csa at the stem", {"previous_mask": True}),
        ("micro_conv at the stem", {"refinement": GRAPH_CUT}),
    ],
)
def test_many_images_are_computed_as_each_alone(name, changes, working_size):
    model = network(name, **changes)
    model.working_size = working_size
    near = {"rtol": 1e-4, "atol": 1e-4}
    if model.refinement is None and "prop" not in name:  # which are float32
        model, near = model.double(), {"rtol": 1e-6, "atol": 1e-7}
    sizes = [(37, 53), (40, 54), (37, 53), (39, 56)]
    images = [torch.rand(3, *size) for size in sizes]
    given = [asked(model, size, seed=n, clicks=n) for n, size in enumerate(sizes)]
    given[3] = given[3]._replace(boxes=torch.tensor([[2.0, 3, 40, 30]]), previous=None)
    with torch.no_grad():
        encoded = SegmenterModel(model).encode_each(images)
        together, _ = SegmenterModel(model).decode_each(encoded, given)
        some, _ = SegmenterModel(model).decode_each([encoded[2], encoded[0]], [given[2], given[0]])
        for image, own, one, answer in zip(images, given, encoded, together, strict=True):
            alone = model.encode(image[None])
            assert (one.size, one.working_size) == (alone.size, alone.working_size)
            torch.testing.assert_close(one.image, alone.image)
            torch.testing.assert_close(answer, model(image[None], own)[0, 0], **near)
    for answer, other in zip(some, (together[2], together[0]), strict=True):
        torch.testing.assert_close(answer, other, **near)
    assert not torch.equal(together[0], together[2])


# --- what a network sees ------------------------------------------------------------------------


class Paint(Head):
    """Logits above zero where one of the maps is drawn; the clicks are still the two before."""

    def __init__(self, inputs, value_channels, channel=1, stride=1):
        super().__init__()
        self.channel, self.stride = channel, stride

    def forward(self, features, clicks, value_features=None):
        assert torch.equal(features[:, 1:3], clicks)
        return features[:, self.channel : self.channel + 1] - 0.5


def painter(channel=1, working_size=None, stride=1, previous_mask=False, **maps):
    head = partial(Paint, channel=channel, stride=stride)
    return Segmenter(
        *(Recorder(3 + previous_mask), Through, head, ClickMaps(**maps), working_size),
        previous_mask=previous_mask,
    )


def test_images_are_normalised_and_followed_by_the_click_maps():
    model, image = painter(0), torch.rand(1, 3, 5, 9)
    clicks = prompts((1, 1, 1), (7, 3, 0), box=(2, 0, 5, 4))
    model(image, clicks)
    mean, std = torch.tensor(Recorder.mean), torch.tensor(Recorder.std)
    expected = (image - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(model.backbone.seen[:, :3], expected)
    assert torch.equal(model.backbone.seen[:, 3:], ClickMaps()(clicks, (5, 9)))


def test_prompts_move_as_centres_of_pixels_and_edges_of_boxes():
    """Without the half pixel, clicks would drift; each axis has a scale of its own."""
    clicks = prompts((-0.5, -0.5, 1), (29.5, 9.5, 0), box=(0, 0, 30, 10))
    moved = resize_prompts(clicks, (10, 30), (40, 15))
    assert moved.boxes.tolist() == [[0, 0, 15, 40]]
    assert moved.points.tolist() == [[[-0.5, -0.5], [14.5, 39.5]]]
    assert resize_prompts(prompts(), (9, 9), (4, 4)).boxes.isnan().all()


@each("name", NETWORKS)
def test_at_a_working_size_prompts_stay_in_pixels_of_the_image(name):
    model, image = network(name), torch.rand(1, 3, 64, 128)
    given = prompts((90, 60, 1), (10, 5, 0), box=(60, 30, 96, 64))
    with torch.no_grad():
        model.working_size = 64
        logits = model(image, given)
        reduced = (model.encode(image).image * model.std + model.mean)[..., :32, :]
        model.working_size = None
        small = model(reduced, resize_prompts(given, (64, 128), (32, 64)))
        elsewhere = model.decode(model.encode(reduced), given)
    expected = functional.interpolate(small, (64, 128), mode="bilinear")
    torch.testing.assert_close(logits, expected)
    assert not torch.equal(small, elsewhere)


@each(
    ("sizing", "size", "seen"),
    [
        ("reduce", (80, 200), (20, 50)),
        ("reduce", (30, 50), (30, 50)),
        ("reduce", (1, 300), (1, 50)),
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


@pytest.mark.parametrize("entry", ["stem", "head"])
def test_images_are_filled_up_to_whole_cells(entry):
    model = micro_model("micro_csa", prompts=entry).eval()
    image = torch.rand(1, 3, 37, 54)
    mean = model.mean.expand(3, 64, 64).clone()[None]
    mean[..., :37, :54] = image
    given = prompts((50, 30, 1), (10, 5, 0), box=(30, 20, 54, 37))
    with torch.no_grad():
        torch.testing.assert_close(model(image, given), model(mean, given)[..., :37, :54])
        assert model.encode(image).image.shape == (1, 3, 64, 64), "of the coarsest map"
    finest = micro_model("micro_csa", cell=8)
    assert finest.preprocess(image).image.shape == (1, 3, 40, 56)


SMALL = micro_model("micro_csa", working_size=40)


@given(height=st.integers(1, 90), width=st.integers(1, 90), working_size=st.integers(1, 60))
def test_the_grid_is_the_size_that_the_network_sees(height, width, working_size):
    for model in (painter(1), painter(1, working_size), SMALL):
        seen = model.encode(torch.zeros(1, 3, height, width)).image.shape[-2:]
        assert SegmenterModel(model).batch_key((height, width)) == tuple(seen)


# --- prompts at the head ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["axial", "full"])
def test_where_to_look_does_not_depend_on_prompts(layout):
    head = {"layout": layout, **({"span": None} if layout == "full" else {})}
    model = network("micro_csa at the head", head=head)
    first = model.head.last if layout == "full" else model.head.height
    seen = []
    for part in (first.query, first.key, first):
        part.register_forward_hook(lambda module, arguments, output: seen.append(output))
    with torch.no_grad():
        encoded = model.encode(torch.rand(1, 3, 40, 56))
        model.decode(encoded, prompts())
        model.decode(encoded, asked(model, (40, 56)))
    assert torch.equal(seen[0], seen[3])
    assert torch.equal(seen[1], seen[4])
    assert not torch.equal(seen[2], seen[5])


@each(("row", "column"), [(0, 0), (9, 6), (11, 15)])
def test_a_single_clicked_pixel_counts_however_coarse_the_features(row, column):
    fusion = PromptFusion(FeatureInfo((6,), (4,)), 3, channels=8, dilations=()).eval()
    decoded, maps = Through(None)([torch.randn(1, 6, 3, 4)]), torch.zeros(1, 3, 12, 16)
    before = fusion(decoded, maps, prompts())
    maps[0, 1, row, column] = 1
    change = (fusion(decoded, maps, prompts()) - before)[0, :, row // 4, column // 4]
    torch.testing.assert_close(change, fusion.embed.weight[:, 1, 1, 1])


@each(("dilations", "reach"), [((), 1), ((1,), 2), ((1, 2), 4), ((1, 2, 4, 8), 16)])
def test_blocks_of_the_fusion_reach_ever_further(dilations, reach):
    fusion = PromptFusion(FeatureInfo((4,), (1,)), 3, channels=2, dilations=dilations).eval()
    for parameter in fusion.parameters():
        nn.init.ones_(parameter)
    decoded, maps = Through(None)([torch.ones(1, 4, 1, 41)]), torch.zeros(1, 3, 1, 41)
    before = fusion(decoded, maps, prompts())
    maps[0, 1, 0, 20] = 1
    changed = (fusion(decoded, maps, prompts()) != before).any(dim=1).flatten().nonzero()
    assert int(changed.max()) - 20 == reach


def test_auxiliary_logits_have_the_size_of_the_image_and_see_no_prompt():
    backbone = micro_model("micro_csa", prompts="head").backbone
    model = Segmenter(backbone, Coarse, ConvHead, working_size=30, prompts="head").eval()
    image = torch.rand(1, 3, 37, 53)
    with torch.no_grad():
        encoded = model.encode(image)
        given = (prompts(), prompts((20, 9, 1), (33, 30, 0), box=(5, 3, 40, 31)))
        first, second = (model.raw_logits(encoded, one) for one in given)
        (one,) = SegmenterModel(model).encode_each([image[0]])
    assert torch.equal(first.auxiliary, second.auxiliary)
    assert not torch.equal(first.main, second.main)
    assert encoded.working_size == (21, 30)
    assert encoded.image.shape == (1, 3, 32, 32), "whole cells of stride 32"
    whole = functional.interpolate(encoded.decoder_maps.auxiliary, (32, 32), mode="bilinear")
    expected = functional.interpolate(whole[..., :21, :30], (37, 53), mode="bilinear")
    torch.testing.assert_close(first.auxiliary, expected)
    assert one.decoder_maps.auxiliary is None, "which only a loss looks at"


# --- the previous mask --------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["stem", "head"])
def test_with_blind_weights_it_is_the_network_without_and_no_gradient_flows_in(entry):
    """The channel that is new is last: a network without it is one whose weights there are 0."""
    changes = {"prompts": entry, **({"fusion": FUSION} if entry == "head" else {})}
    torch.manual_seed(0)
    plain = micro_model("micro_csa", **changes)
    model = micro_model("micro_csa", previous_mask=True, **changes)
    state = plain.state_dict()
    assert state.keys() == model.state_dict().keys()
    larger = {k: t for k, t in model.state_dict().items() if t.shape != state[k].shape}
    ((key, tensor),) = larger.items()
    state[key] = torch.cat([state[key], torch.zeros_like(tensor[:, 3:])], dim=1)
    model.load_state_dict(state)
    image, previous = torch.rand(1, 3, 37, 41), torch.rand(1, 1, 37, 41).requires_grad_()
    answer = model(image, prompts((9, 12, 1), (30, 4, 0), previous=previous))
    expected = plain(image, prompts((9, 12, 1), (30, 4, 0)))
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    answer.sum().backward()
    assert previous.grad is None
    assert dict(model.named_parameters())[key].grad[:, 3].abs().sum() > 0


@pytest.mark.parametrize("stride", [1, 4])
def test_a_square_of_the_previous_mask_lands_where_it_should(stride):
    # The image is reduced to a third: pixels 30 to 59 become 10 to 19.
    model = painter(3, working_size=41, stride=stride, previous_mask=True).eval()
    previous = torch.zeros(1, 1, 90, 123)
    previous[..., 30:60, 60:96] = 1
    answer = model(torch.zeros(1, 3, 90, 123), prompts((9, 12, 1), previous=previous))
    seen = model.backbone.seen[0, 6]
    expected = torch.zeros_like(seen)
    expected[10:20, 20:32] = 1
    assert torch.equal(seen > 0.5, expected > 0.5)
    wrong = ((answer > 0) != (previous > 0.5))[0, 0].nonzero().tolist()
    corners = [[30, 60], [30, 95], [59, 60], [59, 95]]  # enlarged, corners are round
    assert all(pixel in corners for pixel in wrong)
    other = torch.rand(1, 1, 90, 123)
    model(other.expand(1, 3, 90, 123), prompts(previous=other))
    grey = 0.5 * model.backbone.seen[:, :1, :30, :41] + 0.5
    seen = model.backbone.seen[:, 6:]
    torch.testing.assert_close(seen[..., :30, :41], grey, msg="resized as the image is")
    assert seen.count_nonzero() == 30 * 41, "filled up with zeros"


def test_parameters_of_the_image_alone():
    backbone = Recorder(maps=4)
    known = set(backbone.parameters())
    Segmenter(backbone, Through, Paint, previous_mask=True)
    assert isinstance(backbone.first, PromptStem)
    assert backbone.first.prompts.weight.shape[1] == 4
    assert set(rgb_parameters(backbone)) == known


# --- wrong input --------------------------------------------------------------------------------


@each(
    ("image", "given", "parts"),
    [
        (torch.rand(3, 8, 8), prompts(), ["`image`", (3, 8, 8)]),
        (torch.rand(1, 4, 8, 8), prompts(), ["`image`", (1, 4, 8, 8)]),
        (torch.zeros(1, 3, 8, 8).byte(), prompts(), ["`image`", torch.uint8]),
        (255 * torch.rand(1, 3, 8, 8), prompts(), ["`image`", "[0, 1]", "by 255"]),
        (torch.full((1, 3, 8, 8), -2.0), prompts(), ["`image`", "normalisation"]),
        (torch.full((1, 3, 8, 8), torch.nan), prompts(), ["`image`", "nan"]),
        *(
            (torch.rand(1, 3, 8, 8), wrong, ["`prompts`"])
            for wrong in (
                (3, 4),
                prompts(batch=2),
                prompts((1, 1, 1))._replace(points=torch.zeros(1, 2, 2)),
                prompts()._replace(labels=torch.zeros(1, dtype=torch.long)),
                prompts()._replace(boxes=torch.zeros(4)),
            )
        ),
        *(
            (torch.rand(1, 3, 8, 12), prompts((1, 1, 1), far), ["`prompts.points`", far[0]])
            for far in ((1000, 4, 1), (4, 8, 0), (-3, 0, 1), (torch.nan, 4, 1))
        ),
        (torch.rand(1, 3, 8, 12), prompts((1, 1, 2)), ["prompts.labels", 2]),
        *(
            (torch.rand(1, 3, 8, 12), prompts()._replace(boxes=torch.tensor([box])), ["boxes", box])
            for box in ([5.0, 1.0, 2.0, 4.0], [torch.nan, 1.0, 2.0, 4.0])
        ),
        *(
            (torch.rand(1, 3, 8, 8), prompts(previous=wrong), ["prompts.previous", wrong.dtype])
            for wrong in (
                torch.zeros(1, 1, 8, 9),
                torch.zeros(2, 1, 8, 8),
                torch.zeros(1, 1, 8, 8, dtype=torch.bool),
            )
        ),
    ],
)
def test_wrong_input_is_refused(image, given, parts):
    model = painter(1, previous_mask=True)
    refused(ValueError, lambda: model(image, given), *parts)
    if image.shape == (1, 3, 8, 8) and parts[0] != "`image`" and isinstance(given, Prompts):
        encoded = SegmenterModel(model).encode_each([image[0]] * 2)
        both = lambda: SegmenterModel(model).decode_each(encoded, [prompts(), given])  # noqa: E731
        refused(ValueError, both, *parts[:1])


def test_a_previous_mask_that_the_network_does_not_take_is_refused():
    given = prompts(previous=torch.zeros(1, 1, 8, 8))
    refused(ValueError, lambda: painter(1)(torch.rand(1, 3, 8, 8), given), "previous_mask=True")


@each(
    ("changes", "parts"),
    [
        ({"working_size": 0}, ["`working_size`", 0]),
        ({"fusion": FUSION}, ["fusion", "'stem'"]),
        ({"prompts": "middle"}, ["`prompts`"]),
        ({"cell": 6}, ["`cell`", 4, 6]),
        ({"cell": 0}, ["`cell`", 4, 0]),
        ({"temperature": 0.0}, ["`temperature`"]),
        ({"temperature": math.inf}, ["`temperature`"]),
    ],
)
def test_wrong_arguments_are_named(changes, parts):
    refused(ValueError, lambda: micro_model("micro_csa", **changes), *parts)


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked")
def test_a_forked_process_needs_no_threads_of_its_parent():
    """It would wait for them for ever."""
    code = (
        "import multiprocessing, torch, probseg.models\n"
        "torch.set_num_threads(2)\n"
        "(torch.rand(512, 512) @ torch.rand(512, 512)).exp()\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    print(pool.apply(torch.get_num_threads), torch.get_num_threads())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "1 2\n", done.stderr
