"""The fastest Python callable that reaches a given ATen overload.

``torch.add`` parses its arguments about a third faster than ``torch.ops.aten.add.Tensor``, but what it dispatches to
depends on the arguments, and some defaults differ (``reduction`` of losses). So the binding is tried once on fake
tensors, and used only if exactly the wanted overload is reached, with the very same arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch.libraries import onednn
from poptorch.libraries.choice import MKL_ALONE, Libraries
from poptorch.ops.traits import traits_of


class _Spy(TorchDispatchMode):
    """Notes which overloads are called, and with what."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim":
            self.called.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


_known: dict[Any, Callable[..., Any]] = {}
"""The answer for each overload and kind of arguments. It belongs to torch, not to a program: found once per process."""


class Bindings:
    """Looks up callables, and remembers what it found."""

    def __init__(self, libraries: Libraries = MKL_ALONE) -> None:
        self._libraries = libraries

    def find(self, node: fx.Node) -> Callable[..., Any]:
        """What to call for this node."""
        target: Any = node.target
        if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
            return target
        if target is _RECURRENT_LAYER and any(user.args[1] == _WORKSPACE and user.users for user in node.users):
            return _saving_for_backward
        if target is _VIEW and _layout_may_differ(node.args[0]):
            return torch.reshape
        if target in _PRODUCTS and self._by_onednn(node):
            return _PRODUCTS[target]
        key = (target, _kinds(node.args), tuple(sorted((k, _kinds((v,))) for k, v in node.kwargs.items())))
        found = _known.get(key)
        if found is None:
            found = _known[key] = self._fastest(node)
        return found

    def _by_onednn(self, node: fx.Node) -> bool:
        """Whether another library is faster than the operator; one that scales its operands keeps to it."""
        if node.kwargs:
            return False
        left, right = (operand.meta["val"] for operand in node.args[-2:])  # type: ignore[union-attr]
        return self._libraries.takes_onednn(left, right)

    def _fastest(self, node: fx.Node) -> Callable[..., Any]:
        target: Any = node.target
        name = target._schema.name.removeprefix("aten::")
        if target.namespace == "aten":
            for home in (torch._C._VariableFunctions, torch._C._nn):
                candidate = getattr(home, name, None)
                if candidate is not None and _reaches(candidate, node):
                    return candidate
        return target._op  # skips one Python frame of OpOverload.__call__


_PRODUCTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.mm.default: onednn.matmul,
    torch.ops.aten.bmm.default: onednn.matmul,
    torch.ops.aten.addmm.default: onednn.addmm,
    torch.ops.aten.baddbmm.default: onednn.baddbmm,
}

_VIEW: Any = torch.ops.aten.view.default


def _layout_may_differ(value: Any) -> bool:
    """Whether a value may lie in memory in another way than the program says.

    Some kernels (``softplus_backward`` is one) lay their result out like an operand, while torch's function of shapes
    calls it contiguous. All operations that take their layout from an operand hand that on.
    """
    queue = [value]
    seen: set[fx.Node] = set()
    while queue:
        node = queue.pop()
        if node in seen or node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        seen.add(node)
        traits = traits_of(node)
        if traits.is_product or node.kwargs.get("memory_format") is torch.contiguous_format:
            continue
        for operand in node.all_input_nodes:
            described = operand.meta.get("val")
            strided = isinstance(described, torch.Tensor) and not described.is_contiguous()
            if strided and not traits.is_view and node.meta["val"].is_contiguous():
                return True
            queue.append(operand)
    return False


_RECURRENT_LAYER: Any = torch.ops.aten.mkldnn_rnn_layer.default
_WORKSPACE = 3  # which of its results the backward pass needs


def _saving_for_backward(*args: Any) -> Any:
    """The recurrent layer of oneDNN. It returns no workspace while gradient mode is off, as it is when we run."""
    with torch.enable_grad():
        return _RECURRENT_LAYER(*args)


def _reaches(candidate: Callable[..., Any], node: fx.Node) -> bool:
    def fake(item: fx.Node) -> Any:
        return item.meta["val"]

    args, kwargs = fx.node.map_arg(node.args, fake), fx.node.map_arg(node.kwargs, fake)
    mode = _fake_mode(args, kwargs)
    if mode is None:
        return False
    args, kwargs = _in_mode(mode, args), _in_mode(mode, kwargs)
    wanted, got = _Spy(), _Spy()
    try:
        with mode, torch.no_grad():
            with wanted:
                node.target(*args, **kwargs)  # type: ignore[operator]
            with got:
                candidate(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return False
    if len(wanted.called) != 1 or len(got.called) != 1:
        return False
    return _same(wanted.called[0], got.called[0])


def _same(left: Any, right: Any) -> bool:
    """Equality that compares tensors by identity and numbers with their types."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return left is right
    if isinstance(left, (list, tuple)):
        return (
            isinstance(right, (list, tuple))
            and len(left) == len(right)
            and all(_same(a, b) for a, b in zip(left, right, strict=True))
        )
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    return type(left) is type(right) and bool(left == right)


def _fake_mode(*structures: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(structures)
    return next((leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor)), None)


def _in_mode(mode: Any, structure: Any) -> Any:
    """The structure with all fake tensors of one mode: values of two recordings may meet in an operation."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _pytree as pytree

    def moved(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or value.fake_mode is mode:
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)

    return pytree.tree_map(moved, structure)


def _kinds(values: Any) -> Any:
    """What argument parsing looks at: which values are tensors, of which type, and the Python types of the others."""
    if isinstance(values, (list, tuple)):
        return tuple(_kinds(v) for v in values)
    if isinstance(values, fx.Node):
        value = values.meta.get("val")
        return ("tensor", value.ndim == 0, value.dtype) if isinstance(value, torch.Tensor) else "value"
    return type(values)
