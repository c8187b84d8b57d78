"""An optimizer as the compiled program sees it.

``describe(optimizer, settings)`` turns any supported optimizer into an :class:`OptimizerSpec`: for each
parameter group the weights, an update rule, the scalars compiled into it (``constants``) and those fed to it
(``variables``).

How a program uses it::

    spec = describe(optimizer, settings)         # wrong types and attributes: AssertionError, ValueError
    check_ranges(spec)                           # numbers that make no sense: poptorch.Error, at compile
    states = spec.init_state()                   # one dictionary of lists for each group
    grads = ...                                  # accumulated in group.accum_type as group.reduction says
    spec.update_(params, grads, states, spec.hyper())

The gradients that ``update_`` takes are sums under ``Mean``/``Post``: the division by micro-batches and
replicas is part of the scalars (see :mod:`poptorch.optim.reduction`), as is the removal of the loss scaling.
Under automatic loss scaling each ``hyper`` mapping also needs ``"loss_scale_factor"``, the factor that
multiplied the loss besides ``loss_scaling``.

A later ``setOptimizer`` describes the new object and calls :func:`poptorch.optim.replacement.check_update`,
which returns the spec to run from then on: the old structure with the new variables.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.optim import scalars
from poptorch.optim.attributes import HyperValue
from poptorch.optim.auto_loss_scale import LossScalingSettings
from poptorch.optim.reading import (
    GroupValues,
    OptimizerType,
    optimizer_type,
    read_group,
    read_loss_scaling,
    read_max_grad_norm,
    read_types,
    warn_about_subclass,
)
from poptorch.optim.reduction import GradientReduction
from poptorch.optim.rules import (
    LOSS_SCALE_FACTOR,
    AdamRule,
    CombinedSGD,
    LambRule,
    PlainSGD,
    RMSpropRule,
    Rule,
    SeparateSGD,
    State,
    clipping_factor,
)
from poptorch.optim.settings import UpdateSettings

if TYPE_CHECKING:
    pass

_TYPE_NAMES = {torch.float16: "FLOAT16", torch.float32: "FLOAT", torch.float64: "DOUBLE"}


def state_name(key: str, parameter_name: str) -> str:
    """The key in ``ipu_state`` of one piece of a rule's state.

    >>> state_name("Accl1", "lin.weight"), state_name("nesterovGrad", "lin.weight")
    ('Accl1___lin.weight', 'Accl___lin.weight_nesterovGrad')
    """
    if key == "nesterovGrad":
        return f"Accl___{parameter_name}_nesterovGrad"
    return f"{key}___{parameter_name}"


@dataclass(frozen=True)
class GroupSpec:
    """One parameter group: what it updates and how."""

    parameters: tuple[torch.nn.Parameter, ...]
    """Only those that require a gradient."""
    accum_type: torch.dtype | None
    """Type of the gradient accumulators; ``None``: that of each parameter."""
    reduction: GradientReduction
    constants: Mapping[str, float]
    variables: Mapping[str, float]
    rule: Rule
    values: GroupValues

    @property
    def has_velocity(self) -> bool:
        """Whether SGD keeps a velocity for this group."""
        return isinstance(self.rule, SeparateSGD | CombinedSGD)

    def signature(self) -> Hashable:
        """Everything of this group that is compiled in."""
        shapes = tuple((tuple(param.shape), str(param.dtype)) for param in self.parameters)
        return (shapes, str(self.accum_type), self.reduction, self.rule.structure())


@dataclass(frozen=True)
class OptimizerSpec:
    """A whole optimizer.

    >>> model = torch.nn.Linear(2, 1)
    >>> spec = describe(torch.optim.SGD(model.parameters(), lr=0.1), None)
    >>> print(spec)
    SGD, loss scaling 1.0
      group 0: 2 weights, PlainSGD, scaledLearningRate0=0.1, weightDecayScaleFactor0=1.0
    """

    type: OptimizerType
    loss_scaling: HyperValue
    groups: tuple[GroupSpec, ...]
    max_grad_norm: float
    strategy: MeanReductionStrategy
    """The one in effect: float16 accumulators force ``Running``."""
    accum_type: torch.dtype
    automatic_loss_scaling: LossScalingSettings | None = None

    @property
    def kind(self) -> str:
        """Name of the algorithm, for people."""
        return self.type.kind

    def signature(self) -> Hashable:
        """Everything that is compiled in: specs with equal signatures can share one executable."""
        loss_scaling = self.loss_scaling.value if self.loss_scaling.is_constant else None
        groups = tuple(group.signature() for group in self.groups)
        return (self.type.name, loss_scaling, groups, self.max_grad_norm, self.automatic_loss_scaling)

    def init_state(self) -> list[State]:
        """The optimizer state before the first step, one dictionary for each group."""
        return [group.rule.init_state(group.parameters) for group in self.groups]

    def hyper(self) -> list[dict[str, Tensor]]:
        """The inputs of each group's rule as 0-d float64 tensors: its variables and ``loss_scaling``.

        Under automatic loss scaling also ``loss_scale_factor``, which starts at one; who runs the program puts the
        present factor there.
        """
        shared = {"loss_scaling": self.loss_scaling.value}
        if self.automatic_loss_scaling is not None:
            shared[LOSS_SCALE_FACTOR] = 1.0
        return [
            {name: torch.tensor(value, dtype=torch.float64) for name, value in {**group.variables, **shared}.items()}
            for group in self.groups
        ]

    def update_(
        self,
        params: Sequence[Sequence[Tensor]],
        grads: Sequence[Sequence[Tensor]],
        states: Sequence[State],
        hyper: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """One step of all groups, in place; clipping sees all of them together. Traceable."""
        active = [index for index in range(len(self.groups)) if params[index]]
        rules = {index: self.groups[index].rule for index in active}
        measured = {i: rules[i].prepare_(params[i], grads[i], states[i], hyper[i]) for i in active}
        clip = clipping_factor((tensor for tensors in measured.values() for tensor in tensors), self.max_grad_norm)
        for i in active:
            rules[i].apply_(params[i], measured[i], states[i], hyper[i], clip)

    def named_state(self, names: Mapping[torch.nn.Parameter, str], states: Sequence[State]) -> dict[str, Tensor]:
        """The states under their names in ``ipu_state``: the tensors themselves, not copies."""
        return {
            state_name(key, names[param]): tensor
            for group, state in zip(self.groups, states, strict=True)
            for key, tensors in state.items()
            for param, tensor in zip(group.parameters, tensors, strict=True)
        }

    def named_params(
        self, names: Mapping[torch.nn.Parameter, str], loss_dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        """The variable scalars under their names in ``ipu_param``."""
        found = {
            f"{scalar}___specific___{names[param]}": torch.tensor(
                value, dtype=param.dtype.to_real() if scalar in scalars.WEIGHT_TYPED else torch.float32
            )
            for group in self.groups
            for param in group.parameters
            for scalar, value in group.variables.items()
        }
        if not self.loss_scaling.is_constant:
            name = f"lossScaling_{_TYPE_NAMES.get(loss_dtype, 'FLOAT')}"
            found[name] = torch.tensor(self.loss_scaling.value, dtype=loss_dtype)
        return found

    def __str__(self) -> str:
        lines = [f"{self.kind}, loss scaling {self.loss_scaling.value}"]
        for index, group in enumerate(self.groups):
            numbers = [f"{name}={value}" for name, value in group.variables.items()]
            numbers += [f"{name}={value} (constant)" for name, value in group.constants.items()]
            weights = f"{len(group.parameters)} weights"
            lines.append("  " + ", ".join([f"group {index}: {weights}", type(group.rule).__name__, *numbers]))
        return "\n".join(lines)


def describe(optimizer: torch.optim.Optimizer, settings: UpdateSettings | None) -> OptimizerSpec:
    """Read ``optimizer`` as it is now; ``settings`` are those of the model that it trains.

    Raises ``AssertionError`` for an unsupported class or a malformed attribute and ``ValueError`` for a
    setting that cannot be honoured. Numbers out of range pass: :func:`poptorch.optim.ranges.check_ranges`
    looks at them when the program is built.
    """
    kind = optimizer_type(optimizer)
    warn_about_subclass(optimizer)
    settings = settings or UpdateSettings()
    read_group(optimizer, kind, optimizer.defaults, strict=settings.strict)  # refuses bad defaults, too
    types = read_types(optimizer)
    settings = settings.with_strategy(effective_strategy(kind, types["accum_type"], settings.strategy))
    loss_scaling = read_loss_scaling(optimizer, automatic=settings.loss_scaling is not None)
    max_grad_norm = read_max_grad_norm(optimizer, kind)
    builder = _GroupBuilder(
        kind, loss_scaling, settings, types, max_grad_norm, getattr(optimizer, "use_tf_variant", False)
    )
    groups = tuple(
        builder.group(
            tuple(param for param in group["params"] if param.requires_grad),
            read_group(optimizer, kind, group, strict=settings.strict),
        )
        for group in optimizer.param_groups
    )
    return OptimizerSpec(
        kind,
        loss_scaling,
        groups,
        max_grad_norm,
        settings.strategy,
        types["accum_type"],
        settings.loss_scaling,
    )


def effective_strategy(
    kind: OptimizerType, accum_type: torch.dtype, chosen: MeanReductionStrategy
) -> MeanReductionStrategy:
    """``Running`` for float16 accumulators, whose sums might overflow; otherwise what the options say.

    >>> effective_strategy(OptimizerType.ADAM, torch.float16, MeanReductionStrategy.Post).name
    'Running'
    """
    forced = accum_type == torch.float16 and kind != OptimizerType.SGD1
    return MeanReductionStrategy.Running if forced else chosen


@dataclass(frozen=True)
class _GroupBuilder:
    """What all groups of one optimizer share while their specs are made."""

    kind: OptimizerType
    loss_scaling: HyperValue
    settings: UpdateSettings
    types: Mapping[str, torch.dtype]
    max_grad_norm: float
    tf_variant: bool

    def group(self, parameters: tuple[torch.nn.Parameter, ...], values: GroupValues) -> GroupSpec:
        reduction = GradientReduction.of(self.settings)
        sign = -1.0 if values.maximize else 1.0
        if self.kind.is_sgd and values.numbers["momentum"].is_always(0.0):
            made = scalars.plain_sgd(values.numbers, self.loss_scaling, reduction.divisor, sign)
            rule: Rule = PlainSGD(**self._common(made), decays=_decays(values))
        elif self.kind == OptimizerType.SGD2:
            made = scalars.separate_sgd(
                values.numbers, self.loss_scaling, reduction.divisor, sign, nesterov=values.nesterov
            )
            rule = SeparateSGD(
                **self._common(made),
                velocity_type=self.types["velocity_accum_type"],
                decays=_decays(values),
                nesterov=values.nesterov,
            )
        elif self.kind == OptimizerType.SGD1:
            # Plain sums with nothing left to divide: the mean is in a scalar of its own.
            reduction = GradientReduction(running=False, divisor=1)
            made, rule = self._combined(values, sign)
        elif self.kind.is_rmsprop:
            made = scalars.rmsprop(values.numbers, self.loss_scaling, reduction.divisor, sign)
            rule = RMSpropRule(
                **self._common(made),
                **self._moment_types(),
                decays=_decays(values),
                centered=self.kind == OptimizerType.RMSPROP_CENTERED,
                has_momentum=not values.numbers["momentum"].is_always(0.0),
                tf_variant=bool(self.tf_variant),
            )
        else:
            made = scalars.adam(values.numbers, self.loss_scaling, reduction.divisor, sign)
            rule = self._adam_like(made, values)
        return GroupSpec(
            parameters,
            None if self.kind == OptimizerType.SGD1 else self.types["accum_type"],
            reduction,
            rule.constants,
            {name: made[name].value for name in rule.variables},
            rule,
            values,
        )

    def _combined(self, values: GroupValues, sign: float) -> tuple[scalars.Scalars, Rule]:
        # The tensor of each replica already holds the same velocity: adding the replicas up multiplies it.
        replica_sum = self.settings.replicas if self.settings.micro_batches > 1 else 1
        divisor = self.settings.contributions if self.settings.reduction == ReductionType.Mean else 1
        made = scalars.combined_sgd(
            values.numbers,
            self.loss_scaling,
            divisor,
            sign,
            replica_sum=replica_sum,
            nesterov=values.nesterov,
        )
        rule = CombinedSGD(
            **self._common(made),
            replica_sum=replica_sum,
            decays=_decays(values),
            nesterov=values.nesterov,
            initial_decay=made["scaledWeightDecay1"].value,
        )
        return made, rule

    def _adam_like(self, made: scalars.Scalars, values: GroupValues) -> Rule:
        if self.kind.is_lamb:
            return LambRule(
                **self._common(made),
                **self._moment_types(),
                decays=_decays(values),
                bias_correction=self.kind == OptimizerType.LAMB,
            )
        # AdamW without bias correction: same numbers as with it, see poptorch.optim.AdamW.
        return AdamRule(
            **self._common(made),
            **self._moment_types(),
            decays=_decays(values),
            decoupled=self.kind != OptimizerType.ADAM,
        )

    def _common(self, made: scalars.Scalars) -> dict[str, Any]:
        return {
            "constants": {name: scalar.value for name, scalar in made.items() if scalar.is_constant},
            "variables": tuple(name for name, scalar in made.items() if not scalar.is_constant),
            "max_grad_norm": self.max_grad_norm,
            "automatic_loss_scaling": self.settings.loss_scaling is not None,
        }

    def _moment_types(self) -> dict[str, Any]:
        return {
            "first_type": self.types["first_order_momentum_accum_type"],
            "second_type": self.types["second_order_momentum_accum_type"],
            "accum_type": self.types["accum_type"],
        }


def _decays(values: GroupValues) -> bool:
    return not values.numbers["weight_decay"].is_always(0.0)


def with_variables(spec: OptimizerSpec, new: OptimizerSpec) -> OptimizerSpec:
    """``spec`` with the variable values of ``new``, group by group; further groups do not count."""
    groups = tuple(
        replace(
            group,
            variables={name: _value(other, name) for name in group.variables},
            values=replace(group.values, numbers=other.values.numbers),
        )
        for group, other in zip(spec.groups, new.groups, strict=False)
    )
    return replace(spec, loss_scaling=new.loss_scaling, groups=groups)


def _value(group: GroupSpec, name: str) -> float:
    return group.variables[name] if name in group.variables else group.constants[name]
