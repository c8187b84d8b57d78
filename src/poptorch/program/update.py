"""The optimizer step as a program: a graph of in-place operations on weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from poptorch.program.numerics import Numerics

State = dict[str, list[torch.Tensor]]


@dataclass(frozen=True)
class StateTensor:
    """One tensor of the optimizer's state."""

    name: str
    parameter: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class UpdateShard:
    """The part of the update that one replica does."""

    owner: int
    update: UpdateProgram
    ranges: Mapping[str, tuple[int, int]]
    """The elements of each parameter, counted in memory order, that are updated here."""


@dataclass(frozen=True)
class UpdateProgram:
    """The update of all parameter groups."""

    parameters: tuple[tuple[str, ...], ...]
    """Names of the parameters that have a gradient, group by group."""

    owners: tuple[str, ...]
    """The parameter of each tensor of the state, in the order of :func:`flat_arguments`."""

    graph_module: fx.GraphModule = field(repr=False)
    numerics: Numerics
    state: tuple[StateTensor, ...] = ()
    """What the optimizer keeps from step to step."""

    accumulators: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Element type of each parameter's gradient accumulator, where it differs from the gradient's."""

    combined: frozenset[str] = frozenset()
    """The parameters whose velocity is their accumulator as well: on an IPU they have no other one."""

    running_mean: bool = False
    """Whether gradients are averaged as they come, instead of summed."""

    shards: tuple[UpdateShard, ...] = ()
    """The update in parts, where replicas own shards of the optimizer's state: those of this process."""

    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The elements whose state this process holds, of parameters whose state is divided among processes."""

    @property
    def names(self) -> list[str]:
        """All parameters, in the order of the update's arguments."""
        return [name for group in self.parameters for name in group]

    def __str__(self) -> str:
        nodes = (node.format_node() for node in self.graph_module.graph.nodes if node.op == "call_function")
        return "\n".join([f"update of {', '.join(self.names)}", *(f"  {line}" for line in nodes)])


def flat_arguments(
    params: Sequence[Sequence[torch.Tensor]],
    grads: Sequence[Sequence[torch.Tensor]],
    states: Sequence[State],
    hyper: Sequence[Mapping[str, torch.Tensor]],
) -> list[torch.Tensor]:
    """All tensors in the order in which pytree took the example apart (dictionaries in their own order)."""
    flat = [t for group in params for t in group] + [t for group in grads for t in group]
    flat += [t for state in states for tensors in state.values() for t in tensors]
    return flat + [group[name] for group in hyper for name in sorted(group)]
