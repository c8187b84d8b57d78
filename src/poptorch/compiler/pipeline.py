"""The compile pipeline: one readable list of passes over the Program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poptorch._logging import backend
from poptorch.compiler.passes.constants import drop_writes_to_constants, fold_constants
from poptorch.compiler.passes.hints import read_hints
from poptorch.compiler.passes.joining import join_parts
from poptorch.compiler.passes.outputs import own_outputs
from poptorch.compiler.passes.simplify import simplify
from poptorch.program.program import Program


@dataclass(frozen=True)
class Pass:
    """A step of the pipeline; ``apply`` changes the Program and says what it did."""

    name: str
    apply: Callable[[Program], str]


LOWERING: tuple[Pass, ...] = (
    Pass("read hints", read_hints),  # first: hints sit right behind the operations they speak of
    Pass("drop writes to constants", drop_writes_to_constants),  # plain attributes are not state
    Pass("simplify", simplify),  # before folding: fewer values to look at
    Pass("join parts", join_parts),
    Pass("fold constants", fold_constants),
    Pass("own outputs", own_outputs),  # last: later passes must not make two outputs share memory
)


def lower(
    program: Program, passes: tuple[Pass, ...] = LOWERING, progress: Callable[[str], None] | None = None
) -> Program:
    """Run the passes in order, checking the graph after each; ``progress`` is told the name of each."""
    for step in passes:
        if progress is not None:
            progress(step.name)
        summary = step.apply(program)
        program.graph.lint()
        program.log.append(f"{step.name}: {summary}")
        backend.debug("Pass %s: %s", step.name, summary)
    program.graph_module.recompile()
    return program
