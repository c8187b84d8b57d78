"""Faults of devices that users rehearse: ``POPTORCH_FAULTS`` makes calls fail as they would on broken hardware.

An engine asks once, when it is made, whether there are faults for its program. Without, nothing in here runs again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from poptorch import environment
from poptorch._logging import logger
from poptorch.errors import Error, backend_error, error_context, recoverable_error, unrecoverable_error
from poptorch.executable.executable import Executable
from poptorch.executable.groups import HostLoop
from poptorch.program.loop import MicroBatch
from poptorch.runtime.call import Call
from poptorch.runtime.fault_text import Fault, FaultKind, FaultList, parse_faults
from poptorch.runtime.tasks import Task
from poptorch.runtime.values.random_source import mix
from poptorch.runtime.workers import Execute, Rest

_RECOVERABLE = (FaultKind.IPU_RESET, FaultKind.PARTITION_RESET, FaultKind.FULL_RESET)
_LINKER_OUTPUT = "error: undefined symbol '__injected_fault'"


class Rehearsal:
    """The faults of one text, and how often each has looked at a call: for all models of the process."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._list: FaultList = parse_faults(text)
        self._lock = threading.Lock()
        self._looked = [0] * len(self._list.faults)
        self._lasting: set[int] = set()
        """Unrecoverable faults that have struck: they strike in every later call."""

    def of_program(self, program: str) -> list[Fault]:
        """The faults that can strike a training or an inference program."""
        return [fault for fault in self._list.faults if fault.program in (None, program)]

    def strikes(self, fault: Fault) -> Strike | None:
        """Look at one more call or compilation: does the fault strike in it?"""
        index = fault.number - 1
        with self._lock:
            self._looked[index] += 1
            number, lasting = self._looked[index], index in self._lasting
        if lasting:
            return Strike(replace(fault, iteration=None), number)
        if number not in fault.times:
            return None
        drawn = mix(self._list.seed, fault.number, number) / (1 << 63)
        return Strike(fault, number) if drawn < fault.probability else None

    def lasts(self, fault: Fault) -> None:
        """The fault has struck and does not go away."""
        with self._lock:
            self._lasting.add(fault.number - 1)

    def after_fork(self) -> None:
        """In a forked child no other thread exists that could give back the lock."""
        self._lock = threading.Lock()


@dataclass(frozen=True)
class Strike:
    """A fault that strikes in the ``number``-th call that it looked at."""

    fault: Fault
    number: int


_rehearsal: Rehearsal | None = None
_rehearsal_lock = threading.Lock()


def current_rehearsal() -> Rehearsal | None:
    """The faults that the environment asks for now; a new text begins to count from the start.

    >>> current_rehearsal() is None
    True
    """
    global _rehearsal
    text = environment.FAULTS.read()
    with _rehearsal_lock:
        if not text:
            _rehearsal = None
        elif _rehearsal is None or _rehearsal.text != text:
            _rehearsal = Rehearsal(text)
        return _rehearsal


def _after_fork() -> None:
    global _rehearsal_lock
    _rehearsal_lock = threading.Lock()
    if _rehearsal is not None:
        _rehearsal.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def faults_of(executable: Executable) -> ProgramFaults | None:
    """The faults that can strike this program, which is being loaded; ``None`` if there are none.

    A link error strikes here.
    """
    rehearsal = current_rehearsal()
    if rehearsal is None:
        return None
    faults = ProgramFaults(rehearsal, executable)
    faults.link()
    return faults if faults.running else None


class ProgramFaults:
    """The faults that can strike one program."""

    def __init__(self, rehearsal: Rehearsal, executable: Executable) -> None:
        self._rehearsal = rehearsal
        self._loop = executable.code.loop
        self._program = "training" if executable.program.training else "inference"
        faults = rehearsal.of_program(self._program)
        self._linking = [fault for fault in faults if fault.kind is FaultKind.LINK_ERROR]
        self.running = [fault for fault in faults if fault.kind is not FaultKind.LINK_ERROR]
        """Those that strike in calls."""

        self._only_ipu = executable.plan.parts[0].ipu
        for fault in self.running:
            self._mention_missing_place(fault, executable)

    def _mention_missing_place(self, fault: Fault, executable: Executable) -> None:
        loop, parts = self._loop, executable.plan.parts
        there = {
            "ipu": {part.ipu for part in parts},
            "stage": set(range(len(parts))),
            "replica": {loop.global_replica(replica) for replica in range(loop.replicas)},
            "iteration": set(range(1, loop.device_iterations + 1)),
        }
        for name, numbers in there.items():
            wanted = getattr(fault, name)
            if wanted is not None and wanted not in numbers:
                logger.warning(
                    "%s: fault %d (%s) cannot strike this %s model, which has no %s %d",
                    environment.FAULTS.name, fault.number, fault.kind.value, self._program, name, wanted,
                )  # fmt: skip

    def link(self) -> None:
        """The program is being linked."""
        for fault in self._linking:
            strike = self._rehearsal.strikes(fault)
            if strike is not None:
                with error_context(f"linking the {self._program} program"), error_context("loading"):
                    message = f"{_what(strike, 'compilation')}: codelets were not linked. Output: {_LINKER_OUTPUT}"
                    raise backend_error(message, "poplar_link_error")

    def next_call(self) -> CallFaults | None:
        """The faults that strike in the call that begins now; ``None`` if there are none."""
        looked = [self._rehearsal.strikes(fault) for fault in self.running]
        strikes = [strike for strike in looked if strike is not None]
        return CallFaults(self._rehearsal, strikes, self._loop, self._only_ipu) if strikes else None


class CallFaults:
    """The faults of one call. Those with a place wait for the first work there."""

    def __init__(self, rehearsal: Rehearsal, strikes: Sequence[Strike], loop: HostLoop, only_ipu: int) -> None:
        self._rehearsal = rehearsal
        self._strikes = strikes
        self._loop = loop
        self._only_ipu = only_ipu

    def before_tasks(self, execute: Execute, first_of: Callable[[Task], MicroBatch]) -> Execute:
        """The same tasks with faults; ``first_of`` knows the first micro-batch of each."""

        def execute_or_fail(task: Task) -> Rest | None:
            self._meet(first_of(task), task.ipu, task.job.part)
            return execute(task)

        return execute_or_fail

    def before_groups(self, call: Call) -> Call:
        """The same call of a model in one part, with faults."""

        def inputs_or_failure(first: MicroBatch) -> Sequence[torch.Tensor]:
            self._meet(first, self._only_ipu, 0)
            return call.inputs(first)

        return replace(call, inputs=inputs_or_failure)

    def _meet(self, first: MicroBatch, ipu: int, stage: int) -> None:
        replica = self._loop.global_replica(first.replica)
        iterations = {member.iteration + 1 for member in self._loop.members(first)}
        for strike in self._strikes:
            fault = strike.fault
            here = fault.ipu in (None, ipu) and fault.stage in (None, stage) and fault.replica in (None, replica)
            if here and (fault.iteration is None or fault.iteration in iterations):
                if fault.kind is FaultKind.SLOW:
                    time.sleep(fault.seconds)
                    continue
                self._fail(strike, f"IPU {ipu} of replica {replica}", stage, min(iterations))

    def _fail(self, strike: Strike, where: str, stage: int, iteration: int) -> None:
        if strike.fault.kind is FaultKind.UNRECOVERABLE:
            self._rehearsal.lasts(strike.fault)
        with (
            error_context("running the program"),
            error_context(f"device iteration {iteration}"),
            error_context(f"stage {stage} on {where}"),
        ):
            raise _error_of(strike, where)


def _what(strike: Strike, unit: str) -> str:
    fault = strike.fault
    return f"{environment.FAULTS.name} asks for this failure (fault {fault.number}, {unit} {strike.number})"


def _error_of(strike: Strike, where: str) -> Error:
    kind, asked = strike.fault.kind, _what(strike, "call")
    if kind in _RECOVERABLE:
        return recoverable_error(f"{asked}: {where} does not answer", kind.name)
    if kind is FaultKind.UNRECOVERABLE:
        return unrecoverable_error(f"{asked}: {where} is broken")
    if kind is FaultKind.WORKER_ERROR:
        thread = threading.current_thread().name
        return backend_error(f"{asked}: the thread {thread} failed in its work for {where}", "std::exception")
    return backend_error(f"{asked}: {where} failed for an unknown reason", "poplar_unknown_runtime_error")
