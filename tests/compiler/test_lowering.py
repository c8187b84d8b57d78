"""Lowering for the device: without a device, without values, and nothing about the host in the result."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import poptorch
from poptorch.capture.arguments import Signature
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.request import CompileRequest, update_settings
from poptorch.host.build import build_host
from poptorch.optim.spec import describe


class Block(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(str(index), ipu_id=index // 2)
            x = torch.relu(layer(x))
        return x, nn.functional.mse_loss(x, target)


def request(model: nn.Module, *args: Any, training: bool = True, accumulation: int = 4) -> CompileRequest:
    options = poptorch.Options().outputMode(poptorch.OutputMode.Final)
    options.Training.gradientAccumulation(accumulation)
    spec = describe(poptorch.optim.AdamW(model.parameters(), lr=0.1), update_settings(options)) if training else None
    return CompileRequest(model, Signature(model.forward).bind(args, {}), options, training, spec)


def on_meta() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return Block().to("meta"), torch.empty(8, 8, device="meta"), torch.empty(8, 8, device="meta")


def listing(device: DeviceProgram) -> list[str]:
    return [str(device.program), str(device.update), str(device.plan), str(device.memory)]


def test_meta_tensors_lower_like_real_ones() -> None:
    real = lower_for_device(request(Block(), torch.ones(8, 8), torch.ones(8, 8)))
    meta = lower_for_device(request(*on_meta()))
    assert listing(meta) == listing(real)
    assert len(meta.plan.parts) == 2


def test_fake_tensors_lower_like_real_ones() -> None:
    with FakeTensorMode():
        model, x = Block(), torch.ones(8, 8)
        y = torch.ones(8, 8)
    fake = lower_for_device(request(model, x, y))
    assert listing(fake) == listing(lower_for_device(request(*on_meta())))


def test_the_result_is_frozen() -> None:
    device = lower_for_device(request(*on_meta()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.plan = None  # type: ignore[misc]
    code = build_host(device)
    with pytest.raises(dataclasses.FrozenInstanceError):
        code.step = None  # type: ignore[misc]


def test_no_ipu_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_SYSTEM", "none")
    assert lower_for_device(request(*on_meta())).ipus_per_replica == 2


class NeedsValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if x.sum().item() > 0:
            x = -x
        return x


def test_a_model_that_needs_values_is_refused_with_its_line() -> None:
    lines, first = inspect.getsourcelines(NeedsValue)
    line = first + next(i for i, text in enumerate(lines) if ".item()" in text)
    with pytest.raises(poptorch.Error, match=rf"test_lowering\.py:{line}.*layer\.weight has none.*meta device"):
        lower_for_device(request(NeedsValue().to("meta"), torch.empty(2, 2, device="meta"), training=False))
    assert lower_for_device(request(NeedsValue(), torch.ones(2, 2), training=False)).plan.whole


class Huge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1 << 20, 1 << 20, bias=False, device="meta")  # 4 TiB

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.layer(x).sum(), reduction="sum")


@pytest.mark.parametrize("optimizer", [poptorch.optim.SGD, poptorch.optim.AdamW, poptorch.optim.LAMB, torch.optim.Adam])
def test_the_update_allocates_no_weights(optimizer: Any) -> None:
    model, options = Huge(), poptorch.Options()
    spec = describe(optimizer(model.parameters(), lr=0.1), update_settings(options))
    call = Signature(model.forward).bind((torch.empty(1, 1 << 20, device="meta"),), {})
    device = lower_for_device(CompileRequest(model, call, options, True, spec))
    assert device.update is not None
    assert device.update.names == ["layer.weight"]
