"""From a recording to a Program: constants lifted to ports, in-place operations replaced by functional ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from poptorch.capture.state import StateEntry, StateKind
from poptorch.capture.tracer import Recording
from poptorch.errors import Error, NothingToComputeError, add_to_message, misuse
from poptorch.ops.memory_order import InAnyOrder
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
    if not all(map(_lies_as_on_device, zip(_placeholders(functional), ports, strict=True))):
        functional = _on_device(functional, ports, constants)
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
        raise misuse(
            NothingToComputeError,
            "All operations in the main graph were pruned, nothing to compute: the model returns no tensor and changes "
            "no input or buffer.",
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

    for entry, node in zip(recording.state, _placeholders(recording.graph_module), strict=False):
        # The stand-in, not the user's tensor: the device may keep another type.
        add(_state_role(entry), entry.name, node.meta.get("val", entry.tensor))
    for name, tensor in zip(input_names, recording.example_inputs, strict=True):
        add(Role.INPUT, name, tensor)
    if recording.loss_scaled:
        add(Role.LOSS_SCALE, "loss scale", torch.ones(()))
    for index, tensor in enumerate(constants):
        add(Role.CONSTANT, f"constant {index}", tensor)
    return ports


def _placeholders(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in graph_module.graph.nodes if n.op == "placeholder"]


def _state_role(entry: StateEntry) -> Role:
    return Role.PARAMETER if entry.kind is StateKind.PARAMETER else Role.BUFFER


def _is_functional(recording: Recording) -> bool:
    """Whether a recording is its own functional form, as that of most models is: running it again takes seconds."""
    if recording.fake_mode is None:
        return False  # the values that describe it are real tensors
    return all(_stays(n) for n in recording.graph_module.graph.nodes)


def _stays(node: fx.Node) -> bool:
    """Whether a node would be the same in the functional form."""
    if node.op in ("placeholder", "output") or node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target in _CHANGED:
        return False
    return not traits_of(node).is_in_place


def _functionalize(
    graph_module: fx.GraphModule, ports: list[Port], constants: Sequence[torch.Tensor]
) -> fx.GraphModule:
    """Without operations that write. Tensors lie in memory as they did in the recording, for the sake of views."""
    replay = _Replay(graph_module)

    def run(*inputs: torch.Tensor) -> Any:
        return replay.run(*inputs, enable_io_processing=False)

    strides = [_recorded_strides(node) for node in _placeholders(graph_module)]
    return _traced(torch.func.functionalize(run, remove="mutations"), ports, strides, constants)


def _on_device(graph_module: fx.GraphModule, ports: list[Port], constants: Sequence[torch.Tensor]) -> fx.GraphModule:
    """A functional graph for tensors that lie in memory as on a device, and no more as in the recording."""
    replay = _InAnyOrder(graph_module, garbage_collect_values=False)  # a view by address needs its base

    def run(*inputs: torch.Tensor) -> Any:
        return replay.run(*inputs, enable_io_processing=False)

    # Constants stay as they are: one that repeats its elements may be far smaller so.
    strides = [
        _recorded_strides(node) if port.role is Role.CONSTANT else None
        for node, port in zip(_placeholders(graph_module), ports, strict=True)
    ]
    return _traced(run, ports, strides, constants)


def _traced(
    function: Callable[..., Any],
    ports: Sequence[Port],
    strides: Sequence[Sequence[int] | None],
    constants: Sequence[torch.Tensor],
) -> fx.GraphModule:
    """The graph of a function of all ports; without strides, elements lie in the order of dimensions."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_mode, torch.no_grad():
        fakes = [
            torch.empty(port.shape, dtype=port.dtype)
            if stride is None
            else torch.empty_strided(port.shape, stride, dtype=port.dtype)
            for port, stride in zip(ports, strides, strict=True)
        ]
        for position, port in enumerate(ports):
            if port.role is Role.CONSTANT and constants[port.index].layout is not torch.strided:
                fakes[position] = fake_mode.from_tensor(constants[port.index])
        assert all(isinstance(fake, FakeTensor) for fake in fakes)
        graph_module = make_fx(function, tracing_mode="real")(*fakes)
    graph_module.graph.set_codegen(fx.graph.CodeGen())
    return graph_module


def _recorded_strides(placeholder: fx.Node) -> Sequence[int] | None:
    value = placeholder.meta.get("val")
    return value.stride() if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _lies_as_on_device(placeholder: tuple[fx.Node, Port]) -> bool:
    node, port = placeholder
    return port.role is Role.CONSTANT or bool(node.meta["val"].is_contiguous())


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


class _Annotating(fx.Interpreter):
    """Runs a recorded graph under the tracer; new operations inherit the annotations of the old."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        mode = get_proxy_mode()
        if mode is not None and n.op == "call_function":
            node = next(iter(reversed(mode.tracer.graph.nodes)), None)
            while node is not None and node.op not in ("root", "placeholder") and not has_info(node):
                set_info(node, info_of(n))
                node = node.prev
        return result


class _InAnyOrder(_Annotating, InAnyOrder):
    """Runs a functional graph with tensors that lie in memory otherwise than in the recording."""

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Error as error:
            source = info_of(n).source
            if source is not None:
                add_to_message(error, f" (at {source})")
            raise


class _Replay(_Annotating):
    """Runs a recorded graph, with operations that are honest about what they write."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _HONEST and args[3] is not None:
            *operands, training, momentum, eps = args
            if not training:
                return super().call_function(_READING[target], (*operands, momentum, eps), kwargs)
            target = _HONEST[target]
        return super().call_function(target, args, kwargs)
