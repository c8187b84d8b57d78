"""Every attribute as an input of the compiled update: same numbers as compiled in, in float32 and in float16."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums

CASES = {
    "SGD": (poptorch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "use_combined_accum": False}),
    "Adam": (poptorch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 0.01}),
    "AdamW": (poptorch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 0.01}),
    "RMSprop": (poptorch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-4, "momentum": 0.5}),
    "RMSprop tf": (poptorch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-4, "use_tf_variant": True}),
    "LAMB": (poptorch.optim.LAMB, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 0.01}),
}
ATTRIBUTES = ("lr", "momentum", "weight_decay", "betas", "eps", "alpha", "max_weight_norm", "dampening")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x, target):
        return nn.functional.mse_loss(self.fc(x), target)


def trained(base: Net, name: str, variable: bool) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(base)
    kind, settings = CASES[name]
    optimizer = kind(model.parameters(), **settings)
    for attribute in ATTRIBUTES:
        if attribute in optimizer.param_groups[0] or hasattr(optimizer, attribute):
            mark = optimizer.variable_attrs.markAsVariable if variable else optimizer.variable_attrs.markAsConstant
            mark(attribute)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    dtype = model.fc.weight.dtype
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        x, target = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
        executor(x.to(dtype), target.to(dtype))
    return {k: v.clone() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_variable_attributes_give_the_numbers_of_constant_ones(name, half):
    torch.manual_seed(1)
    base = Net().half() if half else Net()
    constant, variable = trained(base, name, variable=False), trained(base, name, variable=True)
    assert_close_sums(variable, constant, terms=8, steps=4)
    for key, value in constant.items():
        assert not torch.equal(value, base.state_dict()[key])
