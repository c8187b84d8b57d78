"""The fastest Python callable that reaches a given ATen overload.

``torch.add`` parses its arguments about a third faster than ``torch.ops.aten.add.Tensor``, but what it dispatches to
depends on the arguments. So the binding is tried once on fake tensors, and used only if exactly the wanted overload
is reached with one call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode


class _Spy(TorchDispatchMode):
    """Notes which overloads are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim":
            self.called.append(func)
        return func(*args, **(kwargs or {}))


class Bindings:
    """Looks up callables, remembering the answer for each overload and kind of arguments."""

    def __init__(self) -> None:
        self._known: dict[Any, Callable[..., Any]] = {}

    def find(self, node: fx.Node) -> Callable[..., Any]:
        """What to call for this node."""
        target: Any = node.target
        if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
            return target
        key = (target, _kinds(node.args), tuple(sorted((k, _kinds((v,))) for k, v in node.kwargs.items())))
        if key not in self._known:
            self._known[key] = self._fastest(node)
        return self._known[key]

    def _fastest(self, node: fx.Node) -> Callable[..., Any]:
        target: Any = node.target
        name = target._schema.name.removeprefix("aten::")
        if target.namespace == "aten" and torch.Tag.nondeterministic_seeded not in target.tags:
            for home in (torch._C._VariableFunctions, torch._C._nn):
                candidate = getattr(home, name, None)
                if candidate is not None and _reaches(candidate, node):
                    return candidate
        return target._op  # skips one Python frame of OpOverload.__call__


def _reaches(candidate: Callable[..., Any], node: fx.Node) -> bool:
    def fake(item: fx.Node) -> Any:
        return item.meta["val"]

    args, kwargs = fx.node.map_arg(node.args, fake), fx.node.map_arg(node.kwargs, fake)
    mode = _fake_mode(args, kwargs)
    if mode is None:
        return False
    spy = _Spy()
    try:
        with mode, torch.no_grad(), spy:
            candidate(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return False
    return spy.called == [node.target]


def _fake_mode(*structures: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(structures)
    return next((leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor)), None)


def _kinds(values: Any) -> Any:
    """What argument parsing looks at: which values are tensors, and the Python types of the others."""
    if isinstance(values, (list, tuple)):
        return tuple(_kinds(v) for v in values)
    if isinstance(values, fx.Node):
        value = values.meta.get("val")
        return ("tensor", value.ndim == 0) if isinstance(value, torch.Tensor) else "value"
    return type(values)
