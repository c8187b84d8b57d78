"""Functions that run other functions, seen from modes that look at whole torch functions.

While such a mode handles a call, it and those above it are off. What runs inside the call would escape all of them. So
each hands such a call on with a note of itself, and the one that carries it out puts all of them back in force.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode


class _Passed(threading.local):
    def __init__(self) -> None:
        self.modes: list[TorchFunctionMode] = []


_passed = _Passed()


def runs_functions(func: Any) -> bool:
    """Whether a torch function is one of those that take functions of the user, and run them."""
    return isinstance(func, HigherOrderOperator)


def hand_on(mode: TorchFunctionMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call such a function from ``mode``, for another mode below it to carry out."""
    _passed.modes.append(mode)
    try:
        return func(*args, **kwargs)
    finally:
        _passed.modes.pop()


@contextmanager
def in_force(mode: TorchFunctionMode) -> Iterator[None]:
    """``mode``, and those that handed the call on to it, see what runs inside."""
    modes, _passed.modes = [mode, *reversed(_passed.modes)], []
    before = list(reversed(modes[1:]))
    for each in modes:
        _push_mode(each)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()
        _passed.modes = before
