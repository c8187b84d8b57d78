"""``Options._Popart``: settings handed to the backend as they are, checked when a model is compiled."""

from __future__ import annotations

from typing import Any

from poptorch.options.containers import Freezable
from poptorch.options.setters import PopartSetters


class _PopartOptions(PopartSetters, Freezable):
    """A dictionary of backend settings. Which keys exist is in :mod:`poptorch.options.backend_keys`.

    >>> popart = _PopartOptions()
    >>> popart.set("enableStableNorm", True)
    _PopartOptions(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False,
    enableStableNorm=True)
    """

    def __init__(self) -> None:
        self.options: dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"
