"""The recovery example ends with the bits of an undisturbed run, whatever fails and when."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import poptorch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "recovery.py"
CALLS = 18
"""Of an undisturbed run."""


@pytest.fixture(scope="module")
def recovery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recovery", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["recovery"] = module  # data classes look for their module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["recovery"]
    return module


@pytest.mark.parametrize("optimizer", ["SGD with momentum", "AdamW"])
def test_it_resumes_with_the_same_bits(recovery: ModuleType, optimizer: str) -> None:
    resets = recovery.compare(recovery.OPTIMIZERS[optimizer], recovery.FAULTS)
    assert resets == recovery.FAULTS.count("reset")
    print(f"{resets} resets")


@pytest.mark.parametrize("optimizer", ["SGD with momentum", "AdamW"])
@pytest.mark.parametrize(
    "faults",
    [
        "ipu_reset: call=1",  # before there is a checkpoint
        "ipu_reset: call=7; ipu_reset: call=8",  # in the first step of an epoch, twice
        *[
            pytest.param(f"ipu_reset: call={call}, iteration={iteration}", marks=pytest.mark.exhaustive)
            for call in range(1, CALLS + 1)
            for iteration in (1, 2)
        ],
        *[
            pytest.param(f"seed={seed}; full_reset: probability=0.3", marks=pytest.mark.exhaustive)
            for seed in range(10)
        ],
    ],
)
def test_it_resumes_wherever_the_failure_is(recovery: ModuleType, optimizer: str, faults: str) -> None:
    assert recovery.compare(recovery.OPTIMIZERS[optimizer], faults) > 0


def test_what_cannot_be_recovered_ends_the_program(recovery: ModuleType) -> None:
    with pytest.raises(poptorch.UnrecoverableError):
        recovery.compare(recovery.OPTIMIZERS["AdamW"], "unrecoverable: call=2")


def test_the_comparison_can_fail(recovery: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    original = recovery.Checkpoint.read

    def without_random_position(path: Path) -> object:
        found = original(path)
        found.random = found.random[:1]
        return found

    monkeypatch.setattr(recovery.Checkpoint, "read", staticmethod(without_random_position))
    with pytest.raises(AssertionError, match="the states differ"):
        recovery.compare(recovery.OPTIMIZERS["AdamW"], "ipu_reset: call=4")
