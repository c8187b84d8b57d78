"""How many tasks of a plan are worth running at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch.compiler.plan import Ordering, Plan
from poptorch.host.cost import WORTH_A_THREAD_SECONDS, estimated_work
from poptorch.program.program import Program


def width(plan: Plan, programs: Sequence[Program], replicas: int) -> int:
    """How many tasks are to run at once, given cores: all that can, unless handing them over takes longer than they.

    ``programs`` are those of the stages as the host computes them.
    """
    work = [estimated_work(program) for program in programs]
    if sum(work) < WORTH_A_THREAD_SECONDS * len(work):
        return 1
    if plan.ordering is Ordering.PIPELINED:
        return len({p.ipu for p in plan.parts}) * replicas
    if plan.ordering is Ordering.SHARDED:
        return replicas
    return max(sum(p.phase == phase for p in plan.parts) for phase in plan.phases) * replicas
