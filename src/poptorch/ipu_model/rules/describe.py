"""From a node of a graph to the description that rules read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from poptorch.errors import createPoptorchError
from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, bare_name
from poptorch.ipu_model.settings import CostSettings, partials_type
from poptorch.ops.traits import OpKind, Traits, traits_of
from poptorch.program.opinfo import OpInfo, Sweep, info_of

_FAR = 1000
"""Operations that the search for the origin of a mapping looks back at most."""

_KEEPS_MAPPING = {OpKind.VIEW, OpKind.ELEMENTWISE, OpKind.ACTIVATION, OpKind.NORMALISATION, OpKind.SOFTMAX, OpKind.HINT}
_PLANNED = {OpKind.PRODUCT, OpKind.CONVOLUTION, OpKind.ATTENTION, OpKind.POOLING}
_ARRANGED = {OpKind.PRODUCT, OpKind.CONVOLUTION, OpKind.RECURRENT}
_LOOKUPS = {OpKind.GATHER, OpKind.SCATTER}


def describe(node: fx.Node, chip: Architecture, settings: CostSettings) -> CostedCall:
    """The operation without its graph."""
    operator, info, traits = node.target, info_of(node), traits_of(node)
    assert isinstance(operator, torch._ops.OpOverload), node
    homes: dict[object, int] = {}

    planned = traits.kind in _ARRANGED and (info.sweep is Sweep.FORWARD or info.recomputed)

    def operand(value: fx.Node) -> Any:
        known = described(value.meta.get("val"), node, 0, planned and _is_resident(value))
        return (
            replace(known, home=homes.setdefault(_home(value), len(homes)))
            if isinstance(known, CostedOperand)
            else known
        )

    given = dict(zip((a.name for a in operator._schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    arguments = tuple(
        (a.name, _map(given.get(a.name, a.default_value if a.has_default_value() else None), operand))
        for a in operator._schema.arguments
    )
    value = node.meta.get("val")
    several = value if isinstance(value, (list, tuple)) else [value]
    results = tuple(r for v in several if isinstance(r := described(v, node, 0), CostedOperand))
    if not results and operator._schema.returns and not operator._schema.is_mutable and traits.kind is not OpKind.HOST:
        raise _unknown_size(node, "nothing is known about its result")
    partials, proportion = _planning(info, traits, settings)
    return CostedCall(operator, arguments, results, chip, partials, proportion, info.cycles)


def _planning(info: OpInfo, traits: Traits, settings: CostSettings) -> tuple[torch.dtype, float]:
    convolution = traits.kind is OpKind.CONVOLUTION or traits.name == "multi_conv"
    if convolution:
        partials, proportion = settings.convolution_partials, settings.convolution_proportion
    elif traits.kind in _LOOKUPS:
        partials, proportion = settings.product_partials, settings.lookup_proportion
    else:
        partials, proportion = settings.product_partials, settings.product_proportion
    proportion = settings.proportion_on(info.placement.ipu if info.placement is not None else None, proportion)
    return (
        partials if info.partials is None else partials_type(info.partials),
        proportion if info.available_memory is None else info.available_memory,
    )


def described(value: Any, node: fx.Node, home: int, resident: bool = False) -> Any:
    """A value of a graph as rules see it: tensors are operands, lists are tuples, the rest is itself."""
    if isinstance(value, torch.Tensor):
        if any(not isinstance(size, int) for size in value.shape):
            raise _unknown_size(node, f"{tuple(value.shape)} depends on data")
        strided = value.layout == torch.strided
        strides = tuple(value.stride()) if strided else ()
        return CostedOperand(tuple(value.shape), value.dtype, strides, home, resident)
    if isinstance(value, (list, tuple)):
        return tuple(described(item, node, home) for item in value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise _unknown_size(node, f"{value} depends on data")
    return value


def _map(value: Any, operand: Any) -> Any:
    if isinstance(value, fx.Node):
        return operand(value)
    if isinstance(value, dict):
        return tuple((key, _map(item, operand)) for key, item in sorted(value.items()))
    return tuple(_map(item, operand) for item in value) if isinstance(value, (list, tuple)) else value


def _unknown_size(node: fx.Node, why: str) -> Exception:
    info = info_of(node)
    where = f" ({info.source})" if info.source is not None else ""
    return createPoptorchError(
        f"The IPU Model cannot say what {node.target}{where} costs: {why}. Operations on an IPU have fixed sizes. Pass "
        "example inputs of fixed shapes, and use forms of operations whose results do not depend on values."
    )


# -- mappings to tiles -------------------------------------------------------------------------------------------------


def _home(node: fx.Node) -> object:
    """What decides how a value is spread over tiles: equal answers mean equal mappings.

    Operations on single elements write where they read. Products choose a mapping by their shapes; everything else is
    spread evenly in the order of its elements, so equal shapes lie alike.
    """
    origin = node
    for _ in range(_FAR):
        following = _mapped_like(origin)
        if following is None:
            break
        origin = following
    kind = traits_of(origin).kind
    how = (kind, bare_name(origin.target), *_shapes(origin)) if kind in _PLANNED else "linear"  # type: ignore[arg-type]
    value = node.meta.get("val")
    shape, strides = (tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else ((), ())
    return how, _shape(origin.meta.get("val")), shape, strides


def _is_resident(node: fx.Node) -> bool:
    """Whether a value is a port of the program, seen as it is or through views."""
    while node.op == "call_function" and traits_of(node).kind is OpKind.VIEW and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node.op in ("placeholder", "get_attr")


def _mapped_like(node: fx.Node) -> fx.Node | None:
    """The operand whose mapping the result of an operation has."""
    traits = traits_of(node)
    if node.op != "call_function" or traits.kind not in _KEEPS_MAPPING | {OpKind.STRUCTURE}:
        return None
    if traits.kind in (OpKind.ELEMENTWISE, OpKind.ACTIVATION):
        size = _numel(node.meta.get("val"))
        return next((n for n in node.all_input_nodes if _numel(n.meta.get("val")) == size), None)
    first = node.all_input_nodes[:1]
    return first[0] if first else None


def _numel(value: Any) -> int:
    size = value.numel() if isinstance(value, torch.Tensor) else -1
    return size if isinstance(size, int) else -1


def _shapes(node: fx.Node) -> Iterable[object]:
    return (_shape(operand.meta.get("val")) for operand in node.all_input_nodes)


def _shape(value: Any) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(map(_shape, value))
    return tuple(map(str, value.shape)) if isinstance(value, torch.Tensor) else None


__all__ = ["describe", "described"]
