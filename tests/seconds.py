"""Writes tests/seconds.json, how long each file of tests takes, from a junitxml of pytest."""

import json
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path(__file__).parent

if __name__ == "__main__":
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        while parts and not (path := TESTS.parent / "/".join(parts)).with_suffix(".py").exists():
            parts.pop()  # a class in the file
        if parts:  # a file that cannot be imported has none
            name = path.with_suffix(".py").relative_to(TESTS.parent).as_posix()
            seconds[name] += float(case.attrib["time"])
    whole = {name: round(value) for name, value in sorted(seconds.items())}
    (TESTS / "seconds.json").write_text(json.dumps(whole, indent=0) + "\n")
