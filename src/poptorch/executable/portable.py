"""A device program as data: written once, read by processes that capture and lower nothing.

Graphs are written by the package's own encoder, with the name, the type and the annotations of each node beside it;
everything around them is data classes, enumerations and plain values, by the names of their classes. Tensors stay
apart. Settings and loop are not written: they follow from options.

What has no written form raises :class:`NotEncodable`: Python functions of the user, for one. Then a program is captured
again.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from poptorch.ambient import Placement
from poptorch.compiler.device_program import DeviceProgram, Interface
from poptorch.compiler.memory import Category, Home, MemoryMap
from poptorch.compiler.passes.precision import GradientWatch
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.passes.slots import Part
from poptorch.compiler.passes.stages import Edge, StageProgram
from poptorch.compiler.passes.writes import Carried
from poptorch.compiler.plan import Ordering, Plan
from poptorch.compiler.settings import Settings
from poptorch.encoding import Decoder, Encoder, NotEncodable, torch_constant
from poptorch.enums import OverlapMode
from poptorch.program.graphs import module_of, runs_python
from poptorch.program.loop import Loop
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import OpInfo, SourceLocation, Sweep, has_info, info_of, is_annotated, set_info
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import Port, Program, Role
from poptorch.program.update import StateTensor, UpdateProgram, UpdateShard

FORMAT = 1
"""Of what is written here. Raise it with every change of the classes below, or of what their fields mean."""

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Carried, Edge, GradientWatch, Home, MemoryMap, Numerics, OpInfo, Output, Part, Placement, Plan, Port),
        *(Program, SourceLocation, StageProgram, StateTensor, UpdateProgram, UpdateShard),
    )
}
_ENUMS: dict[str, Any] = {
    kind.__name__: kind for kind in (Category, Ordering, OutputKind, OverlapMode, Recomputation, Role, Sweep)
}
_UNSAID = -1
"""In the place of a node's type or annotations: there are none."""


@dataclass(frozen=True)
class Stored:
    """What a file has of a device program."""

    program: Program
    undivided: Program
    update: UpdateProgram | None
    plan: Plan
    memory: MemoryMap
    recomputation: Recomputation
    ipus_per_replica: int
    watch: GradientWatch
    result_positions: tuple[int, ...]
    host_results: Mapping[int, torch.Tensor]
    written_inputs: tuple[int, ...]
    same_inputs: tuple[int, ...]
    written_state: frozenset[str]

    def device_program(self, settings: Settings, loop: Loop, **interface: Any) -> DeviceProgram:
        """The whole, with what the options say now; ``interface`` has the other fields of the interface."""
        return DeviceProgram(
            program=self.program,
            update=self.update,
            plan=self.plan,
            loop=loop,
            memory=self.memory,
            settings=settings,
            undivided=self.undivided,
            recomputation=self.recomputation,
            ipus_per_replica=self.ipus_per_replica,
            watch=self.watch,
            interface=Interface(
                result_positions=self.result_positions,
                host_results=self.host_results,
                written_inputs=self.written_inputs,
                same_inputs=self.same_inputs,
                written_state=self.written_state,
                **interface,
            ),
        )


def stored(device: DeviceProgram) -> Stored:
    """What of a device program goes into a file; :class:`NotEncodable` where a process has only a part of it."""
    if device.portion is not None or device.loop.replicas_of_job > device.loop.replicas:
        raise NotEncodable("the part of one process of a job")
    interface = device.interface
    return Stored(
        program=device.program,
        undivided=device.undivided,
        update=device.update,
        plan=device.plan,
        memory=device.memory,
        recomputation=device.recomputation,
        ipus_per_replica=device.ipus_per_replica,
        watch=device.watch,
        result_positions=interface.result_positions,
        host_results=interface.host_results,
        written_inputs=interface.written_inputs,
        same_inputs=interface.same_inputs,
        written_state=interface.written_state,
    )


def written(device: DeviceProgram) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """A device program as JSON, and its tensors."""
    writer, parts = _ProgramWriter(), stored(device)
    content = {field.name: writer.encode(getattr(parts, field.name)) for field in dataclasses.fields(Stored)}
    tables = {"programs": writer.programs, "annotations": writer.annotations.rows, "values": writer.values.rows}
    return {"format": FORMAT, "torch": torch.__version__, **tables, "content": content}, writer.tensors


def read(content: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Stored:
    """The device program that was written; :class:`NotEncodable` where another release wrote it."""
    if content["format"] != FORMAT or content["torch"] != torch.__version__:
        raise NotEncodable(f"a program of format {content['format']} and torch {content['torch']}")
    reader = _ProgramReader(content, tensors)
    return Stored(**{name: reader.decode(value) for name, value in content["content"].items()})


class _Table:
    """Different values by number: a program has thousands of operations, and few annotations and types."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._encode = encode

    def number(self, key: Any, value: Any) -> int:
        """The number of a value that ``key`` stands for."""
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(self._encode(value))
        return self._numbers[key]


class _ProgramWriter(Encoder):
    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.annotations = _Table(self.encode)
        self.values = _Table(self._described)
        self.programs: list[Any] = []
        self._known: dict[int, int] = {}
        """The number of each program that was written, by its ``id``."""

    def encode_object(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, enum.Enum) and _ENUMS.get(kind.__name__) is kind:
            return {kind.__name__: value.name}
        if kind is Program:
            return {"program": self._program(value)}
        if _CLASSES.get(kind.__name__) is kind:
            return {kind.__name__: self._fields(value)}
        if isinstance(value, fx.GraphModule):
            return {"graph": self._graph(value)}
        if kind is frozenset:
            return {"frozenset": [self.encode(item) for item in sorted(value)]}
        if kind is types.MappingProxyType:
            return self.encode(dict(value))
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        return super().encode_object(value)

    def _fields(self, value: Any) -> list[Any]:
        return [self.encode(getattr(value, field.name)) for field in dataclasses.fields(value)]

    def _program(self, program: Program) -> int:
        """A program once, however often it is referred to; equal ones once, too."""
        if id(program) not in self._known:
            fields = self._fields(program)
            same = (i for i, other in enumerate(self.programs) if other[:-1] == fields[:-1])  # the log may differ
            self._known[id(program)] = next(same, len(self.programs))
            if self._known[id(program)] == len(self.programs):
                self.programs.append(fields)
        return self._known[id(program)]

    def _tensor(self, value: torch.Tensor) -> int:
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise NotEncodable(f"a tensor of class {type(value).__name__} and layout {value.layout}")
        if value.device.type != "cpu":
            raise NotEncodable(f"a tensor on the device {value.device}")
        for number, known in enumerate(self.tensors):
            if known is value:
                return number
        self.tensors.append(value)
        return len(self.tensors) - 1

    def _graph(self, module: fx.GraphModule) -> list[Any]:
        """For each node: name, kind or target, arguments, keyword arguments, type, annotations."""
        outer, self._numbers = self._numbers, {}
        rows = []
        for node in module.graph.nodes:
            rows.append([node.name, *self._operation(module, node), self._value(node), self._annotation(node)])
            self.number(node)
        self._numbers = outer
        return rows

    def _operation(self, module: fx.GraphModule, node: fx.Node) -> list[Any]:
        if node.op == "placeholder":
            return ["placeholder", [], None]
        if node.op == "output":
            return ["output", self.encode(node.args[0]), None]
        if node.op == "get_attr":
            return ["constant", self.encode(getattr(module, str(node.target))), None]
        if node.op != "call_function":
            raise NotEncodable(f"a graph with {node.format_node()}")
        if runs_python(node):
            raise NotEncodable("an operation of poptorch.CPU, which is Python")
        return [self.encode(node.target), [self.encode(a) for a in node.args], self._keywords(node)]

    def _keywords(self, node: fx.Node) -> Any:
        return self.encode(dict(node.kwargs)) if node.kwargs else None

    def _value(self, node: fx.Node) -> Any:
        return self._typed(node.meta["val"]) if "val" in node.meta else _UNSAID

    def _typed(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self._typed(item) for item in value]}
        if value is None:
            return None
        if not isinstance(value, FakeTensor) or value.layout is not torch.strided or value.is_conj():
            raise NotEncodable(f"a value of the class {type(value).__name__}")
        return self.values.number((value.dtype, tuple(value.shape), value.stride(), value.device.type), value)

    @staticmethod
    def _described(value: torch.Tensor) -> list[Any]:
        dtype = str(value.dtype).removeprefix("torch.")
        return [dtype, list(value.shape), list(value.stride()), value.device.type]

    def _annotation(self, node: fx.Node) -> Any:
        if not is_annotated(node):
            return _UNSAID
        return self.annotations.number(repr(info_of(node)), info_of(node)) if has_info(node) else None


class _ProgramReader(Decoder):
    def __init__(self, content: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._operators: dict[str, Any] = {}
        self._strings: dict[str, Any] = {}
        for name, kind in _ENUMS.items():
            self.readers[name] = kind.__getitem__
        for name, kind in _CLASSES.items():
            self.readers[name] = self._made(kind)
        resolved, self.readers["operator"] = self.readers["operator"], self._operator
        self._resolve = resolved
        self.readers["graph"] = self._graph
        self.readers["frozenset"] = lambda items: frozenset(self.decode(items))
        self.readers["tensor"] = tensors.__getitem__
        self.readers["program"] = lambda number: self._programs[number]
        self._values = [self._bare(*row) for row in content["values"]]
        self._annotations = [self.decode(row) for row in content["annotations"]]
        make = self._made(Program)
        self._programs: list[Program] = []
        for fields in content["programs"]:
            self._programs.append(make(fields))

    def _made(self, kind: Any) -> Callable[[Any], Any]:
        return lambda fields: kind(*map(self.decode, fields))

    def _operator(self, name: str) -> Any:
        found = self._operators.get(name)
        if found is None:
            found = self._operators[name] = self._resolve(name)
        return found

    @staticmethod
    def _bare(dtype: str, shape: list[int], strides: list[int], device: str) -> tuple[torch.Tensor, torch.device]:
        kind = torch_constant(dtype, torch.dtype)
        return torch.empty_strided(shape, strides, dtype=kind, device="meta"), torch.device(device)

    def _typed(self, entry: Any, apart: bool) -> Any:
        """What describes a value; ``apart``: in memory of its own, as those have that begin a graph."""
        if isinstance(entry, dict):
            ((kind, items),) = entry.items()
            made = [self._typed(item, apart) for item in items]
            return tuple(made) if kind == "tuple" else made
        if entry is None:
            return None
        bare, device = self._values[entry]
        if apart:
            bare = torch.empty_strided(bare.shape, bare.stride(), dtype=bare.dtype, device="meta")
        return FakeTensor(self._mode, bare, device)

    def _graph(self, rows: list[Any]) -> fx.GraphModule:
        outer, self._nodes = self._nodes, []
        graph, root = fx.Graph(), torch.nn.Module()
        for name, target, args, kwargs, value, annotation in rows:
            node = self._node(graph, root, name, target, args, kwargs)
            if value != _UNSAID:
                node.meta["val"] = self._typed(value, node.op == "placeholder")
            if annotation != _UNSAID:
                set_info(node, None if annotation is None else self._annotations[annotation])
            self._nodes.append(node)
        self._nodes = outer
        return module_of(root, graph)

    def _node(self, graph: fx.Graph, root: torch.nn.Module, name: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        if target == "placeholder":
            return graph.create_node("placeholder", name, name=name)
        if target == "output":
            return graph.create_node("output", "output", (self.decode(args),), name=name)
        if target == "constant":
            setattr(root, name, self.decode(args))
            return graph.create_node("get_attr", name, name=name)
        operands = tuple([self.decode(argument) for argument in args])
        return graph.create_node("call_function", self.decode(target), operands, self.decode(kwargs) or {}, name=name)


__all__ = ["FORMAT", "Stored", "read", "stored", "written"]
