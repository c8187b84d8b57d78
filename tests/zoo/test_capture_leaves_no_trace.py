"""Compiling a model, or failing to, leaves everything of the user's as it was, to the byte."""

from __future__ import annotations

import io
import random
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch


class Everything(nn.Module):
    """State of every kind, changed in every way that ``forward`` may."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.recurrent = nn.LSTM(4, 4)
        self.tied = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4, bias=False)
        self.other.weight = self.tied.weight
        self.frozen = nn.Parameter(torch.randn(4, dtype=torch.float64), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("noise", torch.zeros(4))
        self.child = nn.Identity()
        self.constant = torch.arange(4.0)
        self.fail: BaseException | None = None

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1)
        self.calls += 1
        self.noise.normal_()
        self.child.memory = x * 2  # a plain attribute of a child
        y, _ = self.recurrent(self.drop(self.norm(self.linear(x))))
        y = self.other(self.tied(y)) + self.frozen.float() + self.noise + self.constant
        if self.fail is not None:
            raise self.fail
        return y, F.mse_loss(y, target)


@pytest.fixture
def model() -> Iterator[Everything]:
    torch.manual_seed(0)
    module = Everything()
    module.drop.eval()
    module.drop.train()
    module.norm.eval()
    module.linear.weight.sum().backward()  # some gradients exist, others do not
    module.norm.weight.grad = torch.full((4,), 3.0)
    yield module
    if hasattr(module, "destroy"):
        module.destroy()


def data(tensor: torch.Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.detach().contiguous().numpy().tobytes()


def snapshot(model: nn.Module, *inputs: torch.Tensor) -> dict[str, Any]:
    """Everything that compiling could disturb."""
    result: dict[str, Any] = {
        "torch rng": data(torch.get_rng_state()),
        "python rng": random.getstate(),
        "numpy rng": [np.asarray(part).tobytes() for part in np.random.get_state()],
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "running on IPU": poptorch.isRunningOnIpu(),
        "inputs": [data(t) for t in inputs],
    }
    for name, module in model.named_modules():
        result[f"{name}: flags"] = module.training
        result[f"{name}: names"] = (list(module._parameters), list(module._buffers), list(module._modules))
        result[f"{name}: hooks"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
        plain = {k: v for k, v in vars(module).items() if not k.startswith("_") and not callable(v)}
        result[f"{name}: attributes"] = {
            k: (id(v), data(v) if isinstance(v, torch.Tensor) else v) for k, v in plain.items()
        }
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        result[name] = (
            id(tensor), data(tensor), tensor.dtype, tensor.requires_grad, tensor.grad_fn, tensor.is_leaf,
            id(tensor.grad), data(tensor.grad), tensor.data_ptr(), tensor._version,
        )  # fmt: skip
    for module in model.modules():
        if isinstance(module, nn.LSTM):
            result["flat weights"] = [id(w) for w in module._flat_weights]
    return result


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {key: (before.get(key), after.get(key)) for key in {*before, *after} if before.get(key) != after.get(key)}


def wrap(model: nn.Module, training: bool) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(model) if training else poptorch.inferenceModel(model)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("decides", [False, True], ids=["fake values", "real values"])
@pytest.mark.filterwarnings("ignore:.*frozen into the program")
def test_compiling_changes_nothing(model: Everything, training: bool, decides: bool) -> None:
    if decides:
        model.child.register_forward_pre_hook(lambda module, args: None)
        model.drop.register_forward_hook(lambda module, args, output: output if output.sum() > -1e9 else None)
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    before = snapshot(model, x, target)
    executor = wrap(model, training)
    executor.compile(x, target)
    assert executor.isCompiled()
    executor.destroy()
    assert differences(before, snapshot(model, x, target)) == {}


class Boom(Exception):
    pass


FAILURES = [Boom("from forward"), RuntimeError("shapes do not match"), KeyError("missing"), KeyboardInterrupt()]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda e: type(e).__name__)
def test_what_forward_raises_comes_out_as_it_is_and_changes_nothing(
    model: Everything, training: bool, failure: BaseException
) -> None:
    model.fail = failure
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    before = snapshot(model, x, target)
    executor = wrap(model, training)
    with pytest.raises(type(failure)) as raised:
        executor(x, target)
    assert raised.value is failure
    assert raised.value.__cause__ is None
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.name, last.line) == (__file__, "forward", "raise self.fail")
    assert not executor.isCompiled()
    executor.destroy()
    assert differences(before, snapshot(model, x, target)) == {}


def test_a_model_that_failed_can_be_repaired_and_run(model: Everything) -> None:
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    model.fail = Boom()
    executor = poptorch.trainingModel(model)
    with pytest.raises(Boom):
        executor(x, target)
    with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
        executor.copyWeightsToHost()
    executor.destroy()
    model.fail = None
    again = poptorch.trainingModel(model)
    again(x, target)
    assert model.calls.item() == 1
    other = poptorch.inferenceModel(nn.Linear(2, 2))
    assert other(torch.ones(1, 2)).shape == (1, 2)


def test_the_same_executor_runs_once_its_model_no_longer_fails() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.settings = {"fail": True}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.settings["fail"]:
                raise Boom
            return x + 1

    module = Fails()
    executor = poptorch.inferenceModel(module)
    for _ in range(2):
        with pytest.raises(Boom):
            executor(torch.ones(2))
    module.settings["fail"] = False
    assert executor(torch.ones(2)).tolist() == [2, 2]


def test_errors_of_torch_in_forward_show_the_users_line() -> None:
    class Mismatch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.t()
            return torch.mm(y, y)

    executor = poptorch.inferenceModel(Mismatch())
    with pytest.raises(RuntimeError) as raised:
        executor(torch.ones(2, 3))
    shown = "".join(traceback.format_exception(raised.value))
    assert "return torch.mm(y, y)" in shown
    assert not isinstance(raised.value, poptorch.Error)


class FailsOnTheWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        raise Boom("on the way back")


def test_what_a_backward_raises_comes_out_as_it_is() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(FailsOnTheWayBack.apply(self.linear(x)), reduction="sum")

    module = Model()
    before = snapshot(module)
    executor = poptorch.trainingModel(module)
    with pytest.raises(Boom, match="on the way back"):
        executor(torch.ones(1, 2))
    executor.destroy()
    assert differences(before, snapshot(module)) == {}
    assert poptorch.inferenceModel(module)(torch.ones(1, 2)).shape == ()


def test_nothing_is_printed_while_compiling(model: Everything, capsys: pytest.CaptureFixture[str]) -> None:
    executor = poptorch.inferenceModel(model)
    executor.compile(torch.randn(3, 4), torch.randn(3, 4))
    captured = capsys.readouterr()
    assert captured.out == ""


def test_the_compiled_model_can_be_saved_by_plain_torch(model: Everything) -> None:
    executor = poptorch.trainingModel(model)
    executor(torch.randn(3, 4), torch.randn(3, 4))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert {type(value) for value in loaded.values()} == {torch.Tensor}
    assert "poptorch" in sys.modules
