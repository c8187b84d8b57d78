"""Running the user's ``forward`` once and recording it, and its backward pass, as one graph.

Tensors are fake: nothing is computed or allocated. Where the model's Python needs a value, what was recorded so far is
computed beside it (``evaluation``), and control flow freezes to the path of the inputs at hand.
Nothing of the user's model changes: state, gradients, random numbers and flags are as before, whatever happens.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as torch_module

from poptorch import ambient, hooks
from poptorch._logging import logger
from poptorch.ambient import CaptureContext, CaptureSettings
from poptorch.capture.arguments import ArgumentLayout
from poptorch.capture.casting import CastingMode, MixedTypes, OperandCaster, is_float_statistic, module_types
from poptorch.capture.device_names import DeviceNames
from poptorch.capture.eager_habits import (
    arguments_explained,
    habits_watched,
    warn_of_narrowing,
    warn_of_training_mode,
    warn_of_wide_integers,
)
from poptorch.capture.evaluation import Evaluation, Sources
from poptorch.capture.host_effects import HostEffects
from poptorch.capture.kept_values import has_hooks, warn_of_kept
from poptorch.capture.locations import user_location
from poptorch.capture.losses import FinalLoss, LossRecorder, autograd_nodes, final_loss
from poptorch.capture.module_moves import module_moves
from poptorch.capture.norms import adopt_statistics, capturable_norms
from poptorch.capture.objects import contents_kept
from poptorch.capture.observers import capturable_observers
from poptorch.capture.overrides import Overrides
from poptorch.capture.recorder import OperationRecorder, located
from poptorch.capture.refusals import check_gradient, check_layouts
from poptorch.capture.selected import refuse_selected
from poptorch.capture.shared_memory import check_memory
from poptorch.capture.state import (
    Rebinding,
    StateEntry,
    StateKind,
    additions_taken_away,
    collect_state,
    plain_attributes_kept,
    plain_names,
    plain_without_values,
    replaced,
    stand_ins_for,
)
from poptorch.capture.structure import Structure, flatten
from poptorch.capture.third_party import ThirdPartyOps
from poptorch.errors import Error, createPoptorchError
from poptorch.ops.recorded import is_recorded, node_of, tracer
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

    written: Mapping[str, SourceLocation | None] = field(default_factory=dict)
    """The state that ``forward`` itself writes, running statistics excepted, with the line that does."""


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

    settings: CaptureSettings
    loss_scaled: bool = False
    grouped: frozenset[str] = frozenset()
    """Parameters with one row for each group of replicas."""

    same: tuple[int, ...] = ()
    """For each input, the position of the one that stands for it too; empty: each one for itself."""


def record(request: Request, grad: bool | None = None, promotes: bool = False) -> Recording:
    """Capture the model; raises what ``forward`` raises.

    ``grad`` says whether autograd watches ``forward``; by default it does for training. ``promotes`` is that of
    :meth:`MixedTypes.of`.
    """
    rules = MixedTypes.of(request.settings, promotes)
    grad = request.training if grad is None else grad
    warn_of_narrowing([*request.inputs, *request.model.parameters()])
    warn_of_wide_integers(request.model.named_buffers())
    explained = arguments_explained(request.layout.constants())
    with torch.random.fork_rng(devices=[]), hooks.substitutions(), _types_as_in_eager(), explained:
        try:
            return _attempt(request, rules, grad)
        except RuntimeError as why:
            if request.training or grad or "does not require grad" not in str(why):
                raise
            logger.debug("Capturing again with gradients enabled: the model differentiates in forward()")
            return _attempt(request, rules, grad=True)


@contextmanager
def _types_as_in_eager() -> Iterator[None]:
    """Errors speak of tensors, as the user knows them, and not of the stand-ins that they are during capture."""
    try:
        yield
    except Exception as error:
        error.args = tuple(_STAND_IN.sub("Tensor", a) if isinstance(a, str) else a for a in error.args)
        if isinstance(error, Error):
            error.message = _STAND_IN.sub("Tensor", error.message)
        raise


_STAND_IN = re.compile(r"\bFakeTensor\b")


def _attempt(request: Request, rules: MixedTypes, grad: bool) -> Recording:
    state = collect_state(request.model)
    for entry in state:
        entry.grouped = entry.name in request.grouped
    context = CaptureContext(settings=request.settings, training=request.training)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    return _Attempt(request, rules, state, context, fake_mode, grad).run()


class _Attempt:
    """One run of the model under the tracer."""

    def __init__(
        self,
        request: Request,
        rules: MixedTypes,
        state: list[StateEntry],
        context: CaptureContext,
        fake_mode: FakeTensorMode,
        grad: bool,
    ) -> None:
        self._request = request
        self._rules = rules
        self._state = state
        self._context = context
        self._fake_mode = fake_mode
        self._grad = grad
        self._plain: dict[int, torch.Tensor] = {}
        self._plain_names: list[str] = []
        self._rebound: list[Rebinding] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._written: Mapping[str, SourceLocation | None] = {}
        self._uses: list[tuple[torch.Tensor, SourceLocation | None]] = []
        self._structure: Structure | None = None
        self._tracked: Any = None
        self._num_results = 0
        self._gradients: list[int] = []
        self._loss_position: int | None = None
        self._trained_states = [
            entry.kind is StateKind.PARAMETER and id(entry.tensor) in request.trained for entry in state
        ]

    def run(self) -> Recording:
        """Record and describe what was recorded."""
        request = self._request
        state = self._stand_ins(self._stand_in)
        without_values = plain_without_values(request.model)
        self._plain = {id(t): self._stand_in(t) for _, t in without_values}
        self._plain_names = [name for name, _ in without_values]
        inputs = [self._input_stand_in(t) for t in request.inputs]
        scale = [self._stand_in(torch.ones(()))] if request.loss_scaled else []
        with ExitStack() as stack:
            stack.enter_context(self._fake_mode)
            stack.enter_context(torch.set_grad_enabled(self._grad))
            versions = [tensor._version for tensor in state]
            # make_fx counts the parameters of plain functions only, so a bound method needs a wrapper.
            traced = make_fx(lambda s, i, c: self._traced(s, i, c), tracing_mode="real")
            graph_module = traced(state, inputs, scale)
        assert self._structure is not None
        if not request.training:
            warn_of_training_mode(request.model, graph_module.graph.nodes)
        written = {index for index, tensor in enumerate(state) if tensor._version > versions[index]}
        check_memory(self._state, written.union(self._gradients), self._uses)
        if has_hooks(request.model):
            warn_of_kept(self._tracked, [*state, *inputs, *scale, *self._plain.values()])
        self._affect_host(graph_module)
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
            self._written,
        )

    def _stand_ins(self, make: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """One tensor for each entry of the state, of the type that the device keeps."""
        state = stand_ins_for(self._state, make)
        for index, entry in enumerate(self._state):
            if is_float_statistic(entry, self._request.settings):
                state[index] = make(entry.tensor.detach().float())
        return state

    def _values(self) -> list[torch.Tensor]:
        """Copies of the state and of the inputs, in the order of the placeholders."""
        request = self._request
        self._check_values_exist()
        scale = [torch.ones(())] if request.loss_scaled else []
        return [*self._stand_ins(_copy), *(_copy(t) for t in request.inputs), *scale]

    def _check_values_exist(self) -> None:
        """Refuse to compute values where the model or its inputs have none."""
        request = self._request
        named = [(entry.name, entry.tensor) for entry in self._state]
        named += [(spec.path, tensor) for spec, tensor in zip(request.layout.specs, request.inputs, strict=True)]
        missing = [*(name for name, tensor in named if not has_values(tensor)), *self._plain_names]
        if missing:
            where = user_location(request.settings.excludes)
            line = "" if where is None else f", at {where}"
            raise createPoptorchError(
                f"The model needs the value of a tensor in Python{line}, but {missing[0]} has none: it is on the meta "
                "device, or a fake tensor. Give the model and its inputs real values, or write the line with "
                "operations on tensors."
            )

    def _affect_host(self, graph_module: fx.GraphModule) -> None:
        """Do to the user's plain tensors what ``forward`` did to their stand-ins."""
        output = next(n for n in reversed(graph_module.graph.nodes) if n.op == "output")
        returned: list[Any] = list(output.args[0])
        count = len(returned) - len(self._rebound)
        output.args = (returned[:count],)
        graph_module.recompile()
        if not self._rebound and not self._copies:
            return
        request = self._request
        scale = [torch.ones(())] if request.loss_scaled else []
        state = [entry.tensor.detach()[0] if entry.grouped else entry.tensor.detach() for entry in self._state]
        effects = HostEffects(graph_module, [*state, *request.inputs, *scale], self._copies)
        effects.apply(list(zip(self._rebound, returned[count:], strict=True)), plain_names(request.model))

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = _narrowed(tensor)
        if has_values(tensor):
            return self._fake_mode.from_tensor(tensor)
        with self._fake_mode:  # the values will be on the host
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def _input_stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each argument is an input of its own, also if the user passes one tensor, or views of one, for several."""
        dtype = torch.float32 if tensor.dtype is torch.float64 else tensor.dtype
        with self._fake_mode:
            stand_in = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype)
        return stand_in.requires_grad_(tensor.requires_grad)

    def _traced(
        self, state: list[torch.Tensor], inputs: list[torch.Tensor], scale: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The function under the tracer: forward, and for training the backward pass of the final loss."""
        request = self._request
        args, kwargs = request.layout.rebuild([inputs[i] for i in request.same] or inputs)
        stand_ins = StandIns(self._state, state, self._plain, self._values)
        with environment(request, self._rules, self._context, stand_ins) as (recorder, rebound):
            # The backward pass may run parts of the model again (torch.utils.checkpoint), with the same stand-ins.
            with contents_kept(request.layout.constants()):
                with module_scopes(request), capturable_layers(request), habits_watched(request.model):
                    output = request.model(*args, **kwargs)
                adopt_statistics(self._state, state)
                refuse_selected(output)
                results, self._structure = flatten(output)
            check_layouts(results)
            results = [recorder.recorded(r) for r in results]
            self._rebound = [r for r in rebound() if node_of(r.new) is not None]
            self._num_results = len(results)
            gradients = self._backward(recorder, state, results, scale) if request.training else []
            self._context.losses.clear()  # they and their history are of no use any more
            self._copies = recorder.copies
            self._written = recorder.writes.by_user(self._state, state)
            self._uses = recorder.uses
            self._tracked = tracer().tensor_tracker
            # Without a backward pass of ours, code may end outside of all blocks, where nothing can be recorded.
            plain = _plain if request.training else _plain_constant
            return [*map(plain, results), *gradients, *(plain(r.new) for r in self._rebound)]

    def _backward(
        self,
        recorder: OperationRecorder,
        state: list[torch.Tensor],
        results: list[torch.Tensor],
        scale: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        strict = self._request.settings.strict
        final = final_loss(self._context.losses, results, node_of, at_the_mark=strict)
        self._loss_position, loss = final.position, final.value
        _say_where(final)
        if not loss.requires_grad:
            return []
        recorder.enter_backward(autograd_nodes([loss.grad_fn] if loss.grad_fn is not None else []))
        root = torch.ones_like(loss) if not scale else scale[0].to(loss.dtype).expand(loss.shape)
        # What Tensor.backward does, without being a torch function: inside one, the modes that see whole functions are
        # off, and checkpointed code, which runs again now, needs them.
        engine = torch.autograd.Variable._execution_engine
        try:
            engine.run_backward((loss,), (root,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        except (RuntimeError, NotImplementedError) as error:  # autograd's own: no frame of the user leads here
            place = "in the backward pass of the operation at"
            raise located(error, recorder.backward_source, place).with_traceback(error.__traceback__) from None
        gradients: list[torch.Tensor] = []
        for index, tensor in enumerate(state):
            if self._trained_states[index] and tensor.grad is not None:
                check_gradient(self._state[index].name, tensor.grad, _source_of(tensor.grad))
                self._gradients.append(index)
                gradients.append(tensor.grad)
        return gradients


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """The device has no wider type than float32, and computes bfloat16 in it."""
    narrow = _NARROW.get(tensor.dtype)
    return tensor if narrow is None else tensor.to(narrow)


_NARROW = {torch.float64: torch.float32, torch.bfloat16: torch.float32, torch.complex128: torch.complex64}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return _narrowed(tensor).detach().clone()


@dataclass(frozen=True)
class StandIns:
    """What is in the model's place while it is recorded."""

    entries: list[StateEntry]
    tensors: list[torch.Tensor]
    """One for each entry."""

    plain: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """For tensors without values in plain attributes, by ``id``."""

    values: Sources | None = None
    """Gives values for all stand-ins; ``None`` if they have values themselves."""


@contextmanager
def environment(
    request: Request,
    rules: MixedTypes,
    context: CaptureContext,
    stand_ins: StandIns,
    names: DeviceNames | None = None,
) -> Iterator[tuple[OperationRecorder, Callable[[], list[Rebinding]]]]:
    """Everything that a run of the model needs around it, inside of a tracer.

    With ``names``, only what these were told to put on the device is recorded; all else is done by the host. Gives the
    recorder, and a function that lists the plain attributes with another tensor than before.
    """
    settings = request.settings
    caster = OperandCaster(rules, [t for t in stand_ins.tensors if isinstance(t, nn.Parameter)])
    making = None if names is None else names.is_making
    recorder = OperationRecorder(context, settings.excludes, Evaluation(stand_ins.values), caster, making)
    seen_calls = LossRecorder(), ThirdPartyOps(), Overrides(), CastingMode(rules, settings), names or DeviceNames()
    with ExitStack() as stack:
        for mode in (ambient.capturing(context), recorder, *seen_calls):
            stack.enter_context(mode)
        stack.enter_context(replaced(stand_ins.entries, stand_ins.tensors))
        stack.enter_context(additions_taken_away(request.model))
        rebound = stack.enter_context(plain_attributes_kept(request.model, stand_ins.plain))
        stack.enter_context(_compiled_functions_inlined())
        stack.enter_context(module_types(rules))
        stack.enter_context(module_moves())
        yield recorder, rebound


@contextmanager
def _compiled_functions_inlined() -> Iterator[None]:
    """What the user gave to ``torch.compile`` is recorded as written: it is compiled here, with all around it."""
    if "torch._dynamo" not in sys.modules:  # then nothing was compiled, and importing it takes a second
        yield
        return
    import torch._dynamo.config as settings

    with settings.patch(error_on_nested_fx_trace=False):
        yield


def _source_of(tensor: torch.Tensor) -> SourceLocation | None:
    """The user's line that a recorded value comes from."""
    node = node_of(tensor)
    return None if node is None else info_of(node).source


def _say_where(loss: FinalLoss) -> None:
    """One line for the user: which value is minimised, and which line computes it."""
    source = _source_of(loss.value)
    where = "" if source is None else f", computed at {source}"
    logger.info("Back-propagation starts at %s%s", loss.origin, where)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _plain_constant(tensor: torch.Tensor) -> torch.Tensor:
    """For the tracer, a tensor that it knows is the operation that made it, whatever its history."""
    return tensor if is_recorded(tensor) else _plain(tensor)


@contextmanager
def capturable_layers(request: Request) -> Iterator[None]:
    """Layers of torch that ask for values in Python have forms in their place that choose between tensors."""
    with capturable_norms(request.model, request.settings.replicas), capturable_observers(request.model):
        yield


@contextmanager
def module_scopes(request: Request) -> Iterator[None]:
    """Name every operation after the sub-module that runs it."""
    if not request.settings.names_modules:
        yield
        return
    context = ambient.current()
    assert context is not None
    with scopes_of_modules(request.model, context.name_scopes, lambda: ambient.current() is context):
        yield


@contextmanager
def scopes_of_modules(model: nn.Module, scopes: list[str], is_active: Callable[[], bool]) -> Iterator[None]:
    """Keep the path of the sub-module that runs in ``scopes``, as long as ``is_active``."""
    names = {id(m): name for name, m in model.named_modules() if name}
    opened: list[list[str]] = []

    def enter(module: nn.Module, args: Any) -> None:
        if not is_active():
            return
        opened.append(list(scopes))
        name = names.get(id(module))
        if name is not None:
            scopes.append(name.rsplit(".", 1)[-1] if _inside_parent(scopes, name) else name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if is_active() and opened:
            scopes[:] = opened.pop()

    handles = [
        torch_module.register_module_forward_pre_hook(enter),
        torch_module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _inside_parent(scopes: Sequence[str], name: str) -> bool:
    """Whether the current scope already spells the path of the module's parent."""
    parent = name.rpartition(".")[0]
    return bool(parent) and "/".join(scopes).endswith(parent.replace(".", "/"))
