"""The plugin of napari: its manifest without Qt, its layers without a window, and its widget."""

import sys
import tomllib
from unittest.mock import MagicMock

import numpy as np
import pytest
from PIL import Image

from probseg.annotate.tools.napari import displayed, open_viewer, segment_by_clicks
from probseg.annotate.tools.prompted import PromptedModel
from probseg.descriptions import RECOMMENDED
from probseg.errors import DataError
from support.fakes import draw_scene

MODEL = "lite0_unet_prop"


def test_the_manifest_is_valid_and_names_what_exists(repository):
    npe2 = pytest.importorskip("npe2", reason="needs the package npe2")
    settings = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))
    entry = settings["project"]["entry-points"]["napari.manifest"]["probseg"]
    package, _, file = entry.partition(":")
    path = repository.joinpath(*package.split("."), file)
    manifest = npe2.PluginManifest.from_file(path)
    assert manifest.name == settings["project"]["name"]
    manifest.validate_imports()
    (command,) = manifest.contributions.commands
    (widget,) = manifest.contributions.widgets
    assert widget.command == command.id
    assert command.python_name == f"{segment_by_clicks.__module__}:{segment_by_clicks.__name__}"


@pytest.mark.parametrize(
    ("data", "limits", "pixel"),
    [
        (np.array([[10, 200, 1000]], np.uint16), (100, 500), [0, 64, 255]),
        (np.array([[-1.0, 0.25, 2.0]]), (0.0, 1.0), [0, 64, 255]),
        (np.full((1, 3), 7, np.uint8), (7, 7), [0, 0, 0]),
    ],
)
def test_grey_images_are_taken_as_they_are_displayed(data, limits, pixel):
    found = displayed(data, limits)
    assert found.dtype == np.uint8
    assert found.shape == (1, 3, 3)
    assert (found == np.array(pixel)[None, :, None]).all()


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_are_taken_as_they_are(channels):
    image = draw_scene()[0]
    whole = np.dstack([image, np.full(image.shape[:2], 9, np.uint8)])[..., :channels]
    for data in (whole, whole / 255, whole.astype(np.uint16) * 257):
        assert np.array_equal(displayed(data), image)


@pytest.fixture
def viewer():
    components = pytest.importorskip("napari.components", reason='needs the extra "napari"')
    return components.ViewerModel()  # without Qt


def test_points_become_masks(viewer):
    image, labels = draw_scene(objects=2)
    layer = viewer.add_image(image, rgb=True, scale=(0.5, 0.5), translate=(3, 4))
    segment_by_clicks(viewer, layer, MODEL)
    masks, positive, negative = (viewer.layers[n] for n in ("masks", "object", "background"))
    assert np.array_equal(masks.data_to_world((5, 6)), layer.data_to_world((5, 6)))
    model = PromptedModel(MODEL)
    encoded = model.encode(image)

    assert viewer.layers.selection.active is positive
    positive.add((24, 16))
    assert np.array_equal(masks.data == 1, model.answer(encoded, [(16.5, 24.5)]).binary)
    negative.add((24, 48))
    one = model.answer(encoded, [(16.5, 24.5)], [(48.5, 24.5)]).binary
    assert np.array_equal(masks.data == 1, one)

    masks.selected_label = 2  # the next object
    assert len(positive.data) == len(negative.data) == 0
    assert np.array_equal(masks.data == 1, one)
    positive.add((24, 48))
    assert (masks.data == 2)[labels == 2].mean() > 0.5
    assert np.array_equal(masks.data == 1, one), "another object is not changed"

    positive.selected_data = {0}
    positive.remove_selected()
    assert not (masks.data == 2).any()


def test_a_point_outside_blocks_nothing(viewer):
    notices = pytest.importorskip("napari.utils.notifications").notification_manager
    image, _ = draw_scene(objects=2)
    segment_by_clicks(viewer, viewer.add_image(image, rgb=True), MODEL)
    masks, positive = viewer.layers["masks"], viewer.layers["object"]
    positive.add((24, 16))
    before = masks.data.copy()
    assert before.any()
    notices.records.clear()
    positive.add((24, -9))
    assert np.array_equal(masks.data, before)
    assert "outside of the image" in notices.records[-1].message
    positive.add((24, 12))
    model = PromptedModel(MODEL)
    both = model.answer(model.encode(image), [(16.5, 24.5), (12.5, 24.5)])
    assert np.array_equal(masks.data == 1, both.binary)


def test_a_second_run_goes_on_with_points_and_masks(viewer):
    layer = viewer.add_image(draw_scene(objects=2)[0], rgb=True, name="image")
    segment_by_clicks(viewer, layer, MODEL)
    viewer.layers["object"].add((24, 16))
    one = viewer.layers["masks"].data.copy()
    viewer.layers["masks"].selected_label = 2
    viewer.layers["object"].add((24, 48))
    both = viewer.layers["masks"].data.copy()
    segment_by_clicks(viewer, layer, MODEL)
    assert [one.name for one in viewer.layers] == ["image", "masks", "background", "object"]
    assert np.array_equal(viewer.layers["masks"].data, both)
    viewer.layers["object"].data = viewer.layers["object"].data[:0]
    assert np.array_equal(viewer.layers["masks"].data, one)
    assert set(np.unique(both)) == {0, 1, 2}


def turned(tmp_path):
    """A photograph that is stored turned, and its upright pixels."""
    pixels = draw_scene(objects=2)[0]
    picture = Image.fromarray(np.rot90(pixels))
    exif = picture.getexif()
    exif[0x0112] = 6  # turn clockwise to show
    picture.save(tmp_path / "phone.png", exif=exif)
    return tmp_path / "phone.png", pixels


def test_a_photograph_that_is_stored_turned_is_named(viewer, tmp_path):
    notices = pytest.importorskip("napari.utils.notifications").notification_manager
    path, pixels = turned(tmp_path)
    with pytest.importorskip("napari.layers._source").layer_source(path=str(path)):
        layer = viewer.add_image(np.rot90(pixels), rgb=True)  # as napari's own reader does
    segment_by_clicks(viewer, layer, MODEL)
    assert "phone.png is stored turned" in notices.records[-1].message
    assert viewer.layers["masks"].data.shape == layer.data.shape[:2]
    notices.records.clear()
    segment_by_clicks(viewer, viewer.add_image(pixels, rgb=True), MODEL)
    assert not notices.records


def test_photographs_are_opened_upright_after_torch_is_imported(viewer, tmp_path, monkeypatch):
    napari = pytest.importorskip("napari")
    path, pixels = turned(tmp_path)

    class Viewer:
        window = MagicMock()
        add_image = staticmethod(viewer.add_image)

        def __init__(self):
            assert "torchvision" in sys.modules

    monkeypatch.setattr(napari, "Viewer", Viewer)
    monkeypatch.setattr(napari, "run", lambda: None)
    open_viewer([str(path)])
    assert np.array_equal(viewer.layers["phone"].data, pixels)
    Viewer.window.add_plugin_dock_widget.assert_called_once_with("probseg", "Segment by clicks")
    with pytest.raises(DataError, match=r"no\.png"):
        open_viewer([str(tmp_path / "no.png")])


def test_stacks_are_refused(viewer):
    with pytest.raises(ValueError, match="image"):
        segment_by_clicks(viewer, viewer.add_image(np.zeros((3, 48, 64))), MODEL)


def test_napari_builds_the_widget(viewer, monkeypatch):
    """Without a window, which would need OpenGL."""
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    widgets = pytest.importorskip("qtpy.QtWidgets", reason="needs Qt", exc_type=ImportError)
    from magicgui import magicgui

    application = widgets.QApplication.instance() or widgets.QApplication([])
    widget = magicgui(segment_by_clicks)
    assert [part.name for part in widget][:3] == ["viewer", "image", "model"]
    assert widget.model.value == RECOMMENDED
    widget(viewer=viewer, image=viewer.add_image(draw_scene()[0], rgb=True), model=MODEL)
    viewer.layers["object"].add((24, 32))
    assert viewer.layers["masks"].data[24, 32] == 1
    widget.close()
    application.processEvents()
