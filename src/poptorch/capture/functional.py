"""From a recording to a Program: constants lifted to ports, in-place operations replaced by functional ones."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from poptorch.capture.state import StateEntry, StateKind
from poptorch.capture.tracer import Recording
from poptorch.errors import createPoptorchError
from poptorch.ops.traits import traits_of
from poptorch.program.graphs import remove_dead_code
from poptorch.program.opinfo import has_info, info_of, set_info
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import Port, Program, Role


def to_program(recording: Recording, input_names: list[str]) -> Program:
    """The recording as a Program. May run the recorded graph again, never the user's code."""
    graph_module = recording.graph_module
    graph_module.graph.set_codegen(fx.graph.CodeGen())
    strayed = _leave_meta(graph_module.graph)
    constants = _lift_constants(graph_module, recording.fake_mode)
    ports = _ports(recording, input_names, constants)
    is_functional = not strayed and _is_functional(recording)
    functional = graph_module if is_functional else _functionalize(graph_module, ports, constants)
    program = Program(
        graph_module=functional,
        ports=ports,
        outputs=[
            *(Output(OutputKind.RESULT, f"output {i}") for i in range(recording.num_results)),
            *(Output(OutputKind.GRADIENT, recording.state[i].name) for i in recording.gradients),
        ],
        constants={f"constant {i}": tensor for i, tensor in enumerate(constants)},
        training=bool(recording.context.training),
        loss_result=recording.loss_position,
        block_starts=list(recording.context.block_starts),
    )
    _check_purpose(program)
    return program


def _leave_meta(graph: fx.Graph) -> bool:
    """Remove the shapes that torch's rules for tensors of zeros computed on the meta device; were there any?"""
    strayed = [n for n in graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor) and v.device.type == "meta"]
    for node in reversed(strayed):
        if not node.users and not node.is_impure():
            graph.erase_node(node)
    return bool(strayed)


def _check_purpose(program: Program) -> None:
    """Refuse a model whose every operation is in vain: it returns nothing and changes nothing."""
    if program.output_values() or not any(program.operations()):
        return
    remove_dead_code(program)
    if not any(program.operations()):
        raise createPoptorchError(
            "All operations in the main graph were pruned, nothing to compute: the model returns no tensor and changes "
            "no input or buffer."
        )


def _lift_constants(graph_module: fx.GraphModule, fake_mode: FakeTensorMode | None) -> list[torch.Tensor]:
    """Replace tensor attributes by placeholders, behind the existing ones; returns their values."""
    graph = graph_module.graph
    lifted: dict[str, fx.Node] = {}
    values: list[torch.Tensor] = []
    first_op = next(n for n in graph.nodes if n.op != "placeholder")
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        value = operator.attrgetter(str(node.target))(graph_module)
        if not isinstance(value, torch.Tensor):
            continue  # the body of a control-flow operation
        if node.target not in lifted:
            with graph.inserting_before(first_op):
                lifted[str(node.target)] = placeholder = graph.placeholder(f"constant_{len(values)}")
            values.append(value.detach())
            if fake_mode is not None:
                placeholder.meta["val"] = fake_mode.from_tensor(values[-1])
        if node is first_op:
            first_op = node.next
        node.replace_all_uses_with(lifted[str(node.target)])
        graph.erase_node(node)
    graph_module.recompile()
    return values


def _ports(recording: Recording, input_names: list[str], constants: list[torch.Tensor]) -> list[Port]:
    ports: list[Port] = []
    counts = dict.fromkeys(Role, 0)

    def add(role: Role, name: str, tensor: torch.Tensor) -> None:
        dtype = torch.float32 if tensor.dtype is torch.float64 and role is not Role.CONSTANT else tensor.dtype
        ports.append(Port(role, name, counts[role], tuple(tensor.shape), dtype))
        counts[role] += 1

    placeholders = [n for n in recording.graph_module.graph.nodes if n.op == "placeholder"]
    for entry, node in zip(recording.state, placeholders, strict=False):
        # The stand-in, not the user's tensor: the device may keep another type.
        add(_state_role(entry), entry.name, node.meta.get("val", entry.tensor))
    for name, tensor in zip(input_names, recording.example_inputs, strict=True):
        add(Role.INPUT, name, tensor)
    if recording.loss_scaled:
        add(Role.LOSS_SCALE, "loss scale", torch.ones(()))
    for index, tensor in enumerate(constants):
        add(Role.CONSTANT, f"constant {index}", tensor)
    return ports


def _state_role(entry: StateEntry) -> Role:
    return Role.PARAMETER if entry.kind is StateKind.PARAMETER else Role.BUFFER


def _is_functional(recording: Recording) -> bool:
    """Whether a recording is its own functional form, as that of most models is: running it again takes seconds."""
    if recording.fake_mode is None:
        return False  # the values that describe it are real tensors
    return all(_stays(n) for n in recording.graph_module.graph.nodes)


def _stays(node: fx.Node) -> bool:
    """Whether a node would be the same in the functional form, where inputs lie in memory as on a device."""
    if node.op == "placeholder":
        return bool(node.meta["val"].is_contiguous())
    if node.op == "output" or node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target in _CHANGED:
        return False
    return not traits_of(node).is_in_place


def _functionalize(
    graph_module: fx.GraphModule, ports: list[Port], constants: list[torch.Tensor]
) -> fx.GraphModule:
    replay = _Replay(graph_module)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_mode, torch.no_grad():
        fakes = [torch.empty(port.shape, dtype=port.dtype) for port in ports]
        for position, port in enumerate(ports):
            if port.role is Role.CONSTANT and constants[port.index].layout is not torch.strided:
                fakes[position] = fake_mode.from_tensor(constants[port.index])
        assert all(isinstance(fake, FakeTensor) for fake in fakes)

        def run(*inputs: torch.Tensor) -> Any:
            return replay.run(*inputs, enable_io_processing=False)

        functional = make_fx(torch.func.functionalize(run, remove="mutations"), tracing_mode="real")(*fakes)
    functional.graph.set_codegen(fx.graph.CodeGen())
    return functional


# Schemas that do not declare that running statistics are written, and their honest equivalents.
_HONEST = {torch.ops.aten.native_batch_norm.default: torch.ops.aten._native_batch_norm_legit.default}
# The same with running statistics that are only read.
_READING = {torch.ops.aten.native_batch_norm.default: torch.ops.aten._native_batch_norm_legit_no_training.default}

# What the functional form replaces although it writes nothing: constants become copies, one loss is taken apart.
_CHANGED = {
    *_HONEST,
    torch.ops.aten.lift.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.lift_fresh_copy.default,
    torch.ops.aten.binary_cross_entropy_with_logits.default,
}


class _Replay(fx.Interpreter):
    """Runs a recorded graph under the tracer; new operations inherit the annotations of the old."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _HONEST and args[3] is not None:
            *operands, training, momentum, eps = args
            if not training:
                return super().call_function(_READING[target], (*operands, momentum, eps), kwargs)
            target = _HONEST[target]
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        mode = get_proxy_mode()
        if mode is not None and n.op == "call_function":
            node = next(iter(reversed(mode.tracer.graph.nodes)), None)
            while node is not None and node.op not in ("root", "placeholder") and not has_info(node):
                set_info(node, info_of(n))
                node = node.prev
        return result
