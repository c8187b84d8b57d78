"""Operations in which replicas exchange values.

Each is one node of the graph. ``grouping`` is [replicas, stride, size of a group]; ``site`` numbers the calls of a
program. Where groups have one member, nothing is exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from poptorch import ambient, replicas
from poptorch.ops._library import define
from poptorch.ops.combining import combined

_EXTRA = "ops.collectives"


def next_site(context: ambient.CaptureContext | None) -> int:
    """A number for a call; its gradient has the next one."""
    if context is None:
        return 0
    number: int = context.extras.get(_EXTRA, 0)
    context.extras[_EXTRA] = number + 2
    return number


def _place(grouping: Sequence[int]) -> tuple[replicas.Replica, list[int], int]:
    """This replica, the members of its group, and its place among them."""
    replica = replicas.required(grouping[0])
    members = replicas.members_of(replica.number, grouping)
    return replica, members, members.index(replica.number)


def _part_length(numel: int, size: int) -> int:
    return math.ceil(numel / size)


def _part(values: torch.Tensor, size: int, place: int) -> torch.Tensor:
    """Part ``place`` of the elements in order, filled up with zeros."""
    length = _part_length(values.numel(), size)
    flat = values.reshape(-1)
    if length * size != flat.numel():
        flat = torch.nn.functional.pad(flat, (0, length * size - flat.numel()))
    return flat[place * length : (place + 1) * length].clone()


# -- all-reduce --------------------------------------------------------------------------------------------------------


def _all_reduce(x: torch.Tensor, operation: str, grouping: Sequence[int], site: int, gradient: bool) -> torch.Tensor:
    combine = partial(combined, operation)
    if grouping[2] == 1:
        return combine([x]).clone(memory_format=torch.contiguous_format)
    replica, members, _ = _place(grouping)
    return replica.exchange(x, members, site, combine)


def _like(x: torch.Tensor, *settings: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _remember_reduction(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.operation, ctx.grouping, ctx.site, ctx.gradient = inputs
    ctx.shape = x.shape


def _all_reduce_backward(ctx: Any, gradient: torch.Tensor) -> Any:
    found = None
    if ctx.gradient and ctx.operation in ("add", "mean"):
        found = ALL_REDUCE(gradient, ctx.operation, ctx.grouping, ctx.site + 1, True)
    return found, None, None, None, None


ALL_REDUCE = define(
    "replicated_all_reduce(Tensor x, str operation, int[] grouping, int site, bool gradient) -> Tensor",
    _all_reduce,
    _like,
    backward=_all_reduce_backward,
    setup_context=_remember_reduction,
)


# -- all-gather --------------------------------------------------------------------------------------------------------


def _all_gather(x: torch.Tensor, grouping: Sequence[int], site: int) -> torch.Tensor:
    if grouping[2] == 1:
        return x.reshape(-1).clone()
    replica, members, _ = _place(grouping)
    return replica.exchange(x.reshape(-1), members, site, torch.cat)


def _gathered_shape(x: torch.Tensor, grouping: Sequence[int], site: int) -> torch.Tensor:
    return x.new_empty(x.numel() * grouping[2])


def _remember_gather(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.grouping, _ = inputs
    ctx.shape = x.shape


def _all_gather_backward(ctx: Any, gradient: torch.Tensor) -> Any:
    return OWN_PART(gradient, ctx.grouping).reshape(ctx.shape), None, None


ALL_GATHER = define(
    "replicated_all_gather(Tensor x, int[] grouping, int site) -> Tensor",
    _all_gather,
    _gathered_shape,
    backward=_all_gather_backward,
    setup_context=_remember_gather,
)


# -- own part ----------------------------------------------------------------------------------------------------------


def _own_part(x: torch.Tensor, grouping: Sequence[int]) -> torch.Tensor:
    place = 0 if grouping[2] == 1 else _place(grouping)[2]
    return _part(x, grouping[2], place)


def _part_shape(x: torch.Tensor, grouping: Sequence[int], *settings: Any) -> torch.Tensor:
    return x.new_empty(_part_length(x.numel(), grouping[2]))


OWN_PART = define("replicated_own_part(Tensor x, int[] grouping) -> Tensor", _own_part, _part_shape)


# -- reduce-scatter ----------------------------------------------------------------------------------------------------


def _reduce_scatter(
    x: torch.Tensor, grouping: Sequence[int], operation: str, site: int, gradient: bool
) -> torch.Tensor:
    combine = partial(combined, operation)
    if grouping[2] == 1:
        return combine([x.reshape(-1)]).clone()
    replica, members, place = _place(grouping)
    if operation == "local":
        return _part(x, grouping[2], place)
    return _part(replica.exchange(x.reshape(-1), members, site, combine), grouping[2], place)


def _remember_scatter(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.grouping, ctx.operation, ctx.site, ctx.gradient = inputs
    ctx.shape = x.shape


def _reduce_scatter_backward(ctx: Any, gradient: torch.Tensor) -> Any:
    found = None
    if ctx.operation == "local" or (ctx.gradient and ctx.operation in ("add", "mean")):
        gathered = ALL_GATHER(gradient, ctx.grouping, ctx.site + 1)
        found = gathered[: math.prod(ctx.shape)].reshape(ctx.shape)
        if ctx.operation == "mean":
            found = found / ctx.grouping[2]
    return found, None, None, None, None


REDUCE_SCATTER = define(
    "replicated_reduce_scatter(Tensor x, int[] grouping, str operation, int site, bool gradient) -> Tensor",
    _reduce_scatter,
    _part_shape,
    backward=_reduce_scatter_backward,
    setup_context=_remember_scatter,
)

COLLECTIVES = (ALL_REDUCE, ALL_GATHER, OWN_PART, REDUCE_SCATTER)
"""Operators whose result depends on the replica."""
