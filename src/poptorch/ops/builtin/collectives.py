"""Collectives of ``ai.graphcore`` over replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Int, Ints, TypedAttribute
from poptorch.ops.builtin.definitions import Situation, graphcore
from poptorch.ops.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, next_site
from poptorch.ops.combining import reduction_of

_TYPES = (torch.float32, torch.float16, torch.int32, torch.uint32)
_GROUPS: dict[str, TypedAttribute] = {
    "__collectiveReplicaGrouping": Ints(None),
    "__collectiveCommGroup": Ints(None),
    "__replicatedTensorSharding": Int(0),
}
_REDUCED: dict[str, TypedAttribute] = {**_GROUPS, "__collectiveOperator": Int(0)}


def grouping_of(count: int, grouping: Sequence[int] | None, comm_group: Sequence[int] | None) -> list[int]:
    """[replicas, stride, size of a group], from either form in which programs give it.

    >>> grouping_of(8, None, [2, 4])
    [8, 2, 4]
    """
    if grouping is not None and comm_group is not None:
        raise createPoptorchError(
            "Setting both attributes __collectiveReplicaGrouping and __collectiveCommGroup is not allowed."
        )
    if comm_group is not None:
        grouping = _from_comm_group(count, comm_group)
    if grouping is None:
        return [count, 1, count]
    if len(grouping) != 3 or any(n < 1 for n in grouping):
        raise createPoptorchError(
            f"__collectiveReplicaGrouping is {list(grouping)}, but each of [replicas, stride, size of a group] must be "
            "a positive integer."
        )
    total, stride, size = grouping
    if total % (stride * size):
        raise createPoptorchError(
            f"The number of replicas ({total}) must be divisible by the product of the stride and the group size "
            f"({stride} * {size})."
        )
    if total != count:
        raise createPoptorchError(f"__collectiveReplicaGrouping is for {total} replicas, but the model has {count}.")
    return list(grouping)


def _from_comm_group(count: int, group: Sequence[int]) -> list[int]:
    if len(group) != 2:
        raise createPoptorchError(f"Invalid commGroup data for collective op: {list(group)} is not [type, size].")
    kind, size = group
    if kind == 0:
        return [count, 1, count]
    if kind not in (1, 2):
        raise createPoptorchError(f"Unknown commGroup type for collective op: {kind}. Use 0, 1 or 2.")
    if size < 1 or count % size:
        raise createPoptorchError(
            f"The number of replicas ({count}) must be divisible by the product of the stride and the group size "
            f"({size})."
        )
    return [count, 1 if kind == 1 else count // size, size]


def _grouping(at: Situation, grouping: list[int] | None, comm_group: list[int] | None, x: torch.Tensor) -> list[int]:
    if x.dtype not in _TYPES:
        raise createPoptorchError(f"Values of type {x.dtype} are not supported; use float32, float16 or int32.")
    return grouping_of(at.settings.replicas, grouping, comm_group)


def _differentiates(at: Situation) -> bool:
    """Whether reductions have the gradient that they lack in the original."""
    return not at.settings.strict


@graphcore("ReplicatedAllReduce", types="N", attributes=_REDUCED)
def _all_reduce(
    x: torch.Tensor,
    *,
    collectiveReplicaGrouping: list[int] | None,
    collectiveCommGroup: list[int] | None,
    replicatedTensorSharding: int,
    collectiveOperator: int,
    at: Situation,
) -> torch.Tensor:
    groups = _grouping(at, collectiveReplicaGrouping, collectiveCommGroup, x)
    name = reduction_of(collectiveOperator)
    if name == "local":
        return x.clone()
    return ALL_REDUCE(x, name, groups, next_site(ambient.current()), _differentiates(at))


@graphcore("ReplicatedAllGather", types="N", attributes=_GROUPS)
def _all_gather(
    x: torch.Tensor,
    *,
    collectiveReplicaGrouping: list[int] | None,
    collectiveCommGroup: list[int] | None,
    replicatedTensorSharding: int,
    at: Situation,
) -> torch.Tensor:
    groups = _grouping(at, collectiveReplicaGrouping, collectiveCommGroup, x)
    gathered = ALL_GATHER(x, groups, next_site(ambient.current()))
    shape = at.templates[0].shape if at.templates else gathered.shape
    return gathered.reshape(shape) if math.prod(shape) == gathered.numel() else gathered


@graphcore("ReplicatedReduceScatter", types="N", attributes=_REDUCED)
def _reduce_scatter(
    x: torch.Tensor,
    *,
    collectiveReplicaGrouping: list[int] | None,
    collectiveCommGroup: list[int] | None,
    replicatedTensorSharding: int,
    collectiveOperator: int,
    at: Situation,
) -> torch.Tensor:
    groups = _grouping(at, collectiveReplicaGrouping, collectiveCommGroup, x)
    name = reduction_of(collectiveOperator)
    return REDUCE_SCATTER(x, groups, name, next_site(ambient.current()), _differentiates(at))
