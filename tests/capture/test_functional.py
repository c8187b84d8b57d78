"""The functional form of a recording, and when a recording already is one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from poptorch.capture import functional


class Plain(nn.Module):
    """Views, several results, a constant attribute; nothing is written."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(3)
        self.offset = torch.arange(3.0)

    def forward(self, x):
        low, high = self.fc(x).chunk(2, dim=1)
        y = self.norm(low) * high.max(1, keepdim=True)[0] + self.offset
        return poptorch.identity_loss((y * y).mean(), reduction="none")


class Changed(Plain):
    """The same, and one thing that the functional form changes."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("count", torch.zeros(()))
        if how == "a weight in another order":
            self.fc.weight = nn.Parameter(torch.randn(4, 6).t())

    def forward(self, x):
        if self.how == "a write to a buffer":
            self.count += 1
        if self.how == "a write to a result":
            x = (x + 0).mul_(2)
        if self.how == "a new constant":
            x = x * torch.tensor([1.0, 2.0, 3.0, 4.0])
        if self.how == "a loss that is taken apart":
            x = x + nn.functional.binary_cross_entropy_with_logits(x, x.detach())
        return super().forward(x)


@pytest.fixture
def forms(monkeypatch):
    """The functional forms that were made: operations before and after."""
    made = []

    def noting(make):
        def note(graph_module, ports, constants):
            form = make(graph_module, ports, constants)
            made.append((operations(graph_module), operations(form)))
            return form

        return note

    for name in ("_functionalize", "_on_device"):
        monkeypatch.setattr(functional, name, noting(getattr(functional, name)))
    return made


def train(model):
    torch.manual_seed(1)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    return [executor(torch.randn(8, 4)) for _ in range(2)]


def operations(graph_module):
    return [(str(n.target), str(n.meta["val"])) for n in graph_module.graph.nodes if n.op == "call_function"]


def test_what_writes_nothing_is_taken_as_it_is(forms, monkeypatch):
    torch.manual_seed(0)
    losses = train(Plain())
    assert not forms
    monkeypatch.setattr(functional, "_is_functional", lambda recording: False)
    torch.manual_seed(0)
    torch.testing.assert_close(train(Plain()), losses, rtol=0, atol=0)
    ((before, after),) = forms
    assert before == after


@pytest.mark.parametrize(
    "how",
    [
        "a write to a buffer",
        "a write to a result",
        "a new constant",
        "a loss that is taken apart",
        "a weight in another order",
    ],
)
def test_what_would_change_is_run_again(forms, how):
    train(Changed(how))
    assert len(forms) == 1
