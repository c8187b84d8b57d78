"""The names in ``torch.ops.poptorch`` that programs call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch import ambient
from poptorch.compat import NAMES
from poptorch.ops import hints
from poptorch.program.opinfo import info_of

OPS = torch.ops.poptorch
X = torch.tensor([1.0, 2.0, 3.0])


class Calls(nn.Module):
    """A model whose ``forward`` is a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x * self.weight)


def scopes(executor: poptorch.PoplarExecutor) -> dict[str, str]:
    """The name scope of each operation by its ATen name."""
    return {str(node.target): info_of(node).scope for node in executor.program.operations()}


def test_every_listed_operator_exists() -> None:
    listed = [name.split("(")[0].rpartition(".")[2] for name in NAMES if name.startswith("torch.ops.")]
    assert len(listed) == 13
    assert all(callable(getattr(OPS, name)) for name in listed)


# --- name scopes and attributes --------------------------------------------------------------------------------


def test_name_scopes_nest_and_end() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        OPS.push_name_scope("outer")
        OPS.push_name_scope("inner")
        x = torch.sin(x)
        OPS.pop_name_scope()
        x = torch.cos(x)
        OPS.pop_name_scope()
        return torch.exp(x)

    executor = poptorch.inferenceModel(Calls(forward))
    executor.compile(X)
    found = scopes(executor)
    assert found["aten.sin.default"] == "outer/inner"
    assert found["aten.cos.default"] == "outer"
    assert found["aten.exp.default"] == ""


def test_name_scopes_from_hooks_of_modules() -> None:
    model = nn.Sequential(nn.Sequential(nn.Tanh(), nn.Sigmoid()), nn.Softplus())
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda module, inputs, name=name: OPS.push_name_scope(f"<{name}>"))
        module.register_forward_hook(lambda module, inputs, output: OPS.pop_name_scope())
    assert torch.equal(model(X), model(X)), "harmless outside of capture"
    executor = poptorch.inferenceModel(model)
    executor.compile(X)
    found = scopes(executor)
    assert "<0.0>" in found["aten.tanh.default"]
    assert "<0.1>" in found["aten.sigmoid.default"]
    assert "<0.0>" not in found["aten.sigmoid.default"]
    assert "<0>" in found["aten.sigmoid.default"], "leaving a child keeps the scope of its parent"
    assert "<1>" in found["aten.softplus.default"]
    assert "<0>" not in found["aten.softplus.default"]


def test_ending_a_scope_that_was_never_begun_is_harmless() -> None:
    with ambient.capturing(ambient.CaptureContext()) as context:
        assert context is not None
        with poptorch.NameScope("own"):
            OPS.pop_name_scope()
            assert context.name_scopes == ["own"]
    OPS.push_name_scope("outside")
    OPS.pop_name_scope()


def test_attributes_are_set_and_cleared() -> None:
    with ambient.capturing(ambient.CaptureContext()) as context:
        assert context is not None
        OPS.set_attribute("__outline", "layer", "embedding")
        before = context.attributes
        OPS.set_attribute("__outline", "part", "1")
        assert before == {"__outline": {"layer": "embedding"}}, "operations recorded before keep theirs"
        OPS.clear_attribute("__outline", "layer")
        assert context.attributes == {"__outline": {"part": "1"}}
        OPS.clear_attribute("__outline", "part")
        OPS.clear_attribute("__outline", "part")
        assert context.attributes == {}
    OPS.set_attribute("__outline", "layer", "embedding")
    OPS.clear_attribute("__outline", "layer")


# --- blocks ----------------------------------------------------------------------------------------------------


def test_blocks_by_number() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        OPS.begin_ipu_block(0, -1, 0)
        x = torch.sin(x)
        OPS.end_ipu_block()
        OPS.begin_ipu_block(1, 0, 1)
        return torch.cos(x)

    assert torch.equal(forward(X), torch.cos(torch.sin(X))), "harmless outside of capture"
    executor = poptorch.inferenceModel(_FunctionOnly(forward), poptorch.Options().deviceIterations(2))
    executor.compile(X.repeat(2))
    placements = {str(node.target): info_of(node).placement for node in executor.program.operations()}
    assert (placements["aten.sin.default"].stage, placements["aten.sin.default"].ipu) == (0, 0)
    assert (placements["aten.cos.default"].stage, placements["aten.cos.default"].ipu) == (1, 1)


class _FunctionOnly(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def test_an_operation_after_the_end_of_a_block_is_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        OPS.begin_ipu_block(0)
        x = x + 1
        OPS.end_ipu_block()
        return x + 2

    with pytest.raises(poptorch.Error, match="No active Block"):
        poptorch.inferenceModel(_FunctionOnly(forward))(X)


# --- operations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "dtype"), [("FLOAT", torch.float32), ("HALF", torch.float16)])
def test_casts_in_the_graph(word: str, dtype: torch.dtype) -> None:
    executor = poptorch.inferenceModel(Calls(lambda x: OPS.internal_cast(x.half(), word)))
    assert executor(X).dtype == OPS.internal_cast(X, word).dtype == dtype
    with pytest.raises(poptorch.Error, match="use one of FLOAT"):
        OPS.internal_cast(X, "BFLOAT")


@pytest.mark.parametrize(("reduction", "expected"), [(0, 6.0), (1, 2.0), ("sum", 6.0), ("mean", 2.0)])
def test_losses(reduction: Any, expected: float) -> None:
    assert OPS.identity_loss(X, reduction).item() == expected
    assert torch.equal(OPS.identity_loss(X, 2), X)
    executor = poptorch.trainingModel(Calls(lambda x: OPS.identity_loss(x, reduction)))
    assert executor(X).item() == expected
    assert not torch.equal(executor.model.weight.detach(), torch.ones(3)), "it is what is trained"
    with pytest.raises(AssertionError, match="Unsupported reduction type"):
        OPS.identity_loss(X, 3)


def test_prints(capfd: pytest.CaptureFixture[str]) -> None:
    executor = poptorch.inferenceModel(Calls(lambda x: OPS.ipu_print_tensor(x, "values", 0, 1000, 3, 80, 2, 1)))
    assert torch.equal(executor(X), X)
    assert "values" in capfd.readouterr().err
    named = poptorch.inferenceModel(Calls(lambda x: OPS.ipu_print_tensor(x, "named", float_format=1)))
    named(X)
    assert "named" in capfd.readouterr().err
    with pytest.raises(KeyError, match="'9' is not a float_format"):
        OPS.ipu_print_tensor(X, "t", 0, 1000, 3, 80, 2, 9)


def test_identities_reach_the_graph() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return OPS.nop(OPS.recomputation_checkpoint(OPS.set_available_memory(x @ torch.eye(3), 0.3)))

    assert torch.equal(forward(X), X)
    executor = poptorch.inferenceModel(Calls(forward))
    assert torch.equal(executor(X), X)
    targets = [node.target for node in executor.program.operations()]
    assert hints.NOP in targets
    budgets = [info_of(node).available_memory for node in executor.program.operations()]
    assert 0.3 in budgets


@pytest.mark.parametrize("product", [torch.matmul, lambda x, y: x @ y, torch.mm, torch.Tensor.mm])
@pytest.mark.parametrize("training", [True, False])
def test_products_are_split_after_the_fact(product: Any, training: bool) -> None:
    mode = poptorch.MatMulSerializationMode.ReducingDim.value

    def forward(x: torch.Tensor) -> torch.Tensor:
        result = OPS.set_matmul_serialization(product(x, torch.eye(4)), mode, 2, False)
        return poptorch.identity_loss(result, "sum") if training else result

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x * self.weight)

    x = torch.arange(8.0).reshape(2, 4)
    executor = poptorch.trainingModel(Model()) if training else poptorch.inferenceModel(Model())
    assert torch.equal(executor(x), x.sum() if training else x)
    targets = [str(node.target) for node in executor.program.operations()]
    assert any("serialized_matmul" in target for target in targets)
    assert not any(target.startswith(("aten.mm", "aten.matmul", "aten.bmm")) for target in targets), "nothing is left"


def test_products_that_cannot_be_split() -> None:
    mode = poptorch.MatMulSerializationMode
    assert OPS.set_matmul_serialization(X, mode.Disabled.value, 0, False) is X
    assert OPS.set_matmul_serialization(X, mode.ReducingDim.value, 3, False) is X, "nothing is captured"
    with pytest.raises(poptorch.Error, match="is no mode"):
        OPS.set_matmul_serialization(X, "diagonal", 2, False)
    unfit = {
        "takes the result of a matrix product": lambda x: OPS.set_matmul_serialization(
            x + 1, mode.ReducingDim.value, 3
        ),
        "Invalid serialisation factor 2": lambda x: OPS.set_matmul_serialization(
            x @ torch.eye(3), mode.ReducingDim.value, 2
        ),
    }
    for text, function in unfit.items():
        with pytest.raises(poptorch.Error, match=text):
            poptorch.inferenceModel(Calls(function))(X)
