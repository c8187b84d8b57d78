"""One micro-batch of a compiled model again, operation by operation, without changing anything: for looking inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from poptorch.executable.groups import HostLoop
from poptorch.host.interpret.code import generate, generate_flat
from poptorch.host.interpret.lines import Watch
from poptorch.ops.effects import is_ordered
from poptorch.ops.printing import PRINT
from poptorch.program.graphs import copy_of
from poptorch.program.loop import MicroBatch
from poptorch.program.program import Program, Role
from poptorch.program.update import StateTensor, flat_arguments
from poptorch.runtime.call import input_blocks
from poptorch.runtime.engine import Engine
from poptorch.runtime.gradients import GradientSink
from poptorch.runtime.values.random_source import RandomSource
from poptorch.runtime.values.weights import Weights


class Replay:
    """Runs micro-batches of a call on copies of what they change. Prints are left out; host functions are called."""

    def __init__(self, engine: Engine, inputs: Sequence[torch.Tensor], watch: Watch | None = None) -> None:
        device = engine.executable.device
        self._engine = engine
        self.program = _without_prints(device.undivided)
        """One micro-batch of the whole model, before it was divided and grouped."""

        self._loop = HostLoop.of(device.loop)
        self._blocks = input_blocks(self._loop, inputs)
        self._run = generate(self.program, watch).run
        self._written = {(port.role, port.name) for port in self.program.mutated()}

    @property
    def has_effects(self) -> bool:
        """Whether running it again is seen from outside: it calls functions of the user."""
        return any(is_ordered(node) for node in self.program.operations())

    def inputs_of(self, micro_batch: MicroBatch) -> list[torch.Tensor]:
        """What the model is given for a micro-batch; copies of what it writes to."""
        block = self._blocks[self._loop.input_block(micro_batch)]
        names = {port.index: port.name for port in self.program.ports_of(Role.INPUT)}
        return [self._own(Role.INPUT, names.get(index, ""), value) for index, value in enumerate(block)]

    def run(
        self, micro_batch: MicroBatch, position: int, weights: Mapping[str, torch.Tensor] = MappingProxyType({})
    ) -> Sequence[torch.Tensor]:
        """The outputs of a micro-batch; ``position`` is its number among those that its replica has ever run.

        ``weights`` are other values of parameters than those that the device holds.
        """
        replica, memory, program = micro_batch.replica, self._engine.memory, self.program
        parameters = Weights(
            self._own(
                Role.PARAMETER, port.name, memory.replica_parameter(replica, port.name, weights.get(port.name))
            ).contiguous()
            for port in program.ports_of(Role.PARAMETER)
        )
        buffers = [
            self._own(Role.BUFFER, port.name, memory.replica_buffer(replica, port.name))
            for port in program.ports_of(Role.BUFFER)
        ]
        given = self.inputs_of(micro_batch)
        inputs = [given[port.index] for port in program.ports_of(Role.INPUT)]
        constants = [program.constants[p.name] for p in program.ports_of(Role.CONSTANT)]
        scale = self._engine.scale.current if program.ports_of(Role.LOSS_SCALE) else ()
        random = RandomSource(self._engine.random.fix(), position, self._loop.global_replica(replica))
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            return self._run(parameters, buffers, constants, inputs, scale, random)

    def _own(self, role: Role, name: str, value: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or a copy of one that the program writes to."""
        return value.clone() if (role, name) in self._written else value


class UpdateReplay:
    """The weight updates of a call, on copies of the weights and of the optimizer's state."""

    def __init__(self, engine: Engine) -> None:
        executable, update = engine.executable, engine.executable.update
        assert update is not None
        alone = dataclasses.replace(executable.code, loop=HostLoop.of(executable.device.loop))
        self._engine = engine
        self._update = update
        stages = [[executable.program.gradients]]
        self._gradients = GradientSink(dataclasses.replace(executable, code=alone), stages=stages)
        self._run = generate_flat(update.graph_module, "update", update.numerics).run
        self.weights = {name: _own_copy(tensor) for name, tensor in engine.memory.parameters.items()}
        """What the device would hold after the updates so far."""

        self._state = [
            {key: [_own_copy(tensor) for tensor in tensors] for key, tensors in state.items()}
            for state in engine.optimizer_state
        ]

    @staticmethod
    def is_possible(engine: Engine) -> bool:
        """Whether there are updates, and this process can do them alone."""
        return engine.executable.update is not None and engine.exchange.is_local and bool(engine.optimizer_state)

    def add(self, micro_batch: MicroBatch, gradients: Sequence[torch.Tensor]) -> None:
        """Take what a micro-batch has computed."""
        rest = list(self._gradients.add(0, 0, micro_batch.step, micro_batch.replica, gradients))
        while rest:
            rest += rest.pop()()

    def gradients(self) -> dict[str, torch.Tensor]:
        """The sums for the next update, when those of all its micro-batches were added."""
        return dict(self._gradients.take())

    def state(self) -> dict[StateTensor, torch.Tensor]:
        """What the optimizer would hold after the updates so far."""
        return dict(zip(self._update.state, flat_arguments((), (), self._state, ()), strict=True))

    def step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """One update with these gradients."""
        weights = [[self.weights[name] for name in group] for group in self._update.parameters]
        given = [[gradients[name] for name in group] for group in self._update.parameters]
        hyper = self._engine.updater.hyper_now()
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            self._run(self._engine.random.of_update(), *flat_arguments(weights, given, self._state, hyper))


def _own_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _without_prints(program: Program) -> Program:
    """The same program, which says nothing."""
    if not any(node.target is PRINT for node in program.operations()):
        return program
    silent, _ = copy_of(program)
    for node in list(silent.operations()):
        if node.target is PRINT:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            silent.graph.erase_node(node)
    return silent
