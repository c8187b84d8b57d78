"""``ArgsParser``: the arguments of a call in the order of the parameters of ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from poptorch.errors import createPoptorchError


class ArgsParser:
    """Matches arguments with the parameters of a model's ``forward``.

    A subclass may set the four attributes itself instead of calling this constructor. The executor binds its arguments
    by the same rules, with a parser of its own.

    >>> import torch
    >>> class Scale(torch.nn.Module):
    ...     def forward(self, x, factor=2):
    ...         return x * factor
    >>> ArgsParser(Scale())((1,), {})
    (1, 2)
    """

    def __init__(self, model: Any, tracing: bool = False) -> None:
        """``tracing`` is there for programs that pass it: the rules are the same."""
        parameters = inspect.signature(model.forward).parameters.values()
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [parameter for parameter in parameters if parameter.kind not in variadic]
        self._has_variadic_arguments = len(named) < len(parameters)
        self._varnames = [parameter.name for parameter in named]
        self._defaults = [parameter.default for parameter in named]
        self._warned_not_contiguous_input = False

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any], fast_path: bool = False) -> tuple[Any, ...]:
        """One value for each parameter, in order; then what ``*args`` and ``**kwargs`` of ``forward`` would get."""
        if not self._has_variadic_arguments:
            assert len(args) + len(kwargs) <= len(self._varnames), (
                f"Too many arguments provided: expected {self._varnames} ({len(self._varnames)}) but got "
                f"{len(args) + len(kwargs)}"
            )
            unknown = [name for name in kwargs if name not in self._varnames]
            assert not unknown, f"{unknown[:1]} is not a valid parameter. Expected one of {self._varnames}"
        values = [*args[: len(self._varnames)]]
        for name in self._varnames[: len(values)]:
            assert name not in kwargs, f"{name} was passed more than once: by position and by name"
        for name, default in list(zip(self._varnames, self._defaults, strict=True))[len(values) :]:
            value = kwargs.get(name, default)
            if value is inspect.Parameter.empty:
                raise createPoptorchError(f"Mandatory parameter {name} missing")
            values.append(value)
        others = [value for name, value in kwargs.items() if name not in self._varnames]
        return (*values, *args[len(self._varnames) :], *others)
