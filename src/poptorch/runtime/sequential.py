"""Running a model in one part on one replica: one group of micro-batches after the other, on the calling thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode, Runner
from poptorch.program.loop import MicroBatch
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role
from poptorch.runtime.call import Call
from poptorch.runtime.clock import CallClock, whole_record
from poptorch.runtime.device_memory import DeviceMemory
from poptorch.runtime.failures import FailedJob, note_job
from poptorch.runtime.gradients import GradientSink
from poptorch.runtime.meeting import Meeting
from poptorch.runtime.values.factored import Gradient

_ALONE = contextlib.nullcontext()
_ONLY = (MicroBatch(0, 0, 0),)
_LATE_OUTPUTS = (OutputKind.GRADIENT, OutputKind.ANCHOR, OutputKind.COUNT)


class SequentialRunner:
    """Runs the only stage of a plan."""

    def __init__(self, executable: Executable, memory: DeviceMemory, meeting: Meeting | None = None) -> None:
        program, self._loop = executable.program, executable.code.loop
        self._memory = memory
        self._meeting = meeting
        self._code = executable.code
        self._gradients = program.positions_of(OutputKind.GRADIENT)
        self._anchors = program.positions_of(OutputKind.ANCHOR)
        self._scaled = bool(program.ports_of(Role.LOSS_SCALE))
        self._sink = GradientSink(executable)
        self._updates = executable.update is not None

    def install(self, code: HostCode) -> None:
        """Run other code for the same program."""
        self._code = code

    def run_once(self, inputs: Sequence[torch.Tensor], random: object) -> Sequence[torch.Tensor]:
        """One micro-batch of an inference program that returns nothing but results."""
        memory = self._memory
        run = self._code.stages[0].code.run
        try:
            return run(memory.weights, memory.buffers[0], memory.constants, inputs, (), random)
        except Exception as error:
            note_job(error, FailedJob(_ONLY))
            raise

    def run_step(
        self, inputs: Sequence[torch.Tensor], scale: Sequence[torch.Tensor], random: object, state: Sequence[Any]
    ) -> Sequence[torch.Tensor]:
        """One micro-batch of a training program whose code updates the weights, and nothing around it."""
        memory, step = self._memory, self._code.step
        assert step is not None
        try:
            return step.run(
                memory.weights,
                memory.buffers[0],
                memory.constants,
                inputs,
                scale if self._scaled else (),
                random,
                state,
            )
        except Exception as error:
            note_job(error, FailedJob(_ONLY))
            raise

    def _in_replica(self, first: MicroBatch) -> AbstractContextManager[None]:
        return _ALONE if self._meeting is None else self._meeting.taking_part(first, 0)

    def run(self, call: Call, clock: CallClock, step_arguments: Sequence[torch.Tensor] | None) -> None:
        """All device iterations. With ``step_arguments``, weights are updated by the code itself.

        For each group of micro-batches:
        take its inputs, run the code, deliver the results to their streams,
        give the gradients to the sink, unless the code handed them over while it ran,
        keep anchored values and counts.
        After the last group of a round, take the gradients from the sink and update the weights.
        """
        self._sink.begin(call.exchange)
        records = clock.records
        loop, memory, now, sink = self._loop, self._memory, time.perf_counter, self._sink
        run, last_arguments, (gradients, anchors, counts) = self._code_of(step_arguments)
        buffers, constants = memory.buffers[0], memory.constants
        scale = call.loss_scale if self._scaled else ()
        last = loop.gradient_accumulation - 1
        for first in loop.group_starts():
            members = loop.members(first)
            asked = now()
            inputs = call.inputs(first)
            begun = now()
            try:
                random = call.random(first)
                with self._in_replica(first):
                    outputs = run(memory.weights, buffers, constants, inputs, scale, random, *last_arguments)
            except Exception as error:
                note_job(error, FailedJob(members))
                raise
            ended = now()
            self._deliver(call, members, outputs)
            records.append(whole_record(members, asked, begun, ended, now()))
            if gradients:
                sink.add(0, 0, first.step, 0, outputs[gradients.start : gradients.stop])
            anchored = outputs[anchors.start : anchors.stop]
            counted = outputs[counts.start : counts.stop]
            del outputs  # gradients are not kept while the next micro-batch runs
            self._keep(call, first, anchored, counted)
            if step_arguments is not None:
                call.updated()
            elif self._updates and members[-1].step == last:
                assert call.update is not None
                call.update(sink.take())
        if call.trace.active:
            for span in clock.spans():
                call.trace.add(span)

    def _code_of(self, step_arguments: Sequence[torch.Tensor] | None) -> tuple[Runner, tuple[Any, ...], list[range]]:
        """What to run, with which last argument, and where gradients, anchors and counts are among its outputs."""
        stage, step = self._code.stages[0], self._code.step
        if step_arguments is None:
            positions = [stage.positions_of(kind) for kind in _LATE_OUTPUTS]
            return stage.code.run, (self._hand,) if stage.buckets else (), positions
        assert step is not None
        before = len(self._gradients)  # what steps do not return
        anchors = range(self._anchors.start - before, self._anchors.stop - before)
        return step.run, (step_arguments,), [range(0), anchors, range(0)]

    def _hand(self, bucket: int, gradients: Sequence[Gradient]) -> None:
        """Take a bucket that the code hands over while it runs."""
        self._sink.add(0, bucket, 0, 0, gradients)

    @staticmethod
    def _deliver(call: Call, members: Sequence[MicroBatch], outputs: Sequence[torch.Tensor]) -> None:
        for stream, value in zip(call.results, outputs, strict=False):
            stream.put_all(members, value)

    @staticmethod
    def _keep(call: Call, first: MicroBatch, anchored: Sequence[torch.Tensor], counted: Sequence[torch.Tensor]) -> None:
        for stream, value in zip(call.anchors, anchored, strict=True):
            stream.put(first, value)
        for value in counted:
            call.counts.put(first, value)
