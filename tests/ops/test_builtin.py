"""Built-in operators by name: forward and backward against plain PyTorch, all of the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import builtin_onnx_cases
import poptorch
import preloaded
from builtin_cases import Case, Given
from poptorch.ipu_model.architecture import architecture
from poptorch.ipu_model.costing import cost_of
from poptorch.ops import builtin
from poptorch.ops.builtin import Situation
from poptorch.ops.custom import attributes as attribute_types

CASES = builtin_onnx_cases.CASES
CHIP = architecture("bow")

WITHOUT_VALUES = {
    *(("ai.onnx", name) for name in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")),
    *(("ai.graphcore", name) for name in ("Abort", "CopyVarUpdate", "Pow2ScaleThenCast", "CastThenPow2Scale")),
    *(("ai.graphcore", f"Replicated{name}") for name in ("AllGather", "AllReduce", "ReduceScatter")),
}
"""Operators that have tests of their own."""


class Calls(nn.Module):
    """The operator on its weights, and a loss in which each of its results counts in its own way."""

    def __init__(self, case: Case, templates: list[torch.Tensor]) -> None:
        super().__init__()
        self.case, self.templates = case, templates
        self.weights = nn.ParameterList(t.float() for t in case.inputs if isinstance(t, torch.Tensor))

    def forward(self, *given: torch.Tensor, mark: bool = True) -> Any:
        weights, others = iter(self.weights), iter(given)
        inputs = [
            next(weights) if isinstance(i, torch.Tensor) else next(others) if isinstance(i, Given) else i.tensor
            for i in self.case.inputs
        ]
        case = self.case
        results = poptorch.custom_op(
            inputs, case.name, case.domain, case.version, self.templates, case.attributes or None
        )
        total = sum((w.sum() for w in self.weights), torch.zeros(()))
        loss = total + weighed(results).float()
        return [*results, poptorch.identity_loss(loss, "none") if mark else loss]


def weighed(results: list[torch.Tensor]) -> torch.Tensor:
    """One number in which all elements of floating results count, each with a factor of its own."""
    total = torch.zeros(())
    for result in results:
        if result.dtype.is_floating_point:
            factors = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=result.dtype)[: result.numel()]
            total = total + (result * factors.reshape(result.shape)).sum()
    return total


def given(case: Case) -> list[torch.Tensor]:
    return [i.tensor for i in case.inputs if isinstance(i, Given)]


def operands(case: Case, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    left = iter(leaves)
    tensors = [next(left) if isinstance(i, torch.Tensor) else i.tensor for i in case.inputs]
    wide = case.numeric or bool(leaves)
    return [t.double() if wide and t.dtype is torch.float32 else t for t in tensors]


def meant(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the operator should return, and the gradients of :func:`weighed`, in float64."""
    leaves = [t.clone().requires_grad_() for t in case.inputs if isinstance(t, torch.Tensor)]
    results = case.expected(*operands(case, leaves))
    total = weighed(results)
    gradients: list[Any] = [None] * len(leaves)
    if total.requires_grad:
        gradients = list(torch.autograd.grad(total, leaves, allow_unused=True))
    return [r.detach() for r in results], [
        torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)
    ]


def assert_results(results: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        wanted = wanted.float() if wanted.dtype is torch.float64 else wanted
        assert result.dtype == wanted.dtype
        torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_each_operator_of_the_table_has_a_case() -> None:
    definitions = {d.key for d in builtin.definitions() if (d.key.domain, d.key.name) not in WITHOUT_VALUES}
    tried = {found.key for case in CASES if (found := builtin.find(case.domain, case.name, case.version)) is not None}
    assert definitions - tried == set()
    assert [id for id, count in Counter(case.id for case in CASES).items() if count > 1] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_operator_and_its_gradient(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    expected, gradients = meant(case)
    model = Calls(case, [r.float() if r.dtype is torch.float64 else r for r in expected])
    before = [w.detach().clone() for w in model.weights]
    if before:
        executor: Any = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    else:
        executor = poptorch.inferenceModel(model)
    try:
        *results, _ = executor(*given(case))
        assert_results(results, expected, 2e-4)
        assert [n for n in executor.program.operations() if not cost_of(n, CHIP).covered] == []
        for weight, old, gradient in zip(model.weights, before, gradients, strict=True):
            # Next to the gradient of the operator stands that of the sum of the weights: 1.
            torch.testing.assert_close(old - weight.detach() - 1, gradient.float(), rtol=2e-3, atol=2e-4)
    finally:
        executor.destroy()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_arithmetic_in_float64(case: Case) -> None:
    """Without a model: values to the last digits, gradients against differences."""
    definition = builtin.find(case.domain, case.name, case.version)
    assert definition is not None
    expected, gradients = meant(case)
    typed = attribute_types.typed_from_text(attribute_types.to_text(case.attributes))
    # Not rounded to float32, as attributes on a device are.
    exact = {k: (kind, case.attributes[k] if kind.startswith("Float") else v) for k, (kind, v) in typed.items()}

    def run(*leaves: torch.Tensor) -> list[torch.Tensor]:
        situation = Situation(definition.key, tuple(expected), training=True)
        return builtin.apply(definition, operands(case, list(leaves)), exact, situation)[: len(expected)]

    leaves = [t.clone().requires_grad_() for t in case.inputs if isinstance(t, torch.Tensor)]
    results = run(*leaves)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.detach().to(wanted.dtype), wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
    total = weighed(results)
    if leaves and total.requires_grad:
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        for own, wanted in zip(found, gradients, strict=True):
            torch.testing.assert_close(torch.zeros_like(wanted) if own is None else own, wanted, rtol=1e-5, atol=1e-6)
        if case.numeric:
            assert torch.autograd.gradcheck(lambda *x: weighed(run(*x)), leaves, atol=1e-4)
    else:
        assert all(not gradient.any() for gradient in gradients)


def test_the_page_lists_all_operators() -> None:
    script = Path(__file__).parents[2] / "scripts" / "generate_builtin_operators.py"
    done = preloaded.run([script, "--check"])
    assert done.returncode == 0, done.stderr


SAMPLE = ("SequenceSlice-1-zero0", "ScatterReduce-1-max", "Histogram-1", "AveragePool-10-counted")


class CallsAll(nn.Module):
    """Several cases, one after the other."""

    def __init__(self, parts: list[Calls]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *tensors: torch.Tensor) -> Any:
        left, results, total = iter(tensors), [], torch.zeros(())
        for part in self.parts:
            *values, loss = part(*[next(left) for i in part.case.inputs if isinstance(i, Given)], mark=False)
            results += values
            total = total + loss
        return [*results, poptorch.identity_loss(total, "none")]


def test_a_sample_in_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    by_id = {case.id.partition("-")[2]: case for case in CASES}
    cases = [by_id[name] for name in SAMPLE]
    results = []
    for level in ("interpret", "native"):
        monkeypatch.setenv("POPTORCH_CODEGEN", level)
        parts = [Calls(case, [r.float() if r.dtype is torch.float64 else r for r in meant(case)[0]]) for case in cases]
        executor = poptorch.inferenceModel(CallsAll(parts))
        results.append(executor(*[tensor for case in cases for tensor in given(case)]))
        executor.destroy()
    for interpreted, native in zip(*results, strict=True):
        torch.testing.assert_close(native, interpreted, rtol=1e-4, atol=1e-4)
