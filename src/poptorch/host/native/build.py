"""Replacing the interpreted code of an executable by native code, with the threads that its schedule leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poptorch._logging import logger
from poptorch.compiler.plan import Plan
from poptorch.compiler.update import UpdateProgram
from poptorch.executable.executable import Executable
from poptorch.host.factoring import generate_factored
from poptorch.host.interpret.code import Generated
from poptorch.host.levels import target_for
from poptorch.host.native.async_compile import side_by_side
from poptorch.host.native.code import (
    generate_native,
    generate_native_piece,
    generate_native_step,
    generate_native_update,
)
from poptorch.host.native.inductor import Target
from poptorch.host.native.layouts import weight_formats
from poptorch.host.native.optimizers import updates_in_library, updates_many_weights
from poptorch.host.store.code_store import piece_key
from poptorch.options.progress import Progress
from poptorch.program.program import Program
from poptorch.runtime.tasks import width
from poptorch.runtime.workers import Share


def to_native(executable: Executable, progress: Progress) -> None:
    """Compile everything that the executable runs. If that fails, it goes on with the code that it has."""
    executable.native_after = None
    jobs = _Jobs(executable, progress)
    with side_by_side(lambda done, count: progress.note(f"C++ {done}/{count}")):
        jobs.run()
        progress.begin("C++")
    executable.code.finish()
    jobs.install()  # last: before it, whatever goes wrong changes nothing


class _Jobs:
    """The pieces of code that an executable needs, one after the other."""

    def __init__(self, executable: Executable, progress: Progress) -> None:
        self._executable = executable
        self._progress = progress
        self._target = target_for(executable.host_program, torch.get_num_threads())
        self._update = executable.update
        if self._update is not None and (executable.update_shards or updates_in_library(self._update)):
            self._update = None  # it stays as it is
        self._joined = executable.updates_every_time and self._update is not None
        self._apart = self._update is not None and not updates_many_weights(self._update)
        self._made: list[tuple[Any, str, Any]] = []
        self._begun = 0
        self._count = 1 if executable.plan is None else len(executable.plan.stages)
        self._count += self._apart and not self._joined
        progress.extend(self._count + 1)

    def run(self) -> None:
        """Compile them."""
        executable, target, step = self._executable, self._target, None
        if executable.plan is not None:
            self._stages(executable.plan)
        elif self._joined:
            assert self._update is not None
            self._begin("step")
            step = _generate_step(executable, self._update, target)
        self._put(executable, "step", step)  # no longer the interpreted one, if there was any
        self._put(executable, "formats", {} if step is None else weight_formats(executable.program))
        if executable.plan is None and step is None:
            self._begin("micro-batch")
            generated = _generate(executable, executable.host_program, generate_native, target)
            self._put(executable, "micro_batch", generated)
        if self._apart and step is None:
            assert self._update is not None
            self._begin("update")
            generated = _generate_update(executable, self._update, Target(target.threads))
            self._put(self._update, "generated", generated)

    def install(self) -> None:
        """Let the executable run them. Before, their kernels may not be there."""
        for owner, name, value in self._made:
            setattr(owner, name, value)

    def _put(self, owner: Any, name: str, value: Any) -> None:
        self._made.append((owner, name, value))

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
            target = target_for(program, share.threads, share.workers > 1)
            self._put(stage, "generated", _generate(self._executable, program, generate, target))


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
