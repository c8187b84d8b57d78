"""What is true "around" an operation while a model's ``forward`` is being captured.

Annotations (blocks, name scopes, attributes, loss marks) are written by the rooms that own them and read
by ``capture`` whenever an operation is recorded. Outside capture every write is harmless: nobody reads it.
The state is per thread, because two models may be captured by two threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from poptorch.enums import HalfFloatCastingBehavior, OutputMode

if TYPE_CHECKING:
    from poptorch.placement import ExecutionStrategy


@dataclass(frozen=True)
class Placement:
    """Where an operation runs: stage and phase number of the strategy, and the IPU index inside a replica."""

    stage: int = 0
    phase: int = 0
    ipu: int = 0
    block: str | None = None


@dataclass(frozen=True)
class LossMark:
    """A value that the user (or a built-in torch loss) declared to be a loss."""

    value: torch.Tensor
    kind: str
    reduced: bool = True
    """Whether the loss is one number, or the user asked for the form that it has."""


@dataclass(frozen=True)
class CaptureSettings:
    """What the options of a model ask of its capture. The compiler's request makes it; nobody here knows options."""

    strict: bool = False
    """Whether only what the original accepts is accepted."""

    traced: bool = False
    """Whether the user asked for the tracing front end."""

    dispatched: bool = False
    """Whether the user asked for the dispatcher."""

    half_float_casting: HalfFloatCastingBehavior = HalfFloatCastingBehavior.Default
    float_statistics: bool = True
    """Whether running statistics of float16 norms are kept in float32."""

    autocast: Mapping[str, Sequence[str]] | None = None
    """The lists of the policy by their names; ``None``: no region changes any type."""

    excludes: tuple[str, ...] = ()
    """Parts of the paths of files whose lines are not the user's."""

    names_modules: bool = True
    """Whether operations have the path of their sub-module in their names."""

    replicas: int = 1
    """Of all processes."""

    strategy: ExecutionStrategy | None = None
    """What places blocks; ``None``: a pipeline with automatic stages."""

    io_tiles: int = 0
    output_mode: OutputMode = OutputMode.All


@dataclass
class CaptureContext:
    """Everything that annotations write during one capture."""

    placement: Placement | None = field(default_factory=Placement)
    """``None`` means that a scoped block was left and no other was entered: recording an op is an error."""

    unplaced: str | None = None
    """The open block, if no IPU is known for it."""

    block_starts: list[Placement] = field(default_factory=list)
    """Every placement that was entered, in order; pipeline stages are counted from it."""

    leading: bool = False
    """Whether something was computed before the first block: automatic stage numbers then leave it stage 0."""

    name_scopes: list[str] = field(default_factory=list)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    losses: list[LossMark] = field(default_factory=list)
    settings: CaptureSettings = field(default_factory=CaptureSettings)
    """What the options ask for; annotations resolve blocks through its strategy."""

    training: bool = False
    in_norm: bool = False
    """Whether a normalisation runs: what it writes are its statistics."""

    extras: dict[str, Any] = field(default_factory=dict)
    """Room for annotations of other rooms, keyed by the room's name (``"ops.overlap"``)."""


class _ThreadState(threading.local):
    context: CaptureContext | None = None


_state = _ThreadState()


def current() -> CaptureContext | None:
    """The capture that runs on this thread, or ``None`` during ordinary execution."""
    return _state.context


@contextmanager
def capturing(context: CaptureContext | None) -> Iterator[CaptureContext | None]:
    """Make ``context`` current (``None``: no capture); the previous one comes back in any case."""
    previous, _state.context = _state.context, context
    try:
        yield context
    finally:
        _state.context = previous


def isRunningOnIpu() -> bool:
    """Whether a model's ``forward`` is being captured for the IPU; false when the same code simply runs.

    >>> isRunningOnIpu()
    False
    """
    return _state.context is not None


def mark_loss(value: torch.Tensor, kind: str, reduced: bool = True) -> torch.Tensor:
    """Declare ``value`` a loss of the model under capture; returns it unchanged.

    What is computed without gradients is a metric, whatever its name.
    """
    if _state.context is not None and torch.is_grad_enabled():
        _state.context.losses.append(LossMark(value, kind, reduced))
    return value


@contextmanager
def normalising() -> Iterator[None]:
    """The operations recorded inside are those of a normalisation."""
    context = _state.context
    if context is None:
        yield
        return
    outer, context.in_norm = context.in_norm, True
    try:
        yield
    finally:
        context.in_norm = outer


@contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Prefix the names of all operations recorded inside with ``name``."""
    context = _state.context
    if context is None:
        yield
        return
    context.name_scopes.append(name)
    try:
        yield
    finally:
        context.name_scopes.pop()


@contextmanager
def attribute_scope(attributes: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Attach ``attributes`` to all operations recorded inside; inner scopes add to or override outer ones."""
    context = _state.context
    if context is None:
        yield
        return
    outer = context.attributes
    merged = {key: dict(pairs) for key, pairs in outer.items()}
    for key, pairs in attributes.items():
        merged.setdefault(key, {}).update(pairs)
    context.attributes = merged
    try:
        yield
    finally:
        context.attributes = outer
