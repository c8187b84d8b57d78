"""Generated code as data: what a process compiled, written down so that another one need not compile it.

Native code is a tree of small functions of this package around kernels (``native.py`` and its neighbours make it).
Such a function is described by its name and by the values that it holds on to, down to numbers, tensors and kernels.
The description is JSON, with tensors and libraries as blobs beside it. Reading it back names functions of this package
and nothing else, and runs none of them.

Whatever cannot be described raises :class:`NotPortable`: such code is compiled by every process.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from poptorch.host.store import kernel_files as binaries
from poptorch.host.store.kernel_files import NotPortable

_OURS = ("poptorch.host.", "poptorch.program.", "poptorch.runtime.values.")
_LOCK = type(threading.Lock())
_KINDS = frozenset(
    {
        "ref", "float", "list", "tuple", "dict", "dtype", "layout", "memory_format", "torch", "builtin", "enum",
        "tensor", "kernel", "function", "closure", "method", "operator", "graph", "node", "lock", "object",
    }
)  # fmt: skip
_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}

ATTRIBUTES = "__portable__"
"""Names the attributes of a class that its objects need to run; by default all of them."""


@dataclasses.dataclass(frozen=True)
class Description:
    """A value as data."""

    objects: list[Any]
    """Descriptions of everything that is referred to, before whoever refers to it."""

    root: Any
    blobs: dict[str, bytes]
    """Tensors and libraries, by hash."""


def describe(value: Any) -> Description:
    """The description of a value.

    >>> restore(describe([1, (None, 0.5)]))
    [1, (None, 0.5)]
    """
    writer = _Writer()
    root = writer.describe(value)
    return Description(writer.objects, root, writer.blobs)


def restore(description: Description) -> Any:
    """The value that was described."""
    reader = _Reader(description.blobs)
    for entry in description.objects:
        reader.objects.append(reader.restore(entry))
    return reader.restore(description.root)


# -- writing -------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.blobs: dict[str, bytes] = {}
        self._known: dict[int, tuple[Any, int]] = {}  # with the value itself, so that its id stays its own

    def describe(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return {"float": repr(value)}
        if kind in (list, tuple, torch.Size):
            return {"list" if kind is list else "tuple": [self.describe(v) for v in value]}
        if kind is dict:
            return {"dict": [[self.describe(k), self.describe(v)] for k, v in value.items()]}
        if kind in _NAMED:
            return {_NAMED[kind]: str(value).removeprefix("torch.")}
        if isinstance(value, enum.Enum):
            return {"enum": [_name(kind), value.name]}
        if id(value) not in self._known:
            entry = self._described_object(value)
            self.objects.append(entry)
            self._known[id(value)] = value, len(self.objects) - 1
        return {"ref": self._known[id(value)][1]}

    def _described_object(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if binaries.is_kernel(value):
            return {"kernel": binaries.describe(value, self._blob)}
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return {"method": [self.describe(value.__self__), value.__func__.__name__]}
        if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return {"operator": _operator_name(value)}
        if isinstance(value, fx.Interpreter):
            return {"graph": self._graph(value.module)}  # type: ignore[arg-type]
        if isinstance(value, fx.Node) and value.op == "call_function":
            return {"node": [self.describe(value.target), self._arguments(value, lambda n: None)]}
        if isinstance(value, _LOCK):
            return {"lock": None}
        if type(value).__module__.startswith(_OURS):
            return {"object": [_name(type(value)), self._attributes(value)]}
        name: str = getattr(value, "__name__", "")
        if name and value is getattr(torch, name, None):
            return {"torch": name}
        if getattr(value, "__module__", None) == "_operator":
            return {"builtin": name}
        raise NotPortable(f"a {type(value).__module__}.{type(value).__qualname__}")

    def _blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.blobs[name] = data
        return name

    def _tensor(self, value: torch.Tensor) -> list[Any]:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            raise NotPortable(f"a tensor of class {type(value).__name__} and layout {value.layout}")
        with torch.no_grad():
            data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype).removeprefix("torch."), list(value.shape), self._blob(data)]

    def _function(self, function: types.FunctionType) -> Any:
        if not str(function.__module__).startswith(_OURS):
            raise NotPortable(f"the function {function.__module__}.{function.__qualname__}")
        if function.__closure__ is None and "<locals>" not in function.__qualname__:
            return {"function": [function.__module__, function.__qualname__]}
        try:
            cells = [self.describe(cell.cell_contents) for cell in function.__closure__ or ()]
        except ValueError as error:
            raise NotPortable(f"{function.__qualname__}, which is not complete yet") from error
        defaults = self.describe(function.__defaults__)
        return {"closure": [function.__module__, function.__qualname__, _mark(function.__code__), cells, defaults]}

    def _attributes(self, value: Any) -> Any:
        names = getattr(type(value), ATTRIBUTES, None)
        if names is None:
            names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else vars(value)
        return [[name, self.describe(getattr(value, name))] for name in names]

    def _graph(self, module: fx.GraphModule) -> list[Any]:
        number: dict[fx.Node, int] = {}
        entries = []
        for node in module.graph.nodes:
            number[node] = len(number)
            if node.op == "call_function":
                entries.append([self.describe(node.target), self._arguments(node, number.__getitem__)])
            elif node.op in ("placeholder", "output"):
                entries.append([node.op, self._arguments(node, number.__getitem__) if node.op == "output" else None])
            else:
                raise NotPortable(f"a graph with {node.format_node()}")
        return entries

    def _arguments(self, node: fx.Node, operand: Callable[[fx.Node], int | None]) -> Any:
        """Operands become numbers in a class of their own, everything else is described."""
        replaced = fx.map_arg((node.args, node.kwargs), lambda n: _Operand(operand(n)))  # type: ignore[arg-type, return-value]
        return self.describe(_plain_containers(replaced))


@dataclasses.dataclass(frozen=True)
class _Operand:
    """Stands for a node among the arguments of another; without a number, for one that is not described."""

    number: int | None


def _plain_containers(value: Any) -> Any:
    """Lists and dictionaries instead of torch's immutable ones."""
    if isinstance(value, tuple):
        return tuple(map(_plain_containers, value))
    if isinstance(value, list):
        return [_plain_containers(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain_containers(v) for k, v in value.items()}
    return value


def _name(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def _operator_name(value: Any) -> list[str]:
    overload = value._overloadname if isinstance(value, torch._ops.OpOverload) else ""
    packet = value.overloadpacket if overload else value
    namespace, _, name = packet._qualified_op_name.partition("::")
    return [namespace, name, overload]


def _mark(code: types.CodeType) -> list[Any]:
    """Tells two inner functions of one name apart."""
    return [code.co_name, code.co_firstlineno, hashlib.sha256(code.co_code).hexdigest()[:16]]


# -- reading -------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self.objects: list[Any] = []
        self._blobs = blobs

    def restore(self, entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        ((kind, content),) = entry.items()
        if kind not in _KINDS:
            raise NotPortable(f"an entry of the unknown kind {kind!r}")
        return getattr(self, f"_{kind}")(content)

    def _ref(self, index: int) -> Any:
        return self.objects[index]

    def _float(self, text: str) -> float:
        return float(text)

    def _list(self, items: list[Any]) -> list[Any]:
        return [self.restore(item) for item in items]

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self._list(items))

    def _dict(self, items: list[Any]) -> dict[Any, Any]:
        return {self.restore(k): self.restore(v) for k, v in items}

    def _dtype(self, name: str) -> Any:
        return getattr(torch, name)

    _layout = _memory_format = _torch = _dtype

    def _builtin(self, name: str) -> Any:
        import operator

        return getattr(operator, name)

    def _enum(self, content: list[Any]) -> Any:
        return _ours(*content[0])[content[1]]

    def _tensor(self, content: list[Any]) -> torch.Tensor:
        name, shape, blob = content
        dtype = getattr(torch, name)
        data = bytearray(self._blobs[blob])
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(shape)

    def _kernel(self, content: Any) -> Any:
        return binaries.restore(content, self._blobs)

    def _function(self, content: list[str]) -> Any:
        return _ours(*content)

    def _closure(self, content: list[Any]) -> types.FunctionType:
        module, qualname, mark, cells, defaults = content
        code = _inner_code(module, qualname, mark)
        contents = tuple(types.CellType(self.restore(cell)) for cell in cells)
        name = qualname.rpartition(".")[2]
        made = types.FunctionType(code, vars(_module(module)), name, self.restore(defaults), contents)
        made.__qualname__ = qualname
        return made

    def _method(self, content: list[Any]) -> Any:
        return getattr(self.restore(content[0]), content[1])

    def _operator(self, content: list[str]) -> Any:
        namespace, name, overload = content
        packet = getattr(getattr(torch.ops, namespace), name)
        return getattr(packet, overload) if overload else packet

    def _graph(self, entries: list[Any]) -> fx.Interpreter:
        graph = fx.Graph()
        nodes: list[fx.Node] = []
        for target, arguments in entries:
            if target == "placeholder":
                nodes.append(graph.placeholder(f"input_{len(nodes)}"))
                continue
            args, kwargs = self.restore(arguments)
            args, kwargs = _with_nodes(args, nodes), _with_nodes(kwargs, nodes)
            if target == "output":
                nodes.append(graph.output(args[0]))
            else:
                nodes.append(graph.call_function(self.restore(target), args, kwargs))
        return fx.Interpreter(fx.GraphModule({}, graph))

    def _node(self, content: list[Any]) -> Any:
        args, kwargs = self.restore(content[1])
        return types.SimpleNamespace(target=self.restore(content[0]), args=args, kwargs=kwargs)

    def _lock(self, content: None) -> Any:
        return threading.Lock()

    def _object(self, content: list[Any]) -> Any:
        kind = _ours(*content[0])
        made = kind.__new__(kind)
        for name, value in content[1]:
            object.__setattr__(made, name, self.restore(value))
        return made


def _with_nodes(value: Any, nodes: list[fx.Node]) -> Any:
    if isinstance(value, _Operand):
        return nodes[value.number]  # type: ignore[index]
    if isinstance(value, (list, tuple)):
        return type(value)(_with_nodes(v, nodes) for v in value)
    if isinstance(value, dict):
        return {k: _with_nodes(v, nodes) for k, v in value.items()}
    return value


def _module(name: str) -> types.ModuleType:
    if not name.startswith(_OURS):
        raise NotPortable(f"something of the module {name!r}")
    return importlib.import_module(name)


def _ours(module: str, qualname: str) -> Any:
    found: Any = _module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _inner_code(module: str, qualname: str, mark: list[Any]) -> types.CodeType:
    """The code of a function inside others, found by going through what these contain."""
    outer, *inner = qualname.split(".<locals>.")
    codes = [_ours(module, outer).__code__]
    for _ in inner:
        codes = [c for code in codes for c in code.co_consts if isinstance(c, types.CodeType)]
    for code in codes:
        if _mark(code) == mark:
            return code
    raise NotPortable(f"the function {module}.{qualname}, which has changed")
