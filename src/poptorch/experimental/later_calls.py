"""Calls of a captured function after the first one: their tensors, in the order of the program.

What was no tensor at the first call is a constant of the program for ever, also a list that the function has filled, or
an optimizer that it has put somewhere, since then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from poptorch._logging import logger
from poptorch.capture.objects import holds_tensors
from poptorch.capture.structure import Branch, ConstantLeaf, Structure, TensorLeaf, children_of
from poptorch.errors import createPoptorchError
from poptorch.experimental.arguments import CONTAINERS, Arguments

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype)
"""Constants that can be compared between calls: others may be changed by the function."""


class LaterCalls:
    """Compares calls with the first one."""

    def __init__(self, function: Callable[..., Any], first: Arguments) -> None:
        self._function = function
        self._first = first
        self._positional, self._keyword = first.structure.children
        self._filled = {id(c): c.copy() for c in first.constants() if isinstance(c, CONTAINERS)}
        """What containers were before the function ran, by their identity."""

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The call with its own tensors and the first call's constants; an error if it has another structure."""
        args, kwargs = self._in_the_form_of_the_first(args, kwargs)
        found: list[Any] = [None] * len(self._first.tensors)
        self._match(self._positional, tuple(args), "args", found)
        self._match(self._keyword, dict(kwargs), "kwargs", found)
        later = self._first.with_tensors(found)
        for index in self._first.state:
            if found[index] is not self._first.tensors[index]:
                _refuse(f"{self._first.paths[index]} is another tensor than that of the model, which it was")
        if later.stand_for() != self._first.stand_for():
            _refuse("A tensor with requires_grad=True is given for several arguments, and was not, or the other way")
        return later

    def _in_the_form_of_the_first(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """What went by position at the first call does, and what went by name; defaults take the place of the rest."""
        assert isinstance(self._positional, Branch)
        assert isinstance(self._keyword, Branch)
        count, names = len(self._positional.children), self._keyword.labels
        if len(args) == count and kwargs.keys() == set(names):
            return args, kwargs
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):  # a function that is not written in Python
            _refuse(f"{len(args)} positional arguments and the names {list(kwargs)} are given, not {count} and {names}")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        by_position = [p.name for p in signature.parameters.values() if p.kind in _POSITIONAL][:count]
        if len(by_position) < count or any(name not in values for name in names):
            _refuse(f"{len(args)} positional arguments and the names {list(kwargs)} are given, not {count} and {names}")
        for name in values.keys() - {*by_position, *names}:
            parameter = signature.parameters[name]
            if parameter.kind not in _VARIADIC:
                self._match(ConstantLeaf(parameter.default), values[name], name, [])
        return [values[name] for name in by_position], {name: values[name] for name in names}

    def _match(self, expected: Structure, value: Any, path: str, found: list[Any]) -> None:
        if isinstance(expected, ConstantLeaf):
            self._match_constant(expected.value, value, path)
        elif isinstance(expected, TensorLeaf):
            if not isinstance(value, torch.Tensor):
                _refuse(f"{path} is {_what(value)}, and was a tensor")
            found[expected.index] = value
        else:
            self._match_branch(expected, value, path, found)

    def _match_branch(self, expected: Branch, value: Any, path: str, found: list[Any]) -> None:
        split = children_of(value) if type(value) is expected.kind else None
        if split is None:
            _refuse(f"{path} is {_what(value)}, and was {_with_article(expected.kind)}")
        labels, items, _ = split
        if isinstance(value, Mapping) and set(labels) == set(expected.labels):
            items = [value[label] for label in expected.labels]
        elif labels != expected.labels:
            _refuse(f"{path} has {_items(labels, value)}, and had {_items(expected.labels, value)}")
        for label, child, item in zip(expected.labels, expected.children, items, strict=True):
            self._match(child, item, f"{path}[{label}]", found)

    def _match_constant(self, before: Any, value: Any, path: str) -> None:
        if value is before:
            return
        if not isinstance(value, _PLAIN) and holds_tensors(value):
            _refuse(f"{path} is {_what(value)}, and was {_what(before)}, without tensors")
        compared = self._filled.get(id(before), before)
        if _is_plain(compared) and _is_plain(value) and not _same(compared, value):
            logger.warning(
                "%s is %r, but the function was captured with %r, which is frozen into the program. Capture the "
                "function again, with a new IPUContext, for other values.",
                path,
                value,
                compared,
            )


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_plain(value: Any) -> bool:
    if isinstance(value, CONTAINERS):
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        return all(_is_plain(item) for item in items)
    return isinstance(value, _PLAIN)


def _same(before: Any, value: Any) -> bool:
    return (type(before) is type(value) and before == value) or (before != before and value != value)


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return repr(value) if isinstance(value, _PLAIN) else _with_article(type(value))


def _with_article(kind: type) -> str:
    return f"a {kind.__qualname__}"


def _items(labels: Sequence[Any], value: Any) -> str:
    return f"the keys {list(labels)}" if isinstance(value, Mapping) else f"{len(labels)} items"


def _refuse(what: str) -> NoReturn:
    raise createPoptorchError(
        f"{what} when the function was captured. Call it with arguments of the same form, or capture the function "
        "again, with a new IPUContext."
    )
