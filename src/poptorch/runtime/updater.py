"""The weight update: weights and optimizer state change in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode
from poptorch.profiling.trace import SpanKind, Trace
from poptorch.program.anchors import SPECIFIC
from poptorch.program.update import State, flat_arguments
from poptorch.runtime.device_memory import DeviceMemory
from poptorch.runtime.exchange import GradientExchange, Gradients
from poptorch.runtime.loss_scale import LossScale
from poptorch.runtime.sharded_update import update_shards
from poptorch.runtime.values.random_source import RandomSource


class ShardedState(NamedTuple):
    """What this process holds of a tensor that is divided among processes."""

    start: int
    elements: int
    """Of the whole tensor."""


class Updater:
    """The state of the optimizer on the device, and the code that uses it."""

    def __init__(self, executable: Executable, memory: DeviceMemory, scale: LossScale) -> None:
        self._update = executable.update
        self._memory = memory
        self._scale = scale
        self._state: list[State] = []
        self.hyper: Sequence[Mapping[str, torch.Tensor]] = []
        """The variable attributes of each parameter group."""

        self._flat: tuple[list[State], Sequence[Mapping[str, torch.Tensor]], list[torch.Tensor]] = [], [], []
        """State and hyper-parameters, and the tensors of both as code takes them."""

    @property
    def state(self) -> list[State]:
        """What the optimizer keeps, for each parameter group."""
        return self._state

    def set_state(self, states: list[State], code: HostCode) -> None:
        """Keep other state, as the code wants it to lie in memory."""
        self._state = states
        self.arrange(code)

    def state_tensor(self, name: str) -> torch.Tensor:
        """A tensor of the state by its name (not copied)."""
        assert self._update is not None
        places = {tensor.name: place for place, tensor in enumerate(self._update.state)}
        return flat_arguments((), (), self._state, ())[places[name]]

    def scalar(self, name: str) -> torch.Tensor:
        """A number that steers the update: of the first group that has it, or of the parameter that the name says."""
        assert self._update is not None
        scalar, specific, parameter = name.partition(SPECIFIC)
        groups = zip(self._update.parameters, self.hyper_now(), strict=True)
        return next(hyper[scalar] for members, hyper in groups if parameter in members or not specific)

    def arrange(self, code: HostCode) -> None:
        """Let weights and state lie in memory as the code wants them."""
        update, owned = self._update, {}
        if self._state and update is not None:
            tensors = flat_arguments((), (), self._state, ())
            owned = dict(enumerate(zip(update.owners, tensors, strict=True)))
        self._memory.arrange(code, owned)

    def step_arguments(self) -> list[torch.Tensor]:
        """What code that updates weights during back-propagation takes besides the program's arguments."""
        state, hyper, flat = self._flat
        if state is not self._state or hyper is not self.hyper:  # both are replaced as a whole
            flat = flat_arguments((), (), self._state, self.hyper)
            self._flat = self._state, self.hyper, flat
        return flat

    def apply(
        self, code: HostCode, gradients: Gradients, random: RandomSource, exchange: GradientExchange, trace: Trace
    ) -> None:
        """One step of the optimizer, with the gradients of all processes, or what this one holds of them."""
        update, parameters = self._update, self._memory.parameters
        assert update is not None
        with trace.span(SpanKind.UPDATE):
            hyper = self.hyper_now()
            try:
                if code.shards:
                    update_shards(update, code.shards, parameters, gradients, self._state, hyper)
                else:
                    assert code.update is not None
                    weights = [[parameters[name] for name in group] for group in update.parameters]
                    values = [[gradients[name] for name in group] for group in update.parameters]
                    code.update.run(random, *flat_arguments(weights, values, self._state, hyper))
            finally:
                self._memory.changed()  # also if the update was interrupted after some of the weights
            if update.held:
                with trace.span(SpanKind.EXCHANGE):
                    exchange.gather({name: parameters[name] for name in update.held}, update.held)
                self._memory.changed()
            self._scale.advance(exchange)

    # -- state that is divided among processes -------------------------------------------------------------------

    @property
    def is_divided(self) -> bool:
        """Whether each process holds the state of some elements only."""
        return self._update is not None and bool(self._update.held)

    def held(self, name: str) -> torch.Tensor:
        """A parameter, or the elements of it whose state this process holds."""
        parameter = self._memory.parameters[name]
        if self._update is None or name not in self._update.held:
            return parameter
        return parameter.reshape(-1)[slice(*self._update.held[name])]

    def division(self, name: str, state: torch.Tensor) -> ShardedState | None:
        """Which part of a parameter's state a tensor of it is; ``None`` for the whole."""
        if self._update is None or name not in self._update.held or not state.dim():
            return None
        return ShardedState(self._update.held[name][0], self._memory.parameters[name].numel())

    def whole_state(self, exchange: GradientExchange | None) -> list[State]:
        """The state in the shapes of the parameters. Without an exchange, elements of other processes are zero.

        With one, all processes have to ask for it.
        """
        update = self._update
        if update is None or not update.held:
            return self._state
        whole = [
            self._each(names, state, self._widened) for names, state in zip(update.parameters, self._state, strict=True)
        ]
        if exchange is not None:
            for names, state, own in zip(update.parameters, whole, self._state, strict=True):
                for key, tensors in state.items():
                    partial = {
                        n: t
                        for n, t, mine in zip(names, tensors, own[key], strict=True)
                        if n in update.held and mine.dim()
                    }
                    exchange.gather(partial, update.held)
        return whole

    def keep_of(self, whole: list[State]) -> None:
        """Take what belongs to this process of state in the shapes of the parameters."""
        update = self._update
        if update is None or not update.held:
            return
        for names, state, source in zip(update.parameters, self._state, whole, strict=True):
            for key, tensors in state.items():
                for name, own, given in zip(names, tensors, source[key], strict=True):
                    if name in update.held and own.dim():
                        own.copy_(given.reshape(-1)[slice(*update.held[name])])

    @staticmethod
    def _each(names: Sequence[str], state: State, change: Callable[[str, torch.Tensor], torch.Tensor]) -> State:
        return {key: [change(n, t) for n, t in zip(names, tensors, strict=True)] for key, tensors in state.items()}

    def _widened(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        update = self._update
        if update is None or name not in update.held or not tensor.dim():
            return tensor
        whole = torch.zeros(self._memory.parameters[name].shape, dtype=tensor.dtype)
        whole.view(-1)[slice(*update.held[name])] = tensor
        return whole

    def hyper_now(self) -> Sequence[Mapping[str, torch.Tensor]]:
        """The variable attributes of each parameter group, with the factor of automatic loss scaling."""
        if self._scale.scaler is None:
            return self.hyper
        factor = self._scale.scaler.factor.double()
        return [{**group, "loss_scale_factor": factor} for group in self.hyper]
