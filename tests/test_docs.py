"""The pages of the documentation: all in the navigation, with links and images that exist."""

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

from probseg.attention import ATTENTIONS
from probseg.models import variant
from probseg.zoo.index import read_index
from support.rows import COMPILES_WHOLE

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


ROOT = Path(__file__).parent.parent
OF_THE_FAMILY = ("inference.md", *(f"family/{p.name}" for p in ROOT.glob("docs/family/*.md")))
"""Pages whose examples run as they stand, and check what they say."""

OF_TRAINING = ("data.md", "faults.md")
"""Likewise, and they draw nothing from torch's generator."""

OF_PARTS = ("parts.md",)
"""Likewise, with `torch.compile` and `torch.export`."""

NAMED_TEST = re.compile(r"`((?:\w+/)?test_\w+\.py)(?:::(test_\w+))?`")
HEADER = re.compile(r"\| tests? \|$")


@pytest.fixture(scope="module")
def docs(repository):
    return repository / "docs"


def test_every_page_is_in_the_navigation_once(docs, repository):
    def pages_of(nav):
        children = nav.values() if isinstance(nav, dict) else nav
        return [nav] if isinstance(nav, str) else [p for child in children for p in pages_of(child)]

    site = yaml.safe_load((repository / "mkdocs.yml").read_text("utf-8"))
    pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert sorted(pages_of(site["nav"])) == sorted(pages)


def test_links_and_images_exist(docs):
    """Links of the site lead to files of the site, whose anchors mkdocs checks."""
    outside = [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]
    outside += ROOT.glob("benchmarks/[nt]*/*.md")  # the notebook and the trainings
    for page in (*docs.rglob("*.md"), *outside):
        for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
            target, _, anchor = link.partition("#")
            path = (page.parent / target).resolve()
            if ":" in target or not link.strip("#"):
                continue
            assert path.exists(), f"{page} links to {link}"
            if page not in outside:
                assert not target or path.is_relative_to(docs.resolve()), f"{page} links to {link}"
            elif anchor:
                headings = re.findall(r"^#+ (.*)", path.read_text("utf-8"), re.MULTILINE)
                names = [
                    re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in headings
                ]
                assert anchor in names, f"{page} links to {link}"


NAMED = re.compile(r"(?<![\w./-])(?:probseg(?:\.\w+)+|(?:probseg|tests|configs|docs)/[\w./-]*\w)")


def exists(name, repository):
    """Return whether a dotted name can be imported, or a path is in the repository."""
    if "/" in name:
        return (repository / name).exists()
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return all((found := getattr(found, part, None)) is not None for part in parts[length:])
    return False


def test_names_and_files_in_prose_exist(docs, repository):
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *docs.rglob("*.md")]
    named = {
        (page.name, name)
        for page in pages
        for name in NAMED.findall(page.read_text("utf-8"))
        if "NAME" not in name
    }
    assert len(named) > 150
    assert [pair for pair in sorted(named) if not exists(pair[1], repository)] == []


def tables(text):
    """Tables in Markdown, as lists of rows; a row has its cells by the names of the columns."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        yield [dict(zip(header, row, strict=True)) for row in rows]


def test_the_page_of_evaluation_has_the_figures_of_the_zoo(docs, repository):
    models = read_index(repository / "zoo") | read_index(repository / "benchmarks" / "zoo")
    text = (docs / "evaluation.md").read_text("utf-8")
    section = text.partition("## Three models and four baselines")[2]
    for protocol, rows in zip(("gabbur2021", "ritm"), tables(section), strict=False):
        of_name = {next(iter(row.values())): row for row in rows}
        for name in ("lite2_unet_prop", "lite0_unet_prop", "resnet16_csa"):
            for column in ("@1", "@5", "@10", "NoC@80", "NoC@85", "NoC@90"):
                key = column.lower() if column.startswith("N") else f"miou{column}"
                scale, rounding = (1, 0.00501) if column.startswith("N") else (100, 0.0501)
                measured = models[f"{name}.objects"].metrics[f"GrabCut/{protocol}/{key}"].value
                shown = float(of_name[f"{name} (zoo)"][column].split()[0])
                assert abs(shown - scale * measured) < rounding, (protocol, name, column)


def test_the_readme_has_the_figures_of_the_files(docs, repository):
    readme = (repository / "README.md").read_text("utf-8")
    text = (docs / "evaluation.md").read_text("utf-8")
    section = text.partition("## Three models and four baselines")[2]
    of_files = [{next(iter(row.values())): row for row in rows} for rows in tables(section)]
    box, opencv_box = (
        float(of_files[0][name]["@0"].split()[0])
        for name in ("lite2_unet_prop (zoo)", "OpenCV GrabCut")
    )
    clicks, opencv_clicks = (
        of_files[1][name]["NoC@90"].split()[0]
        for name in ("lite2_unet_prop (zoo)", "OpenCV GrabCut")
    )
    assert f"{clicks} clicks to 90 %; OpenCV's GrabCut needs {opencv_clicks} |" in readme
    assert f"{box:.0f} % after a box; OpenCV's GrabCut reaches {opencv_box:.0f} %" in readme

    (berkeley, *_) = tables(text.partition("## Results on Berkeley")[2])
    of_berkeley = {next(iter(row.values())): row for row in berkeley}
    beside = {line.split("|")[1].strip(): line for line in readme.splitlines() if line[:1] == "|"}
    for name, *methods in (
        ("probseg, `lite2_unet_prop`", *2 * ("lite2_unet_prop (zoo), `ritm_zoom`",)),
        ("probseg, `lite0_unet_prop`", *2 * ("lite0_unet_prop (zoo), `ritm_zoom`",)),
        ("OpenCV GrabCut (`ritm`)", "OpenCV GrabCut", "OpenCV GrabCut, `ritm`"),
    ):
        rows = [of[method] for of, method in zip((of_files[1], of_berkeley), methods, strict=True)]
        shown = [" / ".join(row[s].split()[0] for s in ("NoC@85", "NoC@90")) for row in rows]
        assert f"| {' | '.join(shown)} |" in beside[name]
    (published, *_) = tables(text.partition("### Results of others")[2])
    of_others = {row[""]: f"| {row['GrabCut']} | {row['Berkeley']} |" for row in published}
    for name in ("f-BRS-B, ResNet-50", "RITM, HRNet-18s", "SimpleClick, ViT-B", "SAM, ViT-H"):
        assert of_others[name] in beside[name]

    looks = repository / "benchmarks" / "notebook" / "33_a_second_look_around_each_click.md"
    of_looks = [*next(tables(looks.read_text("utf-8")))]
    ways = {row[""]: row for row in reversed(of_looks)}  # the first of a name counts
    before, saved = (
        float(ways[way]["NoC@90"].split()[0]) for way in ("held out, `scales`", "and look at 256")
    )
    assert f"zoom of `Predictor`: {before + saved:.1f} clicks to 90 % |" in readme

    around = repository / "benchmarks" / "notebook" / "41_a_first_answer_from_around_itself.md"
    in_use = re.findall(r"([\d.]+ / [\d.]+) / [\d.]+ (?:clicks|\(entry)", around.read_text("utf-8"))
    speed = (docs / "speed.md").read_text("utf-8")
    row = beside["probseg, `lite2_unet_prop`, as in use"]
    assert f"| {' | '.join(in_use)} |" in row
    plain = re.search(
        r"on 640 x 480 .*, (\d+) ms; `lite0_unet_prop` .*, (\d+) ms \| `clicks", speed
    )
    multiples = re.search(r"in multiples .*\| ([\d., ]+); `lite0_unet_prop` ([\d., ]+) \|", speed)
    zoomed = [
        ", ".join(f"{int(once) * float(times):.0f}" for times in all_times.split(", "))
        for once, all_times in zip(plain.groups(), multiples.groups(), strict=True)
    ]
    assert f"| {zoomed[0]} |" in row
    lite2, lite0 = zip(zoomed, plain.groups(), strict=True)
    assert f"{lite0[0]} ms of one CPU core; without zoom {lite0[1]} ms" in readme
    assert f"(`lite2_unet_prop` {lite2[0]}; {lite2[1]} ms)" in readme


@pytest.mark.parametrize(
    "page",
    [
        *OF_THE_FAMILY,
        *OF_TRAINING,
        *(pytest.param(page, marks=COMPILES_WHOLE) for page in OF_PARTS),
    ],
)
def test_examples_run(docs, page):
    examples = re.findall(r"^```python\n(.*?)^```", (docs / page).read_text("utf-8"), re.M | re.S)
    assert examples
    names = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for number, code in enumerate(examples, 1):
            exec(compile(code, f"{page}, example {number}", "exec"), names)


def test_the_page_of_the_family_has_every_attention_and_configurations_that_build(docs):
    text = (docs / "inference.md").read_text("utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    assert blocks
    for described in map(yaml.safe_load, blocks):
        ((part, change),) = described["init_args"]["changes"].items()
        layers = map(type, getattr(variant(**described["init_args"]), part).modules())
        assert ATTENTIONS[change["attention"]] in layers
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    table = {row[0].strip(" `"): set(re.findall(r"\w+", row[5])) for row in rows}
    shipped = {  # examples register their own
        name: layer for name, layer in ATTENTIONS.items() if layer.__module__.startswith("probseg.")
    }
    assert table == {
        name: {
            option for option in ("position", "span") if getattr(layer, f"no_{option}") is not None
        }
        for name, layer in shipped.items()
    }
    stored = (docs / "notebooks" / "own_network.md").read_text("utf-8")
    assert str([*shipped]) in stored, "what the notebook has printed is of an earlier version"


def test_every_fault_has_tests_that_exist(docs, repository):
    paths = list((repository / "tests").rglob("test_*.py"))
    files = {path.name: path for path in paths}
    files |= {f"{path.parent.name}/{path.name}": path for path in paths}
    lines = (docs / "faults.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not HEADER.search(line)]
    assert len(rows) > 30
    for row in rows:
        named = NAMED_TEST.findall(row)
        assert named, f"no test shows: {row}"
        for file, test in named:
            assert file in files, row
            if test:
                assert f"\ndef {test}(" in files[file].read_text("utf-8"), f"{file} has no {test}"


def test_every_door_for_strangers_has_tests_of_its_own(docs, repository):
    text = (docs / "faults.md").read_text("utf-8")
    rows = text.partition("| door |")[2].partition("\n\n")[0].splitlines()[2:]
    doors = (
        *("models", "checkpoints", "hub", "annotated folders", "photographs", "annotation files"),
        *("archives", "page", "servers", "CSV", "terminals", "--config"),
    )
    for door in doors:
        assert any(door in row.split("|")[1] for row in rows), door
    named = [
        {file for file, _ in NAMED_TEST.findall(row) if file.startswith("strangers/")}
        for row in rows
    ]
    assert all(named), "each row names a test of strangers"
    folder = repository / "tests" / "strangers"
    assert set().union(*named) == {f"strangers/{path.name}" for path in folder.glob("test_*.py")}


def test_every_check_says_when_it_last_passed(repository):
    text = (repository / "CONTRIBUTING.md").read_text("utf-8").partition("last passed\n")[2]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    checks, jobs, days, places = zip(*rows[1:], strict=True)
    targets = re.findall(r"^([a-z]+):.*##", (repository / "Makefile").read_text("utf-8"), re.M)
    known = {f"`make {target}`" for target in targets if target != "help"}
    assert {*checks} == known | {"-", "`.ci/run`"}
    workflows = [
        (path.stem, yaml.safe_load(path.read_text("utf-8"))["jobs"])
        for path in (repository / ".github" / "workflows").glob("*.yaml")
    ]
    known = {f"{name}:{job}" for name, all_of_it in workflows for job in all_of_it}
    assert {*re.findall(r"`(\S+)`", " ".join(jobs))} == known
    assert [day == "not yet" for day in days] == [place == "-" for place in places]


def test_tables_made_from_the_code_are_those_of_the_code(docs):
    tables = runpy.run_path(str(docs / "tables.py"))
    found = set()
    for page in docs.rglob("*.md"):
        text = page.read_text("utf-8")
        found |= {name for _, name, _ in tables["MARKED"].findall(text)}
        assert tables["with_tables"](text) == text, f"{page} is not up to date: run `make tables`"
    assert found == set(tables["TABLES"])
    layouts = {row[0]: row[2] for row in tables["data_sets"]()}
    assert layouts["`GrabCut`"].startswith("`GrabCut`"), "the folder inside $PROBSEG_DATA"
