"""A host program on its way to native code: steps that are there, and kernels that are not compiled yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from poptorch.executable.host_program import (
    Factors,
    HostProgram,
    Kernel,
    KernelCall,
    Operation,
    Step,
    made_by,
    read_by,
)
from poptorch.host.factoring import Products
from poptorch.host.native.inductor import Target, fake_mode
from poptorch.host.native.random_keys import fake_key
from poptorch.host.running.rendering import Naming
from poptorch.program.program import Program
from poptorch.program.update import UpdateProgram

Buckets = Sequence[Sequence[int]]
"""Positions of outputs that are handed out together, before the program is done."""

Fakes = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a kernel's graph comes to be, once it is known how its operands lie in memory."""

    build: Callable[[Fakes], fx.GraphModule]
    fixed: int | None = None
    """How many outputs lie as the graph says; the compiler chooses for the others. ``None``: all."""

    is_backward: bool = False
    is_inference: bool = False
    in_one_piece: bool = False
    """Whether equal layers are not looked for."""

    common: int = 0
    """Bytes of operands that are no reason to join loops."""


@dataclass
class Draft:
    """What the passes know beside the host program itself."""

    program: Program
    target: Target
    graph_module: fx.GraphModule
    """The program's graph, as the passes have rewritten it."""

    fakes: list[torch.Tensor]
    """Its placeholders, and the random key after them."""

    mode: FakeTensorMode
    buckets: Buckets = ()
    products: Products = field(default_factory=dict)
    update: UpdateProgram | None = None
    """What follows each micro-batch."""

    is_stage: bool = False
    """Whether the program is one pass of a part of a model: its inputs are its own."""

    naming: Naming = field(default_factory=Naming)
    recipes: dict[str, Recipe] = field(default_factory=dict)
    layouts: dict[int, torch.Tensor] = field(default_factory=dict)
    """How values lie in memory, by number."""

    host: HostProgram = field(default_factory=lambda: HostProgram("nothing", (), (), (), ()))

    @staticmethod
    def of(program: Program, target: Target, **about: Any) -> Draft:
        """The beginning."""
        mode = fake_mode()
        with mode:
            fakes = fakes_of(program)
        return Draft(program, target, program.graph_module, fakes, mode, **about)

    @staticmethod
    def of_graph(graph_module: fx.GraphModule, target: Target) -> Draft:
        """The beginning for a graph by itself."""
        mode = fake_mode()
        with mode:
            fakes = [fake_like(value) for value in described(graph_module)]
        program = Program(graph_module, [], [], {}, training=True)
        return Draft(program, target, graph_module, fakes, mode)

    @property
    def call(self) -> KernelCall:
        """The only kernel call there is so far."""
        (found,) = self.host.kernel_calls
        return found

    def replaced(self, steps: Iterable[Step], **changes: Any) -> HostProgram:
        """The host program with other steps, and names for all values that there are by now."""
        return dataclasses.replace(self.host, steps=tuple(steps), names=tuple(self.naming.names), **changes)

    def new(self, name: str, like: torch.Tensor | None = None) -> int:
        """The number of a new value."""
        number = self.naming.add(name)
        if like is not None:
            self.layouts[number] = like
        return number


def fakes_of(program: Program) -> list[torch.Tensor]:
    """What the placeholders of a program look like, and the random key after them; to be called in a fake mode."""
    fakes = [torch.empty(port.shape, dtype=port.dtype) for port in program.ports]
    return [*fakes, fake_key(program)]


def described(graph_module: fx.GraphModule) -> list[torch.Tensor]:
    """What the placeholders of a graph look like."""
    return [node.meta["val"] for node in graph_module.graph.find_nodes(op="placeholder")]


def fake_like(value: torch.Tensor) -> torch.Tensor:
    """Of the same shape and layout, in the mode of the moment."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def constant(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor with values."""
    with unset_fake_temporarily():
        return make()


def operations_of(graph_module: fx.GraphModule) -> str:
    """For people."""
    return f"{sum(node.op == 'call_function' for node in graph_module.graph.nodes)} operations"


def freeing(program: HostProgram) -> HostProgram:
    """The program with every value let go of at its last use."""
    alive = {number for number in program.results if number is not None}
    fixed = {number for step in program.steps if not isinstance(step, (KernelCall, Factors, Operation))
             for number in made_by(step)}  # fmt: skip
    steps: list[Step] = []
    for step in reversed(program.steps):
        read = dict.fromkeys((*made_by(step), *read_by(step)))
        if isinstance(step, (KernelCall, Factors, Operation)):
            step = dataclasses.replace(step, frees=tuple(n for n in read if n not in alive and n not in fixed))
        alive.update(read)
        steps.append(step)
    return dataclasses.replace(program, steps=tuple(reversed(steps)))


def draft_kernel(name: str, about: str) -> dict[str, Kernel]:
    """A kernel that is not compiled yet."""
    return {name: Kernel(name, about=about)}


__all__ = [
    "Buckets", "Draft", "Fakes", "Recipe", "constant", "described", "draft_kernel", "fake_like", "fakes_of",
    "freeing", "operations_of",
]  # fmt: skip
