"""What descriptions that come with weights may say: plain data, of a network of bounded size.

Model folders, checkpoints and models of the hub may be a stranger's. What describes their networks
names parts of probseg and settings of architecture: no other class, no path, no address, no
download. The types are those of the parts' own arguments.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model
from torch.overrides import TorchFunctionMode

from probseg.attention import find_attention
from probseg.attention.base import Attention2d, Shared
from probseg.backbones import Backbone
from probseg.descriptions import class_name, is_description
from probseg.errors import UnknownNameError, WeightsError, ZooError
from probseg.kinds import TASKS
from probseg.models.build import (
    DEFERRED_ARGUMENTS,
    PARTS,
    Description,
    override,
    resolved,
    without_downloads,
)
from probseg.models.network import Network

# ends of the names of arguments that cost time, whatever the weights are
COUNTS = ("blocks", "depth", "depths", "iterations", "layers", "stages", "steps")

Count = Annotated[int, Field(ge=0, le=64)]
Integer = Annotated[int, Field(ge=0, le=4096)]
Real = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,100}$")]

# arguments of `timm.create_model` that a description may set, all of architecture, by type
TIMM: dict[Any, str] = {
    bool: "avg_down class_token dynamic_img_pad dynamic_img_size no_embed_class qk_norm qkv_bias",
    float: "attn_drop_rate drop_path_rate drop_rate init_values mlp_ratio pos_drop_rate "
    "proj_drop_rate",
    int: "base_width cardinality depth embed_dim reg_tokens stem_width",
    str: "act_layer feature_location norm_layer stem_type",
    Sequence[int]: "channels depths dims embed_dims global_attn_indexes layers stages",
    Sequence[Literal[*range(-8, 16)]]: "out_indices",  # type: ignore[misc]
    int | Sequence[int]: "img_size num_heads patch_size window_size",
    Mapping[str, Any]: "block_args",
}


class Variant(BaseModel, strict=True, hide_input_in_errors=True):
    """Arguments of a function that makes a changed preset."""

    of: Name
    changes: dict[str, Any] | None = None


def checked(
    description: object, source: str, changes: Mapping[str, Any] | None = None
) -> Description:
    """Return the description of a network that came with weights, which then downloads nothing.

    It is a network, or a call of a task's `variant`, in a file `source`, which may make changes.
    """
    try:
        if not is_description(description) or not isinstance(description.get("init_args"), dict):
            raise TypeError("no class_path with init_args")
        if class_name(description) in {facts.variant.split(".")[-1] for facts in TASKS.values()}:
            Variant.model_validate(description["init_args"])
        network = override(resolved(description), changes or {})
        if is_description(network["init_args"].get("backbone")):
            network = without_downloads(network)
        _check_part(Network, network)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ZooError(
            f"{source}: expected the description of a network, as `probseg zoo publish` writes it, "
            f"of names and plain settings, got {' '.join(str(error).split()):.300}"
        ) from error
    return network


class SizeBudget(TorchFunctionMode):
    """Refuses to make tensors of more numbers than these in all, before they take memory.

    It counts those that the context makes by their size, as layers make their weights.
    """

    def __init__(self, numbers: int, source: str) -> None:
        super().__init__()
        self.numbers, self.left, self.source = numbers, numbers, source

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 (torch's signature)
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Count what the function makes, and call it."""
        options = kwargs or {}
        if getattr(func, "__name__", "") in ("empty", "full", "ones", "rand", "randn", "zeros"):
            size = options.get("size", args[0] if args and isinstance(args[0], Sequence) else args)
            self.left -= math.prod(number for number in size if isinstance(number, int))
        if self.left < 0:
            raise WeightsError(
                f"{self.source}: describes a network of more than {self.numbers:,} numbers, which "
                "its weights do not have; a large network needs its weights (pretrained=True)"
            )
        return func(*args, **options)


def _check_part(kind: type, description: object) -> None:
    """Raise unless this describes a part of a kind, with arguments that the part may have."""
    if not is_description(description) or not set(description) <= {"class_path", "init_args"}:
        raise ValueError("something else than {'class_path': ..., 'init_args': {...}} for a part")
    name, arguments = class_name(description), description.get("init_args") or {}
    if name not in PARTS:
        path = description["class_path"]
        named = path[:200] if isinstance(path, str) else type(path).__name__
        is_own = named.partition(".")[0] not in (named, "probseg")
        remedy = "; your own are known once they are imported, as by --config RUN/config.yaml"
        raise UnknownNameError("part of a network", named, PARTS, remedy if is_own else "")
    part = PARTS[name]
    if not issubclass(part, kind):
        raise ValueError(f"a {name} for a {kind.__name__}")
    _check_arguments(part, arguments)
    parameters = inspect.signature(part).parameters
    if "attention" not in parameters:
        return
    layer = arguments.get("attention", parameters["attention"].default)
    options = arguments.get("attention_options" if issubclass(part, Backbone) else "options")
    _check_arguments(find_attention(layer) if layer else Attention2d, options or {})


def _check_arguments(part: type, arguments: object) -> None:
    """Raise a ValueError that names the first argument that a part or a layer may not have."""
    try:
        _schema(part).model_validate(arguments)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
        raise ValueError(
            f"`{'.'.join(map(str, fault['loc']))}` of {part.__name__}: {fault['msg']}"
        ) from error


@cache
def _schema(part: type) -> type[BaseModel]:
    """Return the schema of the arguments that a description may give to a part or a layer."""
    hints = get_type_hints(part.__init__)  # type: ignore[misc]
    if "shared" in hints:
        hints |= get_type_hints(Shared)
    timm = {name: hint for hint, names in TIMM.items() for name in names.split()}
    known = set(hints) - {*DEFERRED_ARGUMENTS, "shared", "return", "weights"}
    fields = {key: (_plain(hints[key], key), None) for key in known}
    if issubclass(part, Backbone) and "options" in known:
        options = {key: (_plain(hint, key), None) for key, hint in timm.items()}
        fields["options"] = (_model("options", options) | None, None)
    return _model(part.__name__, fields)


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
    return create_model(name, __config__=config, **fields)


def _plain(hint: Any, key: str) -> Any:  # noqa: ANN401 (any annotation)
    """Return the type of plain data of bounded size for the annotation of an argument."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint in (bool, NoneType) or origin is Literal:
        return Literal[False] if key == "pretrained" else hint
    if hint in (int, float, str):
        of_int = Count if key.endswith(COUNTS) else Integer
        return {int: of_int, float: Real, str: Name}[hint]
    if origin in (Union, UnionType):
        return Union[tuple(_plain(choice, key) for choice in inside)]  # noqa: UP007 (of a list)
    if origin is dict:  # of a layer of attention, whose class knows them
        return dict[str, Any]
    if origin is Mapping:
        return dict[Name, bool | Integer | Real | Name | None]
    if origin in (tuple, Sequence):
        item = _plain(inside[0], key)
        return Annotated[list[item] | tuple[item, ...], Field(max_length=32)]  # type: ignore[valid-type]
    kind = inside[1] if origin is Callable else hint
    return Annotated[Any, PlainValidator(partial(_check_part, kind))]
