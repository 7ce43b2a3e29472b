"""A Griffe extension: named tuples are built from their fields, and their pages say how."""

from __future__ import annotations

from typing import Any

from griffe import Attribute, Class, Extension, Function, Parameter, ParameterKind, Parameters


class NamedTuples(Extension):
    """Gives each `typing.NamedTuple` the `__init__` that its fields describe."""

    def on_class(self, *, cls: Class, **_: Any) -> None:  # noqa: ANN401
        """Add `__init__` to a class whose members have all been read."""
        if not any(str(base) in ("NamedTuple", "typing.NamedTuple") for base in cls.bases):
            return
        kind = ParameterKind.positional_or_keyword
        fields = [
            Parameter(field.name, annotation=field.annotation, kind=kind, default=field.value)
            for field in cls.members.values()
            if isinstance(field, Attribute) and field.annotation and "property" not in field.labels
        ]
        parameters = Parameters(Parameter("self", kind=kind), *fields)
        init = Function("__init__", parent=cls, parameters=parameters, returns="None")
        init.lineno = init.endlineno = 0
        cls.set_member("__init__", init)
