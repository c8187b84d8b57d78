"""Printing models with the annotations on their modules."""

from __future__ import annotations

import torch
from torch import nn

import poptorch


class Mark:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __call__(self, *args) -> None:
        return None


class TwoLines(nn.Module):
    def extra_repr(self) -> str:
        return "first\nsecond"


def test_without_hooks_it_is_what_torch_prints() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), TwoLines()), nn.Sequential())
    assert poptorch.module_repr(model) == repr(model)


def test_hooks_come_before_their_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    model[1].register_forward_pre_hook(Mark("BeginBlock(1)"))
    model[1].register_forward_pre_hook(Mark("other"))
    model[1][0].register_forward_pre_hook(Mark("BeginBlock(2)"))
    assert poptorch.module_repr(model) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=2, bias=True)\n"
        "  (1): BeginBlock(1) other Sequential(\n"
        "    (0): BeginBlock(2) ReLU()\n"
        "  )\n"
        ")"
    )


def test_print_shows_a_module_once_and_other_things_as_usual(capsys) -> None:
    poptorch.print(nn.ReLU())
    poptorch.print(torch.tensor(3))
    poptorch.print("text")
    assert capsys.readouterr().out == "ReLU()\ntensor(3)\ntext\n"
