"""The one parser of prompts: what files, command line, page and tools send becomes steps.

It needs pydantic, which a model does not: only the doors import this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from probseg.formats import run_lengths
from probseg.images import MAX_PIXELS
from probseg.types import BoxStep, Click, Patch, ScaleStep, Step, Stroke

MAX_POINTS = 10_000  # maximum points of a stroke

MAX_RADIUS = 500.0  # largest radius of a stroke in pixels

# what is expected of each part of a step, for messages
EXPECTED = {
    "type": "'click', 'box' or 'brush'",
    "x": "a number such as 12.5",
    "y": "a number such as 12.5",
    "positive": "true or false",
    "box": "four numbers [x0, y0, x1, y1]",
    "radius": f"above 0 and at most {MAX_RADIUS}",
    "points": f"1 to {MAX_POINTS} pairs [x, y]",
    "segmentation": "run lengths with a size",
    "number": "0 to 99",
}

TYPES = ("click", "box", "brush", "patch", "scale")

Number = Annotated[float, Field(strict=True, gt=-1e9, lt=1e9)]
Truth = Annotated[bool, Field(strict=True)]
Side = Annotated[int, Field(strict=True, ge=1, le=MAX_PIXELS)]
_NUMBER: TypeAdapter[float] = TypeAdapter(Number)


Points = Annotated[tuple[tuple[Number, Number], ...], Field(min_length=1, max_length=MAX_POINTS)]
_POINTS: TypeAdapter[tuple[tuple[float, float], ...]] = TypeAdapter(Points)


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Click(_Form):
    type: Literal["click"]
    x: Number
    y: Number
    positive: Truth = True

    def step(self) -> Click:
        return Click(self.x, self.y, self.positive)


class _Box(_Form):
    type: Literal["box"]
    box: tuple[Number, Number, Number, Number]

    def step(self) -> BoxStep:
        return BoxStep(self.box)


class _Stroke(_Form):
    type: Literal["brush"]
    radius: Annotated[Number, Field(gt=0, le=MAX_RADIUS)]
    points: Points
    positive: Truth = True

    def step(self) -> Stroke:
        return Stroke(self.points, self.radius, self.positive)


class _RunLengths(_Form):
    size: tuple[Side, Side]
    counts: Annotated[str, Field(strict=True)]


class _Patch(_Form):
    type: Literal["patch"]
    segmentation: _RunLengths
    positive: Truth = True

    def step(self) -> Patch:
        return Patch(run_lengths.decode(self.segmentation.model_dump()), self.positive)


class _Scale(_Form):
    type: Literal["scale"]
    number: Annotated[int, Field(strict=True, ge=0, le=99)]

    def step(self) -> ScaleStep:
        return ScaleStep(self.number)


# A step in JSON, with nothing besides: what the database of the page holds
FORMS: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Click | _Box | _Stroke | _Patch | _Scale, Field(discriminator="type")]
)


def parse_step(sent: Mapping[str, Any]) -> Step:
    """Return the step that a mapping describes; a ValueError names a part that is wrong.

    Its keys are `type` and those of the type: `x`, `y`, `positive` of a "click", `box` of a "box",
    `points`, `radius`, `positive` of a "brush", `number` of a "scale". Other keys do not count.
    """
    try:
        step: Step = FORMS.validate_python({k: v for k, v in sent.items() if k in EXPECTED}).step()
    except ValidationError as error:
        _, *parts = *error.errors(include_url=False)[0]["loc"], "type"
        name = str(parts[0]) if sent.get("type") in TYPES else "type"
        raise ValueError(
            f"`{name}` must be {EXPECTED[name]}, got {sent.get(name)!r:.200}"
        ) from None
    return step


def parse_points(value: object) -> tuple[tuple[float, float], ...]:
    """Return the corners of a line or of a ring, which are those of a stroke."""
    try:
        return _POINTS.validate_python(value)
    except ValidationError:
        raise ValueError(f"{EXPECTED['points']}, got {value!r:.200}") from None


def parse_number(value: object, name: str) -> float:
    """Return a coordinate; a ValueError names one that is not finite, or absurdly large."""
    try:
        return _NUMBER.validate_python(value)
    except ValidationError:
        raise ValueError(f"`{name}` must be {EXPECTED['x']}, got {value!r:.200}") from None
