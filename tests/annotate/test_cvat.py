"""The interactor of CVAT in its own agent, and the serverless function as nuclio calls it."""

import base64
import importlib.util
import io
import json
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
import yaml
from PIL import Image

from probseg.annotate.tools.prompted import PromptedModel
from probseg.cli import main
from probseg.descriptions import RECOMMENDED
from support.fakes import draw_scene
from support.rows import each

MODULE = "probseg.annotate.tools.cvat"


@pytest.fixture(scope="module")
def agent():
    """The modules of CVAT's client that run a function."""
    pytest.importorskip("cvat_cli", reason='needs the extra "cvat"')
    from cvat_cli._internal import agent_driver, agent_driver_interaction
    from cvat_cli._internal.common import FunctionLoader

    function = FunctionLoader(MODULE, None, {"model": RECOMMENDED}).load()
    agent_driver.set_worker_current_function(function)
    return SimpleNamespace(function=function, driver=agent_driver_interaction)


class Here:
    """Runs the jobs of the agent's worker in this process, and counts them."""

    def __init__(self):
        self.jobs = []

    def submit(self, job, *arguments):
        self.jobs.append(job.__name__)
        return job(*arguments)

    def result(self, done):
        return done


class Driver:
    """The agent's driver with one image in place of a server."""

    def __init__(self, agent, image):
        agent.driver.AgentInteractionFunctionDriver.init_worker(None)
        self.executor = Here()
        self.driver = agent.driver.AgentInteractionFunctionDriver(
            None, self.executor, agent.function.spec
        )
        media = SimpleNamespace(load_image=lambda: Image.fromarray(image))
        self.driver._get_sample_from_ar_params = lambda _: (SimpleNamespace(media=media), [])

    def ask(self, positive=(), negative=(), box=(), **more):
        """The answer as the agent sends it to the server."""
        from cvat_sdk.api_client import ApiClient

        request = {"type": "interact", "task": 1, "frame": 0, "obj_bbox": list(box), **more}
        request |= {"pos_points": list(positive), "neg_points": list(negative)}
        result = self.driver.calculate_result_for_ar(request, None)
        return json.loads(json.dumps(ApiClient.sanitize_for_serialization(result)))["shapes"]


def drawn(shape, size):
    from cvat_sdk.masks import decode_mask

    return decode_mask(shape["points"], image_height=size[0], image_width=size[1])


def test_the_agent_gets_the_mask_of_the_model(agent):
    image, labels = draw_scene(objects=2)
    driver = Driver(agent, image)
    model = PromptedModel(RECOMMENDED)
    encoded = model.encode(image)
    prompts = ([[16.5, 24.5]], [[48.5, 24.0]], [[2, 3], [31, 44.5]])
    (shape,) = driver.ask(*prompts)
    wanted = model.answer(encoded, *prompts[:2], (2, 3, 31, 44.5))
    assert shape["type"] == "mask"
    assert np.array_equal(drawn(shape, labels.shape), wanted.binary)
    (score,) = shape["attributes"]
    assert score["spec_id"] == 0
    assert 0.5 < float(score["value"]) <= 1


def test_an_image_is_encoded_once_and_asked_in_any_order(agent):
    driver = Driver(agent, draw_scene(objects=2)[0])
    first = driver.ask([[16, 24]])
    second = driver.ask([[48, 24]])
    assert first != second
    assert driver.ask([[16, 24]]) == first
    assert driver.executor.jobs.count("_worker_job_interact") == 1


def test_a_region_of_interest_is_an_image_of_its_own(agent):
    image, labels = draw_scene(objects=2)
    (shape,) = Driver(agent, image).ask([[16, 24]], roi=[32, 0, 64, 48])
    (alone,) = Driver(agent, image[:, 32:]).ask([[16, 24]])
    assert shape == alone
    assert drawn(shape, (48, 32))[labels[:, 32:] == 2].mean() > 0.5


def test_no_shape_where_nothing_is_asked_for(agent):
    assert Driver(agent, draw_scene()[0]).ask((), [[3, 4]]) == []


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_frames_of_any_mode_are_taken(agent, mode):
    frame = Image.fromarray(draw_scene()[0]).convert(mode)
    prompts = SimpleNamespace(pos_points=[(32, 24)], neg_points=[], bounding_box=None)
    shapes = agent.function.detect(None, agent.function.preprocess_image(None, frame), prompts)
    assert len(shapes) == 1


def test_the_function_is_registered_by_the_command_of_the_documentation(agent, monkeypatch):
    """The real command line, with a client that keeps what would be sent."""
    from cvat_cli import __main__ as cli
    from cvat_cli._internal import common

    sent = []

    def call_api(path, method, body):
        sent.append((method, path, body))
        return None, SimpleNamespace(data=json.dumps({"id": 7, "name": body["name"]}))

    client = MagicMock()
    client.__enter__.return_value.api_client.call_api = call_api
    monkeypatch.setattr(common, "make_client_from_cli", lambda *_, **__: client)
    command = ["function", "create-native", "probseg", "--function-module", MODULE]
    assert cli.main([*command, "-p", f"model=str:{RECOMMENDED}", "-p", "device=str:cpu"]) == 0
    ((method, path, body),) = sent
    assert (method, path) == ("POST", "/api/functions")
    assert body["kind"] == "interactor"
    assert body["min_pos_points"] == body["min_neg_points"] == 0
    assert body["startswith_box_optional"] is True


@pytest.fixture(scope="module")
def function(tmp_path_factory):
    """The folder of the serverless function, and its handler in a context like nuclio's."""
    folder = tmp_path_factory.mktemp("nuclio") / "probseg"
    assert main(["serve", "cvat-nuclio", str(folder)]) == 0
    settings = yaml.safe_load((folder / "function.yaml").read_text("utf-8"))
    module, _, handler = settings["spec"]["handler"].partition(":")
    place = importlib.util.spec_from_file_location("nuclio_main", folder / f"{module}.py")
    loaded = importlib.util.module_from_spec(place)
    place.loader.exec_module(loaded)
    context = SimpleNamespace(user_data=SimpleNamespace(), Response=SimpleNamespace)
    with pytest.MonkeyPatch.context() as patch:
        for variable in settings["spec"]["env"]:
            patch.setenv(variable["name"], variable["value"])
        loaded.init_context(context)

    def ask(body):
        answer = getattr(loaded, handler)(context, SimpleNamespace(body=body))
        assert answer.content_type == "application/json"
        return answer.status_code, json.loads(answer.body)

    return SimpleNamespace(settings=settings, ask=ask, folder=folder, data=context.user_data)


def nuclio_body(image, **more):
    """The body of a request of CVAT, as nuclio parses it."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return {"image": encoded, "pos_points": [[16, 24]], "neg_points": [], **more}


def shown(answer, size):
    """The mask as CVAT's page pastes it: rows inside of bounds that include their ends."""
    assert set(answer) == {"mask", "bounds"}
    left, top, right, bottom = answer["bounds"]
    rows = np.array(answer["mask"])
    assert rows.shape == (bottom - top + 1, right - left + 1)
    assert set(np.unique(rows)) <= {0, 1}
    whole = np.zeros(size, bool)
    whole[top : bottom + 1, left : right + 1] = rows
    return whole


def test_the_serverless_function_answers_with_the_mask_in_its_bounds(function, monkeypatch):
    encode = Mock(wraps=function.data.model.encode)
    monkeypatch.setattr(function.data.model, "encode", encode)
    image, labels = draw_scene(192, 256, objects=2)  # no answer covers all of it
    model = PromptedModel(RECOMMENDED)
    encoded = model.encode(image)
    points = {"pos_points": [[64, 96]], "neg_points": [[192, 96]]}
    for corners, box in ((None, None), ([], None), ([[8, 12], [124, 176]], (8, 12, 124, 176))):
        status, answer = function.ask(nuclio_body(image, **points, obj_bbox=corners))
        assert status == 200
        wanted = model.answer(encoded, *points.values(), box).binary
        assert np.array_equal(shown(answer, labels.shape), wanted)
        rows = np.array(answer["mask"])
        assert all(edge.any() for edge in (rows[0], rows[-1], rows[:, 0], rows[:, -1]))
        assert rows.size < wanted.size
    assert encode.call_count == 1
    status, answer = function.ask(nuclio_body(image, pos_points=[], neg_points=[[192, 96]]))
    assert status == 200
    assert not shown(answer, labels.shape).any()


@each(
    ("change", "word"),
    [
        ({"pos_points": [[90, 24]]}, "point"),
        ({"obj_bbox": [[31, 44], [2, 3]]}, "box"),
        ({"obj_bbox": [[2, 3, 31, 44]]}, "obj_bbox"),
        ({"pos_points": None}, "pos_points"),
        ({"neg_points": [5]}, "neg_points"),
        ({"neg_points": [["a", 3]]}, "neg_points"),
        ({"image": "no base64"}, "base64"),
        ({"image": None}, "base64"),
        ({"image": ""}, "image"),
    ],
)
def test_the_serverless_function_explains_a_refusal(function, change, word):
    status, answer = function.ask(nuclio_body(draw_scene()[0]) | change)
    assert status == 400
    assert word in answer["error"]


@each("body", [b"{}", "{}", None, [], {}, 5])
def test_bodies_that_are_no_request_are_refused(function, body):
    status, answer = function.ask(body)
    assert status == 400
    assert "application/json" in answer["error"]


def test_the_serverless_function_is_an_interactor(function):
    metadata, spec = function.settings["metadata"], function.settings["spec"]
    annotations = metadata["annotations"]
    assert annotations["type"] == "interactor"
    assert annotations["version"] == 2
    assert annotations["min_pos_points"] == annotations["min_neg_points"] == 0
    assert annotations["startswith_box_optional"] is True
    assert spec["triggers"]["myHttpTrigger"]["attributes"]["maxRequestBodySize"] == 1 << 25
    assert {path.name for path in function.folder.glob("*.*")} == {"function.yaml", "main.py"}


def test_a_folder_is_not_overwritten(function, capsys):
    assert main(["serve", "cvat-nuclio", str(function.folder)]) == 2
    assert "folder" in capsys.readouterr().err
