"""The arguments of a captured function: tensors are inputs of the program, everything else is passed on as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from poptorch.capture.arguments import BoundCall
from poptorch.capture.structure import Branch, ConstantLeaf, Structure, flatten, unflatten, walk

CONTAINERS = (list, dict, set)
"""What a function may fill."""


def check_dense(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse sparse tensors, which no program takes."""
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise ValueError("You cannot pass sparse tensors as inputs to IPUScope.")


def collects_gradient(tensor: torch.Tensor) -> bool:
    """Whether a backward pass in the function adds to the ``grad`` of an argument, as it does in eager mode."""
    return tensor.requires_grad and tensor.is_leaf


@dataclass(frozen=True)
class Arguments:
    """One call of a function, taken apart.

    >>> call = Arguments.of((torch.ones(2), [1, 2]), {"dim": 0})
    >>> [path for path in call.paths], call.rebuild([7])
    (['args[0]'], ((7, [1, 2]), {'dim': 0}))
    """

    tensors: tuple[torch.Tensor, ...]
    structure: Branch
    """Of positional and of named arguments."""

    paths: tuple[str, ...]
    """Where each tensor is in the call, for messages."""

    state: frozenset[int] = frozenset()
    """Positions of the tensors that are state of the program, and no inputs in truth."""

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any], state: Sequence[torch.Tensor] = ()) -> Arguments:
        """Take a call apart. A container without tensors stays the very object that the caller passed.

        ``state`` are the tensors that live on the device.
        """
        tensors, structure = flatten((tuple(args), dict(kwargs)))
        check_dense(tensors)
        assert isinstance(structure, Branch)
        positional, keyword = map(_with_items_kept, structure.children, (tuple(args), dict(kwargs)))
        kept = replace(structure, children=(positional, keyword))
        leaves = [*walk(positional, "args"), *walk(keyword, "kwargs")]
        paths = tuple(path for path, leaf in leaves if not isinstance(leaf, ConstantLeaf))
        held = {id(tensor) for tensor in state}
        return Arguments(
            tuple(tensors), kept, paths, frozenset(i for i, tensor in enumerate(tensors) if id(tensor) in held)
        )

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Arguments:
        """A later call with other tensors; all else is as it was at this one."""
        check_dense(tensors)
        return replace(self, tensors=tuple(tensors))

    def leaves(self) -> tuple[int, ...]:
        """Positions of the tensors with a ``grad`` for the function to add to, each tensor once."""
        first: dict[int, int] = {}
        for index, tensor in enumerate(self.tensors):
            if collects_gradient(tensor) and index not in self.state:
                first.setdefault(id(tensor), index)
        return tuple(first.values())

    def stand_for(self) -> tuple[int, ...]:
        """For each tensor the position of the one that collects its gradient: its own, but for a leaf passed twice."""
        first = {id(self.tensors[index]): index for index in self.leaves()}
        return tuple(first.get(id(tensor), index) for index, tensor in enumerate(self.tensors))

    def constants(self) -> list[Any]:
        """What is no tensor."""
        return [leaf.value for _, leaf in walk(self.structure) if isinstance(leaf, ConstantLeaf)]

    def emptied(self) -> Callable[[], None]:
        """A function that takes out of the containers what was filled into them since now."""
        before = [(c, c.copy()) for c in self.constants() if isinstance(c, CONTAINERS)]

        def restore() -> None:
            for container, contents in before:
                if isinstance(container, list):
                    container[:] = contents
                else:
                    container.clear()
                    container.update(contents)

        return restore

    def call(self, gradients: Sequence[int] = ()) -> BoundCall:
        """The tensors as the arguments of a module; autograd outside of the function has no part in them.

        They are followed by what the ones at the positions ``gradients`` have in their ``grad``.
        """
        paths = (*self.paths, *(f"{self.paths[index]}.grad" for index in gradients))
        tensors = [*self.tensors, *(_gradient_of(self.tensors[index]) for index in gradients)]
        return BoundCall(paths, tuple(t.detach() for t in tensors), {})

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with other tensors."""
        args, kwargs = unflatten(self.structure, tensors)
        return args, kwargs


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _with_items_kept(structure: Structure, value: Any) -> Branch:
    """The structure of a container, with those of its items as below."""
    assert isinstance(structure, Branch)
    items = list(value.values()) if isinstance(value, dict) else list(value)
    children = tuple(_with_own_containers(c, v) for c, v in zip(structure.children, items, strict=True))
    return replace(structure, children=children)


def _with_own_containers(structure: Structure, value: Any) -> Structure:
    """The structure with every container that holds no tensor as a constant."""
    if not isinstance(structure, Branch):
        return structure
    if type(value) not in (tuple, list, dict):
        return structure
    if isinstance(value, CONTAINERS) and all(isinstance(leaf, ConstantLeaf) for _, leaf in walk(structure)):
        return ConstantLeaf(value)
    return _with_items_kept(structure, value)
