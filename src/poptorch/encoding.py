"""Values and graphs as JSON: plain Python values, torch's settings and operators, fx graphs.

This is the one written form of the package. Those who write more (tensors, functions, kernels) or less precisely (to
compare) extend :class:`Encoder` and :class:`Decoder`. Reading back names things and runs none of them.
"""

from __future__ import annotations

import math
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list


class NotEncodable(Exception):
    """A value that has no written form, or a written form that means nothing here; its text says which."""


_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class Encoder:
    """Writes values. Lists and plain values stay as they are, everything else becomes ``{kind: content}``."""

    error: type[Exception] = NotEncodable

    def __init__(self) -> None:
        self._numbers: dict[fx.Node, int] = {}

    def encode(self, value: Any) -> Any:
        """A JSON value for ``value``.

        >>> Encoder().encode([1, (None, 0.5), torch.float16])
        [1, {'tuple': [None, {'float': '0.5'}]}, {'dtype': 'float16'}]
        """
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return {"float": repr(value)}  # JSON knows neither infinity nor NaN
        if kind in (list, immutable_list):
            return [self.encode(item) for item in value]
        if kind in (tuple, torch.Size):
            return {"tuple" if kind is tuple else "size": [self.encode(item) for item in value]}
        if kind in (dict, immutable_dict, OrderedDict):
            name = "OrderedDict" if kind is OrderedDict else "dict"
            return {name: [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if kind is slice:
            return {"slice": [self.encode(item) for item in (value.start, value.stop, value.step)]}
        if kind is complex:
            return {"complex": [repr(value.real), repr(value.imag)]}
        if kind is torch.device:
            return {"device": str(value)}
        if kind in _NAMED:
            return {_NAMED[kind]: str(value).removeprefix("torch.")}
        if kind is fx.Node and value in self._numbers:
            return {"node": self._numbers[value]}
        return self.encode_object(value)

    def encode_object(self, value: Any) -> Any:
        """The written form of anything else: here, operators of torch and of Python."""
        if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return {"operator": _operator_name(value)}
        name = getattr(value, "__name__", "")
        if name and value is getattr(operator, name, None):
            return {"builtin": name}
        raise self.error(f"a {type(value).__module__}.{type(value).__qualname__}")

    def number(self, node: fx.Node) -> None:
        """From here on, the node may be referred to, by the next number."""
        self._numbers[node] = len(self._numbers)

    def encode_graph(self, graph: fx.Graph) -> list[Any]:
        """One entry for each node, in order: ``[]``, ``[result]`` or ``[target, args, kwargs]``."""
        outer, self._numbers = self._numbers, {}
        entries: list[Any] = []
        for node in graph.nodes:
            if node.op == "placeholder":
                entries.append([])
            elif node.op == "output":
                entries.append([self.encode(node.args[0])])
            elif node.op == "call_function":
                entries.append([self.encode(node.target), self.encode(list(node.args)), self.encode(node.kwargs)])
            else:
                raise self.error(f"a graph with {node.format_node()}")
            self.number(node)
        self._numbers = outer
        return entries


class Decoder:
    """Reads what an :class:`Encoder` wrote."""

    error: type[Exception] = NotEncodable

    def __init__(self) -> None:
        self._nodes: list[fx.Node] = []
        self.readers: dict[str, Callable[[Any], Any]] = {
            "float": float,
            "tuple": lambda items: tuple(self.decode(items)),
            "size": lambda items: torch.Size(self.decode(items)),
            "dict": lambda pairs: dict(self.decode(pairs)),
            "OrderedDict": lambda pairs: OrderedDict(self.decode(pairs)),
            "slice": lambda items: slice(*self.decode(items)),
            "complex": lambda parts: complex(*map(float, parts)),
            "device": torch.device,
            **{kind: partial(torch_constant, expected=expected) for expected, kind in _NAMED.items()},
            "node": lambda number: self._nodes[number],
            "operator": _operator,
            "builtin": _builtin,
        }
        """How the content of each kind becomes a value; what is not here is refused."""

    def decode(self, entry: Any) -> Any:
        """The value that was written.

        >>> Decoder().decode([1, {"tuple": [None, {"float": "inf"}]}])
        [1, (None, inf)]
        """
        if isinstance(entry, list):
            return [self.decode(item) for item in entry]
        if not isinstance(entry, dict):
            return entry
        kind, content = next(iter(entry.items())) if len(entry) == 1 else (None, None)
        if kind not in self.readers:
            raise self.error(f"an entry of the unknown kind {kind!r}")
        return self.readers[kind](content)

    def decode_graph(self, entries: list[Any]) -> fx.Graph:
        """The graph that :meth:`Encoder.encode_graph` wrote."""
        outer, self._nodes = self._nodes, []
        graph = fx.Graph()
        for entry in entries:
            if not entry:
                node = graph.placeholder(f"input_{len(self._nodes)}")
            elif len(entry) == 1:
                node = graph.output(self.decode(entry[0]))
            else:
                target, args, kwargs = map(self.decode, entry)
                node = graph.call_function(target, tuple(args), kwargs)
            self._nodes.append(node)
        self._nodes = outer
        return graph


def _operator_name(value: torch._ops.OpOverload[Any, Any] | torch._ops.OpOverloadPacket[Any, Any]) -> str:
    overload = f".{value._overloadname}" if isinstance(value, torch._ops.OpOverload) else ""
    packet: Any = value.overloadpacket if isinstance(value, torch._ops.OpOverload) else value
    return packet._qualified_op_name.replace("::", ".") + overload


def _operator(name: str) -> Any:
    """An operator by namespace, name and overload. Nothing else that can be reached from ``torch.ops`` is one."""
    namespace, *rest = name.split(".")
    found = getattr(torch.ops, namespace)
    if not isinstance(found, torch._ops._OpNamespace) or len(rest) not in (1, 2):
        raise NotEncodable(f"the operator {name!r}")
    for part in rest:
        found = getattr(found, part)
    if not isinstance(found, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise NotEncodable(f"the operator {name!r}")
    return found


def _builtin(name: str) -> Any:
    """A function of :mod:`operator` on values; not those that call or look up what their arguments name."""
    found = getattr(operator, name)
    if not isinstance(found, types.BuiltinFunctionType) or name == "call":
        raise NotEncodable(f"the function operator.{name}")
    return found


def torch_constant(name: str, expected: type) -> Any:
    """A data type, layout or memory format of torch.

    >>> torch_constant("float16", torch.dtype)
    torch.float16
    """
    found = getattr(torch, name)
    if not isinstance(found, expected):
        raise NotEncodable(f"torch.{name}, which is no {expected.__name__}")
    return found


# -- tensors -----------------------------------------------------------------------------------------------------------


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor, in rows.

    >>> tensor_bytes(torch.tensor([1, 2], dtype=torch.uint8))
    b'\\x01\\x02'
    """
    with torch.no_grad():
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_from_bytes(data: bytes | bytearray, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The inverse of :func:`tensor_bytes`.

    >>> tensor_from_bytes(b"\\x01\\x02", torch.uint8, [2])
    tensor([1, 2], dtype=torch.uint8)
    """
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    if flat.numel() != math.prod(shape):  # -1 would stand for any extent
        raise ValueError(f"{len(data)} bytes for a tensor of shape {list(shape)}")
    return flat.reshape(list(shape))


def to_plain(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A JSON value for ``value``; its tensors are appended to ``tensors``.

    >>> found = []
    >>> to_plain({"x": (torch.ones(1), None)}, found)
    {'dict': [['x', {'tuple': [{'tensor': 0}, None]}]]}
    >>> from_plain(_, found)
    {'x': (tensor([1.]), None)}
    """
    return _TensorsApart(tensors).encode(value)


def from_plain(entry: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of :func:`to_plain`."""
    decoder = Decoder()
    decoder.readers["tensor"] = tensors.__getitem__
    return decoder.decode(entry)


class _TensorsApart(Encoder):
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def encode_object(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return super().encode_object(value)
        self._tensors.append(value)
        return {"tensor": len(self._tensors) - 1}
