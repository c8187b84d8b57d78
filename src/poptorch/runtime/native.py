"""Replacing the interpreted code of an executable by native code, with the threads that its schedule leaves."""

from __future__ import annotations

import torch

from poptorch._logging import logger
from poptorch.compiler.codegen.inductor import Target
from poptorch.compiler.codegen.levels import target_for
from poptorch.compiler.codegen.native import (
    generate_native,
    generate_native_piece,
    generate_native_step,
    generate_native_update,
)
from poptorch.executable.executable import Executable
from poptorch.executable.plan import Plan
from poptorch.runtime.tasks import width
from poptorch.runtime.workers import Share


def to_native(executable: Executable) -> None:
    """Compile everything that the executable runs."""
    executable.native_after = None
    threads = torch.get_num_threads()
    target = target_for(executable.program, threads)
    if executable.plan is not None:
        _stages_to_native(executable, executable.plan)
    elif executable.updates_every_time:
        assert executable.update is not None
        executable.step = generate_native_step(executable.program, executable.update, target)
    if executable.plan is None and executable.step is None:
        executable.micro_batch = generate_native(executable.program, target)
    if executable.update is not None and executable.step is None and not executable.update_shards:
        executable.update.generated = generate_native_update(executable.update, Target(target.threads))


def _stages_to_native(executable: Executable, plan: Plan) -> None:
    """Pieces that run beside each other: they must not hold the interpreter lock, and share the cores."""
    share = Share.of(width(plan, executable.loop.replicas))
    generate = generate_native if plan.whole else generate_native_piece
    for stage in plan.stages:
        program = stage.description.program
        logger.debug("Compiling %s", stage.description)
        stage.generated = generate(program, target_for(program, share.threads, share.workers > 1))
