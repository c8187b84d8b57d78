"""Values that do not depend on inputs, weights or random numbers: computed once, when the program is compiled."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from poptorch.compiler.passes.outputs import check_returnable, narrow_result
from poptorch.compiler.passes.summary import UNCHANGED, summary
from poptorch.frames import warn_user
from poptorch.ops.effects import communicates
from poptorch.program.graphs import descendants, remove_dead_code
from poptorch.program.opinfo import info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Port, Program, Role, has_values, is_write

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

_LARGEST = 65536
"""Elements of a folded value: a larger one would occupy memory for the life of the program to save little."""


def drop_writes_to_constants(program: Program, context: Context) -> str:
    """A plain tensor attribute is no state: changes to it in ``forward`` do not outlive the micro-batch."""
    constants = {node for node, port in program.placeholders() if port.role is Role.CONSTANT}
    writes = [n for n in program.operations() if is_write(n) and n.args[0] in constants]
    for node in writes:
        source = node.args[1]
        assert isinstance(source, fx.Node)
        node.replace_all_uses_with(source)
        program.graph.erase_node(node)
    return summary(len(writes), f"dropped {len(writes)} writes")


def take_host_results(program: Program, context: Context) -> str:
    """Remove constant results from the program; they are returned as they are, whatever the output mode."""
    constants = _constant_results(program)
    if not constants:
        return UNCHANGED
    if not context.settings.expects_host_results:
        warn_user("Output expected to be on the IPU but is on cpu")
    taken = {program.positions_of(OutputKind.RESULT)[i] for i in constants}
    if program.loss_result is not None:
        before = [i for i in range(program.loss_result) if i not in constants]
        program.loss_result = None if program.loss_result in constants else len(before)
    program.set_outputs(pair for at, pair in enumerate(program.returned()) if at not in taken)
    context.host_results = constants
    return f"{len(constants)} results are constant"


def _constant_results(program: Program) -> dict[int, torch.Tensor]:
    """Results that no device operation contributes to, by position, with their values.

    Integers that come from tensors of the host keep their type, and with it their upper bits: they were never on the
    device. What is made by an operation alone, such as ``torch.arange``, has the type that the device gives it.
    """
    varying = _varying(program)
    of_host = descendants(node for node, port in program.placeholders() if port.role is Role.CONSTANT)

    def value_of(node: fx.Node) -> torch.Tensor:
        value = _evaluate(program, node)
        check_returnable(value.dtype, node)
        return value if node in of_host and value.dtype is torch.int64 else narrow_result(value)

    constant = {
        i: value
        for i, value in enumerate(program.values_of(OutputKind.RESULT))
        if not isinstance(value, fx.Node) or value not in varying
    }
    return {i: value_of(v) if isinstance(v, fx.Node) else v for i, v in constant.items()}


def fold_constants(program: Program, context: Context) -> str:
    """Turn operations on constants into constants, where the result is small."""
    varying = _varying(program)
    frontier = [
        n
        for n in program.operations()
        if n not in varying
        and isinstance(n.meta.get("val"), torch.Tensor)
        and n.meta["val"].numel() <= _LARGEST
        and any(user in varying or user.op == "output" for user in n.users)
    ]
    for node in frontier:
        _become_constant(program, node, _evaluate(program, node))
    removed = remove_dead_code(program) + _drop_unused_constants(program)
    return summary(len(frontier) + removed, f"folded {len(frontier)} values")


def _varying(program: Program) -> set[fx.Node]:
    """Nodes that change from call to call or from micro-batch to micro-batch, or that act on the world.

    A constant without values (on the meta device, or a fake tensor) counts as one that changes: there is nothing to
    compute with.
    """
    constants = program.constants
    starts = [n for n, p in program.placeholders() if p.role is not Role.CONSTANT or not has_values(constants[p.name])]
    starts += [
        n
        for n in program.operations()
        if info_of(n).random is not None or n.is_impure(impure_random=False) or communicates(n)
    ]
    return descendants(starts)


def _evaluate(program: Program, node: fx.Node) -> torch.Tensor:
    """The value of a node that depends on constants only."""
    ports = {n: program.constants[p.name] for n, p in program.placeholders() if p.role is Role.CONSTANT}
    known: dict[fx.Node, Any] = dict(ports)

    def value(item: fx.Node) -> Any:
        if item not in known:
            if item.op == "get_attr":
                known[item] = getattr(program.graph_module, str(item.target))
            else:
                args = fx.node.map_arg(item.args, value)
                kwargs = fx.node.map_arg(item.kwargs, value)
                known[item] = item.target(*args, **kwargs)  # type: ignore[operator]
        return known[item]

    with torch.no_grad():
        result = value(node)
    assert isinstance(result, torch.Tensor)
    return result.detach().clone()


def _become_constant(program: Program, node: fx.Node, value: torch.Tensor) -> None:
    index = len(program.ports_of(Role.CONSTANT))
    name = f"constant {index}"
    while name in program.constants:
        index += 1
        name = f"constant {index}"
    last = program.placeholders()[-1][0] if program.ports else None
    first = next(iter(program.graph.nodes))
    with program.graph.inserting_after(last) if last is not None else program.graph.inserting_before(first):
        placeholder = program.graph.placeholder(name.replace(" ", "_"))
    placeholder.meta["val"] = node.meta["val"]
    program.ports.append(Port(Role.CONSTANT, name, index, tuple(value.shape), value.dtype))
    program.constants[name] = value
    node.replace_all_uses_with(placeholder)


def _drop_unused_constants(program: Program) -> int:
    unused = [(n, port) for n, port in program.placeholders() if port.role is Role.CONSTANT and not n.users]
    for node, port in unused:
        program.graph.erase_node(node)
        program.ports.remove(port)
        program.constants.pop(port.name)
    numbers = itertools.count()  # code finds them by their number among those that are left
    program.ports = [
        replace(port, index=next(numbers)) if port.role is Role.CONSTANT else port for port in program.ports
    ]
    return len(unused)
