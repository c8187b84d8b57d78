"""Native code in place of interpreted code, with the threads that the schedule leaves to each stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from poptorch._logging import logger
from poptorch.compiler.device_program import DeviceProgram
from poptorch.devices.cores import CoreShare
from poptorch.executable.host_code import Code, HostCode, HostStage
from poptorch.host.build import updates_every_time
from poptorch.host.factoring import generate_factored
from poptorch.host.levels import target_for
from poptorch.host.native.async_compile import side_by_side
from poptorch.host.native.code import (
    generate_native,
    generate_native_stage,
    generate_native_step,
    generate_native_update,
)
from poptorch.host.native.inductor import Target
from poptorch.host.native.layouts import weight_formats
from poptorch.host.native.optimizers import updates_in_library, updates_many_weights
from poptorch.host.store.code_store import CodeStore, code_key
from poptorch.options.progress import Progress
from poptorch.program.program import Program
from poptorch.program.update import UpdateProgram


def native_code(device: DeviceProgram, code: HostCode, store: CodeStore, progress: Progress) -> HostCode:
    """The same with native code wherever there is some; ``store`` knows what was compiled before."""
    build = _NativeBuild(device, code, store, progress)
    with side_by_side(lambda done, count: progress.note(f"C++ {done}/{count}")):
        made = build.run()
        progress.begin("C++")
    store.finish()  # before it, kernels may not be there
    return dataclasses.replace(made, native_after=None)


class _NativeBuild:
    """The code that a program needs, one after the other."""

    def __init__(self, device: DeviceProgram, code: HostCode, store: CodeStore, progress: Progress) -> None:
        self._device = device
        self._code = code
        self._store = store
        self._progress = progress
        self._target = target_for(code.program, torch.get_num_threads())
        self._update = device.update
        if self._update is not None and (code.shards or updates_in_library(self._update)):
            self._update = None  # it stays as it is
        self._joined = updates_every_time(device, code.alone) and self._update is not None
        self._apart = self._update is not None and not updates_many_weights(self._update)
        self._begun = 0
        self._count = (1 if code.alone else len(code.stages)) + (self._apart and not self._joined)
        progress.extend(self._count + 1)

    def run(self) -> HostCode:
        """Compile them."""
        code, device, update = self._code, self._device, self._update
        step = None
        stages = code.stages
        if not code.alone:
            stages = tuple(self._stage(stage) for stage in code.stages)
        elif self._joined and update is not None:
            self._begin("step")
            step = self._step(update)
        if code.alone and step is None:
            self._begin("micro-batch")
            stages = (dataclasses.replace(stages[0], code=self._generate(code.program, generate_native, self._target)),)
        made = code.update
        if self._apart and step is None and update is not None:
            self._begin("update")
            made = self._generate_update(update)
        formats = {} if step is None else weight_formats(device.program)
        # The interpreted step, if there was one, goes: the update is native code, or follows native code.
        return dataclasses.replace(code, stages=stages, step=step, formats=formats, update=made)

    def _begin(self, what: str) -> None:
        self._begun += 1
        self._progress.begin(f"native {self._begun}/{max(self._begun, self._count)}: {what}")

    def _stage(self, stage: HostStage) -> HostStage:
        """Stages that run beside each other must not hold the interpreter lock, and share the cores."""
        share = CoreShare.of(self._code.width)
        generate = generate_native if self._device.plan.whole else generate_native_stage
        logger.debug("Compiling the %s", stage.description.label)
        self._begin(stage.description.label)
        target = target_for(stage.program, share.threads, share.workers > 1)
        return dataclasses.replace(stage, code=self._generate(stage.program, generate, target))

    def _step(self, update: UpdateProgram) -> Code | None:
        program, target = self._device.program, self._target
        key = code_key("step", program, update, target)
        return self._store.obtain(key, program, lambda: generate_native_step(program, update, target))

    def _generate_update(self, update: UpdateProgram) -> Code:
        target = Target(self._target.threads)
        key = code_key("update", None, update, target)
        generated = self._store.obtain(key, None, lambda: generate_native_update(update, target))
        assert generated is not None
        return generated

    def _generate(self, program: Program, generate: Callable[[Program, Target], Code], target: Target) -> Code:
        accumulates = self._device.accumulates

        def make() -> Code:
            if not accumulates:
                return generate(program, target)
            return generate_factored(program, lambda factored: generate(factored, target))

        kind = [generate.__name__, accumulates]
        generated = self._store.obtain(code_key(str(kind), program, None, target), program, make)
        assert generated is not None
        return generated
