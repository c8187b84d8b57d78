"""How the results of operations are rounded and watched, beside what the operations say themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Numerics:
    """What ``Options.Precision`` asks of every operation of a program.

    >>> Numerics.of({"enableStochasticRounding": True})
    Numerics(stochastic_rounding=True, exceptions=False)
    """

    stochastic_rounding: bool = False
    """Round float16 results up or down at random, so that the expectation is the exact value."""

    exceptions: bool = False
    """Stop with an error where a value overflows or an operation is invalid."""

    @staticmethod
    def of(backend_options: Mapping[str, Any]) -> Numerics:
        """Read them from the backend's options."""
        return Numerics(
            bool(backend_options.get("enableStochasticRounding", False)),
            bool(backend_options.get("enableFloatingPointChecks", False)),
        )

    @property
    def plain(self) -> bool:
        """Whether operations run as they are."""
        return not (self.stochastic_rounding or self.exceptions)
