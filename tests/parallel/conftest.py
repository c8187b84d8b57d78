"""Makes the models of this folder importable by its tests, which run micro-batches one by one unless they say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then schedules show every micro-batch."""
    monkeypatch.setenv("POPTORCH_GROUP", "1")
