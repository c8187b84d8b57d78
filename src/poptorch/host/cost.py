"""The cost model of a host: a rough time for a micro-batch, and the times at which decisions change.

The estimate is made from the program alone, in operations, bytes and floating-point operations, never from the clock or
the machine: it decides in which order numbers are added, and the same program gives the same bits everywhere. It is a
cautious one: real work takes about a fifth of it.
"""

from __future__ import annotations

import math

from torch import fx

from poptorch import work
from poptorch.ops.traits import OpKind, bytes_of, flops_of, traits_of
from poptorch.program.program import Program

_SECONDS_PER_CALL = 5e-6

SWITCH_AFTER_SECONDS = 60.0
"""Run time after which ``auto`` takes native code: a multiple of what compiling a mid-sized model takes."""

MID_SIZED = 600
"""Operations of such a model. One with more takes longer to compile, in proportion: a layer for each time step of a
sequence makes thousands."""

PYTHON_SHOWS_SECONDS = 2e-3
"""A micro-batch below this notices Python between its kernels."""

ONE_CORE_SECONDS = 5e-4
"""A micro-batch below this is done before other cores are awake."""

WORTH_A_THREAD_SECONDS = 5e-4
"""Work of a task, on average, for which it pays to wake another thread. Measured with two cores: with half of it one
thread is 1.2 times as fast as two, with twice as much they are equal, with four times two are 1.3 times as fast."""

NEGLIGIBLE_CALLS_SECONDS = 1e-3
"""Work beside which calls do not count."""


def estimated_seconds(program: Program) -> float:
    """A rough time for one micro-batch."""
    return sum(_SECONDS_PER_CALL + _work_seconds(node) for node in program.operations()) or _SECONDS_PER_CALL


def seconds_before_switch(program: Program, base: float) -> float:
    """How long a program runs before native code takes over, where ``base`` is right for a mid-sized one.

    Compiling takes some 20 ms for an operation, beside a program that goes on. Whoever changes sooner waits for it.
    """
    return base * max(1.0, sum(1 for _ in program.operations()) / MID_SIZED)


def estimated_work(program: Program) -> float:
    """A rough time for what the operations of a micro-batch do, without the calls; unknown ones take for ever."""
    nodes = list(program.operations())
    return sum(map(_work_seconds, nodes)) if all(map(_is_known, nodes)) else math.inf


def _is_known(node: fx.Node) -> bool:
    traits = traits_of(node)
    return traits.namespace in ("aten", "prims") or traits.kind in (OpKind.HINT, OpKind.STRUCTURE)


def _work_seconds(node: fx.Node) -> float:
    return work.host_seconds(flops_of(node), bytes_of(node))
