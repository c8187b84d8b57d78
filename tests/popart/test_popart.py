"""The enumerations of ``popart``."""

from __future__ import annotations

import pytest
import torch

import popart
import poptorch
from poptorch.options.backend_keys import PASSTHROUGH_KEYS

KEYS = {
    "accumulateOuterFragmentSettings.schedule": popart.AccumulateOuterFragmentSchedule,
    "subgraphCopyingStrategy": popart.SubgraphCopyingStrategy,
    "syntheticDataMode": popart.SyntheticDataMode,
    "autoRecomputation": popart.RecomputationType,
    "virtualGraphMode": popart.VirtualGraphMode,
    "batchSerializationSettings.batchSchedule": popart.BatchSerializationBatchSchedule,
    "accumulationAndReplicationReductionType": popart.ReductionType,
}


@pytest.mark.parametrize("name", KEYS)
def test_numbers_are_those_of_the_options(name: str) -> None:
    (key,) = (key for key in PASSTHROUGH_KEYS if key.name == name)
    assert key.values is not None
    assert {m.name: m.value for m in KEYS[name]} == {m.name: m.value for m in key.values}
    assert all(isinstance(member, int) for member in KEYS[name])


def test_members_and_numbers_are_accepted() -> None:
    options = poptorch.Options()
    options._Popart.set("subgraphCopyingStrategy", popart.SubgraphCopyingStrategy.JustInTime)
    options._Popart.set("virtualGraphMode", int(popart.VirtualGraphMode.Manual))
    options._Popart.set(
        "accumulateOuterFragmentSettings.schedule", popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
    )
    options.syncPattern(popart.SyncPattern.SinglePipeline)
    assert poptorch.inferenceModel(torch.nn.ReLU(), options)(torch.tensor([-1.0, 1.0])).tolist() == [0.0, 1.0]


def test_anything_else_is_not_there() -> None:
    assert popart.__version__ == poptorch.__version__
    assert not hasattr(popart, "Builder")
    with pytest.raises(AttributeError, match=r"compatibility package.*no 'Builder'"):
        popart.Builder()
    with pytest.raises(ImportError):
        from popart import TrainingSession  # noqa: F401
