"""What PyG has in other forms while a model is captured."""

from __future__ import annotations

import importlib
import types
from contextlib import ExitStack
from typing import Any

import torch_geometric.experimental
from torch_geometric import nn as pyg
from torch_geometric.nn.aggr.base import Aggregation

from poptorch._impl import isDispatchTracing
from poptorch._poplar_executor import _OverwriteContextManager
from poptorch.ops.point_cloud import nearest
from poptorch_geometric import ops, without_library
from poptorch_geometric.common import call_once

_FLAG = "disable_dynamic_shapes"
_LOOPS = "add_remaining_self_loops"
"""What the normalisation of ``GCNConv`` and its kin calls."""


class _TorchGeometricOpsSubstitutionManager:
    """Puts forms with static shapes in the place of PyG's, for one capture."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def replace(self) -> None:
        """Put them in place."""
        stack = self._stack
        flags = getattr(torch_geometric.experimental, "__experimental_flag__", {})
        if _FLAG in flags:
            stack.callback(flags.__setitem__, _FLAG, flags[_FLAG])
            flags[_FLAG] = True
        for name in ("ClusterGCNConv", "MFConv", "HeteroLinear", "InstanceNorm"):
            self._put(getattr(pyg, name), "forward", _method(getattr(pyg, name).forward, getattr(ops, name).forward))
        nothing = ops.Aggregation.assert_sorted_index
        self._put(Aggregation, "assert_sorted_index", _method(Aggregation.assert_sorted_index, nothing))
        norm = importlib.import_module("torch_geometric.nn.conv.gcn_conv")
        if hasattr(norm, _LOOPS):
            self._put(norm, _LOOPS, _function(getattr(norm, _LOOPS), ops.weighted_self_loops))
        stack.enter_context(without_library.batch_numbers())
        self._functions()

    def restore(self) -> None:
        """Take them away."""
        self._stack.close()

    def _functions(self) -> None:
        """Wherever programs have imported a function, it is the same object: so its code is replaced, not its name."""
        pool = importlib.import_module("torch_geometric.nn.pool")
        unpool = importlib.import_module("torch_geometric.nn.unpool")
        for holder, names in ((pool, _SEARCHES), (unpool, ("knn_interpolate",))):
            for name in names:
                function = getattr(holder, name, None)
                if isinstance(function, types.FunctionType) and not function.__closure__:
                    self._redirect(function, name)
        for module, places in _FORMER_PLACES.items():
            former = _imported(module)
            for name in places:
                if callable(getattr(former, name, None)):
                    self._put(former, name, nearest if name == "nearest" else getattr(ops, name))

    def _redirect(self, function: types.FunctionType, name: str) -> None:
        before = function.__code__, function.__defaults__, function.__kwdefaults__

        def back() -> None:
            _originals.pop(name, None)
            function.__code__, function.__defaults__, function.__kwdefaults__ = before

        original = types.FunctionType(before[0], function.__globals__, name, before[1])
        original.__kwdefaults__ = before[2]
        _originals[name] = original
        self._stack.callback(back)
        code = _bridge.__code__.replace(co_consts=tuple(name if c == "name" else c for c in _bridge.__code__.co_consts))
        function.__defaults__ = function.__kwdefaults__ = None
        function.__code__ = code

    def _put(self, holder: Any, name: str, value: Any) -> None:
        self._stack.callback(setattr, holder, name, getattr(holder, name))
        setattr(holder, name, value)


_SEARCHES = ("knn", "knn_graph", "radius", "radius_graph")
_FORMER_PLACES: dict[str, tuple[str, ...]] = {
    "torch_geometric.nn.conv.edge_conv": ("knn",),
    "torch_geometric.nn.conv.gravnet_conv": ("knn",),
    "torch_geometric.nn.conv.x_conv": ("knn_graph",),
    "torch_cluster": (*_SEARCHES, "nearest"),
}
"""Names that releases of PyG before 2.8 look up, and those of a library."""

_originals: dict[str, Any] = {}
"""Functions whose code is another one now."""


def _bridge(*args, **kwargs):  # type: ignore[no-untyped-def]
    """The code of a function that is replaced; it runs with the globals of that function's module."""
    from poptorch_geometric.override import in_capture

    return in_capture("name")(*args, **kwargs)


def in_capture(name: str) -> Any:
    """The form of a function for this thread: ours where it captures a model, else PyG's."""
    return getattr(ops, name) if isDispatchTracing() or name not in _originals else _originals[name]


def _method(original: Any, replacement: Any) -> Any:
    """A method for one capture; other threads run the original."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (replacement if isDispatchTracing() else original)(self, *args, **kwargs)

    return method


def _function(original: Any, replacement: Any) -> Any:
    """The same for functions."""
    return lambda *args, **kwargs: (replacement if isDispatchTracing() else original)(*args, **kwargs)


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


@call_once
def registerOverrideManager() -> None:
    """Let every capture use these forms."""
    _OverwriteContextManager.registerSubsitutionManager(_TorchGeometricOpsSubstitutionManager)


def registerOptionalOverrides() -> None:
    """Where PyG has no library for searches, give it ours."""
    without_library.provide()
