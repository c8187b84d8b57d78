"""The optimizer of a training executor: its description, its state on the device, and the transfers between."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from poptorch._logging import backend, logger
from poptorch.compiler.lowering import restrict
from poptorch.compiler.request import update_settings
from poptorch.enums import MeanReductionStrategy
from poptorch.errors import ForeignOptimizerError, OptimizerTypeError, createPoptorchError, misuse
from poptorch.executor import instrumentation
from poptorch.executor.eager_loop import StepNotice
from poptorch.executor.rate_watch import RateWatch
from poptorch.executor.replacements import Replacement
from poptorch.executor.shared_optimizers import SharedOptimizers
from poptorch.executor.state_names import StateNames
from poptorch.executor.turns import Turns, in_turn
from poptorch.optim import SGD, bridge
from poptorch.optim.auto_loss_scale import STATE_NAME, AutomaticLossScale
from poptorch.optim.ranges import check_ranges
from poptorch.optim.replacement import check_members, check_update
from poptorch.optim.spec import OptimizerSpec, describe, state_name
from poptorch.optim.step_hooks import StepHooks
from poptorch.optim.unexpected import UnexpectedAttributes
from poptorch.options import Options
from poptorch.program.program import Program, value_of
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.program.update import State
from poptorch.runtime.engine import Engine
from poptorch.runtime.updater import ShardedState


def check_parameters(optimizer: torch.optim.Optimizer, *models: nn.Module) -> None:
    """Refuse an optimizer of another model; parameters that are foreign among others only deserve a word.

    >>> check_parameters(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1), torch.nn.ReLU())
    Traceback (most recent call last):
    poptorch.errors.ForeignOptimizerError: ...
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise misuse(
            OptimizerTypeError,
            f"Expected an optimizer of poptorch.optim or torch.optim, got an object of {type(optimizer)}. For a "
            "schedule of learning rates, pass the optimizer that it changes, after each step of the schedule.",
        )
    own = {id(parameter) for model in models for parameter in model.parameters()}
    given = [
        (f"parameter {position} of group {index}, of shape {list(parameter.shape)},", parameter)
        for index, group in enumerate(optimizer.param_groups)
        for position, parameter in enumerate(group["params"])
    ]
    foreign = [what for what, parameter in given if id(parameter) not in own]
    if foreign and len(foreign) == len(given):
        raise misuse(
            ForeignOptimizerError,
            f"The optimizer trains nothing of the model: {foreign[0]} is no parameter of it, and neither is any other. "
            "Create the optimizer with the parameters() of the model that you wrap.",
        )
    if foreign:
        logger.warning("%s of the optimizer is no parameter of the model: it is not trained.", foreign[0])


def link_for(
    model: nn.Module,
    captured: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    options: Options,
    turns: Turns,
) -> OptimizerLink:
    """The link of a model that is about to be wrapped for training; without an optimizer it gets plain SGD."""
    if instrumentation.is_instrumented(model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to "
            "unwrap before wrapping again. [PT1010]"
        )
    instrumentation.check_buffers(model)
    if optimizer is None:
        optimizer = SGD(model.parameters(), lr=0.01)
    link = OptimizerLink(optimizer, options, turns)
    check_parameters(optimizer, model, captured)
    link.connect()
    options.Training.set(meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy(link.spec.strategy))
    return link


class OptimizerLink:
    """Keeps the user's optimizer object and the compiled update in step."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: Options, turns: Turns) -> None:
        self._turns = turns
        self.optimizer = optimizer
        self._options = options
        self.spec: OptimizerSpec = describe(optimizer, update_settings(options))
        self._compiled: OptimizerSpec | None = None
        self._used: frozenset[int] = frozenset()
        self._names = StateNames({}, {}, traced=False)
        self._params: dict[str, torch.Tensor] = {}
        """The variable scalars as the device has them, under the names of ``ipu_param``."""

        self._engine: Engine | None = None
        self._watcher = UnexpectedAttributes()
        self._rates = RateWatch()
        self._step_hooks = StepHooks()
        self._step_notice = StepNotice()
        self._check_attributes(optimizer)

    def _check_attributes(self, optimizer: torch.optim.Optimizer) -> None:
        self._watcher.check(optimizer, relaxed=self._options._relax_optimizer_checks)

    # -- the state bridge: what the optimizer asks of us ---------------------------------------------------------

    @in_turn
    def read_state(self) -> dict[str, torch.Tensor]:
        """Copies of the optimizer state on the device: that of the executor that ran the optimizer last."""
        newest = shared_optimizers.newest(self.optimizer, self)
        if newest is not self:
            return newest.read_state()
        if self._engine is None or self._compiled is None:
            return {}
        whole = self._engine.updater.whole_state(self._engine.exchange)
        return self._names.to_host(self._device_state(whole), self._compiled, whole)

    @in_turn
    def read_params(self) -> dict[str, torch.Tensor]:
        """Copies of the variable scalars on the device."""
        return {name: tensor.clone() for name, tensor in self._params.items()}

    @property
    def holds_state(self) -> bool:
        """Whether there is state of the optimizer on the device."""
        return self._engine is not None and self._compiled is not None

    def take_state(self, other: OptimizerLink) -> None:
        """Overwrite the state of common parameters with what another executor has of the same optimizer."""
        if self._engine is None or self._compiled is None:
            return
        newer = other.state_by_parameter()
        whole = self._engine.updater.whole_state(None)
        with torch.no_grad():
            for place, tensor in self._by_parameter(whole).items():
                value = newer.get(place)
                if value is not None and value.shape == tensor.shape:  # replicas may be in other groups
                    tensor.copy_(value)
        self._engine.updater.keep_of(whole)

    def state_by_parameter(self) -> dict[tuple[int, str], torch.Tensor]:
        """The state on the device by the ``id`` of the parameter and the kind of state; nothing if there is none."""
        if self._engine is None or self._compiled is None:
            return {}
        return self._by_parameter(self._engine.updater.whole_state(self._engine.exchange))

    def _by_parameter(self, whole: list[State]) -> dict[tuple[int, str], torch.Tensor]:
        assert self._compiled is not None
        return {
            (id(parameter), key): tensor
            for group, state in zip(self._compiled.groups, whole, strict=True)
            for key, tensors in state.items()
            for parameter, tensor in zip(group.parameters, tensors, strict=True)
        }

    def _device_state(self, whole: list[State]) -> dict[str, torch.Tensor]:
        if self._engine is None or self._compiled is None:
            return {}
        state = self._compiled.named_state(self._names.shown, whole)
        if self._engine.scale.scaler is not None:
            state[STATE_NAME] = self._engine.scale.scaler.factor
        return state

    def pieces(self) -> dict[str, tuple[torch.Tensor, ShardedState | None]]:
        """The state on the device itself, by name, and how processes divide it."""
        if self._engine is None or self._compiled is None:
            return {}
        updater, found = self._engine.updater, {}
        for group, state in zip(self._compiled.groups, updater.state, strict=True):
            for key, tensors in state.items():
                for parameter, tensor in zip(group.parameters, tensors, strict=True):
                    name = self._names.names[parameter]
                    found[state_name(key, name)] = tensor, updater.division(name, tensor)
        if self._engine.scale.scaler is not None:
            found[STATE_NAME] = self._engine.scale.scaler.factor, None
        return found

    def took_state(self) -> None:
        """State was written to the device by others: that of the host is outdated."""
        bridge.device_has_newer(self.optimizer)

    # -- life cycle ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse numbers that no update can use, before compiling."""
        self.spec = describe(self.optimizer, update_settings(self._options))
        check_ranges(self.spec)
        self._rates.given(self.optimizer)

    def compiled(
        self,
        spec: OptimizerSpec | None,
        program: Program,
        engine: Engine | None,
        names: Mapping[int, str],
        groups: Mapping[str, ReplicaGrouping],
    ) -> None:
        """Put fresh state on the device for the compiled part of the optimizer, ``None`` if nothing is trained.

        Without an engine, as for offline targets, there is no state. ``names`` are by the identity of the parameter,
        ``groups`` are those of replicas.
        """
        self._engine = engine
        self._compiled = spec
        if self._compiled is None:
            logger.warning(
                "Nothing is trained: no parameter of the optimizer requires a gradient and takes part in the loss."
            )
            return
        self._used = frozenset(id(p) for g in self._compiled.groups for p in g.parameters)
        parameters = {p: names[id(p)] for g in self._compiled.groups for p in g.parameters}
        self._names = StateNames(parameters, dict(groups), bool(self._options.Jit._tracing_requested))
        if engine is None:
            return
        with torch.no_grad():
            engine.optimizer_state = [
                group.rule.init_state([engine.updater.held(n) for n in self._group_names(group)])
                for group in self._compiled.groups
            ]
        if self._compiled.automatic_loss_scaling is not None:
            dtype = loss_type(program)
            engine.scale.scaler = AutomaticLossScale(self._compiled.automatic_loss_scaling, dtype)
        self.send_hyper_parameters()
        bridge.after_compile(self.optimizer)

    def _group_names(self, group: Any) -> list[str]:
        return [self._names.names[p] for p in group.parameters]

    def connect(self) -> None:
        """Let the optimizer object ask for its state here."""
        bridge.connect(self.optimizer, self)
        self._step_notice.put_on(self.optimizer)

    def attached(self, copy_weights: Callable[[], object]) -> None:
        """The device is (again) attached: state that the host has goes there."""
        bridge.expect_upload(self.optimizer)
        self.send_hyper_parameters()
        bridge.set_params(self.optimizer, self._params, replace_loaded=False)
        self.upload(copy_weights)

    def send_hyper_parameters(self) -> None:
        """Write the variable attributes to the device."""
        if self._engine is None or self._compiled is None:
            return
        backend.debug("Updating graph optimizer")
        for index in range(len(self._compiled.groups)):
            backend.debug("Updating group %d optimizer", index)
        self._engine.updater.hyper = self._compiled.hyper()
        with torch._C.DisableTorchFunctionSubclass():  # asking for a weight's type is not a look at its value
            self._params = self._compiled.named_params(self._names.shown)
        scale = float(self._compiled.loss_scaling.value)
        self._engine.scale.chosen = torch.tensor(scale, dtype=torch.float32)

    def upload(self, copy_weights: Callable[[], object]) -> None:
        """Write pending optimizer state to the device; trained weights are saved to the host first.

        Scalars that came with the state are shown by ``state_dict()`` again, but do not steer: the optimizer's
        attributes do.
        """
        self._step_hooks.check(self.optimizer)
        if self._engine is None or self._compiled is None:
            return
        pending = bridge.pending_state(self.optimizer)
        if pending is None:
            newest = shared_optimizers.newest(self.optimizer, self)
            if newest is not self:
                self.take_state(newest)
            return
        copy_weights()
        with torch._C.DisableTorchFunctionSubclass():
            whole = self._engine.updater.whole_state(None)
            fitting = self._names.to_device(pending, self._compiled, whole)
        bridge.write_state(self._device_state(whole), self._params, fitting)
        self._engine.updater.keep_of(whole)
        bridge.uploaded(self.optimizer)

    def runs(self) -> None:
        """The device begins to run: from now on it may have newer state than the host."""
        if self._compiled is not None:
            self._rates.check()
            bridge.connect(self.optimizer, self)
            bridge.before_run(self.optimizer)
            shared_optimizers.runs(self.optimizer, self)

    def replace(self, optimizer: torch.optim.Optimizer, copy_weights: Callable[[], object]) -> None:
        """Take over another optimizer object, or re-read the current one."""
        new = describe(optimizer, update_settings(self._options))
        if self._compiled is not None:
            check_members(self.spec, new)
            new = check_update(self._compiled, restrict(new, self._used))
        self._check_attributes(optimizer)
        self._rates.given(optimizer)
        if self._compiled is not None:
            if optimizer is not self.optimizer:
                bridge.replace(self.optimizer, optimizer, self)
                shared_optimizers.leaves(self.optimizer, self)
                self._step_notice.put_on(optimizer)
            changed = _variables(new) != _variables(self._compiled)
            self._compiled = new
            self.optimizer = optimizer
            if changed:
                self.send_hyper_parameters()
                bridge.set_params(optimizer, self._params, replace_loaded=True)
            self.upload(copy_weights)
            return
        self.optimizer, self.spec = optimizer, new
        self.connect()

    def check_not_replaced(self, optimizer: torch.optim.Optimizer, replaced: Mapping[str, Replacement]) -> None:
        """Refuse an optimizer with parameters that were part of the model once."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, replacement in replaced.items():
            if id(replacement.old) in held:
                raise createPoptorchError(
                    f"Parameter {name} of the model was replaced by another one after the model was compiled. The "
                    "optimizer still has the old one, which is no parameter of the model any more. Create an optimizer "
                    "with the parameters() of the model and pass it to setOptimizer(), or call destroy() on the "
                    "executor and wrap the model again."
                )

    def follow(self, replaced: Mapping[str, Replacement]) -> None:
        """Let the compiled update, and the state on the device, belong to the new parameters."""
        if self._compiled is None or not replaced:
            return
        new = {id(replacement.old): replacement.new for replacement in replaced.values()}
        self.spec, self._compiled = _with_parameters(self.spec, new), _with_parameters(self._compiled, new)
        self._used = frozenset(id(p) for g in self._compiled.groups for p in g.parameters)
        names: Any = {new.get(id(p), p): name for p, name in self._names.names.items()}
        self._names = dataclasses.replace(self._names, names=names)

    def read_back(self) -> None:
        """Fetch state that the device has newer, or that an optimizer took over and has not seen yet."""
        if self._engine is not None and self._compiled is not None:
            bridge.after_compile(self.optimizer)
        bridge.read_back(self.optimizer)

    def read_back_alone(self) -> None:
        """As :meth:`read_back`, unless that needs other processes, which may do something else."""
        if self._engine is not None and self._engine.updater.is_divided:
            logger.debug("The optimizer's state stays divided among the processes: state_dict() on all would gather it")
        else:
            self.read_back()

    def disconnect(self) -> None:
        """Leave the optimizer with what the host knows; forget the device."""
        self.read_back_alone()
        shared_optimizers.leaves(self.optimizer, self)
        bridge.disconnect(self.optimizer, self)
        self._step_notice.take_off()
        self._engine = None
        self._compiled = None


def loss_type(program: Program) -> torch.dtype:
    """The type of the final loss, if the model returns it; else float32."""
    if program.loss_result is None:
        return torch.float32
    return value_of(program.output_values()[program.loss_result]).dtype


def _with_parameters(spec: OptimizerSpec, new: Mapping[int, Any]) -> OptimizerSpec:
    """The same description, with other parameters in the places of those with these ids."""
    groups: Any = tuple(
        dataclasses.replace(group, parameters=tuple(new.get(id(p), p) for p in group.parameters))
        for group in spec.groups
    )
    return dataclasses.replace(spec, groups=groups)


def _variables(spec: OptimizerSpec) -> list[Any]:
    return [spec.loss_scaling.value, *(dict(group.variables) for group in spec.groups)]


shared_optimizers: SharedOptimizers[OptimizerLink] = SharedOptimizers()
