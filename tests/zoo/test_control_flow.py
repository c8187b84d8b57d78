"""Python decisions about tensor values: frozen to the path of the first inputs, with a warning that says where."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import pytest
import torch
from against_eager import check_inference
from torch import nn
from torch.nn import functional as F
from zoo_architecture import WithLoss

import poptorch
from closeness import assert_close_sums


def line_of(function: Callable[..., object], text: str) -> int:
    """The number of the line of ``function`` that contains ``text``."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


class CountsDown(nn.Module):
    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        for _ in range(int(times)):
            x = x + 1
        return x


class Measures(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = x.max().item()
        return x / largest


class Asserts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert torch.isfinite(x).all(), "not finite"
        return x + 1


class Compares(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if torch.equal(x, x.abs()) else -x


CASES = [
    (Branches(), (torch.ones(3),), "if x.sum() > 0"),
    (CountsDown(), (torch.ones(3), torch.tensor([4])), "int(times)"),
    (Measures(), (torch.tensor([1.0, 4.0]),), ".item()"),
    (Asserts(), (torch.ones(3),), "assert torch"),
    (Compares(), (torch.ones(3),), "torch.equal"),
]


@pytest.mark.parametrize(("model", "inputs", "text"), CASES, ids=lambda c: type(c).__name__)
def test_a_decision_about_values_is_frozen_and_the_warning_names_its_line(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_inference(model, *inputs)
    messages = [str(w.message) for w in caught if "frozen into the program" in str(w.message)]
    assert len(messages) == 1
    assert f"{__file__}:{line_of(type(model).forward, text)}" in messages[0]
    assert "frozen into the program" not in capsys.readouterr().err, "said twice"


@pytest.mark.filterwarnings("ignore:.*frozen into the program")
def test_the_path_of_the_first_inputs_is_taken_ever_after() -> None:
    model = poptorch.inferenceModel(Branches())
    assert model(torch.ones(3)).tolist() == [2, 2, 2]
    assert model(-torch.ones(3)).tolist() == [-2, -2, -2]
    other = poptorch.inferenceModel(Branches())
    assert other(-torch.ones(3)).tolist() == [-2, -2, -2]
    assert other(torch.ones(3)).tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:.*frozen into the program")
def test_real_values_are_computed_from_the_weights_and_leave_the_state_alone() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            y = self.norm(self.linear(x))
            return y * 2 if self.linear.weight.sum() > 0 else y

    torch.manual_seed(0)
    module = Decides()
    with torch.no_grad():
        module.linear.weight.fill_(0.5)
    twin = Decides()
    twin.load_state_dict(module.state_dict())
    x, target = torch.randn(4, 2), torch.randn(4, 2)
    model = WithLoss(module, F.mse_loss, 1)
    wrapped = poptorch.trainingModel(model, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    wrapped.compile(x, target)
    assert module.calls.item() == 0
    output, _ = wrapped(x, target)
    assert_close_sums(output, twin(x).detach(), terms=x.numel())
    assert module.calls.item() == 1
    assert_close_sums(module.norm.running_mean, twin.norm.running_mean, terms=x.numel())


def test_decisions_about_shapes_and_flags_need_no_warning() -> None:
    class Shapes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 2 and x.dtype is torch.float32 and not self.training and len(x) > x.dim():
                x = x[: x.size(0) // 2]
            return x.sum() if x.is_contiguous() else x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_inference(Shapes().eval(), torch.ones(4, 2))


@pytest.mark.parametrize(
    "select",
    [lambda x: x[x > 0], lambda x: torch.nonzero(x), lambda x: torch.masked_select(x, x > 0), torch.unique],
    ids=["mask", "nonzero", "masked_select", "unique"],
)
def test_results_of_a_size_that_depends_on_values_are_refused(select: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Selects(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return select(x)

    model = poptorch.inferenceModel(Selects())
    with pytest.raises(poptorch.Error, match=r"dynamic output shapes|static shapes"):
        model(torch.tensor([1.0, -1.0]))
    assert not model.isCompiled()
