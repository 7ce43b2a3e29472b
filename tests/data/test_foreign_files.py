"""Files of strangers: pickles that hold more than data, and small files that fill the memory."""

import copyreg
import os
import pickle
import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from PIL import Image
from scipy.io import savemat

import probseg.images as images
from probseg.data import SBD
from probseg.data.sets.foreign_files import load_data, load_mat
from probseg.errors import DataError
from probseg.images import image_size, read_image
from probseg.masks import read_colours, read_grey, read_labels
from support import refusals
from support.drawn_sets import write_pickle
from support.fakes import save, write_sbd
from support.rows import each

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
NUMBERS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)] + ["f2", "f4", "f8", "bool"]

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip
ARRAYS = st.sampled_from(NUMBERS).flatmap(
    lambda kind: arrays_of.arrays(kind, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=4))
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("pickles") / "file.pickle"


def refused(path, *parts):
    refusals.refused(DataError, lambda: load_data(path), path, *parts)


def calling(function, *arguments, state=None):
    """Pickled as a call of any function, and a state."""
    kind = type("Calling", (), {"__reduce__": lambda self: (function, arguments, state)})
    return kind()


@given(content=PLAIN, protocol=st.sampled_from(PROTOCOLS))
def test_plain_data_comes_out_unchanged(path, content, protocol):
    loaded = load_data(write_pickle(content, path, protocol))
    assert loaded == content
    assert type(loaded) is type(content)


@given(array=ARRAYS, protocol=st.sampled_from(PROTOCOLS), fortran=st.booleans())
def test_arrays_come_out_unchanged(path, array, protocol, fortran):
    array = np.asfortranarray(array) if fortran else array
    (loaded,) = load_data(write_pickle([array], path, protocol))
    assert loaded.dtype == array.dtype
    assert loaded.shape == array.shape
    np.testing.assert_array_equal(loaded, array)
    loaded[...] = 0  # not read-only


@each("protocol", PROTOCOLS)
@each("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_scalars_and_other_byte_orders(path, protocol, module):
    content = [np.float32(1.5), np.uint8(7), np.True_, np.arange(4, dtype=">i4")]
    data = write_pickle(content, path, protocol).read_bytes()
    if protocol < 4:  # later ones give lengths of names
        path.write_bytes(data.replace(b"numpy._core.multiarray", module))
    *scalars, array = load_data(path)
    assert scalars == content[:3]
    assert [scalar.dtype for scalar in scalars] == [np.float32, np.uint8, np.bool_]
    assert array.tolist() == [0, 1, 2, 3]


@pytest.fixture
def mark(path):
    """A file that a malicious pickle would write."""
    mark = path.with_name("executed")
    mark.unlink(missing_ok=True)
    yield mark
    assert not mark.exists()


@each("protocol", [0, 2, 4, 5])
def test_functions_are_not_called(path, mark, protocol):
    attacks = {
        "system": calling(os.system, f"touch {mark}"),
        "eval": calling(eval, f"open({str(mark)!r}, 'w').close()"),
        "getattr": calling(getattr, calling(getattr, "", "__class__"), "__base__"),
        "_reconstructor": calling(copyreg._reconstructor, OSError, object, None),
        "load": calling(np.load, str(mark)),
    }
    for name, attack in attacks.items():
        refused(write_pickle([1, attack], path, protocol), "asks for ", f".{name};", "malicious")


@each(
    "name",
    ["os\nsystem", "subprocess\nPopen", "builtins\n__import__", "numpy\nndarray.__reduce__",
     "numpy._core.multiarray\n_reconstruct.__globals__", "builtins\nset.__class__",
     "builtins\nbytes.fromhex", "numpy\ndtype.__new__", "numpy\ncore.multiarray._reconstruct"],
)  # fmt: skip
def test_names_with_dots_lead_nowhere(path, name):
    module, attribute = (part.encode() for part in name.split())
    names = b"".join(b"\x8c" + bytes([len(part)]) + part for part in (module, attribute))
    path.write_bytes(b"\x80\x04" + names + b"\x93(tR.")
    refused(path, f"asks for {name.replace(chr(10), '.')};")


@each(
    "content",
    [
        b"", b".", b"not a pickle", pickle.dumps(list(range(1000)))[:-9],
        b"cnumpy\nndarray\n(K\x05tR.",  # the class of arrays is named, never called
        b"cnumpy\nndarray\n(K\x05t\x81.",
        b"cnumpy\ndtype\n(S'i4'\nt\x81.",  # what stands for functions are no classes
        b"cnumpy\ndtype\n}S'function'\ncposix\nsystem\nsb.",
        b"cnumpy\ndtype\nN}S'function'\nI1\ns\x86b.",  # nor can they be changed
        b"cnumpy\ndtype\n}S'function'\nI1\nsb.",
        b"c__builtin__\nbytes\n(I100\ntR.",
        b"c_codecs\nencode\n(S'x'\nS'hex'\ntR\xff.",
        b"(cposix\nsystem\nS'true'\no.",
        b"(S'true'\niposix\nsystem\n.",
        b"\x82\x01.",  # the registry of copyreg
        b"S'somewhere'\nQ.",
    ],
)  # fmt: skip
def test_tricks_and_damage(path, content):
    path.write_bytes(content)
    refused(path)
    refused(path.with_name("none.pickle"), "no such file")


@each(
    "array",
    [
        np.array([None]), np.zeros(2, [("a", "i4"), ("b", "O")]), np.array(["text"]),
        np.array([b"text"]), np.array(["2026"], "M8[Y]"), np.zeros(2, "V3"), np.complex64([1]),
        np.zeros(2, "f16"),
    ],
)  # fmt: skip
def test_arrays_of_anything_but_numbers_are_refused(path, array):
    for protocol in PROTOCOLS:
        refused(write_pickle(array, path, protocol))


@each(
    ("shape", "dtype", "content"),
    [
        ((10**9,), np.dtype("u1"), b"short"),
        ((-1,), np.dtype("u1"), b""),
        ((2**40, 2**40), np.dtype("u1"), b""),
        ((10**12, "a"), np.dtype("u1"), b""),
        ((1,), np.dtype("O"), b"12345678"),
        ((1,), np.dtype("u1"), [1]),
        ((1,), "u1", b"1"),
    ],
)
def test_arrays_whose_state_does_not_fit(path, shape, dtype, content):
    state = (1, shape, dtype, False, content)
    array = calling(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=state)
    refused(write_pickle(array, path))


READERS = (read_image, read_labels, read_colours, read_grey, image_size)


def refused_early(action, *words):
    """Refuse before anything large is decoded."""
    tracemalloc.start()
    try:
        refusals.refused(DataError, action, *words)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def png(path, width, height):
    """A PNG file of black pixels, whose lines are compressed one by one: it is written quickly."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    packer = zlib.compressobj(1)
    line = bytes(1 + width)
    lines = b"".join(packer.compress(line) for _ in range(min(height, 50))) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


@pytest.mark.parametrize(
    ("limit", "width", "warned"),
    [("Pillow's", 9_000, "error"), ("Pillow's", 20_000, "ignore"), ("none", 9_000, "ignore")],
)
def test_images_and_masks_with_too_many_pixels(limit, width, warned, tmp_path, monkeypatch):
    if limit == "none":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    path = png(tmp_path / "bomb.png", width, 10_000)
    with warnings.catch_warnings():
        warnings.simplefilter(warned, Image.DecompressionBombWarning)
        for reader in READERS:
            words = (f"{path}: has more than 89 million pixels", "scale it down")
            refused_early(lambda reader=reader: reader(path), *words)
        assert image_size(png(path, 9_000, 9_900)) == (9_900, 9_000)
    monkeypatch.setattr(images, "MAX_PIXELS", 35)
    fits = save(np.full((5, 7), 255, np.uint8), tmp_path / "fits.png")
    large = save(np.full((6, 6), 255, np.uint8), tmp_path / "more.png")
    for reader in READERS:
        reader(fits)
        refusals.refused(DataError, lambda reader=reader: reader(large), "million pixels")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: bytes(2**62))
    with pytest.raises(MemoryError):  # which is not the fault of the file
        read_image(fits)


def matlab_bomb(path, size):
    """A compressed variable of zeros; the file is a thousand times smaller."""
    savemat(path, {"S": np.zeros((1, 8), np.uint8)}, do_compression=True)
    header = path.read_bytes()[:128]
    packer = zlib.compressobj(9)
    block = bytes(2**20)
    packed = b"".join(packer.compress(block) for _ in range(size // 2**20)) + packer.flush()
    path.write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
    return path


def test_a_matlab_file_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("probseg.data.sets.foreign_files.MAX_BYTES", 2 * 10**6)
    root = write_sbd(tmp_path / "SBD")
    path = matlab_bomb(root / "inst" / "2008_000201.mat", 2**25)
    assert path.stat().st_size < 2**25 / 500
    refused_early(lambda: load_mat(path, "S"), path, "unpacks to more than 2 MB")
    refusals.refused(DataError, lambda: SBD("val", root), f"{path.name}: unpacks to more than 2 MB")
    half = np.zeros(900_000, np.uint8)
    for version, names in (("4", "abc"), ("5", "ab"), ("5", "abc")):  # which count together
        options = {"do_compression": True} if version == "5" else {}
        savemat(path, dict.fromkeys(names, half + 1), format=version, **options)
        if (version, names) == ("5", "abc"):
            refusals.refused(DataError, lambda: load_mat(path, "a"), "unpacks to more")
        else:
            assert (load_mat(path, "a") == 1).all()


def test_damaged_matlab_files(tmp_path):
    root = write_sbd(tmp_path)
    path = matlab_bomb(root / "inst" / "2008_000201.mat", 2**20)
    whole = path.read_bytes()
    for size in (0, 50, 127, 128, 131, 140, len(whole) - 5):
        path.write_bytes(whole[:size])
        refusals.refused(DataError, lambda: SBD("val", root), path, "cannot be read as instances")
