"""Prompts that meet a pyramid of features: a U-Net, and a stage on one level."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from probseg.attention import Adaptation
from probseg.heads import DecoderMaps, PromptPropagation, PromptStage, PromptUNet, PyramidDecoder
from probseg.heads.propagation import FEW, FEW_CLICKS, REACH, UNKNOWN
from probseg.types import FeatureInfo, Prompts
from support.fakes import micro_model
from support.network_cases import as_batch, assert_all_learn, maps_of, opened, prompts
from support.refusals import refused
from support.rows import each

PYRAMID = FeatureInfo((3, 4, 5, 6, 7), (2, 4, 8, 16, 32))


def test_each_level_knows_of_the_coarser_ones():
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    given = [m.requires_grad_() for m in maps_of(PYRAMID, 1, 64, 64)]
    decoded = decoder(given)
    assert decoder.features == FeatureInfo((4, 5, 6), (4, 8, 16))
    for level, features in enumerate((decoded.features, *decoded.coarser)):
        gradients = torch.autograd.grad(
            features.square().sum(), given, retain_graph=True, allow_unused=True
        )
        seen = [n for n, gradient in enumerate(gradients) if gradient is not None]
        assert seen == list(range(level + 1, 4)), "neither stride 2 nor what has no width"


@each(("row", "column"), [(0, 0), (13, 30), (31, 5)])
def test_a_single_clicked_pixel_reaches_every_level(row, column):
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    fusion = PromptUNet(decoder.features, 3, blocks=(1, 1, 1)).eval()
    nothing = prompts()
    seen = []
    for blocks in fusion.blocks:
        blocks.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    with torch.no_grad():
        decoded = decoder(maps_of(PYRAMID, 1, 32, 32))
        clicks = torch.zeros(1, 3, 32, 32)
        before = fusion(decoded, clicks, nothing)
        clicks[0, 1, row, column] = 1
        after = fusion(decoded, clicks, nothing)
    assert before.shape == (1, 4, 8, 8)
    changed = (before != after).any(dim=1)[0]
    assert changed[row // 4, column // 4]
    for level in range(3):
        cell = row // (4 << level), column // (4 << level)
        assert (seen[level] != seen[3 + level]).any(dim=1)[0][cell], level


def test_the_way_up_adds_the_features_of_the_way_down():
    decoder = PyramidDecoder(PYRAMID, widths=(4, 5, 6)).eval()
    fusion = PromptUNet(decoder.features, 3, blocks=(1, 1, 1)).eval()
    for coarser in fusion.up:
        nn.init.zeros_(coarser.weight)
    maps = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        decoded = decoder(maps_of(PYRAMID, 1, 32, 32))
        finest = fusion.blocks[0]((fusion.embed(maps) + decoded.features).relu())
        result = fusion(decoded, maps, prompts())
        torch.testing.assert_close(result, fusion.merge[0](finest))
    assert result.any()


def test_propagations_are_prepared_before_clicks():
    fusion = PromptUNet(
        FeatureInfo((4, 5), (4, 8)), 3, blocks=(1, 1), propagation=PromptPropagation
    ).eval()
    decoded = PyramidDecoder(PYRAMID, widths=(4, 5)).eval()(maps_of(PYRAMID, 2, 32, 32))
    prepared = fusion.prepare(decoded, torch.rand(2, 3, 32, 32))
    assert prepared.units.queries.shape == (2, 4, 16, 17)
    assert prepared.units.keys.shape == (2, 4, 64, 17)
    assert torch.equal(prepared.features, decoded.features)
    plain = PromptUNet(FeatureInfo((4, 5), (4, 8)), 3, blocks=(1, 1))
    assert plain.prepare(decoded, torch.rand(2, 3, 32, 32)) is decoded


@each("strides", [(16,), (7, 14), (4, 16, 32), (3, 6)])
def test_details_of_the_image_reach_the_clicks_at_every_stride(strides):
    """A pixel changes the fused features, although the decoder's maps stay as they are."""
    torch.manual_seed(0)
    info = FeatureInfo((4, 5, 6)[: len(strides)], strides)
    propagation = partial(PromptPropagation, units=2) if len(strides) > 1 else None
    fusion = opened(PromptUNet(info, 3, [1] * len(strides), propagation, detail=True)).eval()
    side = 4 * strides[-1]
    finest, *coarser = maps_of(info, 1, side, side)
    image = torch.rand(1, 3, side, side).requires_grad_()
    decoded = DecoderMaps(finest, coarser=tuple(coarser))
    asked = prompts((side // 2, side // 2, 1))
    features = fusion(fusion.prepare(decoded, image), torch.rand(1, 3, side, side), asked)
    assert features.shape == finest.shape
    (features * torch.randn_like(features)).sum().backward()
    assert_all_learn(fusion)
    for place, layer in enumerate(fusion.detail):
        if isinstance(layer, nn.ReLU):  # which may pass nothing of a pixel
            fusion.detail[place] = nn.Identity()
    (gradient,) = torch.autograd.grad(
        fusion.prepare(decoded, image).features[..., 1, 1].sum(), image
    )
    inside = slice(strides[0], 2 * strides[0])
    assert gradient[..., inside, inside].all(), "every pixel of a cell counts"


LEVELS = FeatureInfo((4, 5, 6), (4, 8, 16))


@each(
    ("make", "parts"),
    [
        (partial(PyramidDecoder, PYRAMID, widths=()), ["`widths`", []]),
        (partial(PyramidDecoder, PYRAMID, widths=(4,) * 5), ["`widths`", [4] * 5]),
        (partial(PromptUNet, LEVELS, 3, blocks=(1, 1)), ["`blocks`", 3, [1, 1]]),
        (partial(PromptUNet, FeatureInfo((4, 5), (14, 16)), 3, (1, 1)), ["`inputs`", (14, 16)]),
        (
            partial(PromptUNet, FeatureInfo((4,), (16,)), 3, (1,), PromptPropagation),
            ["`inputs`", (16,)],
        ),
    ],
)
def test_wrong_arguments_are_named(make, parts):
    refused(ValueError, make, *parts)


# --- a stage on one level ---

THREE = FeatureInfo((4, 6, 8), (4, 8, 16))
MIXING = {
    "convolutions": {},
    "full": {"attention": "probabilistic"},
    "full positions": {"attention": "probabilistic", "position": "full"},
    "axial": {"attention": "standard", "layout": "axial", "options": {"position_keys": False}},
}
CELLS = 6
"""Of the stage's grid, along each side; an image has 16 pixels for each."""


def stage(**changes):
    torch.manual_seed(0)
    sizes = {"channels": 8, "out_channels": 4, "num_heads": 2, "image_size": 16 * CELLS}
    return PromptStage(THREE, 2, **{**sizes, **changes}).eval()


def run(fusion, maps=None, seed=0):
    """Features for random maps, or for click maps that are empty but for some pixels."""
    random = torch.Generator().manual_seed(seed)
    side = 16 * CELLS
    levels = [
        torch.randn(1, channels, side // stride, side // stride, generator=random)
        for channels, stride in zip(THREE.channels, THREE.strides, strict=True)
    ]
    decoded = DecoderMaps(levels[0], coarser=tuple(levels[1:]))
    prompts = Prompts(torch.zeros(1, 0, 2), torch.zeros(1, 0), torch.full((1, 4), torch.nan))
    maps = torch.zeros(1, 2, side, side) if maps is None else maps
    with torch.no_grad():
        return fusion(decoded, maps, prompts)


def reached(fusion):
    """Cells of the stage whose features change with a click in its upper left corner."""
    clicked = torch.zeros(1, 2, 16 * CELLS, 16 * CELLS)
    clicked[:, 0, 3:8, 3:8] = 1
    fusion.smooth = torch.nn.Identity()  # which reaches over the borders of the cells
    change = (run(fusion, clicked) - run(fusion)).abs().amax(dim=(0, 1))  # (h, w)
    return change.unflatten(0, (CELLS, -1)).unflatten(2, (CELLS, -1)).amax(dim=(1, 3)) > 0


def test_clicks_reach_other_cells_through_the_blocks_alone():
    block = torch.arange(CELLS) <= 2  # two convolutions
    assert torch.equal(reached(stage()), block[:, None] & block)
    for name in ("full", "full positions", "axial"):
        assert reached(stage(**MIXING[name])).all(), name


@each("mixing", MIXING)
def test_the_result_sees_finer_features_only_if_it_is_to(mixing):
    for finer in (False, True):
        fusion = stage(finer=finer, **MIXING[mixing])
        features = torch.randn(1, 4, 4 * CELLS, 4 * CELLS)
        levels = [features, torch.randn(1, 6, 2 * CELLS, 2 * CELLS), torch.ones(1, 8, CELLS, CELLS)]
        call = partial(fusion, maps=torch.zeros(1, 2, 16 * CELLS, 16 * CELLS), prompts=None)
        with torch.no_grad():
            given, fine, middle = (
                call(DecoderMaps(levels[0] * a, coarser=(levels[1] * b, levels[2])))
                for a, b in ((1, 1), (2, 1), (1, 2))
            )
        assert given.shape == (1, 4, 4 * CELLS, 4 * CELLS)
        assert torch.equal(given, fine) != finer
        assert torch.equal(given, middle) != finer


@each("passes", [False, True])
def test_clicks_pass_the_stage_by_only_if_they_are_to(passes):
    fusion = stage(finer_prompts=passes)
    fusion.smooth = torch.nn.Identity()
    torch.nn.init.zeros_(fusion.subpixels.weight)
    torch.nn.init.ones_(fusion.subpixels.bias)
    clicked = torch.zeros(1, 2, 16 * CELLS, 16 * CELLS)
    clicked[:, 0, 4:8, 8:12] = 1
    change = (run(fusion, clicked) - run(fusion)).abs().amax(dim=(0, 1))
    assert change.nonzero().tolist() == [[1, 2]] * passes


def test_keys_of_the_stage_adapt_and_those_of_the_head_do_not():
    head = {
        "class_path": "probseg.heads.CorrectiveSelfAttention",
        "init_args": {"stride": 8, "channels": 8, "options": {"key_iterations": 0}},
    }
    small = {"channels": 16, "out_channels": 8, "attention": "probabilistic"}
    changes = {"backbone": {"name": "test_efficientnet.r160_in1k"}, "fusion": small, "head": head}
    model = micro_model("lite0_stage", decoder={"widths": [8, 8, 12, 16]}, **changes).eval()
    image = torch.rand(1, 3, 64, 64)
    box = Prompts(torch.zeros(1, 0, 2), torch.zeros(1, 0), torch.tensor([[5.0, 9, 40, 50]]))
    with torch.no_grad():
        before = model(image, box)
        model.adapt(Adaptation(key_iterations=1, key_prior=0.5))
        assert (model.adaptation().key_iterations, model.adaptation().key_prior) == (1, 0.5)
        assert not torch.equal(model(image, box), before)
        model.adapt(Adaptation(key_iterations=0))
        assert torch.equal(model(image, box), before)
    assert model.head.last.settings.key_adaptation.iterations == 0


GRID = (5, 6)
STRIDE = 4
SIZE = (STRIDE * GRID[0], STRIDE * GRID[1])
CHANNELS = 3
SPACES = 2
POINTS = [[(1.0, 2.0), (14.3, 9.0), (21.0, 17.5)], [(8.0, 8.0), (15.0, 3.0), (2.0, 18.0)]]
LABELS = [[1, 0, 1], [0, 1, 0]]


def propagation(**options):
    options = {"spaces": SPACES, "dims": 4, "units": 2, **options}
    module = PromptPropagation(FeatureInfo((CHANNELS,), (STRIDE,)), **options)
    with torch.no_grad():
        for parameter in module.parameters():  # none is where it would not be noticed
            parameter.add_(torch.randn_like(parameter) / 4)
        module.log_scales[1:] -= 1.5  # so that no unit has a pixel for itself
    return module


@pytest.fixture
def module():
    return propagation()


def scene(batch=2, grid=GRID):
    size = (STRIDE * grid[0], STRIDE * grid[1])
    return torch.randn(batch, CHANNELS, *grid), torch.rand(batch, 3, *size)


def asked(points=POINTS, labels=LABELS, boxes=None, previous=None):
    """Prompts of each image, with equally many clicks."""
    rows = [
        [(*point, label) for point, label in zip(*one, strict=True)]
        for one in zip(points, labels, strict=True)
    ]
    boxes = boxes or [None] * len(points)
    each = [prompts(*clicks, box=box) for clicks, box in zip(rows, boxes, strict=True)]
    return as_batch(*each)._replace(previous=previous)


def propagated(module, given, features, image):
    """The four maps `(B, 4, G, h, w)` of each space."""
    grid = tuple(features.shape[-2:])
    maps = module(module.prepare(features, image), given, grid)
    assert maps.dtype == torch.float32
    assert maps.shape == (len(image), module.channels, *grid)
    return maps.unflatten(1, (-1, 4)).transpose(1, 2)


def responsibilities(queries, keys):
    """Posterior of the keys for each query, `(N, M)`: Gaussians of unit variance."""
    likelihood = np.exp(-((queries[:, None] - keys[None]) ** 2).sum(-1) / 2)
    return likelihood / likelihood.sum(1, keepdims=True)


def cell_means(tokens, units):
    """Means of the cells of a grid, which may overlap."""
    height, width = GRID
    tokens = tokens.reshape(height, width, -1)
    rows = [(i * height // units, -(-(i + 1) * height // units)) for i in range(units)]
    columns = [(i * width // units, -(-(i + 1) * width // units)) for i in range(units)]
    return np.stack([tokens[a:b, c:d].mean((0, 1)) for a, b in rows for c, d in columns])


def pooled(maps):
    """Means of the pixels of each cell, `(C, H, W)` to `(C, h, w)`."""
    return maps.reshape(len(maps), GRID[0], STRIDE, GRID[1], STRIDE).mean((2, 4))


def tokens(module, features, image, space):
    """Features, colours and places of the pixels in a space."""
    weight, bias = (p.detach().double().numpy() for p in module.embed.parameters())
    dims = slice(space * module.dims, (space + 1) * module.dims)
    seen = np.einsum("dc,chw->hwd", weight[dims, :, 0, 0], features) + bias[dims]
    seen -= seen.mean(-1, keepdims=True)
    seen /= np.sqrt((seen**2).mean(-1, keepdims=True) + 1e-5)
    colours = pooled(image).transpose(1, 2, 0)
    places = np.stack(np.mgrid[: GRID[0], : GRID[1]], axis=-1) / max(GRID)
    scales = np.exp(module.log_scales.detach().double().numpy()[:, space])
    parts = [part * scale for part, scale in zip((seen, colours, places), scales, strict=True)]
    return np.concatenate(parts, axis=-1).reshape(GRID[0] * GRID[1], -1)


def observed(module, points, labels, box, previous):
    """Weights of the pixels, their beliefs, and which are clicked positively and negatively."""
    heavy = math.exp(module.log_click_weight.item())
    belief, weight = np.zeros(GRID), np.full(GRID, UNKNOWN)
    if box is not None:
        x0, y0, x1, y1 = (round(side / STRIDE) for side in box)
        belief[y0:y1, x0:x1], weight[:] = 1, 1
    if previous is not None and previous.any():
        belief, weight = pooled(previous)[0], np.ones(GRID)
    clicked = {1: np.zeros(GRID), 0: np.zeros(GRID)}
    for row, column in np.ndindex(*GRID):
        distances = {1: np.inf, 0: np.inf}
        for (x, y), label in zip(points, labels, strict=True):
            dx, dy = (x + 0.5) / STRIDE - 0.5 - column, (y + 0.5) / STRIDE - 0.5 - row
            distances[label] = min(distances[label], math.hypot(dx, dy))
        nearest = 1 if distances[1] <= distances[0] else 0
        if distances[nearest] <= 0.75:
            clicked[nearest][row, column] = 1
            belief[row, column], weight[row, column] = nearest, heavy
    return weight, weight * belief, clicked[1], clicked[0]


def reference(module, features, image, points, labels, box, previous, space):
    queries = tokens(module, features, image, space)
    keys = cell_means(queries, module.units)
    for _ in range(module.key_iterations):
        own = responsibilities(queries, keys)
        keys = own.T @ queries / own.sum(0)[:, None]
    own = responsibilities(queries, keys)
    values = np.stack(observed(module, points, labels, box, previous), axis=-1).reshape(-1, 4)
    weight, objects, positive, negative = (own.T @ values / own.sum(0)[:, None]).T
    share = (objects + FEW * objects.mean() / weight.mean()) / (weight + FEW)
    clicked = (positive - negative) / (positive + negative + FEW_CLICKS)
    read = own @ np.stack([share, clicked], axis=-1)
    kept = read[:, 0].clip(0.01, 0.99)
    places = [int((y + 0.5) / STRIDE) * GRID[1] + int((x + 0.5) / STRIDE) for x, y in points]
    to_clicks = ((queries[:, None] - queries[None, places]) ** 2).sum(-1) / 2
    sign = responsibilities(queries, queries[places]) @ [1 if one else -1 for one in labels]
    distance = (-np.log(np.exp(-to_clicks).sum(1))).clip(min=0)
    maps = [np.log(kept / (1 - kept)) / 4.6, read[:, 1], sign, sign * np.exp(-distance / REACH)]
    return np.stack(maps).reshape(4, *GRID)


@each("iterations", [1, 2])
@each("kind", ["clicks", "box", "previous", "both"])
def test_maps_are_the_sums_written_out(kind, iterations):
    module = propagation(key_iterations=iterations)
    features, image = scene()
    boxes = [None, (4.0, 3.0, 17.0, 13.0)] if kind in ("box", "both") else [None, None]
    previous = torch.rand(2, 1, *SIZE) if kind in ("previous", "both") else None
    if kind == "both":
        previous[1] = 0  # nothing was answered: the box counts
    got = propagated(module, asked(boxes=boxes, previous=previous), features, image)
    before = [None, None] if previous is None else previous.double().numpy()
    for n in range(2):
        for space in range(SPACES):
            given = POINTS[n], LABELS[n], boxes[n], before[n]
            scenery = features[n].double().numpy(), image[n].double().numpy()
            expected = reference(module, *scenery, *given, space)
            np.testing.assert_allclose(got[n, :, space].detach(), expected, atol=2e-4)
            assert np.ptp(expected, axis=(1, 2)).min() > 1e-3, "nothing is the same everywhere"


@each("previous", [None, torch.zeros(2, 1, *SIZE)])
@each("padding", [0, 2])
def test_without_prompts_no_click_is_near_and_gradients_are_finite(module, padding, previous):
    features, image = scene()
    given = prompts(*[(0, 0, -1)] * padding, previous=previous, batch=2)
    maps = propagated(module, given, features.requires_grad_(), image)
    assert maps.isfinite().all()
    assert (maps[:, 1:] == 0).all()
    assert (maps[:, 0] == maps[0, 0, 0, 0, 0]).all()
    (maps * torch.randn_like(maps)).sum().backward()
    assert features.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_padding_order_and_neighbours_of_clicks_change_nothing(module):
    features, image = scene()
    expected = propagated(module, asked(), features, image)
    points = [[(9.0, 9.0), *POINTS[0][::-1], (0.0, 0.0)], [(3.0, 3.0), *POINTS[1], (23.0, 19.0)]]
    labels = [[-1, *LABELS[0][::-1], -1], [-1, *LABELS[1], -1]]
    got = propagated(module, asked(points, labels), features, image)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    maps = propagated(module, asked(labels=[LABELS[0], [-1] * 3]), features, image)
    alone = propagated(module, asked([[]], [[]]), features[1:], image[1:])
    torch.testing.assert_close(maps[1:], alone, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(maps[0], expected[0], atol=1e-6, rtol=1e-5)


def test_clicks_of_the_other_sign_say_the_opposite(module):
    features, image = scene()
    box = [(4.0, 3.0, 17.0, 13.0)] * 2
    one = propagated(module, asked(boxes=box), features, image)
    swapped = [[1 - label for label in labels] for labels in LABELS]
    other = propagated(module, asked(labels=swapped, boxes=box), features, image)
    torch.testing.assert_close(other[:, 1:], -one[:, 1:], atol=1e-6, rtol=1e-5)
    assert one[:, 1:].abs().amax(dim=(-1, -2)).min() > 0.01
    assert not torch.allclose(other[:, 0], one[:, 0], atol=0.01)


def test_a_click_speaks_for_all_of_a_region_of_its_colour():
    module = PromptPropagation(FeatureInfo((CHANNELS,), (STRIDE,)), units=4)
    image = torch.zeros(1, 3, 32, 32)
    image[..., 12:] = 1.0  # black on the left, white on the right
    left = torch.zeros(8, 8, dtype=torch.bool)
    left[:, :3] = True
    given = asked([[(9.0, 2.0), (14.0, 30.0)]], [[1, 0]])  # both near the border of the regions
    odds, clicked, sign, near = propagated(module, given, torch.zeros(1, CHANNELS, 8, 8), image)[0]
    for space in range(module.spaces):
        assert torch.equal(sign[space] > 0.99, left)
        assert torch.equal(sign[space] < -0.99, ~left)
        assert torch.equal(near[space] > 0, left)
    widest = -1  # which hardly looks for places
    for said in (odds[widest], clicked[widest]):
        assert (said[left] > 0.4).all()
        assert (said[~left] < -0.4).all()


def test_a_default_dtype_of_float64_changes_nothing(module):
    features, image = scene()
    expected = propagated(module, asked(), features, image)
    given = asked()
    torch.set_default_dtype(torch.float64)
    try:
        changed = propagated(module, given, features, image)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(changed, expected)


def test_nearness_falls_with_the_distance_to_a_click():
    module = PromptPropagation(FeatureInfo((CHANNELS,), (STRIDE,)))
    given = asked([[(2.0, 14.0)]], [[1]])
    flat = torch.full((1, 3, 32, 32), 0.5)
    _, _, sign, near = propagated(module, given, torch.zeros(1, CHANNELS, 8, 8), flat)[0]
    assert (sign > 0.999).all()
    torch.testing.assert_close(near[:, 3, 0], torch.ones(module.spaces))
    assert (near[:, 3].diff(dim=-1) < 0).all()
    # Places are in longer sides: the last pixel is 7 / 8 of one away.
    scale = module.log_scales[2].exp()
    expected = (-((scale * 7 / 8) ** 2) / 2 / REACH).exp()
    torch.testing.assert_close(near[:, 3, 7], expected, atol=1e-6, rtol=1e-4)


def test_all_parameters_and_the_features_learn(module):
    features, image = scene()
    given = asked(boxes=[None, (4.0, 3.0, 17.0, 13.0)], previous=torch.rand(2, 1, *SIZE))
    maps = propagated(module, given, features.requires_grad_(), image)
    (maps * torch.randn_like(maps)).sum().backward()
    assert features.grad.abs().max() > 1e-4
    assert_all_learn(module, least=1e-4)
    assert (module.log_scales.grad != 0).all()


def test_autocast_changes_the_embedding_alone(module):
    features, image = scene()
    exact = propagated(module, asked(), features, image)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = propagated(module, asked(), features, image)
    assert not torch.equal(rounded, exact)
    assert (rounded - exact).abs().mean() < 0.02
