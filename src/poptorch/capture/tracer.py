"""Running the user's ``forward`` once and recording it, and its backward pass, as one graph.

Fake tensors come first: nothing is computed or allocated. Where the model's Python needs real values, the recording is
made again with real tensors on copies of the state, and control flow freezes to the path of the inputs at hand.
Nothing of the user's model changes: state, gradients, random numbers and flags are as before, whatever happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as torch_module

from poptorch import ambient
from poptorch._logging import logger
from poptorch.ambient import CaptureContext
from poptorch.capture.arguments import ArgumentLayout
from poptorch.capture.casting import CastingMode, MixedTypes, OperandCaster, is_float_statistic, module_types
from poptorch.capture.locations import location_of
from poptorch.capture.losses import FinalLoss, LossRecorder, autograd_nodes, final_loss
from poptorch.capture.norms import cumulative_norms
from poptorch.capture.overrides import Overrides
from poptorch.capture.recorder import Recorder
from poptorch.capture.state import (
    StateEntry,
    StateKind,
    collect_state,
    plain_attributes_kept,
    plain_without_values,
    replaced,
    stand_ins_for,
)
from poptorch.capture.structure import Structure, flatten
from poptorch.errors import createPoptorchError
from poptorch.ops.third_party import ThirdPartyOps
from poptorch.program.opinfo import SourceLocation, info_of
from poptorch.program.program import has_values


@dataclass
class Recording:
    """What one run of the model left behind."""

    graph_module: fx.GraphModule
    """Placeholders: state entries, then inputs, then (if asked for) the loss scale. Outputs: see ``roles``."""

    state: list[StateEntry]
    example_inputs: list[torch.Tensor]
    output_structure: Structure
    num_results: int
    gradients: list[int]
    """Indices into ``state`` of the parameters with a gradient; their gradients follow the results."""

    loss_position: int | None
    """Index among the results of the final loss, if the user returns it."""

    context: CaptureContext = field(repr=False)
    loss_scaled: bool = False
    fake_mode: FakeTensorMode | None = field(default=None, repr=False)
    """That of all values in the graph; ``None`` if real tensors were recorded."""


@dataclass(frozen=True)
class Request:
    """What to capture."""

    model: nn.Module
    layout: ArgumentLayout
    inputs: Sequence[torch.Tensor]
    """One micro-batch of every input tensor."""

    training: bool
    trained: frozenset[int]
    """``id`` of every parameter that the optimizer updates."""

    options: Any
    loss_scaled: bool = False
    grouped: frozenset[str] = frozenset()
    """Parameters with one row for each group of replicas."""

    same: tuple[int, ...] = ()
    """For each input, the position of the one that stands for it too; empty: each one for itself."""


def record(request: Request) -> Recording:
    """Capture the model; raises what ``forward`` raises, untouched."""
    with torch.random.fork_rng(devices=[]):
        try:
            return _attempt(request, real_values=False)
        except DataDependentOutputException as why:
            _check_values_exist(request, why)
            logger.debug("Capturing again with real values: %s needs one", why.func)
        except DynamicOutputShapeException as why:
            raise _dynamic_shape_error(why, location_of(why, request.options._source_location_excludes)) from why
        except RuntimeError as why:
            if request.training or "does not require grad" not in str(why):
                raise
            logger.debug("Capturing again with gradients enabled: the model differentiates in forward()")
            return _attempt(request, real_values=False, grad=True)
        return _attempt(request, real_values=True)


def _check_values_exist(request: Request, why: DataDependentOutputException) -> None:
    """Refuse to capture with real values where the model or its inputs have none."""
    tensors = {entry.name: entry.tensor for entry in collect_state(request.model)}
    tensors |= {spec.path: tensor for spec, tensor in zip(request.layout.specs, request.inputs, strict=True)}
    missing = [name for name, tensor in tensors.items() if not has_values(tensor)]
    missing += [name for name, _ in plain_without_values(request.model)]
    if missing:
        where = location_of(why, request.options._source_location_excludes)
        line = "" if where is None else f", at {where}"
        raise createPoptorchError(
            f"The model needs the value of a tensor in Python ({why.func}{line}), but {missing[0]} has none: it is on "
            "the meta device, or a fake tensor. Give the model and its inputs real values, or write the line with "
            "operations on tensors."
        ) from why


def _dynamic_shape_error(why: DynamicOutputShapeException, where: SourceLocation | None) -> Exception:
    name, line = str(why.func), "" if where is None else f" at {where}"
    if "index.Tensor" in name or "nonzero" in name or "masked_select" in name:
        return createPoptorchError(
            "Indexing using boolean or byte tensor masks is unsupported because it would produce dynamic output shapes "
            f"({name}{line}). Use torch.where or masked_fill, which keep the shape."
        )
    return createPoptorchError(
        f"Unsupported ops found in compiled model: [{name}]{line}. The shape of its result depends on the values of "
        "its inputs, and a compiled program has static shapes."
    )


def _attempt(request: Request, real_values: bool, grad: bool | None = None) -> Recording:
    state = collect_state(request.model)
    for entry in state:
        entry.grouped = entry.name in request.grouped
    context = CaptureContext(options=request.options, training=request.training)
    fake_mode = None if real_values else FakeTensorMode(allow_non_fake_inputs=True)
    attempt = _Attempt(request, state, context, fake_mode, request.training if grad is None else grad)
    return attempt.run()


class _Attempt:
    """One run of the model under the tracer."""

    def __init__(
        self,
        request: Request,
        state: list[StateEntry],
        context: CaptureContext,
        fake_mode: FakeTensorMode | None,
        grad: bool,
    ) -> None:
        self._request = request
        self._state = state
        self._context = context
        self._fake_mode = fake_mode
        self._grad = grad
        self._plain: dict[int, torch.Tensor] = {}
        self._structure: Structure | None = None
        self._num_results = 0
        self._gradients: list[int] = []
        self._loss_position: int | None = None
        self._trained_states = [
            entry.kind is StateKind.PARAMETER and id(entry.tensor) in request.trained for entry in state
        ]

    def run(self) -> Recording:
        """Record and describe what was recorded."""
        request = self._request
        state = stand_ins_for(self._state, self._stand_in)
        for index, entry in enumerate(self._state):
            if is_float_statistic(entry, request.options):
                state[index] = self._stand_in(entry.tensor.detach().float())
        self._plain = {id(t): self._stand_in(t) for _, t in plain_without_values(request.model)}
        inputs = [self._input_stand_in(t) for t in request.inputs]
        scale = [self._stand_in(torch.ones(()))] if request.loss_scaled else []
        with ExitStack() as stack:
            if self._fake_mode is not None:
                stack.enter_context(self._fake_mode)
            stack.enter_context(torch.set_grad_enabled(self._grad))
            # make_fx counts the parameters of plain functions only, so a bound method needs a wrapper.
            traced = make_fx(lambda s, i, c: self._traced(s, i, c), tracing_mode="real")
            graph_module = traced(state, inputs, scale)
        assert self._structure is not None
        return Recording(
            graph_module,
            self._state,
            list(request.inputs),
            self._structure,
            self._num_results,
            self._gradients,
            self._loss_position,
            self._context,
            request.loss_scaled,
            self._fake_mode,
        )

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype is torch.float64:
            tensor = tensor.to(torch.float32)  # the device has no wider type
        if self._fake_mode is None:
            return tensor.detach().clone()
        if has_values(tensor):
            return self._fake_mode.from_tensor(tensor)
        with self._fake_mode:  # the values will be on the host
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def _input_stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each argument is an input of its own, also if the user passes one tensor, or views of one, for several."""
        if self._fake_mode is None:
            return self._stand_in(tensor)
        dtype = torch.float32 if tensor.dtype is torch.float64 else tensor.dtype
        with self._fake_mode:
            stand_in = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype)
        return stand_in.requires_grad_(tensor.requires_grad)

    def _traced(
        self, state: list[torch.Tensor], inputs: list[torch.Tensor], scale: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The function under the tracer: forward, and for training the backward pass of the final loss."""
        request, context = self._request, self._context
        excludes = request.options._source_location_excludes
        rules, precision = MixedTypes.of(request.options), request.options.Precision
        parameters = [t for t in state if isinstance(t, nn.Parameter)]
        caster = OperandCaster(rules, parameters)
        recorder = Recorder(context, excludes, self._fake_mode is None, caster)
        args, kwargs = request.layout.rebuild([inputs[i] for i in request.same] or inputs)
        seen_calls = LossRecorder(), ThirdPartyOps(), Overrides(), CastingMode(rules, precision)
        with ExitStack() as stack:
            for mode in (ambient.capturing(context), recorder, *seen_calls):
                stack.enter_context(mode)
            # The backward pass may run parts of the model again (torch.utils.checkpoint), with the same stand-ins.
            kept = plain_attributes_kept(request.model, self._plain)
            with replaced(self._state, state), kept, module_types(rules):
                with _module_scopes(request), cumulative_norms(request.model):
                    output = request.model(*args, **kwargs)
                results, self._structure = flatten(output)
                self._num_results = len(results)
                gradients = self._backward(recorder, state, results, scale) if request.training else []
            return [*(_plain(r) for r in results), *gradients]

    def _backward(
        self,
        recorder: Recorder,
        state: list[torch.Tensor],
        results: list[torch.Tensor],
        scale: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        strict = self._request.options.strict_compatibility
        final = final_loss(self._context.losses, results, _node_of, at_the_mark=strict)
        self._loss_position, loss = final.position, final.value
        _say_where(final)
        if not loss.requires_grad:
            return []
        recorder.enter_backward(autograd_nodes([loss.grad_fn] if loss.grad_fn is not None else []))
        root = torch.ones_like(loss) if not scale else scale[0].to(loss.dtype).expand(loss.shape)
        # What Tensor.backward does, without being a torch function: inside one, the modes that see whole functions are
        # off, and checkpointed code, which runs again now, needs them.
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward((loss,), (root,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        gradients: list[torch.Tensor] = []
        for index, tensor in enumerate(state):
            if self._trained_states[index] and tensor.grad is not None:
                self._gradients.append(index)
                gradients.append(tensor.grad)
        return gradients


def _say_where(loss: FinalLoss) -> None:
    """One line for the user: which value is minimised, and which line computes it."""
    node = _node_of(loss.value)
    source = None if node is None else info_of(node).source
    where = "" if source is None else f", computed at {source}"
    logger.info("Back-propagation starts at %s%s", loss.origin, where)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _node_of(tensor: torch.Tensor) -> fx.Node | None:
    """The graph node that computes a tensor under the tracer."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

    mode = get_proxy_mode()
    if mode is None:
        return None
    slot = get_proxy_slot(tensor, mode.tracer, None)
    return None if slot is None else slot.proxy.node


@contextmanager
def _module_scopes(request: Request) -> Iterator[None]:
    """Name every operation after the sub-module that runs it."""
    if not request.options._module_namescope_enabled:
        yield
        return
    names = {id(m): name for name, m in request.model.named_modules() if name}
    context = ambient.current()
    assert context is not None
    opened: list[list[str]] = []

    def enter(module: nn.Module, args: Any) -> None:
        if ambient.current() is not context:
            return
        opened.append(list(context.name_scopes))
        name = names.get(id(module))
        if name is not None:
            context.name_scopes.append(name.rsplit(".", 1)[-1] if _inside_parent(context, name) else name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if ambient.current() is context and opened:
            context.name_scopes[:] = opened.pop()

    handles = [
        torch_module.register_module_forward_pre_hook(enter),
        torch_module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _inside_parent(context: CaptureContext, name: str) -> bool:
    """Whether the current scope already spells the path of the module's parent."""
    parent = name.rpartition(".")[0]
    return bool(parent) and "/".join(context.name_scopes).endswith(parent.replace(".", "/"))
