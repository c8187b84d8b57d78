"""What would make a model fit: worked out from what is in memory at the fullest moment."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch.ipu_model.flow import Flow
from poptorch.ipu_model.memory import IpuMemory


def suggestions_for(flow: Flow, ipus: Sequence[IpuMemory]) -> list[str]:
    """One line for each way, those that save most first."""
    return []


__all__ = ["suggestions_for"]
