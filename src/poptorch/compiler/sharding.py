"""Replicated tensor sharding of the optimizer: each replica owns a slice of the state and updates that slice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poptorch.compiler.update import UpdateProgram, build_update
from poptorch.program.numerics import Numerics

Types = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass
class UpdateShard:
    """The part of the update that one replica does."""

    owner: int
    update: UpdateProgram
    ranges: dict[str, tuple[int, int]]
    """The elements of each parameter, counted in memory order, that are updated here."""


def shard_range(elements: int, replicas: int, owner: int) -> tuple[int, int]:
    """The elements that a replica owns; all replicas own equally many, the last ones may have padding.

    >>> [shard_range(10, 4, owner) for owner in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    size = math.ceil(elements / replicas)
    return min(owner * size, elements), min((owner + 1) * size, elements)


def shard_update(
    rules: Any,
    members: Sequence[Sequence[str]],
    types: Types,
    accumulators: Mapping[str, torch.dtype],
    numerics: Numerics,
    replicas: int,
    is_sharded: Callable[[str, int], bool],
) -> list[UpdateShard]:
    """One update program per replica. Parameters that are not sharded are updated by the first.

    ``is_sharded`` decides by name and number of elements.
    """
    shards = []
    for owner in range(replicas):
        ranges = {}
        for name in (n for group in members for n in group):
            elements = math.prod(types[name][0])
            if is_sharded(name, elements):
                ranges[name] = shard_range(elements, replicas, owner)
            elif owner == 0:
                ranges[name] = (0, elements)
        ranges = {name: (start, stop) for name, (start, stop) in ranges.items() if start < stop}
        own = [[name for name in group if name in ranges] for group in members]
        sliced = {name: ((stop - start,), types[name][1]) for name, (start, stop) in ranges.items()}
        if ranges:
            shards.append(UpdateShard(owner, build_update(rules, own, sliced, accumulators, numerics), ranges))
    return shards


def is_divisible(rules: Any, numerics: Numerics) -> bool:
    """Whether the update treats every element by itself: no norms over whole tensors, no numbered roundings."""
    return not needs_whole_tensors(rules) and not numerics.stochastic_rounding


def needs_whole_tensors(rules: Any) -> bool:
    """Whether the update measures norms of whole tensors."""
    lamb = any("LAMB" in type(group.rule).__name__.upper() for group in rules.groups)
    return lamb or not math.isinf(rules.max_grad_norm)
