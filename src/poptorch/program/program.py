"""The Program: one micro-batch of the model as a typed, printable graph of ATen operations.

The graph itself is an ``fx.Graph`` in functional form: every operation produces new values, and the only writes are
``copy_`` operations at the end, into buffers and inputs. Ports say what each placeholder and each output means.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from poptorch.ambient import Placement
from poptorch.enums import OverlapMode
from poptorch.figures import Shown
from poptorch.program.naming import value_labels
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import OpInfo, Sweep, has_info, info_of
from poptorch.program.outputs import KINDS, Output, OutputKind, positions_of

aten = torch.ops.aten


class Role(enum.Enum):
    """What a placeholder of the graph stands for."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    LOSS_SCALE = "loss scale"


PORT_ORDER = (Role.PARAMETER, Role.BUFFER, Role.INPUT, Role.LOSS_SCALE, Role.CONSTANT)
"""The ports of a program are grouped by role. Values received from other stages are inputs after those of the model."""


@dataclass(frozen=True)
class Port:
    """One placeholder: its role, its name for people, and its index among the ports of the same role."""

    role: Role
    name: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    overlap: OverlapMode | None = None
    """When the copy of an input to the device may happen, if the user said so."""


@dataclass
class Program(Shown):
    """Everything the compiler knows of one micro-batch."""

    graph_module: fx.GraphModule
    ports: list[Port]
    """In the order of the graph's placeholders."""

    outputs: list[Output]
    """In the order of the graph's outputs, which is that of their kinds."""

    constants: dict[str, torch.Tensor]
    """Values of the constant ports."""

    training: bool
    loss_result: int | None = None
    """Position of the final loss among the results, if it is returned."""

    block_starts: list[Placement] = field(default_factory=list)
    numerics: Numerics = field(default_factory=Numerics)
    """How results are rounded and watched."""

    log: list[str] = field(default_factory=list)
    """What each pass did, for people."""

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph

    def ports_of(self, role: Role) -> list[Port]:
        """The ports of one role, in order."""
        return [port for port in self.ports if port.role is role]

    def placeholders(self) -> list[tuple[fx.Node, Port]]:
        """Each placeholder node with its port."""
        nodes = [n for n in self.graph.nodes if n.op == "placeholder"]
        return list(zip(nodes, self.ports, strict=True))

    def operations(self) -> Iterator[fx.Node]:
        """The nodes that compute something."""
        return (n for n in self.graph.nodes if n.op == "call_function")

    @property
    def output_node(self) -> fx.Node:
        return next(n for n in reversed(self.graph.nodes) if n.op == "output")

    def output_values(self) -> list[fx.Node]:
        """All outputs, in the order of ``outputs``."""
        return list(self.output_node.args[0])  # type: ignore[arg-type]

    def set_outputs(self, pairs: Iterable[tuple[Output, fx.Node]]) -> None:
        """Return these values instead, grouped by kind; within a kind their order stays."""
        ordered = sorted(pairs, key=lambda pair: KINDS.index(pair[0].kind))
        self.outputs = [output for output, _ in ordered]
        self.output_node.args = (tuple(value for _, value in ordered),)

    def returned(self) -> list[tuple[Output, fx.Node]]:
        """Each output with its value."""
        return list(zip(self.outputs, self.output_values(), strict=True))

    def outputs_of(self, kind: OutputKind) -> list[Output]:
        """The outputs of one kind, in order."""
        return [output for output in self.outputs if output.kind is kind]

    def values_of(self, kind: OutputKind) -> list[fx.Node]:
        """The values of the outputs of one kind, in order."""
        return [value for output, value in self.returned() if output.kind is kind]

    def positions_of(self, kind: OutputKind) -> range:
        """Where the outputs of one kind are among all. Code that runs the program returns values in this order."""
        return positions_of(self.outputs, kind)

    @property
    def results(self) -> list[str]:
        """Names of the values returned to the user."""
        return [o.name for o in self.outputs_of(OutputKind.RESULT)]

    @property
    def gradients(self) -> list[str]:
        """Names of the parameters whose gradients are outputs."""
        return [o.name for o in self.outputs_of(OutputKind.GRADIENT)]

    @property
    def anchors(self) -> list[str]:
        """Names of inner values that the user asked for."""
        return [o.name for o in self.outputs_of(OutputKind.ANCHOR)]

    @property
    def loss(self) -> fx.Node | None:
        """The final loss, if it is returned."""
        return None if self.loss_result is None else self.values_of(OutputKind.RESULT)[self.loss_result]

    def mutated(self) -> list[Port]:
        """The ports that a ``copy_`` writes to."""
        targets = {n.args[0] for n in self.operations() if is_write(n)}
        return [port for node, port in self.placeholders() if node in targets]

    def placements(self) -> list[Placement]:
        """The distinct placements of annotated operations, in program order."""
        return list(dict.fromkeys(info_of(n).placement for n in self.operations() if has_info(n)))

    def forward_edges(self) -> Iterator[tuple[OpInfo, OpInfo]]:
        """Producer and consumer of every value that flows between two forward operations."""
        for node in self.operations():
            info = info_of(node)
            if not has_info(node) or info.sweep is not Sweep.FORWARD or is_write(node):
                continue
            for operand in node.all_input_nodes:
                if has_info(operand) and operand.op == "call_function":
                    yield info_of(operand), info

    def __str__(self) -> str:
        return "\n".join(_listing(self))


def is_write(node: fx.Node) -> bool:
    """Whether the node is one of the final writes into a buffer or an input."""
    return node.target is aten.copy_.default and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"


def value_of(node: fx.Node) -> torch.Tensor:
    """The fake tensor that describes a node's value."""
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def has_values(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements exist: not on the meta device, and not in a fake tensor."""
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


def _listing(program: Program) -> Iterator[str]:
    """One line an operation: value, type, operation with operands, place, pass, name with its scope, source."""
    kind = "training" if program.training else "inference"
    yield f"program ({kind}): {sum(1 for _ in program.operations())} operations"
    for node, port in program.placeholders():
        name = f"{port.role.value} {port.name!r}{_overlap(port)}"
        yield f"  %{node.name:<24} {type_text(port.dtype, port.shape):<22} = {name}"
    for node, label in value_labels(program.operations()).items():
        if node.target is not operator.getitem:
            yield _operation_line(node, label)
    loss = None if program.loss_result is None else program.outputs_of(OutputKind.RESULT)[program.loss_result]
    for output, value in program.returned():
        mark = "  (loss)" if output is loss else ""
        yield f"  return {output} = {_operand(value)}{mark}{_overlap(output)}"


def _overlap(port: Port | Output) -> str:
    return "" if port.overlap is None else f"  (overlap: {port.overlap.name})"


def describe(node: fx.Node) -> str:
    """One node of a program in one line, whatever its state."""
    if node.op == "output":
        return f"return {_operand(node.args[0])}"
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        kind = type_text(value.dtype, tuple(value.shape))
    else:
        kind = "(several)" if "val" in node.meta else "(unknown)"
    return f"%{node.name:<24} {kind:<22} = {_call(node) if node.op == 'call_function' else node.op}"


def _call(node: fx.Node) -> str:
    operands = ", ".join([*(_operand(a) for a in node.args), *(f"{k}={_operand(v)}" for k, v in node.kwargs.items())])
    name = getattr(node.target, "name", None)
    operation = name() if callable(name) else getattr(node.target, "__name__", str(node.target))
    return f"{operation}({operands})  [{' '.join(_notes(info_of(node)))}]"


def _notes(info: OpInfo) -> list[str]:
    notes = [f"ipu{info.placement.ipu}", f"stage{info.placement.stage}", info.sweep.value]
    if info.recomputed:
        notes.append("recomputed")
    if info.random is not None:
        notes.append(f"random#{info.random}")
    if info.partials is not None:
        notes.append(f"partials={info.partials}")
    if info.available_memory is not None:
        notes.append(f"memory={info.available_memory:g}")
    if info.cycles is not None:
        notes.append(f"cycles={info.cycles:g}")
    return notes


def _operation_line(node: fx.Node, label: str) -> str:
    source = info_of(node).source
    return f"  {describe(node)} {label}{f' {source}' if source is not None else ''}"


def _operand(value: object) -> str:
    if isinstance(value, fx.Node):
        if value.op == "call_function" and value.target is operator.getitem:
            return f"{_operand(value.args[0])}.{value.args[1]}"
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_operand(v) for v in value) + "]"
    return repr(value)


def type_text(dtype: torch.dtype, shape: Iterable[int]) -> str:
    """Element type and shape for people.

    >>> type_text(torch.float16, (2, 3))
    'float16[2,3]'
    """
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


__all__ = [
    "PORT_ORDER",
    "Port",
    "Program",
    "Role",
    "Sweep",
    "describe",
    "has_values",
    "is_write",
    "type_text",
    "value_of",
]
