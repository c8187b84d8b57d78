"""The scalars that update rules compute with, derived on the host from the attributes.

They are the entries of ``ipu_param``: the program receives, say, ``lr/loss_scaling`` and not the two
numbers. A scalar is constant only if everything it depends on is.
"""

from __future__ import annotations

from collections.abc import Mapping

from poptorch.optim.attributes import HyperValue

Scalars = dict[str, HyperValue]

WEIGHT_TYPED = frozenset({"weightDecayScaleFactor0", "scaledMomentum1", "scaledMomentum2"})
"""Scalars that the device holds in the weight's type; all others are float32."""

_of = HyperValue.derived


def plain_sgd(numbers: Mapping[str, HyperValue], scaling: HyperValue, divisor: int, sign: float) -> Scalars:
    """SGD without velocity."""
    lr, dampening, decay = numbers["lr"], numbers["dampening"], numbers["weight_decay"]
    return {
        "scaledLearningRate0": _of(lambda lr, dm, ls: sign * lr * (1 - dm) / (ls * divisor), lr, dampening, scaling),
        "weightDecayScaleFactor0": _of(lambda lr, dm, wd: 1 - lr * (1 - dm) * wd, lr, dampening, decay),
    }


def separate_sgd(
    numbers: Mapping[str, HyperValue], scaling: HyperValue, divisor: int, sign: float, *, nesterov: bool
) -> Scalars:
    """SGD with a velocity of its own, scaled like the loss."""
    velocity_scaling = scaling
    lr, momentum = numbers["lr"], numbers["momentum"]
    dampening, decay = numbers["dampening"], numbers["weight_decay"]
    scalars = {
        "scaledLearningRate2": _of(lambda lr, vs: lr / vs, lr, velocity_scaling),
        "scaledMomentum2": momentum,
        "dampeningScaleFactor2": _of(
            lambda dm, vs, ls: sign * (1 - dm) * vs / (ls * divisor), dampening, velocity_scaling, scaling
        ),
        "scaledWeightDecay1": _of(lambda dm, wd, vs: (1 - dm) * wd * vs, dampening, decay, velocity_scaling),
    }
    if nesterov:
        scalars |= {
            "nesterovGradScaleFactor2": velocity_scaling,
            "nesterovDampeningScaleFactor2": _of(lambda ls: sign / (ls * divisor), scaling),
            "sgdMomentum": momentum,
            "sgdWeightDecay": decay,
        }
    return scalars


def combined_sgd(
    numbers: Mapping[str, HyperValue],
    scaling: HyperValue,
    divisor: int,
    sign: float,
    *,
    replica_sum: int,
    nesterov: bool,
) -> Scalars:
    """SGD with one tensor for velocity and accumulated gradients.

    ``divisor`` turns the sum of all gradients into what the options ask for (the mean, or the sum itself);
    ``replica_sum`` is the specification's ρ, by which the tensor is larger during the step.
    """
    lr, momentum, velocity_scaling = numbers["lr"], numbers["momentum"], numbers["velocity_scaling"]
    dampening, decay = numbers["dampening"], numbers["weight_decay"]
    scalars = {
        "scaledLearningRate1": _of(lambda lr, vs: lr / (vs * replica_sum), lr, velocity_scaling),
        "scaledMomentum1": _of(lambda mm: mm / replica_sum, momentum),
        "dampeningScaleFactor1": _of(
            lambda dm, vs, ls: sign * (1 - dm) * vs / ls * replica_sum / divisor,
            dampening,
            velocity_scaling,
            scaling,
        ),
        "scaledWeightDecay1": _of(lambda dm, wd, vs: (1 - dm) * wd * vs, dampening, decay, velocity_scaling),
    }
    if nesterov:
        scalars |= {
            "nesterovGradScaleFactor1": _of(lambda vs: vs * replica_sum, velocity_scaling),
            "nesterovDampeningScaleFactor1": _of(lambda ls: sign / (ls * divisor), scaling),
            "sgdMomentum": momentum,
            "sgdWeightDecay": decay,
        }
    return scalars


def adam(numbers: Mapping[str, HyperValue], scaling: HyperValue, divisor: int, sign: float) -> Scalars:
    """Adam, AdamW and LAMB."""
    scalars = {
        "learningRate": numbers["lr"],
        "weightDecay": numbers["weight_decay"],
        "adamBeta1": numbers["beta1"],
        "adamBeta2": numbers["beta2"],
        "adamEps": numbers["eps"],
        "adamGradientScaling": _of(lambda ls: sign / (ls * divisor), scaling),
    }
    if "max_weight_norm" in numbers:
        scalars["maxWeightNorm"] = numbers["max_weight_norm"]
    return scalars


def rmsprop(numbers: Mapping[str, HyperValue], scaling: HyperValue, divisor: int, sign: float) -> Scalars:
    """RMSprop, either form."""
    return {
        "learningRate": numbers["lr"],
        "weightDecay": numbers["weight_decay"],
        "adaptiveAlpha": numbers["alpha"],
        "adaptiveMomentum": numbers["momentum"],
        "adaptiveEps": numbers["eps"],
        "adaptiveGradientScaling": _of(lambda ls: sign / (ls * divisor), scaling),
    }
