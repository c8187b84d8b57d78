"""Dispatch mode that annotates every recorded operation: placement, scope, source line, random stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch.ambient import CaptureContext, Placement
from poptorch.capture import higher_order, kernels, strict
from poptorch.capture.casting import MixedTypes, OperandCaster
from poptorch.capture.evaluation import Evaluation
from poptorch.capture.locations import called_from, innermost_location, own_location, user_location
from poptorch.capture.norms import Writes
from poptorch.capture.refusals import refuse_dynamic_shape
from poptorch.capture.static_shapes import STATIC_FORMS
from poptorch.errors import NoBlockError, misuse
from poptorch.frames import warn_user
from poptorch.ops.function_modes import runs_functions
from poptorch.ops.hints import OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch.ops.recorded import is_recorded, tracer
from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.opinfo import OpInfo, SourceLocation, Sweep, has_info, set_info

_NO_LAYERS = (OpKind.VIEW, OpKind.CREATION, OpKind.HINT)
"""What may come before the first block without being a stage of its own."""

_META = torch.device("meta")

_ASKING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
"""Operations that give values to Python."""

_SHAPE_UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""Not the fault of the call: it needs values, or a form of its own."""

_FIRST_SEED = 0x706F70  # any constant: only differences between seeds matter


class _Copy(NamedTuple):
    """A tensor of the user that is no input and no state, what stands for it, and the gradient that it had."""

    original: torch.Tensor
    copy: torch.Tensor
    gradient: torch.Tensor | None
    source: SourceLocation | None
    """The line that used it first."""


class OperationRecorder(TorchDispatchMode):
    """Sits above the tracer. Operations recorded while one ATen call runs get that call's annotations."""

    supports_higher_order_operators = True
    """Of those that get here, past the modes that see whole functions, the user shall hear in our words."""

    def __init__(
        self,
        context: CaptureContext,
        excludes: Sequence[str],
        evaluation: Evaluation,
        cast: OperandCaster | None = None,
        making: Callable[[], bool] | None = None,
    ) -> None:
        """``making`` says whether new tensors are on the device; without it, all are."""
        super().__init__()
        self._making = making
        self._cast = cast or OperandCaster(MixedTypes(), ())
        self._context = context
        self._strict = context.settings.strict
        self._excludes = excludes
        self._evaluation = evaluation
        self._by_sequence: dict[int, OpInfo] = {}
        self._backward: OpInfo | None = None
        self._streams = _RandomStreams()
        self._last: fx.Node | None = None
        self._frozen_at: set[tuple[SourceLocation | None, SourceLocation | None]] = set()
        self._copies: dict[int, _Copy] = {}
        self.writes = Writes()
        """Which memory is written in place, and where."""

        self._hooks: list[Any] = []
        """Handles of the hooks on autograd nodes. A hook leads to the recorder and the graph, so none may stay."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if runs_functions(func):
            raise higher_order.refusal(func)
        if func.namespace == "prim":
            return func(*args, **kwargs)
        # One operation at a time from here on: modes that look at whole functions would see every look at a type.
        with torch._C.DisableTorchFunction():
            return self._record(func, args, kwargs)

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._is_of_host(args, kwargs):
            with kernels.ordinary_execution():
                return func(*args, **kwargs)
        if self._strict:
            strict.refuse_operation(func, args, kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._private, (args, kwargs))
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == _META:
            # torch's rules for tensors of zeros compute shapes there, and take stand-ins to the place of the result.
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        if self._evaluation.is_real and func in _ASKING:
            return self._frozen_value(func, args, kwargs)
        info = self._current_info(func, args, kwargs)
        known = True
        try:
            result = self._cast(func, self._checked(func, info), args, kwargs)
        except DataDependentOutputException:
            known = False
        except DynamicOutputShapeException:
            self._forget(func)  # whoever asked may go on in another way
            raise
        if not known:  # not in the handler: what is refused now is no consequence of torch's exception
            self._forget(func)
            return self._frozen_value(func, args, kwargs)
        self._annotate_new_nodes(info)
        self.writes.note(func, args, kwargs, info.source)
        if self._strict:
            strict.mark_host_tensor(self._context, func, result)
        return result

    def _checked(self, func: Any, info: OpInfo) -> Callable[..., Any]:
        """The operation, which fails here if it would fail when the program runs."""
        static = STATIC_FORMS.get(func) or getattr(func, "impl_aten", None)  # rules of torch.func call primitives
        if static is not None:
            return static

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._evaluation.is_real:
                refuse_dynamic_shape(func, args, kwargs, info.source or innermost_location())
            try:
                result = func(*args, **kwargs)
            except _SHAPE_UNKNOWN:
                raise
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise located(kernels.in_eager_words(func, args, kwargs, error), info.source) from None
            refusal = kernels.refusal(func, args, kwargs)
            if refusal is not None:
                raise located(refusal, info.source) from None
            return result

        return run

    def _is_of_host(self, args: Any, kwargs: Any) -> bool:
        if self._making is None or self._making():
            return False
        return not any(map(is_recorded, pytree.tree_leaves((args, kwargs))))

    def _private(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor that the tracer does not know: it is the user's own, and the model may write to it."""
        if not strict.is_unknown(tensor):
            return tensor
        if id(tensor) not in self._copies:
            with kernels.ordinary_execution():
                self._copies[id(tensor)] = _Copy(
                    tensor, tensor.detach().clone(), _gradient_of(tensor), user_location(self._excludes)
                )
        return self._copies[id(tensor)].copy

    @property
    def copies(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The user's tensors that are no part of the state and were used, each with its copy in the recording."""
        return [(known.original, known.copy) for known in self._copies.values()]

    @property
    def uses(self) -> list[tuple[torch.Tensor, SourceLocation | None]]:
        """The same tensors of the user, with the lines that used them first."""
        return [(known.original, known.source) for known in self._copies.values()]

    def recorded(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy that stands for a user's tensor; any other tensor as it is."""
        return self._copies[id(tensor)].copy if id(tensor) in self._copies else tensor

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        while self._hooks:
            self._hooks.pop().remove()
        with kernels.ordinary_execution():
            for known in self._copies.values():
                known.copy.copy_(known.original)  # what the graph holds as a constant is the value before any write
                if _gradient_of(known.original) is not known.gradient:  # code under capture called backward()
                    known.original.grad = known.gradient

    def _current_info(self, func: Any, args: Any, kwargs: Any) -> OpInfo:
        stream = self._streams.next(replay=self._backward is not None) if _draws(func, args, kwargs) else None
        if self._backward is not None:
            return self._backward.but(random=stream)
        info = self._forward_info(func)
        self._by_sequence.setdefault(_sequence_number(), info)
        return info.but(random=stream)

    def _forward_info(self, func: Any) -> OpInfo:
        context = self._context
        source = user_location(self._excludes)
        placement = context.placement
        if placement is None and func in (OVERLAP_INPUT, OVERLAP_OUTPUT):
            placement = Placement()  # says something about an input or output, and runs nowhere
        if placement is None:
            raise _not_placed(func, source, context.unplaced)
        if not context.block_starts and traits_of(func).kind not in _NO_LAYERS:
            context.leading = True
        return OpInfo(
            placement=placement,
            sweep=Sweep.FORWARD,
            scope="/".join(context.name_scopes),
            source=source,
            attributes=context.attributes,
        )

    def _annotate_new_nodes(self, info: OpInfo) -> None:
        graph = self.graph
        newest = next(iter(reversed(graph.nodes)), None)
        node = newest
        while node is not None and node.op != "root" and node is not self._last and not has_info(node):
            if node.op != "placeholder":
                set_info(node, info)
            node = node.prev
        self._last = newest

    def _forget(self, func: Any) -> None:
        """Remove the node of a call that failed after it was recorded."""
        newest = next(iter(reversed(self.graph.nodes)), None)
        if newest is not None and newest.target is func and not has_info(newest):
            self.graph.erase_node(newest)

    @property
    def graph(self) -> fx.Graph:
        return tracer().graph

    def enter_backward(self, nodes: Sequence[Any]) -> None:
        """From now on operations belong to the backward pass, each at the place of its forward operation."""
        self._backward = OpInfo(sweep=Sweep.BACKWARD, placement=_last_placement(self._context))
        for node in nodes:
            info = self._by_sequence.get(node._sequence_nr())
            if info is not None:
                self._hooks.append(node.register_prehook(self._placing(info.but(sweep=Sweep.BACKWARD))))

    @property
    def backward_source(self) -> SourceLocation | None:
        """The line of ``forward`` whose backward pass is under way."""
        return None if self._backward is None else self._backward.source

    def _placing(self, info: OpInfo) -> Any:
        def hook(gradients: Any) -> None:
            self._backward = info

        return hook

    def _frozen_value(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A value that Python needs now (``.item()``, ``if tensor``): constant in the program from here on."""
        value = self._evaluation.value_of(func, args, kwargs)
        where, branch = own_location(self._excludes), innermost_location()
        if (where, branch) in self._frozen_at:
            return value  # said before: the next element of a list, the next round of a loop
        self._frozen_at.add((where, branch))
        message = (
            f"The value {value} of a tensor was used by Python at {called_from(branch, where)}: it is frozen into the "
            "program, which will always take the path of the first inputs. Use torch.where, poptorch.cond or "
            "poptorch.for_loop for decisions at run time."
        )
        warn_user(message)
        return value


def _not_placed(func: Any, source: SourceLocation | None, block: str | None) -> Exception:
    if block is not None:
        return misuse(
            NoBlockError,
            f"No active Block: {func} at {source} is in block {block!r}, for which no IPU is known. Phases have no "
            "IPUs of their own: give the block an ipu_id, or name the IPU with Stage.ipu() or Phase.ipus().",
        )
    return misuse(
        NoBlockError,
        f"No active Block: {func} at {source} is outside of all blocks. All operations must belong to a block: "
        "put it inside the scope of a poptorch.Block, or annotate layers with poptorch.BeginBlock.",
    )


def located(error: Exception, source: SourceLocation | None, place: str = "at") -> Exception:
    """An error of torch with the user's line; errors of other kinds may need more than a text, and stay as they are."""
    plain = type(error) in (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
    return type(error)(f"{error} ({place} {source})") if plain and source is not None else error


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def _sequence_number() -> int:
    """The number of the newest autograd node: that of the operation being recorded, if it has one."""
    return int(torch._C._autograd._get_sequence_nr()) - 1


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call draws random numbers; attention without dropout is tagged as if it did."""
    if not traits_of(func).is_random:
        return False
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    dropout = args[position] if position < len(args) else kwargs.get("dropout_p", 0.0)
    return bool(dropout)


class _RandomStreams:
    """Numbers the random operations.

    Checkpointed code runs twice and restores torch's generator before the second time, so that it repeats its random
    numbers. The generator's seed therefore identifies the operation: the second run finds the first one's number.
    """

    def __init__(self) -> None:
        self._count = 0
        self._by_seed: dict[int, int] = {}
        torch.default_generator.manual_seed(_FIRST_SEED)

    def next(self, replay: bool) -> int:
        seed = torch.default_generator.initial_seed()
        stream = self._by_seed.get(seed) if replay else None
        if stream is None:
            stream = self._count
            self._count += 1
            self._by_seed[seed] = stream
        torch.default_generator.manual_seed(_FIRST_SEED + 1 + stream)
        return stream


def _last_placement(context: CaptureContext) -> Any:
    return context.placement or (context.block_starts[-1] if context.block_starts else OpInfo().placement)
