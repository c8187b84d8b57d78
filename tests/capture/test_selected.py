"""Targets of a CTC loss that a mask chooses, as speech models have them, against eager mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch

LABELS = torch.tensor([
    [[3, 4, 5, -100, -100], [1, 2, 2, 6, -100]],
    [[5, -100, -100, -100, -100], [-100, 4, -100, 6, 1]],
    [[-100, -100, -100, -100, -100], [1, 2, 3, 4, 5]],
])  # fmt: skip


def by_method(labels):
    mask = labels >= 0
    return labels.masked_select(mask), mask.sum(-1)


def by_function(labels):
    mask = (labels != -100) & (labels != 0)
    return torch.masked_select(labels, mask).long().contiguous(), mask.sum(-1)


def by_index(labels):
    mask = labels >= 0
    return labels[mask].to(torch.int64), mask.sum(-1)


def cut_elsewhere(labels):
    return labels.flatten()[labels.flatten() >= 0], torch.tensor([3, 4])


class Speech(nn.Module):
    def __init__(self, choose, **settings) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 7)
        self.choose, self.settings = choose, settings

    def forward(self, x, labels):
        probabilities = self.layer(x).log_softmax(-1).transpose(0, 1)
        targets, lengths = self.choose(labels)
        return F.ctc_loss(probabilities, targets, torch.tensor([12, 11]), lengths, **self.settings)


CASES = {
    "by method": (by_method, {}),
    "by function": (by_function, {"reduction": "sum"}),
    "by index": (by_index, {"zero_infinity": True}),
}


@pytest.mark.parametrize(("case", "level"), [*((case, "interpret") for case in CASES), ("by method", "native")])
def test_masked_targets_train_as_in_eager(case, level, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    choose, settings = CASES[case]
    torch.manual_seed(0)
    model = Speech(choose, **settings)
    expected = copy.deepcopy(model).double()
    options = poptorch.Options().deviceIterations(3).outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.05))
    x = torch.randn(6, 12, 4)
    found = executor(x, LABELS.flatten(0, 1))
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05)
    wanted = []
    for rows, labels in zip(x.double().split(2), LABELS, strict=True):
        optimizer.zero_grad()
        loss = expected(rows, labels)
        loss.backward()
        optimizer.step()
        wanted.append(loss.detach().float())
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.layer.weight.double(), expected.layer.weight, rtol=1e-4, atol=1e-5)
    executor.destroy()


def test_lengths_may_cut_the_elements_elsewhere():
    model = Speech(cut_elsewhere)
    labels = torch.tensor([[3, -100, 4, -100, 5], [1, 2, 2, -100, 6]])
    x = torch.randn(2, 12, 4)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x, labels), model(x, labels).detach())


OTHER_USES = {
    "operator": lambda chosen: chosen + 1,
    "function": lambda chosen: torch.sum(chosen),
    "method": lambda chosen: chosen.sum(),
    "length": lambda chosen: torch.zeros(len(chosen)),
    "shape": lambda chosen: torch.zeros(chosen.shape),
    "result": lambda chosen: chosen,
    "loop": lambda chosen: [c + 1 for c in chosen],
    "after a cast": lambda chosen: chosen.long() * 2,
}


@pytest.mark.parametrize("use", OTHER_USES)
def test_other_uses_are_refused_with_the_line_of_the_mask(use):
    class Model(nn.Module):
        def forward(self, x):
            chosen = x[x > 1]  # the line
            return OTHER_USES[use](chosen)

    phrase = "Indexing using boolean or byte tensor masks is unsupported because it would produce dynamic output shapes"
    with pytest.raises(poptorch.Error, match=phrase) as error:
        poptorch.inferenceModel(Model())(torch.tensor([1, 2, 3]))
    assert isinstance(error.value, torch._subclasses.fake_tensor.DynamicOutputShapeException)
    assert "test_selected.py:" in str(error.value)
