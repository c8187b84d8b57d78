"""What flows between the parts of a model: copies from IPU to IPU, and stashes that wait for a backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import fx

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.memory import Category
from poptorch.compiler.passes.stages import StageProgram
from poptorch.compiler.plan import Ordering
from poptorch.ipu_model.tiles import element_bytes, tensor_bytes
from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.graphs import memory_root
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Port, Role


@dataclass(frozen=True)
class FlowValue:
    """A tensor that one slot computes and others use, however many views of it they use."""

    name: str
    bytes: int
    item: int
    """Bytes of an element."""

    slot: int
    """Of its producer."""

    consumers: tuple[int, ...]
    edges: tuple[int, ...]
    """The edges of the plan that are this tensor."""


@dataclass(frozen=True)
class Stash:
    """A value that an IPU keeps for several micro-batches at once."""

    value: FlowValue
    ipu: int
    entries: int
    on_chip: bool = True

    @property
    def bytes(self) -> int:
        return self.value.bytes * self.entries


@dataclass(frozen=True)
class FlowTransfer:
    """A copy of a value from one IPU to another after the pass of a slot."""

    value: FlowValue
    source: int
    target: int


@dataclass(frozen=True)
class Flow:
    """The values between the parts of a device program."""

    device: DeviceProgram = field(repr=False)

    @property
    def parts(self) -> int:
        return len(self.device.plan.parts)

    @property
    def pipelined(self) -> bool:
        """Whether parts work on different micro-batches at the same time."""
        return self.device.plan.ordering is Ordering.PIPELINED and not self.device.plan.whole

    @cached_property
    def ipus(self) -> list[int]:
        """The IPUs of a replica that have something to do."""
        return sorted({part.ipu for part in self.device.plan.parts})

    def part_of(self, slot: int) -> int:
        """The part that a slot is a pass of."""
        return slot if slot < self.parts else 2 * self.parts - 1 - slot

    def ipu_of(self, slot: int) -> int:
        """The IPU that runs a slot."""
        return self.device.plan.parts[self.part_of(slot)].ipu

    def number(self, slot: int) -> int:
        """The pipeline stage of a slot: the last forward and the first backward pass are one stage."""
        return slot if slot < self.parts else slot - 1

    def stages_on(self, ipu: int) -> list[StageProgram]:
        """The programs of an IPU, in the order in which it runs them in a pipeline cycle."""
        return [stage for stage in self.device.plan.stages if self.ipu_of(stage.slot) == ipu]

    @cached_property
    def values(self) -> tuple[FlowValue, ...]:
        """All tensors between slots that are not weights, constants or inputs."""
        return tuple(value for stage in self.device.plan.stages for value in self._sent_by(stage))

    @cached_property
    def value_of_edge(self) -> dict[int, FlowValue]:
        """The value of each edge of the plan that is no weight, constant or input."""
        return {edge: value for value in self.values for edge in value.edges}

    def _sent_by(self, stage: StageProgram) -> Iterable[FlowValue]:
        ports: Mapping[fx.Node, Port] = dict(stage.program.placeholders())
        by_root: dict[fx.Node, list[tuple[int, fx.Node]]] = {}
        for edge, node in zip(stage.sends, stage.program.values_of(OutputKind.SEND), strict=True):
            by_root.setdefault(memory_root(node), []).append((edge, node))
        for root, sent in by_root.items():
            if root in ports and ports[root].role is not Role.INPUT:
                continue
            views = {node: tensor_bytes(node.meta["val"]) for _, node in sent}
            whole = tensor_bytes(root.meta.get("val")) or sum(views.values())
            edges = tuple(edge for edge, _ in sent)
            consumers = sorted({c for edge in edges for c in self.device.plan.edges[edge].consumers})
            yield FlowValue(
                root.name,
                min(whole, sum(views.values())),
                element_bytes(sent[0][1].meta["val"].dtype),
                stage.slot,
                tuple(consumers),
                edges,
            )

    @cached_property
    def stashes(self) -> tuple[Stash, ...]:
        """What the IPUs of a pipeline keep for several micro-batches."""
        if not self.pipelined:
            return ()
        off_chip = {h.name for h in self.device.memory.of(Category.ACTIVATION) if not h.on_chip}
        found = []
        for value in self.values:
            on_chip = not any(self.device.plan.edges[e].name in off_chip for e in value.edges)
            for ipu in dict.fromkeys(self.ipu_of(c) for c in value.consumers):
                last = max(self.number(c) for c in value.consumers if self.ipu_of(c) == ipu)
                entries = last - self._arrival(value, ipu) + 1
                if entries > 1 and not self._accumulates(value, ipu):
                    found.append(Stash(value, ipu, entries, on_chip))
        return (*found, *self._input_stashes())

    def _input_stashes(self) -> Iterator[Stash]:
        """Inputs of the model that a backward pass needs as well: they came with the forward pass of its part."""
        for stage in self.device.plan.stages:
            entries = self.number(stage.slot) - stage.part + 1
            if not stage.backward or entries < 2:
                continue
            for port in [p for p in stage.program.ports if p.role is Role.INPUT][: len(stage.inputs)]:
                item = element_bytes(port.dtype)
                value = FlowValue(port.name, math.prod(port.shape) * item, item, stage.part, (stage.slot,), ())
                yield Stash(value, self.ipu_of(stage.slot), entries)

    def _accumulates(self, value: FlowValue, ipu: int) -> bool:
        """Whether an IPU only adds a value to the gradient of a weight: the accumulator takes each when it comes."""
        stages = [s for s in self.device.plan.stages if s.slot in value.consumers and self.ipu_of(s.slot) == ipu]
        return all(_adds_to_gradient(stage, value.edges) for stage in stages)

    def _arrival(self, value: FlowValue, ipu: int) -> int:
        """The pipeline stage in which an IPU gets a value."""
        made = self.number(value.slot)
        if self.ipu_of(value.slot) == ipu:
            return made
        later = [p for p in range(self.parts) if self.device.plan.parts[p].ipu == ipu and p > made]
        first_use = min(self.number(c) for c in value.consumers if self.ipu_of(c) == ipu)
        return min([*later, first_use])

    @cached_property
    def transfers(self) -> tuple[FlowTransfer, ...]:
        """The copies between IPUs for one micro-batch."""
        return tuple(
            FlowTransfer(value, self.ipu_of(value.slot), ipu)
            for value in self.values
            for ipu in dict.fromkeys(self.ipu_of(c) for c in value.consumers)
            if ipu != self.ipu_of(value.slot)
        )

    def stashed(self, value: FlowValue, ipu: int) -> bool:
        """Whether an IPU has a stash of a value."""
        return any(s.value is value and s.ipu == ipu for s in self._stashes_on[ipu])

    @cached_property
    def _stashes_on(self) -> dict[int, list[Stash]]:
        return {ipu: [s for s in self.stashes if s.ipu == ipu] for ipu in self.ipus}


def _adds_to_gradient(stage: StageProgram, edges: Iterable[int]) -> bool:
    """Whether a stage uses what comes over some edges for nothing but the sum that is a gradient."""
    inputs = [node for node, port in stage.program.placeholders() if port.role is Role.INPUT]
    gradients = set(stage.program.values_of(OutputKind.GRADIENT))
    received = dict(zip(stage.receives, inputs[len(stage.inputs) :], strict=True))
    return all(_leads_to(received[edge], gradients) for edge in edges if edge in received)


_ACCUMULATING = (torch.ops.aten.add.Tensor, torch.ops.aten.copy.default)
"""What back-propagation does with the gradients of a weight that is used twice: it adds them, and fixes the layout."""


def _leads_to(node: fx.Node, gradients: set[fx.Node]) -> bool:
    while node not in gradients:
        users = [user for user in node.users if user.target is not torch.ops.aten.new_empty_strided.default]
        if len(users) != 1 or users[0].op != "call_function":
            return False
        node = users[0]
        if not (traits_of(node).kind is OpKind.VIEW or node.target in _ACCUMULATING):
            return False
    return True


__all__ = ["Flow", "Stash", "FlowTransfer", "FlowValue"]
