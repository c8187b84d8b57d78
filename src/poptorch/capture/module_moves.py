"""``module.to("ipu")`` while a model is captured.

Its tensors are on the device already, and :meth:`torch.nn.Module.to` cannot replace the stand-ins of parameters. It is
no torch function, so no mode sees it: the method itself is replaced. Only one thread captures at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from poptorch import ambient
from poptorch.capture.device_names import is_device_name

_to, _ipu = nn.Module.to, nn.Module.ipu


@functools.wraps(_to)
def _moved_to(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    names_device = any(map(is_device_name, args)) or is_device_name(kwargs.get("device"))
    if ambient.current() is not None and names_device:
        args = tuple(a for a in args if not is_device_name(a))
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        if not args and not kwargs:
            return self
    return _to(self, *args, **kwargs)


@functools.wraps(_ipu)
def _moved_to_ipu(self: nn.Module, device: Any = None) -> Any:
    return self if ambient.current() is not None else _ipu(self, device)


@contextmanager
def module_moves() -> Iterator[None]:
    """In here, modules may be moved to the device under capture."""
    before = nn.Module.to, nn.Module.ipu
    nn.Module.to, nn.Module.ipu = _moved_to, _moved_to_ipu  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.to, nn.Module.ipu = before  # type: ignore[method-assign]
