"""What an executor shows of its compiled program: the program itself, its schedule, times, anchored values."""

from __future__ import annotations

import datetime
from pathlib import Path

import torch

from poptorch.compiler.plan import Plan
from poptorch.executable.executable import Executable
from poptorch.executor import inspection
from poptorch.executor.ir_text import ir_text
from poptorch.executor.session import Session
from poptorch.figures import Drawing
from poptorch.options import Options
from poptorch.profiling.trace import Trace
from poptorch.program.program import Program
from poptorch.runtime import counters, gantt


class Inside:
    """The part of an executor that looks and changes nothing."""

    _session: Session | None
    _options: Options
    _trace: Trace

    def _compiled(self) -> Session:
        raise NotImplementedError

    @property
    def executable(self) -> Executable:
        """The compiled model: what IPUs run, and the code by which this host runs it."""
        return self._compiled().executable

    @property
    def _executable(self) -> Executable | None:
        """The compiled model or ``None``: libraries know this name and ask whether there is one."""
        return None if self._session is None else self._session.executable

    def _debugGetPopartIR(self) -> str:
        """The operations of the compiled program as JSON, for tools and tests of programs."""
        return ir_text(self._compiled().executable.device)

    @property
    def session(self) -> Session:
        """The loaded program with its engine and device memory, for tools and tests that look inside.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.Linear(2, 1))
        >>> model.compile(torch.zeros(2))
        >>> sorted(model.session.engine.parameters())
        ['bias', 'weight']
        """
        return self._compiled()

    @property
    def program(self) -> Program:
        """The compiled program of one micro-batch; ``print`` it to read it."""
        return self._compiled().program

    @property
    def plan(self) -> Plan:
        """How IPUs share the compiled model: its parts, and what they hand to each other.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> model.compile(torch.zeros(2))
        >>> print(model.plan)
        sharded, 1 part
        whole model (stage 0, phase 0, IPU 0): 1 operations, receives 0 values (0 bytes), sends 0
        """
        return self._compiled().plan

    @property
    def trace(self) -> Trace:
        """Where spans of compilation and calls go: nowhere, unless you set it to a ``Recorder``.

        >>> import poptorch
        >>> from poptorch.profiling.trace import Recorder
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> model.trace = Recorder()
        >>> output = model(torch.zeros(2))
        >>> [span.kind.value for span in model.trace.spans][-3:]
        ['input', 'step', 'output']
        """
        return self._trace

    @trace.setter
    def trace(self, trace: Trace) -> None:
        self._trace = trace
        if self._session is not None:
            self._session.engine.trace.listen(trace)

    def drawSchedule(self, path: str | Path | None = None) -> str:
        """Draw what ran on which IPU in the latest call, beside what the execution strategy asks for.

        Returns the drawing as text; with a ``path`` that ends in ``.svg``, ``.png`` or ``.txt`` also writes it there.
        Measured is the last accumulation round of the latest call.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().deviceIterations(3))
        >>> output = model(torch.ones(3))
        >>> print(model.drawSchedule())
        ideal, 0 % idle
        IPU0 | 0F 1F 2F
        measured, 1 worker, ... ms, 0 % idle
        IPU0 | 0-2F---...
        """
        ideal, measured = self._compiled().schedule()
        if path is not None:
            gantt.save(path, ideal, measured)
        return Drawing.of(gantt.as_text(ideal, measured), gantt.as_svg(gantt.charts(ideal, measured)))

    def getTensorNames(self) -> list[str]:
        """The names of all tensors of the compiled graph."""
        return inspection.tensor_names(self._session)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """The value that an anchored tensor had in the latest call."""
        return inspection.anchored_tensor(self._session, short_name)

    def cycleCount(self) -> int:
        """Device cycles of the last run, as the IPU Model predicts them."""
        return inspection.cycle_count(self._session, self._options)

    def compilationTime(self) -> datetime.timedelta:
        """How long the last compilation took."""
        return inspection.compilation_time(self._session, self._options)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Time stamps of the inputs and outputs of the last call."""
        return inspection.perf_counters(self._session)

    def getHostIpuLatency(self) -> counters.Latency:
        """Shortest, longest, average time from the request of an input to its delivery."""
        return counters.latency(self.getPerfCounters(), "input", "input_complete")

    def getComputeLatency(self) -> counters.Latency:
        """Shortest, longest, average time from the last input to the last output."""
        return counters.latency(self.getPerfCounters(), "input_complete", "output", first=False)

    def getIpuHostLatency(self) -> counters.Latency:
        """Shortest, longest, average time from the first output to the delivery of the last."""
        return counters.latency(self.getPerfCounters(), "output", "output_complete")

    def getLatency(self) -> counters.Latency:
        """Shortest, longest, average time from the request of an input to the delivery of the output."""
        return counters.latency(self.getPerfCounters(), "input", "output_complete")
