"""Recording the body of a loop or branch: its forward graph and, if wanted, its backward graph."""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _pop_mode, _push_mode

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops.effects import calls_host, is_ordered
from poptorch.ops.function_modes import hand_on, runs_functions
from poptorch.ops.memory_order import for_any_order, order_in_memory
from poptorch.ops.printing import PRINT
from poptorch.ops.subgraph import graph_to_text
from poptorch.ops.traits import traits_of

_PASS_THROUGH = {
    torch.ops.aten.clone.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.lift_fresh_copy.default,
}
"""Copies that separate tensors under in-place changes; in a functional graph they do nothing."""


Kind = tuple[list[int], torch.dtype]
"""Shape and element type of a tensor."""


def may_need_gradient(tensor: torch.Tensor) -> bool:
    """Whether torch differentiates tensors of this type."""
    return tensor.is_floating_point() or tensor.is_complex()


def kind_of(tensor: torch.Tensor) -> Kind:
    return list(tensor.shape), tensor.dtype


OUTER = "outer"
"""Under this name an input of a body's graph holds the tensor of the surrounding model that it stands for."""


@dataclass(frozen=True)
class RecordedBody:
    """A body as text, together with the outer tensors that it uses.

    The forward graph takes the body's arguments, then ``captured``; it gives the body's results, then the
    values that the backward graph cannot compute again (``saved`` of them). The last ``constants`` of
    ``captured`` are tensors that the body made from Python data. The backward graph takes the forward graph's
    inputs, the saved values and a gradient for each result that may have one; it gives a gradient for each
    position among the inputs that ``differentiable`` lists. It recomputes what else it needs.
    """

    forward: str
    backward: str
    captured: list[torch.Tensor]
    constants: int
    results: list[Kind]
    saved: int
    differentiable: list[int]


@dataclass
class _Trace:
    """What one run of the body left behind: nodes of the traced graph by role."""

    arguments: list[fx.Node] = field(default_factory=list)
    captured: list[fx.Node] = field(default_factory=list)
    outer: list[torch.Tensor] = field(default_factory=list)
    tangents: list[fx.Node] = field(default_factory=list)
    differentiable: list[int] = field(default_factory=list)
    results: list[Kind] = field(default_factory=list)


def record(
    body: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    function: str,
    gradient_inputs: Sequence[bool] | None,
) -> RecordedBody:
    """Run ``body`` once on stand-ins for ``inputs`` and record it; the surrounding capture does not notice.

    ``gradient_inputs`` says which inputs need a gradient (outer tensors that require one always get it);
    ``None`` records no backward graph.
    """
    fake_mode = detect_fake_mode(list(inputs))
    with _apart_from_capture(fake_mode) as recorders:
        leaves = [_leaf(tensor, fake_mode) for tensor in inputs]
        module, trace = _traced(body, leaves, function, gradient_inputs, recorders)
        constants = _lift_constants(module, trace)
        graph = _functional(module, trace)
    return _divided(graph, trace, constants)


@contextmanager
def _apart_from_capture(fake_mode: FakeTensorMode | None) -> Iterator[list[TorchDispatchMode]]:
    """Suspend the surrounding tracer, and keep annotations made by the body away from the outer model.

    Gives the dispatch modes that capture has put above its tracer (they cast operands, among other things): the
    body must be recorded beneath them as well.
    """
    context = ambient.current()
    with ExitStack() as stack:
        suspended = stack.enter_context(_disable_current_modes())
        stack.enter_context(_innermost(None))
        if fake_mode is not None:
            stack.enter_context(fake_mode)
        if context is not None:
            inner = dataclasses.replace(context, losses=[], block_starts=list(context.block_starts))
            stack.enter_context(ambient.capturing(inner))
        yield [mode for mode in suspended if not _is_infrastructure(mode)]


def _is_infrastructure(mode: TorchDispatchMode) -> bool:
    return isinstance(mode, (ProxyTorchDispatchMode, FakeTensorMode, FunctionalTensorMode))


@contextmanager
def _beneath(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    """Put modes that are entered already back in force; entering them again would run their own set-up twice."""
    for mode in reversed(modes):
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()


@contextmanager
def _tracer_only() -> Iterator[None]:
    """Suspend whatever is above the tracer."""
    with _disable_current_modes() as suspended, _beneath([m for m in suspended if _is_infrastructure(m)]):
        yield


def _leaf(tensor: torch.Tensor, fake_mode: FakeTensorMode | None) -> torch.Tensor:
    """A tensor like ``tensor`` that the body may use, and change, without anybody else seeing it."""
    if fake_mode is not None and not isinstance(tensor, FakeTensor):
        return fake_mode.from_tensor(tensor.detach()).detach()
    return tensor.detach() if fake_mode is not None else tensor.detach().clone()


class _Recording(threading.local):
    innermost: _StandIns | None = None


_recording = _Recording()


@contextmanager
def _innermost(stand_ins: _StandIns | None) -> Iterator[None]:
    previous, _recording.innermost = _recording.innermost, stand_ins
    try:
        yield
    finally:
        _recording.innermost = previous


class _StandIns(TorchFunctionMode):
    """Replaces each outer tensor that the body touches by an input of the graph being traced.

    Only the innermost one works, and only while its body runs: bodies may hold loops and branches.
    """

    def __init__(self, trace: _Trace, fake_mode: FakeTensorMode | None, with_gradient: bool) -> None:
        super().__init__()
        self._trace, self._fake_mode, self._with_gradient = trace, fake_mode, with_gradient
        self.leaves: list[torch.Tensor] = []
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._known: dict[int, torch.Tensor] = {}

    def adopt(self, value: Any) -> Any:
        """Note that the tensors in ``value`` belong to the body; alive, so that no ``id`` occurs twice."""
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                self._known[id(leaf)] = leaf
        return value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if runs_functions(func):
            return hand_on(self, func, args, kwargs or {})
        if _recording.innermost is not self:
            return func(*args, **(kwargs or {}))
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.stand_in, (args, kwargs or {}))
        return self.adopt(func(*args, **kwargs))

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in self._known:
            return tensor
        if id(tensor) not in self._stand_ins:
            with torch._C.DisableTorchFunction(), _tracer_only():
                stand_in = self._new_stand_in(tensor)
            self._stand_ins[id(tensor)] = self._known[id(stand_in)] = stand_in
        return self._stand_ins[id(tensor)]

    def _new_stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        needs_gradient = self._with_gradient and tensor.requires_grad
        leaf, node = _new_input(_untraced(lambda: _leaf(tensor, self._fake_mode)), "captured")
        leaf.requires_grad_(needs_gradient)
        self.leaves.append(leaf)
        self._trace.outer.append(tensor)
        self._trace.captured.append(node)
        node.meta[OUTER] = tensor
        if isinstance(tensor, torch.nn.Parameter):
            return leaf  # capture knows parameters by their memory
        return leaf.clone()  # not the leaf itself: the body may change it in place


def _untraced(function: Callable[[], torch.Tensor]) -> torch.Tensor:
    with disable_proxy_modes_tracing(), torch.no_grad():
        return function()


def _new_input(tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, fx.Node]:
    """Make ``tensor`` an input of the graph under construction, although tracing has begun."""
    mode = get_proxy_mode()
    assert mode is not None
    number = sum(node.op == "placeholder" for node in mode.tracer.graph.nodes)
    proxy = mode.tracer.create_proxy("placeholder", f"{name}_{number}", (), {})
    track_tensor_tree(tensor, proxy, constant=None, tracer=mode.tracer)
    return tensor, proxy.node


def _traced(
    body: Callable[..., Any],
    leaves: list[torch.Tensor],
    function: str,
    gradient_inputs: Sequence[bool] | None,
    recorders: Sequence[TorchDispatchMode],
) -> tuple[fx.GraphModule, _Trace]:
    trace = _Trace()
    fake_mode = detect_fake_mode(leaves)
    with_gradient = gradient_inputs is not None

    def run(*arguments: torch.Tensor) -> Any:
        stand_ins = _StandIns(trace, fake_mode, with_gradient)
        for tensor, wanted in zip(arguments, gradient_inputs or (), strict=False):
            tensor.requires_grad_(wanted)
        with torch.set_grad_enabled(with_gradient):
            copies = stand_ins.adopt([tensor.clone() for tensor in arguments])
            with _innermost(stand_ins), stand_ins, _beneath(recorders):
                results = as_tensors(body(*copies), function)
            results = [stand_ins.stand_in(tensor) for tensor in results]
        trace.results = [kind_of(tensor) for tensor in results]
        leaves = [*arguments, *stand_ins.leaves]
        gradients = _gradients(trace, leaves, results, recorders) if with_gradient else []
        return [*results, *gradients]

    module = make_fx(run)(*leaves)
    trace.arguments = [node for node in module.graph.nodes if node.op == "placeholder"][: len(leaves)]
    return module, trace


def _gradients(
    trace: _Trace,
    leaves: list[torch.Tensor],
    results: list[torch.Tensor],
    recorders: Sequence[TorchDispatchMode],
) -> list[torch.Tensor]:
    pairs = []
    for result in results:
        if may_need_gradient(result):
            tangent, node = _new_input(_untraced(partial(torch.empty_like, result)), "tangent")
            trace.tangents.append(node)
            if result.requires_grad:
                pairs.append((result, tangent))
    trace.differentiable = [position for position, leaf in enumerate(leaves) if leaf.requires_grad]
    wanted = [leaves[position] for position in trace.differentiable]
    if not pairs or not wanted:
        return [torch.zeros_like(leaf) for leaf in wanted]
    differentiated, tangents = zip(*pairs, strict=True)
    with _beneath(recorders):
        gradients = torch.autograd.grad(differentiated, wanted, tangents, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(wanted, gradients, strict=True)]


def as_tensors(results: Any, function: str) -> list[torch.Tensor]:
    """What a body returned, as a list: one tensor, or a list or tuple of tensors."""
    listed = list(results) if isinstance(results, (list, tuple)) else [results]
    for result in listed:
        if not isinstance(result, torch.Tensor):
            raise createPoptorchError(
                f"poptorch.{function}: the body must return a tensor, or a list or tuple of tensors, but "
                f"returned {type(result).__name__}."
            )
    return listed


def _lift_constants(module: fx.GraphModule, trace: _Trace) -> list[torch.Tensor]:
    """Make inputs of the tensors that the body built from Python data."""
    constants = []
    for node in list(module.graph.nodes):
        if node.op != "get_attr":
            continue
        constants.append(getattr(module, node.target))
        with module.graph.inserting_before(node):
            placeholder = module.graph.placeholder(f"constant_{len(constants)}")
        placeholder.meta["val"] = constants[-1]
        node.replace_all_uses_with(placeholder)
        module.graph.erase_node(node)
        trace.captured.append(placeholder)
    return constants


def _functional(module: fx.GraphModule, trace: _Trace) -> fx.Graph:
    """The graph with its inputs ordered (arguments, captured, tangents), free of in-place operations."""
    graph = _with_ordered_inputs(module.graph, [*trace.arguments, *trace.captured, *trace.tangents])
    if any(traits_of(node).is_in_place for node in graph.nodes):
        examples = [_example(node) for node in (*trace.arguments, *trace.captured, *trace.tangents)]
        function = fx.GraphModule(torch.nn.Module(), graph)
        with torch.no_grad():
            graph = make_fx(torch.func.functionalize(function))(*examples).graph
    for_any_order(graph)
    for node in list(graph.nodes):
        if node.target not in _PASS_THROUGH or _computes_conjugate(node):
            continue
        if node.kwargs.get("memory_format") in (None, torch.preserve_format):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code(lambda node: node.is_impure() or calls_host(node))
    return graph


def _computes_conjugate(node: fx.Node) -> bool:
    """Whether a copy does something after all: its operand is only marked as conjugate or negative."""
    source, copy = node.args[0].meta.get("val"), node.meta.get("val")  # type: ignore[union-attr]
    if not isinstance(source, torch.Tensor) or not isinstance(copy, torch.Tensor):
        return False
    return source.is_conj() != copy.is_conj() or source.is_neg() != copy.is_neg()


def _example(node: fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    if order_in_memory(value) is None:
        return torch.zeros(value.shape, dtype=value.dtype)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()


def _with_ordered_inputs(graph: fx.Graph, inputs: Sequence[fx.Node]) -> fx.Graph:
    ordered = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: ordered.placeholder(node.name) for node in inputs}
    for node in graph.nodes:
        if node.op == "output":
            ordered.output(fx.map_arg(node.args[0], copies.__getitem__))
        elif node not in copies:
            copies[node] = ordered.node_copy(node, copies.__getitem__)
    return ordered


def _divided(graph: fx.Graph, trace: _Trace, constants: list[torch.Tensor]) -> RecordedBody:
    """Separate what the body does from how its gradients are computed."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    tangents = placeholders[len(placeholders) - len(trace.tangents) :]
    inputs = placeholders[: len(placeholders) - len(tangents)]
    outputs = list(next(iter(reversed(graph.nodes))).args[0])
    results, gradients = outputs[: len(trace.results)], outputs[len(trace.results) :]
    needed = _ancestors(results)
    saved = [value for node in graph.nodes if node in needed and _is_unrepeatable(node) for value in _values(node)]
    if not gradients:
        saved = []
    calls = [node for node in graph.nodes if calls_host(node) and not _depends_on_tangent(node)]
    forward = _extracted(inputs, [], [*results, *saved], also=calls)
    backward = _extracted([*inputs, *saved, *tangents], [PRINT], gradients) if gradients else ""
    return RecordedBody(
        forward=forward,
        backward=backward,
        captured=[*trace.outer, *constants],
        constants=len(constants),
        results=trace.results,
        saved=len(saved),
        differentiable=trace.differentiable if gradients else [],
    )


def _is_unrepeatable(node: fx.Node) -> bool:
    # A print alone is left out of the second execution; what has one inside cannot be.
    return traits_of(node).is_random or (is_ordered(node) and node.target is not PRINT)


def _values(node: fx.Node) -> list[fx.Node]:
    items = [user for user in node.users if user.target is operator.getitem]
    return items or [node]


def _ancestors(values: Sequence[fx.Node]) -> set[fx.Node]:
    seen: set[fx.Node] = set(values)
    queue = list(values)
    while queue:
        for parent in queue.pop().all_input_nodes:
            if parent not in seen:
                seen.add(parent)
                queue.append(parent)
    return seen


def _extracted(
    inputs: Sequence[fx.Node], silent: Sequence[Any], outputs: Sequence[fx.Node], also: Sequence[fx.Node] = ()
) -> str:
    """The part of the graph that leads from ``inputs`` to ``outputs`` and ``also`` to other nodes.

    ``silent`` operators are left out.
    """
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: part.placeholder(node.name) for node in inputs}
    needed = _reachable([*outputs, *also], stop=set(inputs))
    graph = (inputs or outputs)[0].graph
    for node in graph.nodes:
        if node not in needed or node in copies:
            continue
        if node.target in silent and not _depends_on_tangent(node):
            copies[node] = copies[node.args[0]]
        else:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in outputs))
    return graph_to_text(part)


def _reachable(outputs: Sequence[fx.Node], stop: set[fx.Node]) -> set[fx.Node]:
    seen: set[fx.Node] = set(outputs)
    queue = list(outputs)
    while queue:
        node = queue.pop()
        for parent in () if node in stop else node.all_input_nodes:
            if parent not in seen:
                seen.add(parent)
                queue.append(parent)
    return seen


def _depends_on_tangent(node: fx.Node) -> bool:
    return any(ancestor.op == "placeholder" and ancestor.name.startswith("tangent") for ancestor in _ancestors([node]))
