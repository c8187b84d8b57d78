"""The functions and classes that stored code may name: these and no others.

A function that native code consists of is made by another one, its *maker*, and holds on to values. The stored form
says which maker it is from. A new function in native code needs its maker here; without, every process compiles that
code, and the tests of the executable cache fail.
"""

from __future__ import annotations

import enum
import importlib
import types
from collections.abc import Mapping
from typing import Any

from poptorch.host.store.kernel_files import NotPortable

MAKERS = {
    "poptorch.host.factoring": ("_handing_products", "_returning_products"),
    "poptorch.host.native.code": (
        "_forward", "_handing_at_the_end", "_in_one_graph", "_in_two_graphs", "_key_of", "_start", "_with_groups",
        "_with_update", "generate_native_step", "generate_native_update",
    ),
    "poptorch.host.native.outlining": ("_driver",),
}  # fmt: skip
"""Functions whose inner functions may be restored, by module. They themselves are not called."""

CLASSES = {
    "poptorch.host.native.forward_backward": ("InputView",),
    "poptorch.host.native.frozen": ("_Code",),
    "poptorch.host.native.outlining": ("_Call",),
    "poptorch.host.native.preparation": ("Preparation",),
}
"""Classes of which objects may be restored."""

METHODS = {("poptorch.host.native.frozen", "_Code"): ("run",)}
"""Methods of these that may stand for a function."""

ENUMERATIONS = {"poptorch.program.program": ("Role",)}


def maker(module: str, name: str) -> types.FunctionType:
    """A function whose inner functions may be named."""
    found: types.FunctionType = _found(MAKERS, module, name, types.FunctionType)
    return found


def class_of(module: str, name: str) -> Any:
    """A class of which there may be objects."""
    return _found(CLASSES, module, name, type)


def enumeration(module: str, name: str) -> type[enum.Enum]:
    """An enumeration whose members may be named."""
    found: type[enum.Enum] = _found(ENUMERATIONS, module, name, enum.EnumMeta)
    return found


def is_class(kind: type) -> bool:
    """Whether objects of this class may be stored."""
    return kind.__qualname__ in CLASSES.get(kind.__module__, ())


def method(owner: Any, name: str) -> Any:
    """A method of an object."""
    kind = type(owner)
    if name not in METHODS.get((kind.__module__, kind.__qualname__), ()):
        raise NotPortable(f"the method {name!r} of a {kind.__module__}.{kind.__qualname__}")
    return getattr(owner, name)


def _found(allowed: Mapping[str, tuple[str, ...]], module: str, name: str, kind: type) -> Any:
    if name not in allowed.get(module, ()):
        raise NotPortable(f"{module}.{name}, which is not among what stored code may name")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, kind), f"{module}.{name} is no {kind.__name__}"
    return found
