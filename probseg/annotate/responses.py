"""Answers as JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class AsciiJson(JSONResponse):
    """JSON in ASCII: a text of a client or of a file may have halves of characters."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401
        """Write JSON."""
        return json.dumps(content, allow_nan=False).encode("ascii")


def refusal(status: int, reason: str) -> AsciiJson:
    """Say why a request is not carried out."""
    return AsciiJson({"error": reason}, status_code=status)
