"""Optimizers for models that train on IPUs.

The public classes are PyTorch optimizers with the device's extras: loss scaling, types of accumulators and
momenta, state that can be read from the device. How a compiled program uses any optimizer, native ones of
``torch.optim`` included, is the subject of :mod:`poptorch.optim.spec`; when state moves between host and
device that of :mod:`poptorch.optim.bridge`.

>>> import torch
>>> optimizer = AdamW(torch.nn.Linear(2, 2).parameters(), lr=1e-3, loss_scaling=128.0)
>>> optimizer.variable_attrs.isConstant("loss_scaling")
False
"""

from poptorch.optim.adam import Adam, AdamW
from poptorch.optim.attributes import VariableAttributes
from poptorch.optim.base import Optimizer
from poptorch.optim.lamb import LAMB
from poptorch.optim.rmsprop import RMSprop
from poptorch.optim.sgd import SGD

__all__ = ["Optimizer", "VariableAttributes", "SGD", "Adam", "AdamW", "RMSprop", "LAMB"]
