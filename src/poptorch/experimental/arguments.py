"""The arguments of a captured function: tensors are inputs of the program, everything else is passed on as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from poptorch._logging import logger
from poptorch.capture.arguments import BoundCall
from poptorch.capture.structure import Branch, ConstantLeaf, Structure, flatten, unflatten, walk

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype)
"""Constants that can be compared between calls: others may be changed by the function."""

_CONTAINERS = (list, dict, set)


def check_dense(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse sparse tensors, which no program takes."""
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise ValueError("You cannot pass sparse tensors as inputs to IPUScope.")


@dataclass(frozen=True)
class Arguments:
    """One call of a function, taken apart.

    >>> call = Arguments.of((torch.ones(2), [1, 2]), {"dim": 0})
    >>> [path for path in call.paths], call.rebuild([7])
    (['args[0]'], ((7, [1, 2]), {'dim': 0}))
    """

    tensors: tuple[torch.Tensor, ...]
    structure: Structure
    paths: tuple[str, ...]
    """Where each tensor is in the call, for messages."""

    filled: list[tuple[Any, Any]] = field(default_factory=list, repr=False)
    """Containers without tensors, and what they contained before the function ran."""

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Take a call apart. A container without tensors stays the very object that the caller passed."""
        tensors, structure = flatten((tuple(args), dict(kwargs)))
        check_dense(tensors)
        kept = _with_own_containers(structure, (tuple(args), dict(kwargs)))
        assert isinstance(kept, Branch)
        positional, keyword = kept.children
        leaves = [*walk(positional, "args"), *walk(keyword, "kwargs")]
        paths = tuple(path for path, leaf in leaves if not isinstance(leaf, ConstantLeaf))
        containers = [leaf.value for _, leaf in leaves if isinstance(leaf, ConstantLeaf)]
        filled = [(c, c.copy()) for c in containers if isinstance(c, _CONTAINERS)]
        return Arguments(tuple(tensors), kept, paths, filled)

    def call(self) -> BoundCall:
        """The tensors as the arguments of a module; autograd outside of the function has no part in them."""
        return BoundCall(self.paths, tuple(t.detach() for t in self.tensors), {})

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with other tensors. Containers that an earlier attempt filled are as the caller passed them."""
        for container, before in self.filled:
            if isinstance(container, list):
                container[:] = before
            else:
                container.clear()
                container.update(before)
        args, kwargs = unflatten(self.structure, tensors)
        return args, kwargs

    def warn_of_changes(self, later: Arguments) -> None:
        """Tell of plain values that differ from those of the compilation: the program has the old ones."""
        before = dict(_plain_values(self.structure))
        for path, value in _plain_values(later.structure):
            if path in before and type(before[path]) is type(value) and before[path] != value:
                logger.warning(
                    "%s is %r, but the function was captured with %r, which is frozen into the program. Capture the "
                    "function again, with a new IPUContext, for other values.",
                    path,
                    value,
                    before[path],
                )


def _plain_values(structure: Structure) -> list[tuple[str, Any]]:
    leaves = ((p, leaf.value) for p, leaf in walk(structure, "arguments") if isinstance(leaf, ConstantLeaf))
    return [(path, value) for path, value in leaves if isinstance(value, _PLAIN) and value == value]


def _with_own_containers(structure: Structure, value: Any) -> Structure:
    """The structure with every container that holds no tensor as a constant."""
    if not isinstance(structure, Branch):
        return structure
    if type(value) not in (tuple, list, dict):
        return structure
    if isinstance(value, _CONTAINERS) and all(isinstance(leaf, ConstantLeaf) for _, leaf in walk(structure)):
        return ConstantLeaf(value)
    items = list(value.values()) if isinstance(value, dict) else list(value)
    children = tuple(_with_own_containers(c, v) for c, v in zip(structure.children, items, strict=True))
    return Branch(structure.kind, structure.labels, children, structure.build)
