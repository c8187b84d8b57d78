"""The operations of a device program as JSON, for tools that read what the original's compiler shows."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.plan import Plan
from poptorch.ops.hints import CHECKPOINT
from poptorch.ops.traits import traits_of
from poptorch.program.naming import value_labels
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program, Role, type_text


def ir_text(device: DeviceProgram) -> str:
    """One JSON object with the list ``maingraph``: an entry for each operation, in program order.

    An entry has ``type``, ``name`` (with its name scopes), ``inputs``, ``outputs`` and ``attributes``. Of these,
    ``recompute`` is ``Checkpoint`` for what recomputation keeps by request, and ``Recomputed`` for what the backward
    pass runs again. What a pipeline keeps of a micro-batch for the backward pass follows as ``Stash`` entries.
    """
    names = {node: port.name for node, port in device.program.placeholders()}
    names |= value_labels(device.program.operations())
    operations = [
        _operation(node, names) for node in device.program.operations() if node.target is not operator.getitem
    ]
    return json.dumps({"maingraph": [*operations, *_stashes(device.program, device.plan, names)]}, indent=1)


def _operation(node: fx.Node, names: dict[fx.Node, str]) -> dict[str, Any]:
    info = info_of(node)
    attributes: dict[str, Any] = {
        "ipu": info.placement.ipu,
        "stage": info.placement.stage,
        "phase": info.placement.phase,
        "pass": info.sweep.value,
        "operator": str(node.target),
    }
    if node.target is CHECKPOINT or info.recomputed:
        attributes["recompute"] = "Recomputed" if info.recomputed else "Checkpoint"
    if info.source is not None:
        attributes["source"] = str(info.source)
    for given in info.attributes.values():
        attributes |= given
    return {
        "type": _type(node),
        "name": names[node],
        "inputs": [_value(operand, names) for operand in node.all_input_nodes],
        "outputs": [_value(output, names) for output in _outputs(node)],
        "attributes": attributes,
    }


def _type(node: fx.Node) -> str:
    """The name of the operation as the original's graphs have it, else that of torch: ``Gemm``, ``NativeDropout``."""
    known = traits_of(node).known_as
    name = getattr(node.target, "overloadpacket", node.target)
    return known or "".join(word.capitalize() for word in str(getattr(name, "__name__", name)).split("_"))


def _outputs(node: fx.Node) -> list[fx.Node]:
    """The values of an operation: itself, or each of several."""
    several = [user for user in node.users if user.target is operator.getitem]
    return several or [node]


def _value(node: fx.Node, names: dict[fx.Node, str]) -> dict[str, str]:
    value = node.meta.get("val")
    described = {"name": names.get(node, node.name)}
    if isinstance(value, torch.Tensor):
        described["type"] = type_text(value.dtype, tuple(value.shape))
    return described


def _stashes(program: Program, plan: Plan, names: dict[fx.Node, str]) -> Iterator[dict[str, Any]]:
    """What each part but the last keeps from its forward to its backward pass; the last one keeps nothing for long."""
    inputs = [(port.name, type_text(port.dtype, port.shape)) for port in program.ports_of(Role.INPUT)]
    labels = {node.name: label for node, label in names.items()}
    for stage in plan.stages:
        if not stage.backward or stage.part == len(plan.parts) - 1:
            continue
        edges = [plan.edges[i] for i in stage.receives if plan.edges[i].producer < len(plan.parts)]
        kept = [inputs[i] for i in stage.inputs]
        kept += [(labels.get(e.name, e.name), type_text(e.dtype, e.shape)) for e in edges]
        part = plan.parts[stage.part]
        for name, kind in kept:
            value = {"name": name, "type": kind}
            stash = {"name": f"Stash___{name}", "type": kind}
            where = {"ipu": part.ipu, "stage": part.stage, "phase": part.phase}
            yield {
                "type": "Stash",
                "name": f"Stash/{name}",
                "inputs": [value],
                "outputs": [stash],
                "attributes": where,
            }
