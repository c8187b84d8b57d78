"""How many tasks of a plan are worth running at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch.compiler.passes.stages import StageProgram
from poptorch.compiler.plan import Ordering, Plan
from poptorch.host.cost import WORTH_A_THREAD_SECONDS, estimated_work


def width(plan: Plan, stages: Sequence[StageProgram], replicas: int) -> int:
    """How many tasks are to run at once, given cores: all that can, unless handing them over takes longer than they.

    ``stages`` are those that this process runs, as the host computes them.
    """
    work = [estimated_work(stage.program) for stage in stages]
    if sum(work) < WORTH_A_THREAD_SECONDS * len(work):
        return 1
    if plan.ordering is Ordering.PIPELINED:
        return max(1, len({plan.parts[stage.part].ipu for stage in stages})) * replicas
    if plan.ordering is Ordering.SHARDED:
        return replicas
    return max(sum(p.phase == phase for p in plan.parts) for phase in plan.phases) * replicas
