"""Attributes of an optimizer that nothing reads: reported when they turn up after the model was wrapped."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from poptorch._logging import logger
from poptorch.optim.reading import group_attribute_names, optimizer_attribute_names, optimizer_type

_NEVER_REPORTED = {
    "defaults",
    "state",
    "param_groups",
    "variable_attrs",
    "ipu_state_is_dirty",
    "host_state_is_dirty",
}

_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}
"""What torch's schedulers of learning rates note in groups, for themselves."""

_OF_EVERY_OPTIMIZER = {"step"}
"""A method: schedulers put one that counts its calls on the object."""


class UnexpectedAttributes:
    """What one executor expects of its optimizers: the names that the first of them had.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> watcher = UnexpectedAttributes()
    >>> watcher.check(optimizer, relaxed=False)
    []
    >>> optimizer.param_groups[0]["warmth"] = 0.1
    >>> watcher.check(optimizer, relaxed=False)
    ["Ignoring unexpected group 0 attribute in SGD2 optimizer: ['warmth']"]
    """

    def __init__(self) -> None:
        self._optimizer_names: set[str] | None = None
        self._group_names: set[str] = set()
        self._said: set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer, *, relaxed: bool) -> list[str]:
        """Log names that the first optimizer did not have, each text once; returns the texts logged now.

        ``relaxed`` is ``options.relaxOptimizerAttributesChecks``: the texts go to debug instead of warning
        level.
        """
        if self._optimizer_names is None:
            self._optimizer_names = _names(optimizer)
            self._group_names = set(optimizer.defaults).union(*optimizer.param_groups)
            return []
        kind = optimizer_type(optimizer)
        known_to_groups = self._group_names.union(
            group_attribute_names(kind), ("params", "param_names"), _OF_SCHEDULERS
        )
        known_to_optimizer = self._optimizer_names.union(optimizer_attribute_names(kind), _OF_EVERY_OPTIMIZER)
        found = [("default group variable", set(optimizer.defaults) - known_to_groups)]
        for index, group in enumerate(optimizer.param_groups):
            found.append((f"group {index} attribute", set(group) - known_to_groups))
        found.append(("optimizer attribute", _names(optimizer) - known_to_optimizer))
        texts = [f"Ignoring unexpected {what} in {kind.name} optimizer: {sorted(n)}" for what, n in found if n]
        return self._say(texts, logging.DEBUG if relaxed else logging.WARNING)

    def _say(self, texts: Iterable[str], level: int) -> list[str]:
        new = [text for text in texts if text not in self._said]
        for text in new:
            self._said.add(text)
            logger.log(level, "%s", text)
        return new


def _names(optimizer: torch.optim.Optimizer) -> set[str]:
    """Public names on the object itself; torch keeps its own under private ones."""
    return {name for name in vars(optimizer) if not name.startswith("_")} - _NEVER_REPORTED
