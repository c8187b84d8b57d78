"""Whether a Program is what all who read it rely on; errors show where it is not."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import fx

from poptorch.compiler.passes.slots import SlotPartition
from poptorch.errors import backend_error
from poptorch.program.graphs import is_view
from poptorch.program.opinfo import Sweep, has_info, info_of
from poptorch.program.outputs import KINDS
from poptorch.program.program import PORT_ORDER, Program, Role, describe, is_write

aten = torch.ops.aten

Fault = tuple[str, fx.Node | None]
"""What is wrong, and the operation where it shows."""

_AROUND = 3
"""Operations shown before and after the one at fault."""


def verify(program: Program, partition: SlotPartition | None = None, *, staged: bool = False, after: str = "") -> None:
    """Raise an error for the first fault; it names the pass ``after`` which it was found.

    ``partition`` is given once operations have slots. ``staged`` says that its parts are the stages of a pipeline.
    """
    for check in (_lists, _ports, _outputs, _constants, _definitions, _types, _annotations):
        for fault in check(program):
            raise _error(program, fault, after)
    if partition is not None:
        for fault in _slots(program, partition):
            raise _error(program, fault, after)
        for fault in _stage_order(program) if staged else ():
            raise _error(program, fault, after)


# -- ports and outputs -----------------------------------------------------------------------------------------------


def _lists(program: Program) -> Iterator[Fault]:
    placeholders = len(program.graph.find_nodes(op="placeholder"))
    if placeholders != len(program.ports):
        yield f"{placeholders} placeholders have {len(program.ports)} ports", None
    values = len(program.output_values())
    if values != len(program.outputs):
        yield f"{values} values are returned as {len(program.outputs)} outputs", None
    results = len(program.results)
    if program.loss_result is not None and program.loss_result >= results:
        yield f"the loss is result {program.loss_result} of {results}", None


def _ports(program: Program) -> Iterator[Fault]:
    count = dict.fromkeys(Role, 0)
    latest = 0
    for node, port in program.placeholders():
        order = PORT_ORDER.index(port.role)
        if order < latest:
            yield f"the {port.role.value} {port.name!r} comes after ports of a later role", node
        if port.index != count[port.role]:
            yield f"{port.name!r} is {port.role.value} {count[port.role]}, but its index is {port.index}", node
        latest = max(latest, order)
        count[port.role] += 1


def _outputs(program: Program) -> Iterator[Fault]:
    for (before, _), (output, value) in pairwise(program.returned()):
        if KINDS.index(output.kind) < KINDS.index(before.kind):
            node = value if isinstance(value, fx.Node) else None
            yield f"the {output.kind.value} {output.name!r} comes after the {before.kind.value} {before.name!r}", node


def _constants(program: Program) -> Iterator[Fault]:
    for node, port in program.placeholders():
        if port.role is not Role.CONSTANT:
            continue
        value = program.constants.get(port.name)
        if value is None:
            yield f"the constant {port.name!r} has no value", node
        elif (tuple(value.shape), value.dtype) != (port.shape, port.dtype):
            yield f"the constant {port.name!r} is {list(value.shape)} of {value.dtype}, unlike its port", node


# -- operations ------------------------------------------------------------------------------------------------------


def _definitions(program: Program) -> Iterator[Fault]:
    """One definition before use: what an operation reads is in the graph, further up."""
    seen: set[fx.Node] = set()
    names: set[str] = set()
    for node in program.graph.nodes:
        if node.name in names:
            yield f"%{node.name} is defined twice", node
        for operand in node.all_input_nodes:
            if operand not in seen:
                yield f"%{node.name} uses %{operand.name} before its definition", node
        seen.add(node)
        names.add(node.name)


def _types(program: Program) -> Iterator[Fault]:
    for node in program.graph.nodes:
        # Of several results some may be none at all, such as a gradient that was not asked for.
        if node.op in ("placeholder", "call_function") and node.users and "val" not in node.meta:
            yield f"the type of %{node.name} is not known", node
    for node, port in program.placeholders():
        value = node.meta.get("val")
        if value is not None and tuple(value.shape) != port.shape:
            yield f"%{node.name} is {list(value.shape)}, but its port is {list(port.shape)}", node


_COPIES = (aten.clone.default, aten._to_copy.default, operator.getitem)


def _annotations(program: Program) -> Iterator[Fault]:
    """Only views, copies and single results of several may be without a place: they are where their operand is."""
    for node in program.operations():
        if not has_info(node) and not is_write(node) and not is_view(node) and node.target not in _COPIES:
            yield f"%{node.name} has no annotations: it is not known where it runs", node


# -- the order of parts ----------------------------------------------------------------------------------------------


def _slots(program: Program, partition: SlotPartition) -> Iterator[Fault]:
    slots = partition.slots
    for node in program.operations():
        if node not in slots:
            yield f"%{node.name} has no slot", node
            continue
        for operand in node.all_input_nodes:
            if slots.get(operand, 0) > slots[node]:
                yield (
                    (
                        f"%{node.name} runs in slot {slots[node]}, before %{operand.name} in slot {slots[operand]}, "
                        "whose value it uses"
                    ),
                    node,
                )


def _stage_order(program: Program) -> Iterator[Fault]:
    """Data of a pipeline flows forwards."""
    for node in program.operations():
        if not has_info(node) or info_of(node).sweep is not Sweep.FORWARD or is_write(node):
            continue
        stage = info_of(node).placement.stage
        for operand in node.all_input_nodes:
            if operand.op == "call_function" and has_info(operand) and info_of(operand).placement.stage > stage:
                earlier = info_of(operand).placement.stage
                yield f"%{node.name} of stage {stage} uses %{operand.name} of stage {earlier}", node


# -- showing faults --------------------------------------------------------------------------------------------------


def _error(program: Program, fault: Fault, after: str) -> Exception:
    text, node = fault
    where = f" after the pass {after!r}" if after else ""
    lines = [f"The program is broken{where}: {text}."]
    if node is not None:
        lines += _neighbourhood(program, node)
    return backend_error("\n".join(lines))


def _neighbourhood(program: Program, node: fx.Node) -> Iterator[str]:
    """The node, what it reads and who reads it, and the lines around it."""
    yield "operands:"
    yield from (f"  {describe(operand)}" for operand in node.all_input_nodes)
    yield "users:"
    yield from (f"  {describe(user)}" for user in node.users)
    yield "around it:"
    nodes = list(program.graph.nodes)
    at = nodes.index(node)
    for other in nodes[max(at - _AROUND, 0) : at + _AROUND + 1]:
        yield f"{'>' if other is node else ' '} {describe(other)}"
