"""Tests of `probseg test`, read from results.json and made again."""

import dataclasses
import json

import pytest

import probseg.release.reevaluation as reevaluation
from probseg.errors import DataError, DatasetNotFoundError
from probseg.evaluation.simulation import run_objects
from probseg.release.reevaluation import read_results, reevaluate
from support.fakes import write_grabcut
from support.tested import network_for_classes, network_for_clicks


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    return network_for_clicks(tmp_path_factory.mktemp("clicks"), "--seed_everything=1")


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return network_for_classes(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def evaluations(clicks, monkeypatch):
    monkeypatch.setenv("PROBSEG_DATA", str(clicks.data))
    return {one.key: one for path in clicks.results for one in read_results(path)}


@pytest.fixture
def of_classes(classes, monkeypatch):
    monkeypatch.setenv("PROBSEG_DATA", str(classes.data))
    (evaluation,) = [one for path in classes.results for one in read_results(path)]
    return evaluation


def content_of(path):
    return json.loads(path.read_text())


def rewritten(path, place, **metadata):
    """Write results with other metadata; return the file."""
    results = content_of(path)
    results["metadata"] |= metadata
    place.write_text(json.dumps(results))
    return place


def test_figures_and_errors_are_those_of_the_results(clicks, evaluations):
    gabbur, ritm = clicks.results
    for path, key, first in ((gabbur, "GrabCut/gabbur2021", 0), (ritm, "GrabCut/ritm", 1)):
        summary = content_of(path)["datasets"]["GrabCut"]
        evaluation = evaluations[f"{key}+max_clicks=3"]
        shown = [f"miou@{k}" for k in range(first, 4)] + [f"noc@{q}" for q in (80, 85, 90, 95)]
        assert list(evaluation.figures) == shown, "no figure is of before the first answer"
        assert evaluation.figures["miou@2"].value == summary["miou"][2]
        assert evaluation.figures["miou@2"].error == summary["se_objects"][2]
        assert evaluation.figures["noc@90"].value == summary["noc"]["90"]
        assert evaluation.figures["noc@90"].error == summary["noc_se"]["90"]
    assert evaluations["GrabCut/gabbur2021+max_clicks=3"].count == {"objects": 3, "trials": 2}


def test_seed_and_adaptation_are_those_of_the_test(clicks, evaluations, tmp_path, monkeypatch):
    evaluation = evaluations["GrabCut/gabbur2021+max_clicks=3"]
    before = reevaluate(clicks.model, evaluation)
    other = dataclasses.replace(evaluation, options={**evaluation.options, "seed": 5})
    assert reevaluate(clicks.model, other)["miou@0"] != before["miou@0"]
    path = rewritten(
        clicks.results[0],
        tmp_path / "results.json",
        adaptation={"key_iterations": 3, "key_prior": 0.0, "value_iterations": None},
    )
    (adapted,) = read_results(path)
    assert adapted.key == "GrabCut/gabbur2021+max_clicks=3+key_iterations=3+key_prior=0"
    settings = clicks.model.head.last.settings
    seen = set()

    def spy(model, *arguments, **options):
        seen.add(model.head.last.settings.key_adaptation.iterations)
        return run_objects(model, *arguments, **options)

    monkeypatch.setattr(reevaluation, "run_objects", spy)
    reevaluate(clicks.model, adapted)
    assert seen == {3}
    assert clicks.model.head.last.settings == settings, "the network is as it was"


def test_what_classes_were_asked_for_is_repeated(classes, of_classes, tmp_path):
    path = rewritten(
        classes.results[0], tmp_path / "results.json", flip=True, scales=[0.5, 1.0], iterations=9
    )
    (evaluation,) = read_results(path)
    assert evaluation.key == "CamVid+flip+scales=0.5,1"
    same = reevaluate(classes.model, of_classes)
    assert list(of_classes.figures) == ["miou", "pixel_accuracy", "mean_accuracy"]
    assert of_classes.moves(same) == pytest.approx(dict.fromkeys(same, 0.0), abs=1e-6)
    found = reevaluate(classes.model, evaluation)
    assert max(map(abs, of_classes.moves(found).values())) > 0


def test_data_are_described_without_places_of_a_machine(clicks, evaluations, tmp_path):
    for evaluation in evaluations.values():
        assert evaluation.data == {
            "class_path": "probseg.data.InteractiveDataModule",
            "init_args": {
                "eval_batch_size": 16,
                "test": {
                    "class_path": "probseg.data.GrabCut",
                    "init_args": {"root": None, "scribbles": None},
                },
            },
        }
    data = content_of(clicks.results[0])["metadata"]["data"]
    data["test"]["init_args"]["root"] = str(tmp_path / "elsewhere")
    path = rewritten(clicks.results[0], tmp_path / "results.json", data=data)
    assert str(tmp_path) not in json.dumps(read_results(path)[0].data)


MODULE = "probseg.data.InteractiveDataModule"
FOLDER = {"class_path": "probseg.data.ImageMaskFolder", "init_args": {"split": "val.txt"}}
GRABCUT = {"class_path": "probseg.data.GrabCut", "init_args": {"root": None}}


@pytest.mark.parametrize(
    ("root", "kept"),
    [("objects", "objects"), ("{data}/sets/objects", "sets/objects"), ("/far/objects", "objects")],
)
def test_folders_stay_relative_to_all_data(clicks, evaluations, tmp_path, root, kept):
    arguments = {"split": "val.txt", "name": "GrabCut", "root": root.format(data=clicks.data)}
    data = {"_class_path": MODULE, "test": [{**FOLDER, "init_args": arguments}]}
    (evaluation,) = read_results(rewritten(clicks.results[0], tmp_path / "results.json", data=data))
    assert evaluation.data["init_args"]["test"]["init_args"]["root"] == kept


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"_class_path": "mine.Data", "test": None},
        {"_class_path": MODULE, "test": "GrabCut"},
        {"_class_path": MODULE, "test": {"class_path": "mine.Set"}},
    ],
)
def test_data_that_cannot_be_built_again_are_said_to_be_so(clicks, evaluations, tmp_path, data):
    (evaluation,) = read_results(rewritten(clicks.results[0], tmp_path / "results.json", data=data))
    assert evaluation.data is None
    with pytest.raises(DataError, match=r"GrabCut/gabbur2021\S* its results do not describe data"):
        reevaluate(clicks.model, evaluation)


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("COCOMVal", {"root": None}, "COCO_MVal"),
        ("COCOInstances", {"split": "val", "root": None}, "COCO"),
        ("DAVIS585", {"root": None, "initial": "stm"}, "DAVIS585_stm"),
        ("Selected", {"dataset": GRABCUT, "held_out": None}, "GrabCut"),
    ],
)
def test_sets_are_found_by_their_class_and_their_name_in_results(
    clicks, evaluations, tmp_path, kind, options, name
):
    described = {"class_path": f"probseg.data.{kind}", "init_args": options}
    results = content_of(clicks.results[0])
    results["datasets"] = {name: results["datasets"]["GrabCut"]}
    results["metadata"]["data"]["test"] = [described, FOLDER]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    (evaluation,) = read_results(path)
    assert evaluation.data["init_args"]["test"] == described


def test_results_name_no_foreign_code_and_other_files_are_refused(clicks, evaluations, tmp_path):
    evaluation = evaluations["GrabCut/ritm+max_clicks=3"]
    data = {
        "class_path": "probseg.data.InteractiveDataModule",
        "init_args": {"test": {"class_path": "os.System", "init_args": {}}},
    }
    with pytest.raises(DataError, match=r"GrabCut/ritm\S* unknown data set 'os.System'"):
        reevaluate(clicks.model, dataclasses.replace(evaluation, data=data))
    path = tmp_path / "results.json"
    for content in ("", "[]", '{"metadata": {}, "protocol": {}, "datasets": {"a": {}}}'):
        path.write_text(content)
        with pytest.raises(DataError, match=r"results\.json|protocol None"):
            read_results(path)
    for strange in ({"mistakes": {"no such": 1}}, {"offset": 1.0}):
        other = dataclasses.replace(evaluation, protocol={**evaluation.protocol, **strange})
        with pytest.raises(DataError, match="protocol 'ritm' cannot be repeated"):
            reevaluate(clicks.model, other)


def test_other_data_are_noticed(clicks, evaluations, tmp_path, monkeypatch):
    evaluation = evaluations["GrabCut/ritm+max_clicks=3"]
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    with pytest.raises(DatasetNotFoundError):
        reevaluate(clicks.model, evaluation)
    root = write_grabcut(tmp_path / "GrabCut")
    for folder, suffix in (("data_GT", ".jpg"), ("boundary_GT", ".bmp")):
        (root / folder / f"banana{suffix}").unlink()
    with pytest.raises(DataError, match=r"'objects': 2.* instead of .*'objects': 3"):
        reevaluate(clicks.model, evaluation)


def test_a_changed_protocol_has_a_key_of_its_own(evaluations, clicks, tmp_path):
    results = content_of(clicks.results[1])
    results["protocol"] |= {"max_clicks": 20, "zoom": "ritm", "flip": True, "trials": 1}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    assert read_results(path)[0].key == "GrabCut/ritm+zoom=ritm+flip=True"
    results["protocol"] |= {"zoom": None, "flip": False}
    path.write_text(json.dumps(results))
    assert read_results(path)[0].key == "GrabCut/ritm"
