"""Random operations draw the same numbers at both levels of code."""

from __future__ import annotations

import torch
from torch import nn

import poptorch

DRAWS = {
    "uniform_": lambda t: t.uniform_(2, 5),
    "uniform_ by name": lambda t: t.uniform_(to=3.0),
    "normal_": lambda t: t.normal_(3.0, 0.1),
    "bernoulli_": lambda t: t.bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda t: t.bernoulli_(torch.full(t.shape, 0.3)),
    "exponential_": lambda t: t.exponential_(2.0),
    "cauchy_": lambda t: t.cauchy_(1.0, 0.5),
    "log_normal_": lambda t: t.log_normal_(0.5, 0.2),
    "geometric_": lambda t: t.geometric_(0.3),
    "random_": lambda t: t.random_(),
    "random_ up to": lambda t: t.random_(10),
    "random_ between": lambda t: t.random_(-5, 10),
    "init.trunc_normal_": lambda t: nn.init.trunc_normal_(t, std=0.5),
    "init.kaiming_uniform_": lambda t: nn.init.kaiming_uniform_(t.view(10, -1)),
}


class Draws(nn.Module):
    def forward(self, x):
        return [draw(x.new_zeros(200)) for draw in DRAWS.values()]


def test_in_place_draws_are_those_of_interpreted_code(monkeypatch):
    found = []
    for level in ("interpret", "native"):
        monkeypatch.setenv("POPTORCH_CODEGEN", level)
        executor = poptorch.inferenceModel(Draws(), poptorch.Options().randomSeed(3))
        found.append([*executor(torch.ones(3)), *executor(torch.ones(3))])
    count = len(DRAWS)
    for place, (interpreted, native) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(native, interpreted, msg=lambda m, p=place: f"{list(DRAWS)[p % count]}: {m}")
    assert not any(torch.equal(one, other) for one, other in zip(found[1][:count], found[1][count:], strict=True))
    assert 2 <= found[1][0].min() < found[1][0].max() <= 5
