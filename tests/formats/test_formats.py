"""Masks through every format and back, and through independent readers of the formats."""

import io
import json
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image
from pycocotools import mask as coco_mask
from scipy import ndimage

from probseg.convert import yolo
from probseg.errors import DataError
from probseg.formats import brush, png, polygons, regions, run_lengths
from probseg.formats.colours import CLICK_COLOURS, overlay
from probseg.formats.run_lengths import draw_runs, parse_runs
from probseg.masks import read_labels, read_objects
from probseg.metrics import iou
from support.drawn_sets import runs_of as walked_runs
from support.rows import each

RING = np.zeros((9, 11), dtype=bool)
RING[1:8, 1:8] = True
RING[3:6, 3:6] = False
RING[4, 4] = True  # an island in the hole
RING[0, 10] = True  # and a part far away
CORNERS = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=bool)
DIAMOND = np.ones((5, 5), dtype=bool)  # a hole whose parts touch at corners around a pixel
DIAMOND[[1, 2, 2, 3], [2, 1, 3, 2]] = False


def noise(seed, height, width, scale, share):
    """A mask whose parts, holes and corners are about `scale` pixels apart."""
    values = np.random.default_rng(seed).normal(size=(height, width))
    values = ndimage.gaussian_filter(values, scale, mode="constant")
    return values > np.quantile(values, share)


MASKS = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=24)) | st.builds(
    lambda small, y, x: np.kron(small, np.ones((y, x), dtype=bool)),
    arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=6)),
    st.integers(1, 9),
    st.integers(1, 9),
)
MASKS |= st.builds(
    noise,
    st.integers(0, 2**16),
    st.integers(1, 32),
    st.integers(1, 32),
    st.sampled_from([0, 0.5, 1, 2]),
    st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
)


def masks(test):
    """Drawn masks, and those that are easily lost: parts, holes, corners, nothing, everything."""
    shapes = (np.zeros((3, 5), bool), np.ones((5, 3), bool), np.ones((1, 1), bool))
    for mask in (RING, CORNERS, DIAMOND, ~DIAMOND, *shapes):
        test = example(mask=mask)(test)
    return given(mask=MASKS)(test)


@masks
def test_run_lengths_give_the_mask_back(mask):
    for compressed in (True, False):
        rle = json.loads(json.dumps(run_lengths.encode(mask, compressed)))
        np.testing.assert_array_equal(run_lengths.decode(rle), mask)
    assert rle["counts"] == walked_runs(mask)
    binary = coco_mask.frPyObjects(rle, *rle["size"])
    np.testing.assert_array_equal(coco_mask.decode(binary), mask)
    compressed = run_lengths.encode(mask)
    np.testing.assert_array_equal(coco_mask.decode(compressed), mask)


@masks
def test_outlines_give_the_mask_back(mask):
    traced = polygons.trace(mask)
    np.testing.assert_array_equal(polygons.fill(traced, mask.shape), mask)
    holes = [hole for polygon in traced for hole in polygon.holes]
    area = sum(enclosed(p.outer) for p in traced) + sum(map(enclosed, holes))
    assert area == mask.sum()
    assert all(enclosed(polygon.outer) > 0 for polygon in traced)
    assert all(enclosed(hole) < 0 for hole in holes)


def enclosed(ring):
    """Signed area by the triangles to the origin."""
    corners = ring.tolist()
    pairs = zip(corners, corners[1:] + corners[:1], strict=True)
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairs) / 2


@masks
def test_polygons_of_coco_lose_holes_and_nothing_else(mask):
    traced = polygons.trace(mask)
    outlines = polygons.to_coco(traced)
    drawn = polygons.from_coco(outlines, mask.shape)
    filled = polygons.fill([polygon._replace(holes=()) for polygon in traced], mask.shape)
    np.testing.assert_array_equal(drawn.mask(), filled)
    assert (filled >= mask).all()


@masks
def test_a_line_of_yolo_has_parts_and_holes(mask):
    traced = polygons.trace(mask)
    if not mask.any():
        with pytest.raises(ValueError, match="polygons"):
            yolo.encode(3, traced, mask.shape)
        return
    line = yolo.encode(3, traced, mask.shape)
    number, drawn, *_ = yolo.decode(line, mask.shape)
    assert number == 3
    np.testing.assert_array_equal(drawn.mask(), mask)
    np.testing.assert_array_equal(read_yolo(line, mask.shape), mask)


def read_yolo(line, size):
    """Parser by the grammar `class x1 y1 x2 y2 ...`."""
    _, *numbers = line.split(" ")
    assert all(0 <= float(number) <= 1 for number in numbers)
    height, width = size
    points = [(float(x) * width, float(y) * height)
              for x, y in zip(numbers[::2], numbers[1::2], strict=True)]  # fmt: skip
    return crossed([points], size)


def crossed(rings, size):
    """Fill rings by counting the lines that a ray from each pixel's centre to the left crosses."""
    height, width = size
    found = np.zeros(size, dtype=bool)
    for ring in rings:
        for (x0, y0), (x1, y1) in zip(ring, [*ring[1:], ring[0]], strict=True):
            for row in range(height):
                if (y0 > row + 0.5) != (y1 > row + 0.5):
                    x = x0 + (row + 0.5 - y0) / (y1 - y0) * (x1 - x0)
                    found[row] ^= np.arange(width) + 0.5 > x
    return found


@given(
    st.lists(
        arrays(np.float64, (4, 2), elements=st.floats(-5, 20, width=32)), min_size=1, max_size=4
    )
)
def test_polygons_are_a_union_and_may_leave_the_image(rings):
    size = (9, 13)
    # Whether a centre on a line is inside is not defined.
    rings = [np.add(ring, (0.0123, 0.0377)) for ring in rings]
    drawn = polygons.fill([polygons.Polygon(ring) for ring in rings], size)
    alone = [crossed([ring.tolist()], size) for ring in rings]
    np.testing.assert_array_equal(drawn, np.any(alone, axis=0))


@masks
def test_the_brush_of_label_studio(mask):
    rle = brush.encode(mask)
    assert all(0 <= byte < 256 for byte in rle)
    picture = read_brush(rle).reshape(*mask.shape, 4)
    np.testing.assert_array_equal(picture, np.repeat(np.where(mask, 255, 0)[..., None], 4, axis=2))
    np.testing.assert_array_equal(brush.decode(rle, mask.shape).mask(), mask)


def test_long_runs_and_cut_off_ones_of_the_brush():
    large = np.zeros((300, 301), dtype=bool)  # 361,200 values: several blocks of 65,536
    large[100:280, 7:200] = True
    rle = brush.encode(large)
    np.testing.assert_array_equal(brush.decode(rle, large.shape).mask(), large)
    for content, size, words in (
        (rle, (301, 301), "original_width"),
        (rle[:-3], large.shape, "cut"),
        (written_brush([255] * 4, [(8, True)]), (1, 1), "cut off, or damaged"),
    ):
        with pytest.raises(ValueError, match=words):
            brush.decode(content, size)


def read_brush(rle):
    """Decoder by the description of the format, on a text of bits."""
    bits = iter("".join(f"{byte:08b}" for byte in rle))

    def number(count):
        return int("".join(next(bits) for _ in range(count)), 2)

    total, word = number(32), number(5) + 1
    widths = [number(4) + 1 for _ in range(4)]
    values = []
    while len(values) < total:
        run = number(1)
        length = number(widths[number(2)]) + 1
        values += [number(word)] * length if run else [number(word) for _ in range(length)]
    assert "1" not in bits, "more than padding is left"
    return np.array(values)


def written_brush(values, blocks, lengths=(3, 4, 8, 16)):
    """Encoder by the description of the format, for RGBA `values`.

    Blocks are numbers of values, and whether they may be a run; lengths are the four widths.
    """
    fields = [(len(values), 32), (7, 5), *((bits - 1, 4) for bits in lengths)]
    done = 0
    for count, may_be_run in blocks:
        block = values[done : done + count]
        done += count
        is_run = may_be_run and len(set(block)) == 1
        choice = next(i for i, bits in enumerate(lengths) if count <= 1 << bits)
        fields += [(is_run, 1), (choice, 2), (count - 1, lengths[choice])]
        fields += [(value, 8) for value in (block[:1] if is_run else block)]
    bits = "".join(f"{value:0{count}b}" for value, count in fields)
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]


@given(data=st.data(), height=st.integers(1, 4), width=st.integers(1, 5))
def test_blocks_of_the_brush_may_end_inside_of_pixels(data, height, width):
    count = 4 * height * width
    values = data.draw(st.lists(st.sampled_from([0, 0, 255, 7]), min_size=count, max_size=count))
    ends = sorted(data.draw(st.sets(st.integers(1, count - 1))) | {count})
    sizes = np.diff(ends, prepend=0).tolist()
    blocks = [(size, data.draw(st.booleans())) for size in sizes]
    rle = written_brush(values, blocks)
    alpha = np.array(values[3::4]).reshape(height, width) > 0
    np.testing.assert_array_equal(brush.decode(rle, (height, width)).mask(), alpha)


@given(labels=arrays(np.uint8, (5, 7), elements=st.sampled_from([0, 1, 255])))
def test_png_with_ignored_pixels(labels):
    np.testing.assert_array_equal(png.decode(png.encode(labels)), labels)


@given(labels=arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=12)))
def test_index_png(labels, tmp_path_factory):
    path = tmp_path_factory.mktemp("png") / "labels.png"
    png.write_index(path, labels)
    np.testing.assert_array_equal(read_labels(path), labels)
    with Image.open(path) as picture:
        assert picture.mode == "P"
        np.testing.assert_array_equal(np.asarray(picture), labels)


def test_own_mask_files_mean_what_was_drawn(tmp_path):
    """However little of it is drawn, and whatever surrounds it."""
    labels = np.full((60, 70), 255, np.uint8)
    labels[:5] = 0
    path = tmp_path / "mask.png"
    for drawn in (np.s_[20:23, 20:24], np.s_[4:6, 10:60], np.s_[8:50, 8:9]):
        one = labels.copy()
        one[drawn] = 1
        path.write_bytes(png.encode(one))
        found, numbers = read_objects(path)
        assert numbers == [1]
        np.testing.assert_array_equal(found, one)
    png.write_binary(path, one == 1)
    np.testing.assert_array_equal(np.asarray(Image.open(path)), np.where(one == 1, 255, 0))


def test_png_that_holds_something_else():
    for picture, kind in ((Image.new("RGB", (3, 3)), "PNG"), (Image.new("L", (3, 3)), "JPEG")):
        buffer = io.BytesIO()
        picture.save(buffer, kind)
        with pytest.raises(DataError, match="PNG"):
            png.decode(buffer.getvalue())
    with pytest.raises(DataError, match="cannot be read"):
        png.decode(png.encode(np.ones((9, 9), np.uint8))[:40])


def test_tolerance_bounds_the_distance_of_the_outline():
    y, x = np.mgrid[:80, :90]
    disk = (x - 40) ** 2 + (y - 38) ** 2 < 30**2
    corners = [sum(len(p.outer) for p in polygons.trace(disk, t)) for t in (0, 1, 3)]
    assert corners == sorted(corners, reverse=True)
    assert corners[1] < corners[0] / 3
    for tolerance in (1, 3):
        drawn = polygons.fill(polygons.trace(disk, tolerance), disk.shape)
        assert 0.8 < iou(drawn, disk.astype(np.uint8)) < 1
        changed = np.hypot(x - 40, y - 38)[drawn != disk]
        assert (abs(changed - 30) <= tolerance + 1.5).all()
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="tolerance"):
            polygons.trace(disk, wrong)


def test_the_line_of_a_box_or_of_text_is_refused():
    for line in ("", "0 0.1 0.1 0.5 0.5", "a 0 0 1 0 1 1", "-1 0 0 1 0 1 1", "0 0 0 1 0 1 1 1"):
        with pytest.raises(ValueError, match="line must be"):
            yolo.decode(line, (4, 4))
    with pytest.raises(ValueError, match="from 0 to 1"):
        yolo.decode("0 0 0 7 0 1 1", (4, 4))


SIZE = (7, 9)


def placed(inside, y, x):
    """A region with pixels to spare around the object, as far as they are inside of the image."""
    inside = inside[: SIZE[0] - y, : SIZE[1] - x]
    return regions.Region(inside, x, y, SIZE)


REGIONS = st.builds(
    placed,
    arrays(bool, st.tuples(st.integers(0, 7), st.integers(0, 9))),
    st.integers(0, 6),
    st.integers(0, 8),
)


@given(region=REGIONS)
def test_a_region_is_the_part_of_a_mask_that_is_not_empty(region):
    mask = region.mask()
    assert region.area == mask.sum()
    cut = regions.as_region(mask)
    np.testing.assert_array_equal(cut.mask(), mask)
    if mask.any():
        borders = (cut.inside[0], cut.inside[-1], cut.inside[:, 0], cut.inside[:, -1])
        assert all(line.any() for line in borders)
    else:
        assert not cut.inside.size


@given(region=REGIONS, by_rows=st.booleans())
def test_runs_of_pixels(region, by_rows):
    begins, ends = regions.spans(region, by_rows)
    pixels = region.mask().ravel("C" if by_rows else "F")
    changes = np.flatnonzero(np.diff(np.concatenate([[0], pixels, [0]])))
    np.testing.assert_array_equal(np.stack([begins, ends], 1).ravel(), changes)
    again = regions.from_spans(begins, ends, SIZE, by_rows)
    np.testing.assert_array_equal(again.mask(), region.mask())


@given(one=REGIONS, other=REGIONS)
def test_overlap(one, other):
    expected = 1.0 if not one.area + other.area else iou(one.mask(), other.mask().astype(np.uint8))
    assert regions.overlap(one, other) == expected


@masks
def test_runs_and_masks_come_back(mask):
    text = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    runs = parse_runs(text)
    assert runs.tolist() == walked_runs(mask)
    drawn = draw_runs(runs, mask.shape)
    assert drawn.dtype == np.uint8
    assert drawn.flags.c_contiguous
    np.testing.assert_array_equal(drawn, mask)


@given(runs=st.lists(st.integers(0, 10**6), max_size=12))
def test_long_runs(runs):
    plain = {"size": [1, sum(runs)], "counts": runs}
    assert parse_runs(coco_mask.frPyObjects(plain, *plain["size"])["counts"]).tolist() == runs


@given(text=st.binary(max_size=30))
def test_any_bytes_give_numbers_or_are_refused(text):
    # A number ends in a character below "P"; none has more than eight.
    known = all(48 <= byte < 112 for byte in text) and (not text or text[-1] < 80)
    if known and not any(all(byte >= 80 for byte in text[i : i + 8]) for i in range(len(text) - 7)):
        assert len(parse_runs(text)) == sum(byte < 80 for byte in text)
    else:
        with pytest.raises(ValueError, match="compressed run lengths"):
            parse_runs(text)


@each("runs", [[], [5], [13], [-1, 13], [5, 8]])
def test_runs_must_fill_the_mask(runs):
    # pycocotools returns a mask for most of these, whose last pixels are what the memory held.
    with pytest.raises(ValueError, match="3 x 4"):
        draw_runs(np.array(runs, dtype=np.int64), (3, 4))


def test_the_page_has_the_colours_of_the_figures(repository):
    page = (repository / "probseg" / "page" / "canvas.js").read_text("utf-8")
    for name, positive in (("OBJECT", True), ("BACKGROUND", False)):
        assert re.search(rf'^const {name} = "(#\w+)"', page, re.M)[1] == CLICK_COLOURS[positive]


def test_a_layer_is_half_transparent_where_it_covers_the_image():
    image = np.full((2, 3, 3), 250, np.uint8)
    layer = np.array([200, 10, 255], np.uint8)
    covered = np.eye(2, 3, dtype=bool)
    shown = overlay(image, layer, covered)
    assert shown.dtype == np.uint8
    assert (shown[covered] == [225, 130, 252]).all()
    assert (shown[~covered] == 250).all()
    assert np.array_equal(overlay(image, np.tile(layer, (2, 3, 1)), covered), shown)
