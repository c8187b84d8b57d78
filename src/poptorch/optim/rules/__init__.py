"""The update rules that run inside compiled programs; one file for each family of optimizers."""

from poptorch.optim.rules.adam import AdamRule
from poptorch.optim.rules.base import LOSS_SCALE_FACTOR, Rule, State, UpdateRule, clipping_factor
from poptorch.optim.rules.lamb import LambRule
from poptorch.optim.rules.rmsprop import RMSpropRule
from poptorch.optim.rules.sgd import CombinedSGD, PlainSGD, SeparateSGD

__all__ = [
    "LOSS_SCALE_FACTOR",
    "Rule",
    "State",
    "UpdateRule",
    "clipping_factor",
    "PlainSGD",
    "SeparateSGD",
    "CombinedSGD",
    "AdamRule",
    "LambRule",
    "RMSpropRule",
]
