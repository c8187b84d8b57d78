"""Random programs against a float64 reference: training and inference, every strategy, both types."""

from __future__ import annotations

import pytest
import torch
from float64_reference import Results, expected
from random_programs import CALLS, OPTIMIZERS, ROWS, WIDTH, Program
from torch.utils import _pytree as pytree

import poptorch
from closeness import assert_close_sums
from poptorch import CommGroupType, VariableRetrievalMode

USUAL = range(240)
MORE = range(1000, 4000)
NATIVE = (3, 11, 24, 42)
IN_ONE_TEST = 20

SURELY_DIFFERENT = 8
"""Masks of eight elements, of which half are different with all but certainty."""

STEPS = 64
"""Roundings that follow one another: layers forward and backward, times updates."""


def run(program: Program) -> tuple[Results, dict[str, torch.Tensor], list[torch.Tensor]]:
    """Outputs and losses of each call, the weights at the end, and the masks of each call."""
    model = program.model()
    if program.training:
        optimizer = OPTIMIZERS[program.optimizer][0](model.parameters())
        executor = poptorch.trainingModel(model, program.options(), optimizer)
    else:
        executor = poptorch.inferenceModel(model, program.options())
    if program.grouped:
        executor.shift.replicaGrouping(CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup)
    results, masks = [], []
    for call in range(CALLS):
        y, loss, mask = executor(*program.data(call))
        masks.append(mask)
        anchored = [executor.getAnchoredTensor("gradient")] if program.anchor else []
        results.append((y, loss.reshape(-1), *anchored))
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    executor.destroy()
    return results, weights, masks


def check(program: Program) -> None:
    """Compare one program with the reference."""
    results, weights, masks = run(program)
    noisy = program.noise and program.training
    if noisy:
        check_masks(program, torch.stack(masks))
    wanted = expected(program, masks if noisy else None)
    found = pytree.tree_map(torch.Tensor.double, (results, weights))
    assert_close_sums(found, wanted, terms=64, steps=STEPS, scale=1.0, dtype=program.dtype)


def check_masks(program: Program, masks: torch.Tensor) -> None:
    """Elements are dropped or doubled; no two micro-batches drop the same ones, and the same seed drops the same."""
    assert set(masks.unique().tolist()) <= {0.0, 2.0}
    drawn = masks.reshape(-1, ROWS * WIDTH)
    if len(drawn) > SURELY_DIFFERENT:
        assert len(drawn.unique(dim=0)) > len(drawn) // 2
    torch.testing.assert_close(torch.stack(run(program)[2]), masks, rtol=0, atol=0)


def check_all(seeds: range) -> None:
    failures = []
    for seed in seeds:
        program = Program.from_seed(seed)
        try:
            check(program)
        except Exception as error:  # noqa: BLE001 - the others are of interest, too
            failures.append(f"{program}\n    {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)


def _blocks(seeds: range) -> list[range]:
    return [seeds[start : start + IN_ONE_TEST] for start in range(0, len(seeds), IN_ONE_TEST)]


@pytest.mark.parametrize("seeds", _blocks(USUAL), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_interpreted(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    check_all(seeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seeds", _blocks(MORE), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_more_of_them(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    check_all(seeds)


@pytest.mark.parametrize("seed", NATIVE)
def test_native(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    check(Program.from_seed(seed))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 160))
def test_more_native_ones(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    check(Program.from_seed(seed))
