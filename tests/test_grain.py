"""The grain of the code: it does not grow finer, and its bounds are what was reached.

Who adds something new raises a bound by as much, and says why in the commit.
"""

from textwrap import dedent

import pytest

from benchmarks.grain import ROOT, grain

BOUNDS = {
    "probseg": {"files": 256, "lines": 55_296, "called_once": 211, "raises_per_1000": 14.9},
    "tests": {"files": 240, "lines": 57_192},
    "benchmarks": {"files": 35, "lines": 5_020},
}
MEDIAN_BODY = {"probseg": 5, "benchmarks": 8}


@pytest.mark.parametrize("room", BOUNDS)
def test_the_code_does_not_grow_finer(room):
    counted = grain(ROOT / room)
    over = {name: getattr(counted, name) for name in BOUNDS[room]}
    assert {of: value for of, value in over.items() if value > BOUNDS[room][of]} == {}
    assert counted.median_body >= MEDIAN_BODY.get(room, 0)


def test_functions_are_counted_as_called_once(tmp_path):
    module = """
        def _once(): return _twice() + _twice()
        def _twice(): return 1
        def _elsewhere(): return 2
        def public():
            \"\"\"Not counted.\"\"\"
            if not _once():
                raise ValueError
    """
    (tmp_path / "a.py").write_text(dedent(module).strip() + "\n")
    (tmp_path / "b.py").write_text("from a import _elsewhere\n")
    counted = grain(tmp_path)
    assert (counted.files, counted.private_functions, counted.called_once) == (2, 3, 2)
    assert (counted.raises_per_1000, counted.median_body) == (125.0, 1)
