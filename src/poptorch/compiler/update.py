"""Recording the optimizer step as a program, whole and in shards."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from poptorch.optim.spec import state_name
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import OpInfo, Sweep, set_info
from poptorch.program.tracing import tracing
from poptorch.program.update import State, StateTensor, UpdateProgram, UpdateShard

Types = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class Rules(Protocol):
    """What the compiler needs of an optimizer's description."""

    @property
    def groups(self) -> Any:
        """The parameter groups, each with its rule."""

    def hyper(self) -> list[dict[str, torch.Tensor]]:
        """The variable attributes of each group."""

    def update_(
        self,
        params: Sequence[Sequence[torch.Tensor]],
        grads: Sequence[Sequence[torch.Tensor]],
        states: Sequence[State],
        hyper: Sequence[Mapping[str, torch.Tensor]],
    ) -> None:
        """One step of all groups, in place."""


class _FusedKernelsOnPaper(FakeTensorMode):
    """Fused optimizer kernels have no form for fake tensors: torch would run them on real ones of the same sizes.

    They only write to their arguments, so there is nothing to describe.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.startswith("aten::_fused_") and not func._schema.returns:
            return None
        return super().__torch_dispatch__(func, types, args, kwargs)


def build_update(
    rules: Rules,
    names: Sequence[Sequence[str]],
    types: Types,
    accumulators: Mapping[str, torch.dtype],
    numerics: Numerics = Numerics(),
) -> UpdateProgram:
    """Record the update of parameters with these names, shapes and types."""
    mode = _FusedKernelsOnPaper()
    hyper_names = [
        sorted({*values, *group.rule.inputs}) for values, group in zip(rules.hyper(), rules.groups, strict=True)
    ]
    with tracing(), mode, torch.no_grad():
        params = [[torch.empty(types[n][0], dtype=types[n][1]) for n in group] for group in names]
        grads = [[torch.empty(types[n][0], dtype=accumulators.get(n, types[n][1])) for n in group] for group in names]
        states = [g.rule.init_state(p) for g, p in zip(rules.groups, params, strict=True)]
        hyper = [{n: torch.empty((), dtype=torch.float64) for n in group} for group in hyper_names]
        example = (params, grads, states, hyper)
        spec = pytree.tree_structure(example)

        def step(*flat: torch.Tensor) -> list[Any]:
            rules.update_(*pytree.tree_unflatten(list(flat), spec))
            return []

        graph_module = make_fx(step, tracing_mode="real")(*pytree.tree_leaves(example))
    graph_module.graph.set_codegen(fx.graph.CodeGen())
    for node in graph_module.graph.nodes:
        set_info(node, OpInfo(sweep=Sweep.UPDATE))
    kept = tuple(
        StateTensor(state_name(key, name), name, tuple(tensor.shape), tensor.dtype)
        for group, state in zip(names, states, strict=True)
        for key, tensors in state.items()
        for name, tensor in zip(group, tensors, strict=True)
    )
    members = tuple(tuple(group) for group in names)
    owners = tuple(tensor.parameter for tensor in kept)
    return UpdateProgram(members, owners, graph_module, numerics, kept, dict(accumulators))


def shard_range(elements: int, replicas: int, owner: int) -> tuple[int, int]:
    """The elements that a replica owns; all replicas own equally many, the last ones may have padding.

    >>> [shard_range(10, 4, owner) for owner in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    size = math.ceil(elements / replicas)
    return min(owner * size, elements), min((owner + 1) * size, elements)


def shard_update(
    rules: Any,
    update: UpdateProgram,
    types: Types,
    replicas: int,
    owners: range,
    is_sharded: Callable[[str, int], bool],
) -> UpdateProgram:
    """The update with one part for each replica of this process, ``owners``; ``replicas`` are those of all processes.

    Parameters that are not sharded are updated by the first of each process. ``is_sharded`` decides by name and number
    of elements.
    """
    shards = []
    held = {}
    if len(owners) < replicas:
        sizes = {name: math.prod(types[name][0]) for name in update.names}
        for name, elements in sizes.items():
            if is_sharded(name, elements):
                held[name] = (
                    shard_range(elements, replicas, owners[0])[0],
                    shard_range(elements, replicas, owners[-1])[1],
                )
    for owner in owners:
        ranges = {}
        for name in update.names:
            elements = math.prod(types[name][0])
            if is_sharded(name, elements):
                ranges[name] = shard_range(elements, replicas, owner)
            elif owner == owners[0]:
                ranges[name] = (0, elements)
        # Where a process owns no element of a tensor, its first part still counts the steps: all processes know them.
        empty = {name for name, (start, stop) in held.items() if start == stop and owner == owners[0]}
        ranges = {name: (start, stop) for name, (start, stop) in ranges.items() if start < stop or name in empty}
        own = [[name for name in group if name in ranges] for group in update.parameters]
        # A parameter without dimensions has one owner, and keeps its shape, unless processes divide it.
        shapes = {
            name: (stop - start,) if types[name][0] or name in held else () for name, (start, stop) in ranges.items()
        }
        sliced = {name: (shape, types[name][1]) for name, shape in shapes.items()}
        if ranges:
            part = build_update(rules, own, sliced, update.accumulators, update.numerics)
            shards.append(UpdateShard(owner, part, ranges))
    return dataclasses.replace(update, shards=tuple(shards), held=held)


def is_divisible(rules: Any, numerics: Numerics) -> bool:
    """Whether the update treats every element by itself: no norms over whole tensors, no numbered roundings."""
    return not needs_whole_tensors(rules) and not numerics.stochastic_rounding


def needs_whole_tensors(rules: Any) -> bool:
    """Whether the update measures norms of whole tensors."""
    lamb = any("LAMB" in type(group.rule).__name__.upper() for group in rules.groups)
    return lamb or not math.isinf(rules.max_grad_norm)
