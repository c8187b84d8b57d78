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

from poptorch.ambient import Placement
from poptorch.program.naming import value_labels
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import OpInfo, Sweep, has_info, info_of

aten = torch.ops.aten


class Role(enum.Enum):
    """What a placeholder of the graph stands for."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    LOSS_SCALE = "loss scale"


@dataclass(frozen=True)
class Port:
    """One placeholder: its role, its name for people, and its index among the ports of the same role."""

    role: Role
    name: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Program:
    """Everything the compiler knows of one micro-batch."""

    graph_module: fx.GraphModule
    ports: list[Port]
    """In the order of the graph's placeholders."""

    results: list[str]
    """Names of the values returned to the user: the first outputs of the graph."""

    gradients: list[str]
    """Names of the parameters whose gradients follow the results among the graph's outputs."""

    anchors: list[str]
    """Names of inner values that the user asked for: the last outputs of the graph."""

    constants: dict[str, torch.Tensor]
    """Values of the constant ports."""

    training: bool
    bundle: int = 1
    """How many micro-batches it computes at once: the first dimension of inputs, results and anchors, if several."""

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
        """Results, then gradients, then anchors."""
        return list(self.output_node.args[0])  # type: ignore[arg-type]

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


def _listing(program: Program) -> Iterator[str]:
    """One line an operation: value, type, operation with operands, place, sweep, name with its scope, source."""
    kind = "training" if program.training else "inference"
    yield f"program ({kind}): {sum(1 for _ in program.operations())} operations"
    for node, port in program.placeholders():
        yield f"  %{node.name:<24} {_type(port.dtype, port.shape):<22} = {port.role.value} {port.name!r}"
    for node, label in value_labels(program.operations()).items():
        if node.target is not operator.getitem:
            yield _operation_line(node, label)
    values = program.output_values()
    names = [*program.results, *(f"gradient of {g}" for g in program.gradients), *program.anchors]
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        mark = "  (loss)" if index == program.loss_result else ""
        yield f"  return {name} = {_operand(value)}{mark}"


def _operation_line(node: fx.Node, label: str) -> str:
    info: OpInfo = info_of(node)
    operands = ", ".join(
        [*(_operand(a) for a in node.args), *(f"{k}={_operand(v)}" for k, v in node.kwargs.items())]
    )
    name = getattr(node.target, "name", None)
    operation = name() if callable(name) else str(node.target)
    notes = [f"ipu{info.placement.ipu}", f"stage{info.placement.stage}", info.sweep.value]
    if info.recomputed:
        notes.append("recomputed")
    if info.random is not None:
        notes.append(f"random#{info.random}")
    where = f" {info.source}" if info.source is not None else ""
    value = node.meta.get("val")
    described = _type(value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else "(several)"
    return f"  %{node.name:<24} {described:<22} = {operation}({operands})  [{' '.join(notes)}] {label}{where}"


def _operand(value: object) -> str:
    if isinstance(value, fx.Node):
        if value.op == "call_function" and value.target is operator.getitem:
            return f"{_operand(value.args[0])}.{value.args[1]}"
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_operand(v) for v in value) + "]"
    return repr(value)


def _type(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


__all__ = ["Port", "Program", "Role", "Sweep", "is_write", "value_of"]
