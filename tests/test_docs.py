"""The pages of the documentation: all in the navigation, with links and images that exist."""

import ast
import csv
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

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)

OF_THE_FAMILY = (
    "inference.md",
    "family/additive.md",
    "family/approximation.md",
    "family/edges.md",
    "family/em.md",
    "family/hard.md",
    "family/hopfield.md",
    "family/kernel_regression.md",
    "family/low_rank.md",
    "family/predictive_coding.md",
    "family/random_fields.md",
    "family/slots.md",
)
"""Pages whose examples run as they stand, and check what they say."""

OF_TRAINING = ("data.md", "faults.md")
"""Likewise, and they draw nothing from torch's generator."""

OF_PARTS = ("parts.md",)
"""Likewise, with `torch.compile` and `torch.export`."""

NAMED_TEST = re.compile(r"`((?:\w+/)?test_\w+\.py)(?:::(test_\w+))?`")
HEADER = re.compile(r"\| tests? \|$")


def pages_of(nav):
    """Paths of the pages in a navigation tree."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [path for child in children for path in pages_of(child)]


def files_linked(text):
    """Targets of the relative links and images in Markdown, without those in code."""
    targets = [target.partition("#")[0] for target in LINK.findall(CODE.sub("", text))]
    return [target for target in targets if target and ":" not in target]


@pytest.fixture(scope="module")
def docs(repository):
    return repository / "docs"


def test_every_page_is_in_the_navigation_once(docs, repository):
    site = yaml.safe_load((repository / "mkdocs.yml").read_text("utf-8"))
    pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert sorted(pages_of(site["nav"])) == sorted(pages)


def test_links_and_images_exist_inside_the_site(docs):
    count = 0
    for page in docs.rglob("*.md"):
        for target in files_linked(page.read_text("utf-8")):
            count += 1
            path = (page.parent / target).resolve()
            assert path.is_file(), f"{page} links to {target}"
            assert path.is_relative_to(docs.resolve()), f"{page} links to {target}, not in the site"
    assert count, "no page has a link"


def test_tasks_are_found_from_the_readme_the_home_page_and_the_navigation(docs, repository):
    pages = tables((repository / "README.md").read_text("utf-8"))
    readme = next(rows for rows in pages if "guide" in rows[0])
    home = next(tables((docs / "index.md").read_text("utf-8")))
    tasks = [row["task"] for row in readme]
    assert tasks == [row["task"] for row in home]
    assert "Reproduce the paper" in tasks
    navigation = (repository / "mkdocs.yml").read_text("utf-8")
    assert [task for task in tasks if f"{task}:" not in navigation] == []


ROOT = Path(__file__).parent.parent
OUTSIDE = [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]
OUTSIDE += ROOT.glob("benchmarks/[nt]*/*.md")  # the notebook and the trainings


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_outside_the_site_exist(page):
    folder = page.parent
    for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        assert (folder / target).exists(), f"{page} links to {link}"
        if anchor:
            text = (folder / target).read_text("utf-8")
            headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
            names = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in headings}
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


def figure(rows, name, column):
    """Figure of a method in a table of the page on evaluation, without its errors."""
    (row,) = [row for row in rows if next(iter(row.values())) == name]
    return row[column].split()[0]


@pytest.fixture
def on_grabcut(docs):
    """Tables of the page on evaluation by protocol: figures of the shipped models and baselines."""
    text = (docs / "evaluation.md").read_text("utf-8")
    _, _, section = text.partition("## The shipped models and four baselines")
    boxes, clicks, *_ = tables(section)
    return {"gabbur2021": boxes, "ritm": clicks}


def test_the_page_of_evaluation_has_the_figures_of_the_zoo(on_grabcut, repository):
    models = read_index(repository / "zoo") | read_index(repository / "benchmarks" / "zoo")
    for protocol, rows in on_grabcut.items():
        for name in ("lite2_unet_prop", "lite0_unet_prop", "resnet16_csa"):
            for column in ("@1", "@5", "@10", "NoC@80", "NoC@85", "NoC@90"):
                key = column.lower() if column.startswith("N") else f"miou{column}"
                scale, rounding = (1, 0.00501) if column.startswith("N") else (100, 0.0501)
                measured = (
                    scale * models[f"{name}.objects"].metrics[f"GrabCut/{protocol}/{key}"].value
                )
                shown = float(figure(rows, f"{name} (zoo)", column))
                assert abs(shown - measured) < rounding, (protocol, name, column)


def test_the_readme_has_the_figures_of_the_files(on_grabcut, docs, repository):
    readme = (repository / "README.md").read_text("utf-8")
    best, opencv = "lite2_unet_prop (zoo)", "OpenCV GrabCut"
    clicks = [figure(on_grabcut["ritm"], name, "NoC@90") for name in (best, opencv)]
    assert f"{clicks[0]} clicks to 90 %; OpenCV's GrabCut needs {clicks[1]} |" in readme
    boxes = [float(figure(on_grabcut["gabbur2021"], name, "@0")) for name in (best, opencv)]
    assert f"{boxes[0]:.0f} % after a box; OpenCV's GrabCut reaches {boxes[1]:.0f} %" in readme

    section = (docs / "evaluation.md").read_text("utf-8").partition("## Results on Berkeley")[2]
    berkeley = next(tables(section))
    beside = {line.split("|")[1].strip(): line for line in readme.splitlines() if line[:1] == "|"}
    for name, row in (
        ("probseg, `lite2_unet_prop`", "lite2_unet_prop (zoo), `ritm_zoom`"),
        ("OpenCV GrabCut (`ritm`)", f"{opencv}, `ritm`"),
    ):
        both = " / ".join(figure(berkeley, row, score) for score in ("NoC@85", "NoC@90"))
        assert f"| {both} |" in beside[name]

    path = repository / "benchmarks" / "results" / "inference.csv"
    with path.open(encoding="utf-8") as file:
        ways = {row["way"]: row for row in csv.DictReader(file)}
    zoom, without = (float(ways[way]["noc@90"]) for way in ("zoom, EM", "plain"))
    assert f"{zoom:.1f} clicks to 90 %; without zoom and EM {without:.1f} " in readme
    cells = beside["probseg, `lite0_unet_prop`"].split("|")
    assert f"a click takes {cells[5].strip()} ms of one CPU core" in readme


def blocks(text, language):
    """Code blocks of a language in Markdown, in order."""
    return [code for name, code in BLOCK.findall(text) if name == language]


def refused(layer):
    """Options of `Attention2d` that a class of layers does not take."""
    reasons = {"position": layer.no_position, "span": layer.no_span}
    return {option for option, reason in reasons.items() if reason is not None}


def test_all_pages_of_the_family_are_tested(docs):
    pages = [path.relative_to(docs).as_posix() for path in (docs / "family").glob("*.md")]
    assert sorted(["inference.md", *pages]) == sorted(OF_THE_FAMILY)


@pytest.mark.parametrize("page", [*OF_THE_FAMILY, *OF_TRAINING, *OF_PARTS])
def test_examples_run(docs, page):
    text = (docs / page).read_text("utf-8")
    examples = blocks(text, "python")
    assert examples
    names = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for number, code in enumerate(examples, 1):
            exec(compile(code, f"{page}, example {number}", "exec"), names)


def test_configurations_on_the_page_of_the_family_build(docs):
    described = [
        yaml.safe_load(code) for code in blocks((docs / "inference.md").read_text("utf-8"), "yaml")
    ]
    assert described
    for description in described:
        (part,) = description["init_args"]["changes"]
        network = variant(**description["init_args"])
        wanted = ATTENTIONS[description["init_args"]["changes"][part]["attention"]]
        layers = [type(module) for module in getattr(network, part).modules()]
        assert wanted in layers


def test_the_table_of_the_family_has_every_attention_and_what_it_refuses(docs):
    text = (docs / "inference.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    table = {row[0].strip(" `"): set(re.findall(r"\w+", row[5])) for row in rows}
    assert table == {name: refused(layer) for name, layer in ATTENTIONS.items()}


def test_every_picture_of_the_family_has_its_script(docs):
    pictures = {path.stem for path in (docs / "images" / "family").glob("*.png")}
    assert pictures
    for name in pictures:
        assert (docs / "pictures" / f"{name}.py").is_file(), f"nothing draws {name}.png"
        assert (docs / "images" / "family" / f"{name}.png").stat().st_size < 150_000


def names_of_tests(path):
    """Names of the tests in a file."""
    parts = ast.parse(path.read_text("utf-8")).body
    names = [part.name for part in parts if isinstance(part, ast.FunctionDef)]
    return {name for name in names if name.startswith("test_")}


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
            assert not test or test in names_of_tests(files[file]), f"{file} has no {test}"


def test_every_door_for_strangers_has_tests_of_its_own(docs, repository):
    text = (docs / "faults.md").read_text("utf-8")
    section = text.partition("| door |")[2].partition("\n\n")[0]
    rows = section.splitlines()[2:]
    doors = (
        *("models", "checkpoints", "hub", "annotated folders", "photographs", "annotation files"),
        *("archives", "page", "servers", "CSV", "terminals", "--config"),
    )
    for door in doors:
        assert any(door in row.split("|")[1] for row in rows), door
    named = set()
    for row in rows:
        here = {file for file, _ in NAMED_TEST.findall(row) if file.startswith("strangers/")}
        assert here, f"no test of strangers holds: {row}"
        named |= here
    folder = repository / "tests" / "strangers"
    assert named == {f"strangers/{path.name}" for path in folder.glob("test_*.py")}


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


def test_the_page_of_training_names_every_recipe(docs, repository):
    text = (docs / "training.md").read_text("utf-8")
    recipes = [path.stem for path in (repository / "configs" / "experiment").glob("*.yaml")]
    patterns = [name.replace("*", ".*") for name in re.findall(r"`([\w*]+)`", text)]
    patterns += [f"gabbur2021_{pattern}" for pattern in patterns]
    left = [name for name in recipes if not any(re.fullmatch(p, name) for p in patterns)]
    assert left == []
