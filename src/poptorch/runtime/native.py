"""Replacing the interpreted code of an executable by native code, with the threads that its schedule leaves."""

from __future__ import annotations

from collections.abc import Callable

import torch

from poptorch._logging import logger
from poptorch.compiler.codegen.factors import generate_factored
from poptorch.compiler.codegen.inductor import Target
from poptorch.compiler.codegen.interpret import Generated
from poptorch.compiler.codegen.levels import target_for
from poptorch.compiler.codegen.native import (
    generate_native,
    generate_native_piece,
    generate_native_step,
    generate_native_update,
)
from poptorch.compiler.codegen.optimizers import updates_in_library
from poptorch.compiler.codegen.pieces import piece_key
from poptorch.compiler.program import Program
from poptorch.compiler.update import UpdateProgram
from poptorch.executable.executable import Executable
from poptorch.executable.plan import Plan
from poptorch.runtime.tasks import width
from poptorch.runtime.workers import Share


def to_native(executable: Executable) -> None:
    """Compile everything that the executable runs."""
    executable.native_after = None
    executable.step = None  # the interpreted one, if there was any
    threads = torch.get_num_threads()
    target = target_for(executable.program, threads)
    library_updates = executable.update is not None and updates_in_library(executable.update)
    if executable.plan is not None:
        _stages_to_native(executable, executable.plan)
    elif executable.updates_every_time and not library_updates:
        assert executable.update is not None
        executable.step = _generate_step(executable, executable.update, target)
    if executable.plan is None and executable.step is None:
        executable.micro_batch = _generate(executable, executable.program, generate_native, target)
    if executable.update is not None and not (executable.step or executable.update_shards or library_updates):
        executable.update.generated = _generate_update(executable, executable.update, Target(target.threads))
    executable.code.finish()


def _generate_step(executable: Executable, update: UpdateProgram, target: Target) -> Generated | None:
    program = executable.program
    key = piece_key("step", program, update, target)
    return executable.code.obtain(key, program, lambda: generate_native_step(program, update, target))


def _generate_update(executable: Executable, update: UpdateProgram, target: Target) -> Generated:
    key = piece_key("update", None, update, target)
    generated = executable.code.obtain(key, None, lambda: generate_native_update(update, target))
    assert generated is not None
    return generated


def _stages_to_native(executable: Executable, plan: Plan) -> None:
    """Pieces that run beside each other: they must not hold the interpreter lock, and share the cores."""
    share = Share.of(width(plan, executable.loop.replicas))
    generate = generate_native if plan.whole else generate_native_piece
    for stage in plan.stages:
        program = stage.description.program
        logger.debug("Compiling %s", stage.description)
        stage.generated = _generate(
            executable, program, generate, target_for(program, share.threads, share.workers > 1)
        )


def _generate(
    executable: Executable, program: Program, generate: Callable[[Program, Target], Generated], target: Target
) -> Generated:
    def make() -> Generated:
        if not executable.accumulates:
            return generate(program, target)
        return generate_factored(program, lambda factored: generate(factored, target))

    kind = [generate.__name__, executable.accumulates]
    generated = executable.code.obtain(piece_key(str(kind), program, None, target), program, make)
    assert generated is not None
    return generated
