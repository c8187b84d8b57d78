"""The lowering of a Program: one list of passes, each with a name, one signature and a reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from poptorch import environment
from poptorch.compiler.passes.anchors import anchor_values
from poptorch.compiler.passes.constants import drop_writes_to_constants, fold_constants, take_host_results
from poptorch.compiler.passes.context import Context
from poptorch.compiler.passes.hints import read_hints
from poptorch.compiler.passes.joining import join_parts
from poptorch.compiler.passes.outputs import own_outputs
from poptorch.compiler.passes.pairs import weights_as_pairs
from poptorch.compiler.passes.precision import record_partials, watch_gradients
from poptorch.compiler.passes.recompute import recompute
from poptorch.compiler.passes.simplify import simplify
from poptorch.compiler.passes.slots import Division, assign_slots
from poptorch.compiler.passes.statistics import return_old_statistics
from poptorch.compiler.passes.writes import isolate_writes
from poptorch.compiler.verify import verify
from poptorch.program.program import Program


@dataclass(frozen=True)
class Pass:
    """A rewrite of the Program."""

    name: str
    apply: Callable[[Program, Context], str]
    """Changes the Program, writes what it found to the Context, and says for people what it did."""

    reason: str
    """Why it exists, or why it comes where it does."""


class Observer(Protocol):
    """Hears of each pass."""

    def before(self, step: Pass, program: Program) -> None:
        """The pass is about to run."""

    def after(self, step: Pass, program: Program, summary: str, seconds: float) -> None:
        """The pass has run, and the program is sound."""


WHOLE_PASSES: tuple[Pass, ...] = (
    Pass("take host results", take_host_results, "what does not depend on the device is not computed there"),
    Pass("weights as pairs", weights_as_pairs, "before anything counts the elements of gradients"),
    Pass("read hints", read_hints, "hints sit right after the operations they speak of: before anything moves"),
    Pass("drop writes to constants", drop_writes_to_constants, "plain tensor attributes are not state"),
    Pass("return old statistics", return_old_statistics, "before anything depends on which values are read"),
    Pass("simplify", simplify, "fewer operations for all that follow"),
    Pass("join parts", join_parts, "a sum of mostly zeros is slower than laying its parts side by side"),
    Pass("fold constants", fold_constants, "what never changes is computed once, here"),
    Pass("record partials", record_partials, "the type of partial sums decides what a product costs on an IPU"),
    Pass("anchor values", anchor_values, "names of values mean those of the simplified program"),
    Pass("watch gradients", watch_gradients, "automatic loss scaling needs counts of large gradients"),
    Pass("own outputs", own_outputs, "after all that adds outputs: no two of them may share memory"),
)
"""What is done to the model as a whole."""

DIVIDING_PASSES: tuple[Pass, ...] = (
    Pass("assign slots", assign_slots, "which part of the model, forward or backward, runs an operation"),
    Pass("recompute", recompute, "memory: activations wait longest in pipelines"),
    Pass("isolate writes", isolate_writes, "stages of other micro-batches must not see what one wrote already"),
)
"""What prepares the program for being cut into stages."""

DEVICE_PASSES = (*WHOLE_PASSES, *DIVIDING_PASSES)
"""From the captured program to what an IPU runs."""


def lower(
    program: Program, context: Context, passes: Sequence[Pass] = DEVICE_PASSES, observers: Sequence[Observer] = ()
) -> None:
    """Run the passes in order, checking the graph after each."""
    for step in passes:
        for observer in observers:
            observer.before(step, program)
        started = time.perf_counter()
        summary = step.apply(program, context)
        seconds = time.perf_counter() - started
        if environment.VERIFY.read():
            verify(program, context.partition, staged=context.settings.division is Division.STAGES, after=step.name)
        else:
            program.graph.lint()
        context.summaries[step.name] = summary
        program.log.append(f"{step.name}: {summary}")
        for observer in observers:
            observer.after(step, program, summary, seconds)
    program.graph_module.recompile()


__all__ = ["DEVICE_PASSES", "DIVIDING_PASSES", "WHOLE_PASSES", "Observer", "Pass", "lower"]
