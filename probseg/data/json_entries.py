"""Reading the lists of a large JSON file entry by entry."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import TextIO

CHUNK = 1 << 22
"""Characters that are read at once; longer entries are read in several goes."""

SPACE = re.compile(r"[ \t\n\r]*")
ENDS = frozenset(" \t\n\r,:]}")

LONGEST_CUT = 16
"""More characters than there are of anything that makes no sense without its end, but strings: a
``-Infinity``, a pair of ``\\uXXXX``, or the ``e+`` of a number."""


def json_entries(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the parts of a file that holds one JSON object, without having all of it in memory.

    Args:
        path: The file, in UTF-8.

    Yields:
        The key and each entry, in the order of the file, where a value is a list; and the key and
        the value where it is not. Of an empty list there is nothing.

    Raises:
        ValueError: If the file is no JSON object; what came before the mistake has been yielded.
    """
    with path.open(encoding="utf-8-sig") as file:
        text = _Text(file)
        text.expect("{")
        if not text.skip("}"):
            while True:
                key = text.value()
                if not isinstance(key, str):
                    msg = f"expected a key in quotes, got {key!r:.50}"
                    raise ValueError(msg)
                text.expect(":")
                if not text.skip("["):
                    yield key, text.value()
                elif not text.skip("]"):
                    yield key, text.value()
                    while text.skip(","):
                        yield key, text.value()
                    text.expect("]")
                if not text.skip(","):
                    break
            text.expect("}")
        text.expect("")


class _Text:
    """The part of a file that is being parsed."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.text = ""
        self.place = 0  # in `text`
        self.passed = 0  # characters of the file before `text`
        self.decode = json.JSONDecoder().raw_decode

    def _read_on(self) -> bool:
        """Append to the text what comes next; false at the end of the file."""
        # As much as there is already: an entry of many chunks is begun anew few times.
        more = self.file.read(max(CHUNK, len(self.text) - self.place))
        if not more:
            return False
        self.passed += self.place
        self.text = self.text[self.place :] + more
        self.place = 0
        return True

    def _next(self) -> str:
        """Go to the next character that is no space and return it; empty at the end."""
        while True:
            found = SPACE.match(self.text, self.place)
            self.place = found.end() if found else self.place
            if self.place < len(self.text):
                return self.text[self.place]
            if not self._read_on():
                return ""

    def skip(self, character: str) -> bool:
        """Go past a character if it comes next."""
        if self._next() != character:
            return False
        self.place += 1
        return True

    def expect(self, character: str) -> None:
        """Go past a character, which must come next; the empty one stands for the end."""
        found = self._next()
        if found != character:
            wanted, got = (repr(c) if c else "the end of the file" for c in (character, found))
            msg = f"expected {wanted} at character {self.passed + self.place}, got {got}"
            raise ValueError(msg)
        self.place += len(character)

    def value(self) -> object:
        """Go past a value and return it."""
        self._next()
        while True:
            try:
                value, end = self.decode(self.text, self.place)
            except JSONDecodeError as error:
                # A string without an end is reported where it begins.
                cut = self._at_end(error.pos) or error.msg.startswith("Unterminated string")
                if cut and self._read_on():
                    continue
                msg = f"{error.msg} at character {self.passed + error.pos}"
                raise ValueError(msg) from error
            # Of a number that goes on in the next chunk, "1" can be read of "1" or of "1e".
            if self.text[end : end + 1] in ENDS or not self._at_end(end) or not self._read_on():
                self.place = end
                return value

    def _at_end(self, place: int) -> bool:
        """Say whether more characters could change what is read at a place."""
        return place + LONGEST_CUT >= len(self.text)
