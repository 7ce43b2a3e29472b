"""The table of models in the README, and in any page."""

import pytest

from probseg.release.table import BEGIN, END, render_table
from probseg.zoo.index import Metric, read_index
from support.rows import each
from support.runs import command
from support.zoos import add_model

METRICS = {
    "GrabCut/gabbur2021/miou@0": Metric(0.7507, 0.0262),
    "GrabCut/gabbur2021/miou@5": Metric(0.8904, 0.0129),
    "GrabCut/ritm/noc@85": Metric(7.58, None),
    "GrabCut/ritm/noc@90": Metric(11.34, 1.1012),
    "SamplePhotos/ritm/noc@90": Metric(1.0, None),
}


@pytest.fixture
def zoo(tmp_path):
    described = {"description": "A net | of two parts, trained on ellipses.", "metrics": METRICS}
    add_model(tmp_path, "micro_csa.one", parameters=6_900_803, **described)
    return tmp_path


def cells(line):
    return [cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")]


def test_cells(zoo):
    streets = {"CamVid/miou": Metric(0.6123, None), "CamVid/pixel_accuracy": Metric(0.9, None)}
    add_model(zoo, "micro_emanet.streets", metrics=streets)
    header, _, row, streets = render_table(read_index(zoo).values()).splitlines()
    size = read_index(zoo)["micro_csa.one"].nbytes
    assert dict(zip(cells(header), cells(row), strict=True)) == {
        "model": "`micro_csa.one`",
        "task": "interactive",
        "parameters": "6.90 M",
        "MB": f"{size / 1e6:.1f}",
        "mIoU@0": "75.1 ± 2.6",
        "mIoU@5": "89.0 ± 1.3",
        "NoC@85": "7.58",
        "NoC@90": "11.34 ± 1.10",
        "mIoU of classes": "",
        "what it is": "A net / of two parts",
    }
    assert cells(streets)[4:9] == ["", "", "", "", "61.2 (CamVid)"]


def test_a_page_gets_the_table_of_the_index(zoo, capsys):
    page = zoo / "README.md"
    page.write_text(f"# Models\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    table = ("zoo", "table", "--zoo", zoo)
    assert command(*table, "--into", page, "--check") == 2
    assert "README.md: its table is not that of the zoo; run `probseg zoo table --into" in (
        capsys.readouterr().err
    )
    assert "old" in page.read_text()
    assert command(*table, "--into", page) == 0
    assert command(*table, "--into", page, "--check") == 0
    expected = render_table(read_index(zoo).values())
    assert page.read_text() == f"# Models\n\n{BEGIN}\n\n{expected}\n{END}\n\nMore.\n"
    assert command(*table) == 0
    assert capsys.readouterr().out == expected


@each("text", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n" * 2])
def test_a_page_without_marks_is_refused(zoo, capsys, text):
    page = zoo / "page.md"
    page.write_text(text)
    assert command("zoo", "table", "--zoo", zoo, "--into", page) == 2
    assert "page.md: expected one line <!-- zoo: begin -->" in capsys.readouterr().err
    assert page.read_text() == text


def test_the_table_of_the_readme_is_that_of_the_index(repository):
    page = repository / "README.md"
    assert command("zoo", "table", "--into", page, "--check") == 0
