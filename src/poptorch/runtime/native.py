"""Replacing the interpreted code of an executable by native code, with the threads that its schedule leaves."""

from __future__ import annotations

from collections.abc import Callable

import torch

from poptorch._logging import logger
from poptorch.compiler.codegen.factors import generate_factored
from poptorch.compiler.codegen.inductor import Target
from poptorch.compiler.codegen.interpret import Generated
from poptorch.compiler.codegen.kernels import side_by_side
from poptorch.compiler.codegen.layouts import weight_formats
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
from poptorch.options.progress import Progress
from poptorch.runtime.tasks import width
from poptorch.runtime.workers import Share


def to_native(executable: Executable, progress: Progress) -> None:
    """Compile everything that the executable runs."""
    executable.native_after = None
    executable.step = None  # the interpreted one, if there was any
    jobs = _Jobs(executable, progress)
    with side_by_side(lambda done, count: progress.note(f"C++ {done}/{count}")):
        jobs.run()
        progress.begin("C++")
    executable.code.finish()


class _Jobs:
    """The pieces of code that an executable needs, one after the other."""

    def __init__(self, executable: Executable, progress: Progress) -> None:
        self._executable = executable
        self._progress = progress
        self._target = target_for(executable.program, torch.get_num_threads())
        self._update = executable.update
        if self._update is not None and (executable.update_shards or updates_in_library(self._update)):
            self._update = None  # it stays as it is
        self._joined = executable.updates_every_time and self._update is not None
        self._begun = 0
        self._count = 1 if executable.plan is None else len(executable.plan.stages)
        self._count += self._update is not None and not self._joined
        progress.extend(self._count + 1)

    def run(self) -> None:
        """Compile them."""
        executable, target = self._executable, self._target
        if executable.plan is not None:
            self._stages(executable.plan)
        elif self._joined:
            assert self._update is not None
            self._begin("step")
            executable.step = _generate_step(executable, self._update, target)
            executable.formats = {} if executable.step is None else weight_formats(executable.program)
        if executable.plan is None and executable.step is None:
            self._begin("micro-batch")
            executable.micro_batch = _generate(executable, executable.program, generate_native, target)
        if self._update is not None and executable.step is None:
            self._begin("update")
            self._update.generated = _generate_update(executable, self._update, Target(target.threads))

    def _begin(self, what: str) -> None:
        self._begun += 1
        self._progress.begin(f"native {self._begun}/{max(self._begun, self._count)}: {what}")

    def _stages(self, plan: Plan) -> None:
        """Pieces that run beside each other: they must not hold the interpreter lock, and share the cores."""
        share = Share.of(width(plan, self._executable.loop.replicas))
        generate = generate_native if plan.whole else generate_native_piece
        for stage in plan.stages:
            program = stage.description.program
            logger.debug("Compiling the %s", stage.description.label)
            self._begin(stage.description.label)
            stage.generated = _generate(
                self._executable, program, generate, target_for(program, share.threads, share.workers > 1)
            )


def _generate_step(executable: Executable, update: UpdateProgram, target: Target) -> Generated | None:
    program = executable.program
    key = piece_key("step", program, update, target)
    return executable.code.obtain(key, program, lambda: generate_native_step(program, update, target))


def _generate_update(executable: Executable, update: UpdateProgram, target: Target) -> Generated:
    key = piece_key("update", None, update, target)
    generated = executable.code.obtain(key, None, lambda: generate_native_update(update, target))
    assert generated is not None
    return generated


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
