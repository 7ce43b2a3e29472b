"""Templates of the report, rendered by jinja2 with autoescape."""

from __future__ import annotations

import json
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from probseg.reports.tables import count


def render(template: str, **values: Any) -> Markup:  # noqa: ANN401
    """Render a file of `probseg/reports/templates`; values are escaped unless they are `Markup`.

    Args:
        template: Name of the file without `.html.j2`.
        **values: Of its variables, all of them.
    """
    return Markup(_ENVIRONMENT.get_template(f"{template}.html.j2").render(values))


def anchor(title: str) -> str:
    """Return the name of a section in addresses."""
    return title.lower().replace(" ", "-")


def _words(value: Any) -> str:  # noqa: ANN401
    """Return a JSON value in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _marked(text: str) -> Markup:
    """Return a sentence of a docstring with its marks as HTML."""
    text = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text))


_ENVIRONMENT = Environment(
    loader=PackageLoader("probseg.reports"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.filters |= {"anchor": anchor, "count": count, "marked": _marked, "words": _words}
