"""Taking nested Python structures apart into tensors, and putting them together again.

One walker serves call arguments, outputs and data batches: tuples, lists, dictionaries, named tuples, data classes,
everything registered with torch's pytree (Hugging Face ``ModelOutput`` among them), types with a custom argument
parser, and objects with tensors in their attributes, at any depth. All else is a constant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from poptorch import arg_parsers
from poptorch.capture.objects import attributes_of, holds_tensors, with_attributes
from poptorch.errors import createPoptorchError


@dataclasses.dataclass(frozen=True)
class TensorLeaf:
    """Stands for the ``index``-th tensor."""

    index: int


@dataclasses.dataclass(frozen=True)
class ConstantLeaf:
    """A value that is repeated as it was."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Branch:
    """A container: its type, the labels of its children (for messages), the children, and how to rebuild it."""

    kind: type
    labels: tuple[Any, ...]
    children: tuple[Structure, ...]
    build: Callable[[Sequence[Any]], Any]


Structure = TensorLeaf | ConstantLeaf | Branch


def flatten(value: Any) -> tuple[list[torch.Tensor], Structure]:
    """The tensors found in ``value``, depth first, and the structure around them.

    >>> import torch
    >>> tensors, structure = flatten({"a": torch.zeros(2), "b": (torch.ones(1), "x")})
    >>> len(tensors), unflatten(structure, tensors)["b"][1]
    (2, 'x')
    """
    tensors: list[torch.Tensor] = []
    return tensors, _describe(value, tensors)


def unflatten(structure: Structure, tensors: Sequence[Any]) -> Any:
    """The inverse of :func:`flatten`, with other values in the tensors' places."""
    if isinstance(structure, TensorLeaf):
        return tensors[structure.index]
    if isinstance(structure, ConstantLeaf):
        return structure.value
    return structure.build([unflatten(child, tensors) for child in structure.children])


def _describe(value: Any, tensors: list[torch.Tensor], around: tuple[int, ...] = ()) -> Structure:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TensorLeaf(len(tensors) - 1)
    split = children_of(value)
    if split is None:
        return ConstantLeaf(value)
    if id(value) in around:
        kind = type(value)
        raise createPoptorchError(
            f"A {kind.__module__}.{kind.__qualname__} among the arguments or results of the model contains itself. "
            "Pass the tensors that it holds, or teach this type with poptorch.registerCustomArgParser."
        )
    labels, items, build = split
    inner = (*around, id(value))
    return Branch(type(value), labels, tuple(_describe(item, tensors, inner) for item in items), build)


Split = tuple[tuple[Any, ...], Sequence[Any], Callable[[Sequence[Any]], Any]]


def children_of(value: Any) -> Split | None:
    """Labels, children and rebuilding function of a container; ``None`` for anything else."""
    kind = type(value)
    parser = arg_parsers.parser_for(kind)
    if parser is not None:
        found = list(parser.yieldTensors(value))
        return tuple(range(len(found))), found, lambda items: parser.reconstruct(value, iter(items))
    if kind in (tuple, list):
        return tuple(range(len(value))), value, kind
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value._fields), value, lambda items: kind(*items)
    if kind in pytree.SUPPORTED_NODES:
        items, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        labels = tuple(value) if isinstance(value, Mapping) else tuple(range(len(items)))
        return labels, items, lambda new: pytree.SUPPORTED_NODES[kind].unflatten_fn(list(new), context)
    if isinstance(value, Mapping):
        return tuple(value), list(value.values()), _mapping_builder(value)
    if isinstance(value, (tuple, list)):
        return tuple(range(len(value))), list(value), lambda items: kind(items)
    if _is_plain_dataclass(value):
        return _dataclass_children(value)
    attributes = attributes_of(value)
    if attributes is None or not holds_tensors(attributes):
        return None
    names = tuple(attributes)
    return names, list(attributes.values()), lambda items: with_attributes(value, names, items)


def _mapping_builder(value: Mapping[Any, Any]) -> Callable[[Sequence[Any]], Any]:
    keys, kind = list(value), type(value)

    def build(items: Sequence[Any]) -> Any:
        pairs = list(zip(keys, items, strict=True))
        try:
            return kind(pairs)  # type: ignore[call-arg]
        except TypeError:
            return dict(pairs)  # a mapping with a constructor of its own

    return build


def _is_plain_dataclass(value: Any) -> bool:
    """Whether the constructor of a data class takes all that it holds."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return all(field.init for field in dataclasses.fields(value))


def _dataclass_children(value: Any) -> Split:
    names = tuple(f.name for f in dataclasses.fields(value) if f.init)
    kind = type(value)
    return names, [getattr(value, n) for n in names], lambda new: kind(**dict(zip(names, new, strict=True)))


def walk(structure: Structure, path: str = "") -> Iterator[tuple[str, TensorLeaf | ConstantLeaf]]:
    """Every leaf with its path, written as users write it: ``x[0][key]``."""
    if isinstance(structure, Branch):
        for label, child in zip(structure.labels, structure.children, strict=True):
            yield from walk(child, f"{path}[{label}]")
    else:
        yield path, structure


def check_output_leaves(structure: Structure) -> None:
    """Refuse results with tensors that cannot be replaced: they would be returned as they were during capture."""
    for path, leaf in walk(structure, "output"):
        if isinstance(leaf, ConstantLeaf) and holds_tensors(leaf.value):
            kind = type(leaf.value)
            raise createPoptorchError(
                f"The model returns a {kind.__module__}.{kind.__qualname__} ({path}), which contains tensors that "
                "cannot be found: return tensors, tuples, lists, dictionaries, named tuples, data classes or objects "
                "with tensors in their attributes, or teach this type with poptorch.registerCustomArgParser."
            )
