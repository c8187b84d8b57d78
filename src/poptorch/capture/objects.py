"""Objects that hold tensors in plain attributes: caches of language models, results of libraries, classes of the user.

They are taken apart and put together attribute by attribute. What cannot be taken apart is found by the references that
Python's garbage collector knows, so that no tensor of a capture reaches the user.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_OPAQUE = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, nn.Module, torch.Tensor,
    torch.Generator, torch.device, torch.dtype, torch.Size, str, bytes, int, float, complex,
    Optimizer, LRScheduler,
)  # fmt: skip
"""What is never taken apart: an optimizer holds the user's own parameters, not arguments."""
_LIMIT = 100_000  # objects to look at: what holds more is no argument of a model


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that may be made again from them; ``None`` for anything else.

    >>> class Point:
    ...     def __init__(self):
    ...         self.x = 1
    >>> attributes_of(Point()), attributes_of(3), attributes_of(Point)
    ({'x': 1}, None, None)
    """
    if isinstance(value, _OPAQUE) or not _is_made_by_python(type(value)):
        return None
    found = dict(getattr(value, "__dict__", {}))
    for name in _slots(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found or None


def _is_made_by_python(kind: type) -> bool:
    """Whether attributes are all there is: the class and its bases are written in Python."""
    return all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__) and kind.__basicsize__ < 1024


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and name[-2:] != "__" else name


def with_attributes(value: Any, names: Sequence[str], items: Sequence[Any]) -> Any:
    """An object of the same class with these attributes; its constructor does not run."""
    made = object.__new__(type(value))
    for name, item in zip(names, items, strict=True):
        object.__setattr__(made, name, item)
    return made


def holds_tensors(value: Any) -> bool:
    """Whether a tensor can be reached from an object, by whatever way.

    >>> import functools
    >>> holds_tensors([{1: functools.partial(print, torch.zeros(1))}]), holds_tensors({"a": [1, "b"]})
    (True, False)
    """
    return any(isinstance(item, torch.Tensor) for item in reachable([value]))


def reachable(values: Iterable[Any]) -> Iterator[Any]:
    """The values and all that they refer to, each once; the insides of modules, classes and globals are left out."""
    todo = list(values)
    seen: set[int] = set()
    while todo and len(seen) < _LIMIT:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, types.FunctionType):
            todo += [*(value.__closure__ or ()), *(value.__defaults__ or ())]
        elif isinstance(value, types.MethodType):
            todo += [value.__self__, value.__func__]
        elif not isinstance(value, _OPAQUE):
            todo += gc.get_referents(value)


@contextmanager
def contents_kept(values: Iterable[Any]) -> Iterator[None]:
    """Constants that ``forward`` fills with tensors of its capture are as before afterwards."""
    before = [(value, contents) for value in reachable(values) if (contents := _contents(value)) is not None]
    try:
        yield
    finally:
        if any(isinstance(item, FakeTensor) for item in reachable(value for value, _ in before)):
            for value, contents in before:
                _restore(value, contents)


def _contents(value: Any) -> Any:
    if isinstance(value, (list, dict, set)):
        return value.copy()
    return attributes_of(value)


def _restore(value: Any, contents: Any) -> None:
    if isinstance(value, list):
        value[:] = contents
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(contents)
    else:
        for name in attributes_of(value) or ():
            if name not in contents:
                object.__delattr__(value, name)
        for name, item in contents.items():
            object.__setattr__(value, name, item)
