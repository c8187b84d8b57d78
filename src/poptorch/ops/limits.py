"""Limits that the original has and this implementation does not, for those who ask for them.

``Options.strictCompatibility(True)`` is for people who prepare code for hardware: what would fail there fails
here.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from poptorch.errors import createPoptorchError

_CTC_LOSS = inspect.signature(F.ctc_loss)


class OriginalLimits(TorchFunctionMode):
    """Refuses torch functions that the original could not compile; active while a strict model is captured."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.ctc_loss:
            _check_ctc_loss(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _check_ctc_loss(*args: Any, **kwargs: Any) -> None:
    given = _CTC_LOSS.bind(*args, **kwargs)
    given.apply_defaults()
    if given.arguments["reduction"] == "none":
        raise createPoptorchError(
            'CTCLoss with reduction="none" is currently not supported. Use "sum" or "mean", or switch '
            "strictCompatibility off."
        )
    targets = given.arguments["targets"]
    if targets.dim() != 2:
        raise createPoptorchError(
            f"CTCLoss needs 2-D targets (batch, longest target), padded; got shape {list(targets.shape)}. "
            "Pad them, or switch strictCompatibility off."
        )
