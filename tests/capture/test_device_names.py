"""Names of the device, inside and outside of capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.experimental import IPUContext

NAMES = ["ipu", "ipu:1", "xla", "xla:0", torch.device("ipu"), torch.device("ipu", 0), torch.device("xla:3")]
X = torch.arange(6.0).reshape(2, 3)

CALLS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "to": lambda x, d: x.to(d),
    "to keyword": lambda x, d: x.to(device=d, dtype=torch.float16),
    "to with type": lambda x, d: x.to(d, torch.int32),
    "ipu": lambda x, d: x.ipu(),
    "zeros": lambda x, d: torch.zeros(3, device=d),
    "ones_like": lambda x, d: torch.ones_like(x, device=d),
    "tensor": lambda x, d: torch.tensor([1.0, 2.0], device=d),
    "as_tensor": lambda x, d: torch.as_tensor([1, 2], device=d),
    "arange": lambda x, d: torch.arange(3, device=d),
    "linspace": lambda x, d: torch.linspace(0, 1, 3, device=d),
    "full": lambda x, d: torch.full((2,), 3.0, device=d),
    "eye": lambda x, d: torch.eye(3, device=d),
    "empty": lambda x, d: torch.empty(3, device=d).fill_(2),
    "rand": lambda x, d: torch.rand(3, device=d) * 0,
    "tril_indices": lambda x, d: torch.tril_indices(2, 2, device=d),
    "new_zeros": lambda x, d: x.new_zeros(3, device=d),
    "new_tensor": lambda x, d: x.new_tensor([1.0], device=d),
    "new_full": lambda x, d: x.new_full((2,), 5.0, device=d),
    "own device": lambda x, d: torch.ones(2, device=x.to(d).device),
    "einsum": lambda x, d: torch.einsum("ipu", x.reshape(1, 2, 3)),
}


class Calling(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor, Any], torch.Tensor], name: Any) -> None:
        super().__init__()
        self._call = call
        self._device_name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() + self._call(x, self._device_name)


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_wrapped_models_may_name_the_device(call: str) -> None:
    names = NAMES if call in ("to", "zeros") else NAMES[:1] + NAMES[-2:-1]
    expected = Calling(CALLS[call] if call != "ipu" else CALLS["to"], "cpu")(X)
    for name in names:
        assert torch.equal(poptorch.inferenceModel(Calling(CALLS[call], name))(X), expected)


def test_modules_move_and_are_made_on_the_device() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> Any:
            made = nn.BatchNorm1d(3, device="ipu")
            return self.layer.to("ipu")(x), made.to(torch.device("xla"))(x), self.to(device="ipu").layer.ipu()(x)

    model = Model()
    weight = model.layer.weight
    first, second, third = poptorch.inferenceModel(model)(X)
    torch.testing.assert_close(first, model.layer(X))
    torch.testing.assert_close(second, nn.BatchNorm1d(3)(X))
    assert torch.equal(first, third)
    assert model.layer.weight is weight


def test_the_default_device_of_a_block() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.device("ipu"):
            return x + torch.ones(3)

    assert torch.equal(IPUContext(function)(X), X + 1)


def test_training_models_may_name_the_device() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = torch.ones(1, device="ipu")
            return poptorch.identity_loss((self.layer(x.to("xla")) * weights).square(), reduction="mean")

    model = Model()
    before = model.layer.weight.detach().clone()
    poptorch.trainingModel(model)(X)
    assert not torch.equal(model.layer.weight, before)


@pytest.mark.parametrize(
    "move",
    [
        lambda: torch.zeros(2).to("ipu:0"),
        lambda: torch.zeros(2, device="ipu"),
        lambda: torch.rand(2, device=torch.device("ipu")),
        lambda: nn.Linear(2, 2).to("ipu:0"),
    ],
)
def test_nothing_moves_outside_of_capture(move: Callable[[], Any]) -> None:
    assert torch.device("ipu").type == "ipu"
    with pytest.raises(poptorch.Error, match="tensors move when a wrapped model is called"):
        move()


def test_a_name_without_a_number_is_refused_by_torch_itself() -> None:
    with pytest.raises(RuntimeError, match="ipu"):
        torch.zeros(2).to("ipu")
