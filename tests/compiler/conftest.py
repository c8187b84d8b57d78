"""What holds for the tests of this folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs and code are looked at as those of single micro-batches."""
    monkeypatch.setenv("POPTORCH_GROUP", "1")
