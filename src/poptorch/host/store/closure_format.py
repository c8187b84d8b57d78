"""Generated code as data: what a process compiled, written down so that another one need not compile it.

Native code is a tree of small functions of this package around kernels (``native.py`` and its neighbours make it).
Such a function is described by its name and by the values that it holds on to, down to numbers, tensors and kernels.
The description is JSON with the Python text of kernels in it, and tensors and libraries beside it. Reading it back
names what ``registry.py`` lists and nothing else. It runs the text and loads the libraries, so it may be done to signed
descriptions only (``signing.py``).

Whatever cannot be described raises :class:`NotPortable`: such code is compiled by every process.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import threading
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from poptorch.encoding import Decoder, Encoder, tensor_bytes, tensor_from_bytes
from poptorch.host.store import kernel_files as binaries
from poptorch.host.store import registry
from poptorch.host.store.kernel_files import NotPortable

_LOCK = type(threading.Lock())

ATTRIBUTES = "__portable__"
"""Names the attributes of a class that its objects need to run; by default all of them."""


@dataclasses.dataclass(frozen=True)
class Description:
    """A value as data."""

    objects: list[Any]
    """Descriptions of everything that is referred to, before what refers to it."""

    root: Any
    blobs: dict[str, bytes]
    """Tensors and libraries, by hash."""


def describe(value: Any) -> Description:
    """The description of a value.

    >>> restore(describe([1, (None, 0.5)]))
    [1, (None, 0.5)]
    """
    writer = _Writer()
    root = writer.encode(value)
    return Description(writer.objects, root, writer.blobs)


def restore(description: Description) -> Any:
    """The value that was described."""
    reader = _Reader(description.blobs)
    for entry in description.objects:
        reader.objects.append(reader.decode(entry))
    return reader.decode(description.root)


# -- writing -------------------------------------------------------------------------------------------------------


class _Writer(Encoder):
    """Writes objects once each, and refers to them by number."""

    error = NotPortable

    def __init__(self) -> None:
        super().__init__()
        self.objects: list[Any] = []
        self.blobs: dict[str, bytes] = {}
        self._known: dict[int, tuple[Any, int]] = {}  # with the value itself, so that its id stays its own

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return {"enum": [_name(registry.enumeration(*_name(type(value)))), value.name]}
        if id(value) not in self._known:
            entry = self._described(value)
            self.objects.append(entry)
            self._known[id(value)] = value, len(self.objects) - 1
        return {"ref": self._known[id(value)][1]}

    def _described(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if binaries.is_kernel(value):
            return {"kernel": binaries.describe(value, self._blob)}
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            name = registry.method(value.__self__, value.__func__.__name__).__name__
            return {"method": [self.encode(value.__self__), name]}
        if isinstance(value, fx.Interpreter):
            return {"graph": self.encode_graph(value.module.graph)}  # type: ignore[arg-type]
        if isinstance(value, fx.Node) and value.op == "call_function":
            # An operation apart from its graph: its operands are given when it runs.
            args, kwargs = fx.map_arg((value.args, value.kwargs), lambda operand: None)
            return {"call": [self.encode(value.target), self.encode(list(args)), self.encode(kwargs)]}
        if isinstance(value, _LOCK):
            return {"lock": None}
        if registry.is_class(type(value)):
            return {"object": [_name(type(value)), self._attributes(value)]}
        return super().encode_object(value)

    def _blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.blobs[name] = data
        return name

    def _tensor(self, value: torch.Tensor) -> list[Any]:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            raise NotPortable(f"a tensor of class {type(value).__name__} and layout {value.layout}")
        return [self.encode(value.dtype), list(value.shape), self._blob(tensor_bytes(value))]

    def _function(self, function: types.FunctionType) -> Any:
        maker, _, inner = function.__qualname__.partition(".<locals>.")
        if not inner:
            raise NotPortable(f"the function {function.__module__}.{function.__qualname__}")
        registry.maker(function.__module__, maker)
        try:
            cells = [self.encode(cell.cell_contents) for cell in function.__closure__ or ()]
        except ValueError as error:
            raise NotPortable(f"{function.__qualname__}, which is not complete yet") from error
        defaults = self.encode(function.__defaults__)
        return {"closure": [function.__module__, function.__qualname__, _mark(function.__code__), cells, defaults]}

    def _attributes(self, value: Any) -> Any:
        names = getattr(type(value), ATTRIBUTES, None)
        if names is None:
            names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else vars(value)
        return [[name, self.encode(getattr(value, name))] for name in names]


def _name(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def _mark(code: types.CodeType) -> list[Any]:
    """Tells two inner functions of one name apart."""
    return [code.co_name, code.co_firstlineno, hashlib.sha256(code.co_code).hexdigest()[:16]]


# -- reading -------------------------------------------------------------------------------------------------------


class _Reader(Decoder):
    error = NotPortable

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        super().__init__()
        self.objects: list[Any] = []
        self._blobs = blobs
        self.readers |= {
            "ref": self.objects.__getitem__,
            "enum": lambda content: registry.enumeration(*content[0])[content[1]],
            "tensor": self._tensor,
            "kernel": lambda content: binaries.restore(content, self._blobs),
            "closure": self._closure,
            "method": lambda content: registry.method(self.decode(content[0]), content[1]),
            "graph": lambda entries: fx.Interpreter(fx.GraphModule({}, self.decode_graph(entries))),
            "call": self._call,
            "lock": lambda content: threading.Lock(),
            "object": self._object,
        }

    def _tensor(self, content: list[Any]) -> torch.Tensor:
        dtype, shape, blob = content
        return tensor_from_bytes(self._blobs[blob], self.decode(dtype), shape)

    def _closure(self, content: list[Any]) -> types.FunctionType:
        module, qualname, mark, cells, defaults = content
        maker, *inner = qualname.split(".<locals>.")
        outer = registry.maker(module, maker)
        code = _inner_code(outer, len(inner), mark)
        contents = tuple(types.CellType(self.decode(cell)) for cell in cells)
        name = qualname.rpartition(".")[2]
        made = types.FunctionType(code, outer.__globals__, name, self.decode(defaults), contents)
        made.__qualname__ = qualname
        return made

    def _call(self, content: list[Any]) -> Any:
        target, args, kwargs = self.decode(content)
        return types.SimpleNamespace(target=target, args=tuple(args), kwargs=kwargs)

    def _object(self, content: list[Any]) -> Any:
        kind = registry.class_of(*content[0])
        made = kind.__new__(kind)
        for name, value in content[1]:
            if name.startswith("__"):
                raise NotPortable(f"the attribute {name!r}")
            object.__setattr__(made, name, self.decode(value))
        return made


def _inner_code(outer: types.FunctionType, depth: int, mark: list[Any]) -> types.CodeType:
    """The code of a function inside others, found by going through what these contain."""
    codes = [outer.__code__]
    for _ in range(depth):
        codes = [c for code in codes for c in code.co_consts if isinstance(c, types.CodeType)]
    for code in codes:
        if _mark(code) == mark:
            return code
    raise NotPortable(f"a function inside {outer.__module__}.{outer.__qualname__}, which has changed")
