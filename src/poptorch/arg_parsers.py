"""How values of the user's own classes are taken apart into tensors and put together again."""

from __future__ import annotations

import abc
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from poptorch.errors import createPoptorchError


class ICustomArgParser(abc.ABC):
    """Teaches the package to pass values of one class into and out of a model.

    >>> class Pair:
    ...     def __init__(self, left, right):
    ...         self.left, self.right = left, right
    >>> class PairParser(ICustomArgParser):
    ...     def yieldTensors(self, struct):
    ...         yield struct.left
    ...         yield struct.right
    ...     def reconstruct(self, original_structure, tensor_iterator):
    ...         return Pair(next(tensor_iterator), next(tensor_iterator))
    >>> registerCustomArgParser(Pair, PairParser())
    >>> registerCustomArgParser(Pair, None)
    """

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterable[torch.Tensor]:
        """Yield every tensor of ``struct``, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Build a value like ``original_structure`` from the next tensors, ordered as in ``yieldTensors``."""


_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Use ``arg_parser`` for values of ``arg_data_type`` and its subclasses; ``None`` removes the parser.

    A parser registered for the type before is replaced.

    >>> registerCustomArgParser(dict, "not a parser")
    Traceback (most recent call last):
    ...
    poptorch.errors.Error: 'poptorch_py_error': arg_parser must inherit from ICustomArgParser ...
    """
    if arg_parser is None:
        _parsers.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise createPoptorchError(
            "arg_parser must inherit from ICustomArgParser, got "
            f"{arg_parser!r} of type {type(arg_parser).__name__}. "
            "Derive its class from poptorch.ICustomArgParser and pass an instance."
        )
    _parsers[arg_data_type] = arg_parser


def parser_for(value_type: type) -> ICustomArgParser | None:
    """The parser for ``value_type``: that of the very type, else that of the first base class registered."""
    if _pending:
        _register_for_imported()
    exact = _parsers.get(value_type)
    if exact is not None:
        return exact
    return next((parser for base, parser in _parsers.items() if issubclass(value_type, base)), None)


def register_with(library: str, register: Callable[[], None]) -> None:
    """Call ``register`` as soon as the program has imported ``library``: before that, no value needs its parsers.

    >>> register_with("a_library_that_nobody_imports", lambda: print("never"))
    >>> parser_for(int)
    """
    _pending.setdefault(library, []).append(register)


def registerGeometricCustomArgParsers() -> None:
    """Load ``poptorch_geometric``, which registers the parsers of graphs, if the program uses PyG.

    A program that does not is not kept waiting for it.
    """
    _register_for_imported([_GEOMETRIC])


def _register_for_imported(libraries: Iterable[str] | None = None) -> None:
    for name in list(_pending if libraries is None else libraries):
        if name in sys.modules:
            for register in _pending.pop(name, []):
                register()


def _load_geometric() -> None:
    name = "poptorch_geometric"
    if name not in sys.modules:  # else it is on its way: it imports this package first
        with contextlib.suppress(ImportError):
            importlib.import_module(f"{name}.types")


_GEOMETRIC = "torch_geometric"
_pending: dict[str, list[Callable[[], None]]] = {_GEOMETRIC: [_load_geometric]}
"""What registers the parsers of a library as soon as it is there."""
