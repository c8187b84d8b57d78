"""Native code in place of interpreted code, with the threads that the schedule leaves to each stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch

from poptorch._logging import logger
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.observers import Dump
from poptorch.devices.cores import CoreShare
from poptorch.executable.host_code import Code, HostCode, HostStage
from poptorch.host.build import bucket_positions, updates_every_time
from poptorch.host.factoring import NO_PRODUCTS, in_factors
from poptorch.host.levels import target_for
from poptorch.host.native.async_compile import side_by_side
from poptorch.host.native.draft import Draft
from poptorch.host.native.inductor import Target
from poptorch.host.native.layouts import weight_formats
from poptorch.host.native.optimizers import updates_in_library, updates_many_weights
from poptorch.host.native.passes import Write, joins_update, make, make_update
from poptorch.host.store.code_store import CodeStore, code_key
from poptorch.options.progress import Progress
from poptorch.program.program import Program
from poptorch.program.update import UpdateProgram


def native_code(
    device: DeviceProgram, code: HostCode, store: CodeStore, progress: Progress, dump: Dump | None = None
) -> HostCode:
    """The same with native code wherever there is some; ``store`` knows what was compiled before.

    ``dump`` takes each host program after each pass that makes it.
    """
    build = NativeBuild(device, code, store, progress, dump)
    with side_by_side(lambda done, count: progress.note(f"C++ {done}/{count}")):
        for step in NATIVE_STEPS:
            step.apply(build)
        progress.begin("C++")
    store.finish()  # before it, kernels may not be there
    return dataclasses.replace(build.made, native_after=None)


class NativeBuild:
    """The native code of one device program while it is made."""

    def __init__(
        self, device: DeviceProgram, code: HostCode, store: CodeStore, progress: Progress, dump: Dump | None
    ) -> None:
        # An interpreted step goes in any case: the update is native code, or follows native code.
        self.made = dataclasses.replace(code, step=None, formats={})
        self._device = device
        self._store = store
        self._progress = progress
        self._write = None if dump is None else dump.write
        self._target = target_for(code.program, torch.get_num_threads())
        self._update = device.local_update
        if self._update is not None and (code.shards or updates_in_library(self._update)):
            self._update = None  # it stays as it is
        self._joined = updates_every_time(device, code.alone) and self._update is not None
        self._apart = self._update is not None and not updates_many_weights(self._update)
        self._begun = 0
        own = sum(device.runs(stage.description) for stage in code.stages)
        self._count = (1 if code.alone else own) + (self._apart and not self._joined)
        progress.extend(self._count + 1)

    def join_update(self) -> None:
        """One function for a micro-batch and its update, where each update has one micro-batch."""
        if not self._joined or self._update is None:
            return
        self._begin("step")
        program, update, target = self._device.program, self._update, self._target
        key = code_key("step", program, update, target)
        step = self._store.obtain(key, program, lambda: self._joined_step(program, update, target))
        if step is not None:
            self.made = dataclasses.replace(self.made, step=step, formats=weight_formats(program))

    def _joined_step(self, program: Program, update: UpdateProgram, target: Target) -> Code | None:
        """Nothing where forward and backward cannot be told apart, or where equal layers are compiled once."""
        draft = Draft.of(program, target, update=update)
        return make(draft, self._write) if joins_update(draft) else None

    def generate_stages(self) -> None:
        """The code of each stage, with the cores that stages beside it leave."""
        code = self.made
        if code.step is not None:
            return
        if code.alone:
            self._begin("micro-batch")
            generated = self._generate(code.stages[0], self._target)
            stages: tuple[HostStage, ...] = (dataclasses.replace(code.stages[0], code=generated),)
        else:
            stages = tuple(self._stage(s) if self._device.runs(s.description) else s for s in code.stages)
        self.made = dataclasses.replace(code, stages=stages)

    def _writing(self, stage: HostStage) -> Write | None:
        """What takes the programs of a stage after each pass, by the name of both where there are several stages."""
        write = self._write
        if write is None or len(self.made.stages) == 1:
            return write
        return lambda name, text: write(f"{stage.description.label} {name}", text)

    def generate_update(self) -> None:
        """The code of the update, unless a library updates all weights at once."""
        if not self._apart or self.made.step is not None or self._update is None:
            return
        self._begin("update")
        update, target = self._update, Target(self._target.threads)
        key = code_key("update", None, update, target)
        generated = self._store.obtain(key, None, lambda: make_update(update, target, self._write))
        assert generated is not None
        self.made = dataclasses.replace(self.made, update=generated)

    def _begin(self, what: str) -> None:
        self._begun += 1
        self._progress.begin(f"native {self._begun}/{max(self._begun, self._count)}: {what}")

    def _stage(self, stage: HostStage) -> HostStage:
        """Stages that run beside each other must not hold the interpreter lock, and share the cores."""
        share = CoreShare.of(self.made.width)
        logger.debug("Compiling the %s", stage.description.label)
        self._begin(stage.description.label)
        target = target_for(stage.program, share.threads, share.workers > 1)
        code = self._generate(stage, target, is_stage=not self._device.plan.whole)
        return dataclasses.replace(stage, code=code)

    def _generate(self, stage: HostStage, target: Target, *, is_stage: bool = False) -> Code:
        accumulates, program = self._device.accumulates, stage.program
        buckets = bucket_positions(program, stage.buckets)

        def generated() -> Code:
            factored, products = in_factors(program) if accumulates else (program, NO_PRODUCTS)
            about = {"products": products, "buckets": buckets, "is_stage": is_stage and program.training}
            return make(Draft.of(factored, target, **about), self._writing(stage))

        kind = ["stage" if is_stage else "micro-batch", accumulates, *buckets]
        made = self._store.obtain(code_key(str(kind), program, None, target), program, generated)
        assert made is not None
        return made


@dataclass(frozen=True)
class NativeStep:
    """One part of the native code."""

    name: str
    apply: Callable[[NativeBuild], None]
    reason: str


NATIVE_STEPS: tuple[NativeStep, ...] = (
    NativeStep("native step", NativeBuild.join_update, "first: where it exists, it is all the code that runs"),
    NativeStep("native stages", NativeBuild.generate_stages, "each stage runs on its own, on its share of the cores"),
    NativeStep("native update", NativeBuild.generate_update, "after the gradients of all micro-batches"),
)
