"""Which operation of the program each line of generated code computes: looked up after a line has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from poptorch.ops.traits import traits_of
from poptorch.program.opinfo import Sweep, info_of
from poptorch.program.program import Port

TABLE = "__operations__"
"""Generated functions have their table under this name among their globals."""

Watch = Callable[[fx.Node, Any, Mapping[fx.Node, Any]], None]
"""Is told of an operation, its result and its operands, right after the operation."""


_SWEEPS = {Sweep.BACKWARD: " of the backward pass", Sweep.UPDATE: " of the weight update"}


def described(node: fx.Node) -> str:
    """An operation in words: its name, its pass, its module and its line."""
    info = info_of(node)
    name = traits_of(node).name or str(node.target)
    module = f" in module {info.scope.replace('/', '.')!r}" if info.scope else ""
    source = f", at {info.source}" if info.source is not None else ""
    return f"operation {name!r}{_SWEEPS.get(info.sweep, '')}{module}{source}"


@dataclass
class LineTable:
    """The operations of one generated function by line."""

    names: Mapping[fx.Node, str]
    """The local variable of each value."""

    ports: Mapping[fx.Node, Port] = field(default_factory=dict)
    """What the arguments stand for, where that is known."""

    _nodes: dict[int, fx.Node] = field(default_factory=dict)

    def note(self, node: fx.Node, line: int) -> None:
        """This line of the text belongs to an operation."""
        self._nodes[line] = node

    def operation_at(self, line: int) -> fx.Node | None:
        """What a line of the source computes; ``None`` for lines that only take arguments or drop values."""
        return self._nodes.get(line)


@dataclass(frozen=True)
class FailedOperation:
    """The operation that raised an error, with the values that it was given."""

    node: fx.Node
    operands: Mapping[fx.Node, Any]
    ports: Mapping[fx.Node, Port]


def failed_operation(error: BaseException) -> FailedOperation | None:
    """The operation of generated code in which an error came up; ``None`` where it came from elsewhere."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        table = trace.tb_frame.f_globals.get(TABLE)
        if isinstance(table, LineTable):
            node = table.operation_at(trace.tb_lineno)
            if node is not None:
                values = trace.tb_frame.f_locals
                operands = {n: values[table.names[n]] for n in node.all_input_nodes if table.names.get(n) in values}
                found = FailedOperation(node, operands, table.ports)
        trace = trace.tb_next
    return found
