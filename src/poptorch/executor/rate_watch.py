"""A learning rate that was changed in the optimizer object, and not passed on: the device has the one from before."""

from __future__ import annotations

from typing import Any

import torch

from poptorch.frames import warn_user


class RateWatch:
    """Compares the learning rates of an optimizer with those that the device was given; speaks once.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> watch = RateWatch()
    >>> watch.given(optimizer)
    >>> watch.changed()
    >>> optimizer.param_groups[0]["lr"] = 0.01
    >>> watch.changed()
    (0, 0.1, 0.01)
    """

    def __init__(self) -> None:
        self._given: list[tuple[dict[str, Any], Any]] = []

    def given(self, optimizer: torch.optim.Optimizer) -> None:
        """The device has the rates that the optimizer has now."""
        self._given = [(group, group.get("lr")) for group in optimizer.param_groups]

    def changed(self) -> tuple[int, Any, Any] | None:
        """The first group whose rate is another one now: its number, the rate of the device, the new rate."""
        for index, (group, rate) in enumerate(self._given):
            new = group.get("lr")
            if new is not rate and not isinstance(new, torch.Tensor) and new != rate:
                return index, rate, new
        return None

    def check(self) -> None:
        """Say that a rate was changed; to be called before the device runs."""
        found = self.changed()
        if found is not None:
            index, rate, new = found
            self._given = []
            warn_user(
                f"The learning rate of the optimizer (group {index}) is {new} now; the IPU still trains with {rate}. "
                "Pass the optimizer on after each change, also after each step of a scheduler: "
                "training_model.setOptimizer(optimizer)."
            )
