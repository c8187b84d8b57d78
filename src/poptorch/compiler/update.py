"""The optimizer step as a program: the update of all parameter groups, recorded as a graph of in-place operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from poptorch.host.interpret.code import Generated, generate_flat
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import OpInfo, Sweep, set_info

State = dict[str, list[torch.Tensor]]


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


@dataclass
class UpdateProgram:
    """The update of all parameter groups."""

    parameters: list[list[str]]
    """Names of the parameters that have a gradient, group by group."""

    owners: list[str]
    """The parameter of each tensor of the state, in the order of :func:`flat_arguments`."""

    graph_module: fx.GraphModule = field(repr=False)
    generated: Generated = field(repr=False)

    def __call__(
        self,
        params: Sequence[Sequence[torch.Tensor]],
        grads: Sequence[Sequence[torch.Tensor]],
        states: Sequence[State],
        hyper: Sequence[Mapping[str, torch.Tensor]],
        random: Callable[[int], torch.Generator] | None = None,
    ) -> None:
        """``random`` is needed for stochastic rounding only."""
        self.generated.run(random, *flat_arguments(params, grads, states, hyper))

    def __str__(self) -> str:
        names = [name for group in self.parameters for name in group]
        return f"update of {', '.join(names)}\n{self.generated.source}"


def build_update(
    rules: Rules,
    names: Sequence[Sequence[str]],
    types: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    accumulators: Mapping[str, torch.dtype],
    numerics: Numerics = Numerics(),
) -> UpdateProgram:
    """Record the update of parameters with these names, shapes and types."""
    mode = FakeTensorMode()
    hyper_names = [
        sorted({*values, *group.rule.inputs}) for values, group in zip(rules.hyper(), rules.groups, strict=True)
    ]
    with mode, torch.no_grad():
        params = [[torch.empty(types[n][0], dtype=types[n][1]) for n in group] for group in names]
        grads = [
            [torch.empty(types[n][0], dtype=accumulators.get(n, types[n][1])) for n in group] for group in names
        ]
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
    owners = [name for group, state in zip(names, states, strict=True) for _ in state for name in group]
    generated = generate_flat(graph_module, "update", numerics)
    return UpdateProgram([list(g) for g in names], owners, graph_module, generated)


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
