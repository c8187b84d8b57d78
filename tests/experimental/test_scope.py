"""``IPUScope``: blocks of code as programs."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.experimental import IPUScope

X = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("device", ["ipu", "ipu:0", "xla", torch.device("xla:0")])
@pytest.mark.parametrize("compiler", list(poptorch.Compiler))
def test_a_block_is_captured_and_runs_on_other_tensors(device: Any, compiler: poptorch.Compiler) -> None:
    layer = nn.Linear(3, 2)
    weight = layer.weight
    with IPUScope([X], model=layer, compile_using=compiler) as ipu:
        assert poptorch.isRunningOnIpu()
        y = layer(X.to(device))
        ipu.outputs([y, (y + 1,)])
    assert not poptorch.isRunningOnIpu()
    assert layer.weight is weight
    assert type(weight) is nn.Parameter
    assert weight.grad is None
    first, (second,) = ipu(X + 1)
    assert_close_sums(first, layer(X + 1).detach(), terms=3)
    assert_close_sums(second, layer(X + 1).detach() + 1, terms=3)


def test_everything_on_the_device_is_recorded_and_all_else_is_done_at_once() -> None:
    with IPUScope([X]) as ipu:
        on_host = X.sum() + torch.ones(3)
        on_ipu = X.to("ipu") * 2 + torch.full((3,), 4.0, device="ipu")
        assert torch.equal(on_host, X.sum() + torch.ones(3))
        ipu.outputs((on_ipu + on_host, X.to("ipu", torch.float16).dtype is torch.float16 and on_ipu))
    result, doubled = ipu(X + 1)
    assert torch.equal(doubled, (X + 1) * 2 + 4)
    assert torch.equal(result, doubled + on_host)  # computed once, from the first inputs


def test_state_stays_on_the_device() -> None:
    norm = nn.BatchNorm1d(3)
    with IPUScope([X], model=norm) as ipu:
        norm(X.to("ipu"))
        ipu.outputs(norm.running_mean.clone())
    first, second = ipu(X), ipu(X)
    assert_close_sums(first, 0.1 * X.mean(0), terms=2)
    assert_close_sums(second, 0.19 * X.mean(0), terms=2)
    assert not norm.running_mean.any()


def test_a_training_step_without_state() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    weight = layer.weight.detach().clone()
    with IPUScope([X], model=layer) as ipu:
        optimizer.zero_grad()
        layer(X.to("ipu")).sum().backward()
        optimizer.step()
        ipu.outputs((layer.weight, layer.weight.grad))
    gradient = X.sum(0).expand(2, 3)
    for number in (1, 2):
        updated, found = ipu(X)
        assert_close_sums(updated, weight - 0.1 * number * gradient, terms=2, steps=number)
        assert_close_sums(found, gradient, terms=2)
    assert layer.weight.grad is None
    assert torch.equal(layer.weight, weight)
    assert optimizer.param_groups[0]["params"][0] is layer.weight


def test_new_state_of_an_optimizer_needs_a_function() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())

    def capture() -> None:
        with IPUScope([X], model=layer) as ipu:
            layer(X.to("ipu")).sum().backward()
            optimizer.step()
            ipu.outputs(layer.weight)

    with pytest.raises(poptorch.Error, match="Capture the training step as a function with IPUContext"):
        capture()
    assert not optimizer.state
    assert layer.weight.grad is None


def test_values_that_python_needs_are_frozen() -> None:
    with IPUScope([X]) as ipu:
        y = X.to("ipu")
        with pytest.warns(UserWarning, match="frozen into the program"):
            positive = bool(y.sum() > 0)
        ipu.outputs(y + 1 if positive else y - 1)
    assert torch.equal(ipu(-X), 1 - X)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": X}, "You can only pass a list or tuple as the inputs argument to IPUScope."),
        ({"inputs": [X, 3]}, "You can only pass torch.Tensors as inputs to IPUScope."),
        ({"inputs": [X.to_sparse()]}, "You cannot pass sparse tensors as inputs to IPUScope."),
        ({"inputs": [X], "model": torch.neg}, "model must inherit from torch.nn.Module"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        IPUScope(**settings)
    assert str(caught.value) == message


def test_an_output_that_was_never_on_the_device_is_mentioned() -> None:
    with IPUScope([X]) as ipu, pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
        ipu.outputs(X + 1)
    assert torch.equal(ipu(X), X + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with IPUScope([X]) as ipu:
            ipu.outputs(torch.ones(2, device="ipu"))
    assert torch.equal(ipu(X), torch.ones(2))


@pytest.mark.parametrize("error", [KeyError("own"), RuntimeError("own"), KeyboardInterrupt()])
def test_exceptions_come_through_and_leave_everything_usable(error: BaseException) -> None:
    layer = nn.Linear(3, 2)
    weight = layer.weight
    ipu = IPUScope([X], model=layer)

    def capture() -> None:
        with ipu:
            ipu.outputs(layer(X.to("ipu")))
            raise error

    with pytest.raises(type(error)) as caught:
        capture()
    assert caught.value is error
    assert layer.weight is weight
    assert not poptorch.isRunningOnIpu()
    with pytest.raises(poptorch.Error, match="There is no program"):
        ipu(X)
    assert_close_sums(poptorch.inferenceModel(layer)(X), layer(X).detach(), terms=3)


def test_shapes_that_do_not_fit_are_errors_of_the_compilation() -> None:
    with pytest.raises(poptorch.Error, match="is invalid for input of size 6"), IPUScope([X]):
        X.to("ipu").reshape(4, 4)


def test_outputs_are_given_once_and_inside() -> None:
    with IPUScope([X]) as silent:
        X.to("ipu")
    with pytest.raises(poptorch.Error, match="has not called outputs"):
        silent(X)
    with pytest.raises(poptorch.Error, match="belongs into the block"):
        silent.outputs(X)
    with IPUScope([X]) as ipu:
        ipu.outputs(X.to("ipu"))
        with pytest.raises(poptorch.Error, match="was called already"):
            ipu.outputs(X.to("ipu"))
    with pytest.raises(poptorch.Error, match="captures one block"), ipu:
        pass
    with pytest.raises(poptorch.Error, match="1 inputs, but 2"):
        ipu(X, X)
    with IPUScope([X]) as other, pytest.raises(poptorch.Error, match="Only tensors may be returned"):
        other.outputs((X.to("ipu"), 3))


def test_scopes_do_not_nest() -> None:
    with IPUScope([X]), pytest.raises(poptorch.Error, match="captured already"), IPUScope([X]):
        pass


def test_executables_come_from_files(tmp_path: Any) -> None:
    layer = nn.Linear(3, 2)
    path = str(tmp_path / "layer.poptorch")
    poptorch.inferenceModel(layer).compileAndExport(path, X)
    with IPUScope([X], model=layer, skip_compilation=True) as ipu:
        ipu.outputs(layer(X.to("ipu")))
    with pytest.raises(poptorch.Error, match="skip_compilation=True"):
        ipu(X)
    ipu.loadExecutable(path)
    assert_close_sums(ipu(X), layer(X).detach(), terms=3)
    with IPUScope([X], skip_compilation=True, compile_using=poptorch.Compiler.MLIR) as other:
        other.outputs(X.to("ipu"))
    with pytest.raises(poptorch.Error, match="can't deserialize MLIR executables"):
        other.loadExecutable(path)


def test_options_apply() -> None:
    options = poptorch.Options().deviceIterations(2)
    with IPUScope([X], options=options) as ipu:
        with poptorch.Block("first", ipu_id=0):
            y = X.to("ipu") + 1
        with poptorch.Block("second", ipu_id=1):
            y = y * 2
        ipu.outputs(y)
    assert y.shape == (1, 3)
    assert torch.equal(ipu(X), (X + 1) * 2)
    options.deviceIterations(3)


class TestTracebacks:
    """Errors show the user's frames, and nothing of ours or of torch."""

    def frames(self, error: BaseException) -> list[str]:
        return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x

    def test_in_the_block(self) -> None:
        with pytest.raises(poptorch.Error, match=rf"{Path(__file__).name}:\d+") as caught, IPUScope([X]) as ipu:
            ipu.outputs(self.multiply(X.to("ipu")))
        assert self.frames(caught.value) == [Path(__file__).name] * 2
        assert caught.value.__cause__ is None

    def test_errors_of_the_user_stay_as_they_are(self) -> None:
        mine = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as caught, IPUScope([X]):
            raise mine
        assert caught.value is mine
        assert self.frames(mine) == [Path(__file__).name]

    def test_all_frames_on_demand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POPTORCH_FULL_TRACEBACK", "1")
        with pytest.raises(poptorch.Error) as caught, IPUScope([X]) as ipu:
            ipu.outputs(self.multiply(X.to("ipu")))
        assert "function.py" in self.frames(caught.value)
