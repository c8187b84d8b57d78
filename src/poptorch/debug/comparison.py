"""A compiled model beside the same model in eager mode, operation by operation."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch.capture.structure import flatten
from poptorch.capture.tracer import scopes_of_modules
from poptorch.debug.models import prepared
from poptorch.executor.replay import Replay
from poptorch.executor.session import Session
from poptorch.figures import columns
from poptorch.ops.traits import traits_of
from poptorch.program.loop import MicroBatch
from poptorch.program.naming import value_labels
from poptorch.program.opinfo import SourceLocation, Sweep, info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role, type_text

_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}
_USUAL = 1e-4
_AROUND = 3
"""How many rows before and after the first difference are printed."""


@dataclass(frozen=True)
class ComparisonRow:
    """One value in both."""

    name: str
    """As ``getTensorNames()`` has it."""

    source: SourceLocation | None
    type: str
    difference: float
    """The largest difference of two elements."""

    relative: float
    """The same as a share of the largest element in eager mode."""

    agrees: bool


@dataclass(frozen=True)
class Comparison:
    """All values that could be compared, in the order in which the program computes them."""

    rows: tuple[ComparisonRow, ...]
    left_out: int
    """Operations of the program without a counterpart: what compiling adds, joins or splits."""

    @property
    def first(self) -> ComparisonRow | None:
        """The first value that differs by more than rounding."""
        return next((row for row in self.rows if not row.agrees), None)

    def __str__(self) -> str:
        first = self.first
        if first is None:
            return f"All {len(self.rows)} compared values agree ({self.left_out} operations have no counterpart)."
        at = self.rows.index(first)
        shown = self.rows[max(0, at - _AROUND) : at + _AROUND + 1]
        lines = [f"First difference: {first.name}" + (f", at {first.source}" if first.source is not None else "")]
        rows = [
            (
                f"{'>' if row is first else ' '} {row.name}", row.type,
                f"difference {row.difference:.3g} ({row.relative:.2%})", str(row.source or ""),
            )
            for row in shown
        ]  # fmt: skip
        lines += columns(rows, least=(0, 20, 34))
        return "\n".join(lines)


def compareWithEager(model: Any, *args: Any, tolerance: float | None = None, **kwargs: Any) -> Comparison:
    """The values of the first micro-batch of a call in the compiled model, beside those of the plain module.

    ``model`` is a wrapped model. The plain module runs in eager mode on a copy of the device's weights, and where it
    draws random numbers it gets those of the program. For training, gradients are compared as well. Two values agree
    if they differ by less than ``tolerance`` times the largest element: by default 0.0001, and more for types with
    fewer digits. Nothing is updated.

    >>> import poptorch
    >>> print(compareWithEager(poptorch.inferenceModel(torch.nn.Linear(2, 1)), torch.ones(1, 2)))
    All 2 compared values agree (0 operations have no counterpart).
    """
    session, inputs = prepared(model, args, kwargs)
    compiled = _Compiled(session, inputs)
    eager = _Eager(session, inputs, compiled)
    pairs = list(compiled.matched(eager.log))
    rows = [_row(name, source, ours, theirs, tolerance) for name, source, ours, theirs in pairs]
    left_out = len(compiled.values) - len(rows)
    for name, gradient in compiled.gradients.items():
        if name in eager.gradients:
            rows.append(_row(f"Gradient___{name}", None, gradient, eager.gradients[name], tolerance))
    return Comparison(tuple(rows), left_out)


def _row(
    name: str, source: SourceLocation | None, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float | None
) -> ComparisonRow:
    a, b = ours.double(), theirs.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs()).max().item() if a.numel() else 0.0
    finite = b[b.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    relative = difference / largest if largest else (0.0 if not difference else math.inf)
    limit = _TOLERANCE.get(ours.dtype, _USUAL) if tolerance is None else tolerance
    agrees = difference <= limit * largest + 1e-30
    return ComparisonRow(name, source, type_text(ours.dtype, ours.shape), difference, relative, agrees)


class _Compiled:
    """The forward values and the gradients of the first micro-batch."""

    def __init__(self, session: Session, inputs: list[torch.Tensor]) -> None:
        self.values: dict[fx.Node, torch.Tensor] = {}
        self.random: dict[tuple[str, str], list[Any]] = {}
        """What random operations drew, by scope and name."""

        replay = Replay(session.engine, inputs, self._keep)
        self.inputs = replay.inputs_of(MicroBatch(0, 0, 0))
        self._labels = value_labels(replay.program.operations())
        with session.wrapped.weights.unwatched():
            outputs = replay.run(MicroBatch(0, 0, 0), session.engine.random.position)
        found = [outputs[i] for i in replay.program.positions_of(OutputKind.GRADIENT)]
        if replay.program.ports_of(Role.LOSS_SCALE):
            found = [gradient / session.engine.scale.current[0] for gradient in found]
        self.gradients = dict(zip(replay.program.gradients, found, strict=True))

    def _keep(self, node: fx.Node, result: Any, operands: Mapping[fx.Node, Any]) -> None:
        info = info_of(node)
        if info.sweep is not Sweep.FORWARD or info.recomputed:
            return
        if traits_of(node).is_random:
            self.random.setdefault((info.scope, _plain_name(node.target)), []).append(result)
        elif isinstance(result, torch.Tensor) and traits_of(node).name and "empty" not in traits_of(node).name:
            self.values[node] = result.clone()

    def matched(
        self, log: Iterable[_Logged]
    ) -> Iterator[tuple[str, SourceLocation | None, torch.Tensor, torch.Tensor]]:
        """Values of the program with those of eager mode, where it is certain which belong together.

        Operations of one name in one module, of one shape, are the same if there are as many in both.
        """
        theirs: dict[Any, list[torch.Tensor]] = {}
        for entry in log:
            theirs.setdefault((entry.scope, entry.name, entry.value.shape), []).append(entry.value)
        ours: dict[Any, list[fx.Node]] = {}
        for node, value in self.values.items():
            ours.setdefault((info_of(node).scope, _plain_name(node.target), value.shape), []).append(node)
        pairs = {
            node: value
            for key, nodes in ours.items()
            if len(nodes) == len(theirs.get(key, ()))
            for node, value in zip(nodes, theirs[key], strict=True)
        }
        for node, value in self.values.items():
            if node in pairs:
                yield self._labels[node], info_of(node).source, value, pairs[node]


@dataclass(frozen=True)
class _Logged:
    scope: str
    name: str
    value: torch.Tensor


class _Eager:
    """The plain module in eager mode, watched."""

    def __init__(self, session: Session, inputs: list[torch.Tensor], compiled: _Compiled) -> None:
        wrapped = session.wrapped
        with wrapped.weights.unwatched():
            module = copy.deepcopy(wrapped.captured)
            _load(module, session)
        interface = session.executable.device.interface
        args, kwargs = interface.layout.rebuild(compiled.inputs)
        self.gradients: dict[str, torch.Tensor] = {}
        scopes: list[str] = []
        mode = _Log(scopes, compiled.random)
        training = session.program.training
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(training))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            with scopes_of_modules(module, scopes, lambda: True), mode:
                output = module(*args, **kwargs)
            if training and session.program.loss_result is not None:
                results, _ = flatten(output)
                loss = results[interface.result_positions.index(session.program.loss_result)]
                loss.backward(torch.ones_like(loss))
        self.log = mode.log
        self.gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def _load(module: nn.Module, session: Session) -> None:
    """Give a module the values that the first replica has."""
    program, memory = session.program, session.engine.memory
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for port in program.ports:
            if port.name in own and port.role is Role.PARAMETER:
                own[port.name].copy_(memory.replica_parameter(0, port.name))
            elif port.name in own and port.role is Role.BUFFER:
                own[port.name].copy_(memory.replica_buffer(0, port.name))


class _Log(TorchDispatchMode):
    """Keeps the results of all operations; random ones get what the program drew."""

    def __init__(self, scopes: list[str], drawn: Mapping[tuple[str, str], list[Any]]) -> None:
        super().__init__()
        self.log: list[_Logged] = []
        self._scopes = scopes
        self._drawn = {key: iter(values) for key, values in drawn.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        scope, name = "/".join(self._scopes), _plain_name(func)
        if traits_of(func).is_random:
            return self._like_program(result, scope, name)
        if isinstance(result, torch.Tensor):
            self.log.append(_Logged(scope, name, result.detach().clone()))
        return result

    def _like_program(self, result: Any, scope: str, name: str) -> Any:
        drawn = next(self._drawn.get((scope, name), iter(())), None)
        for own, other in zip(pytree.tree_leaves(result), pytree.tree_leaves(drawn), strict=False):
            if isinstance(own, torch.Tensor) and isinstance(other, torch.Tensor) and own.shape == other.shape:
                own.copy_(other)
        return result


def _plain_name(target: Any) -> str:
    """The name of an operation, the same for its form in place."""
    name = traits_of(target).name or str(target)
    return name if name.startswith("__") else name.rstrip("_")
