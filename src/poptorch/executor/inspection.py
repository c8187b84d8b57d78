"""What users may ask a compiled model about itself: names, anchored values, times and counters."""

from __future__ import annotations

import datetime
from typing import Any

import torch

from poptorch.compiler.passes.anchors import UPDATED, value_names
from poptorch.errors import createPoptorchError
from poptorch.executor.build import Build
from poptorch.runtime import counters
from poptorch.runtime.engine import Engine


class Inspection:
    """The part of an executor that answers questions and changes nothing."""

    _build: Build | None
    _engine: Engine | None
    _options: Any
    _ever_ran: bool
    _compile_time: datetime.timedelta | None

    def getTensorNames(self) -> list[str]:
        """The names of all tensors of the compiled graph."""
        assert self._build is not None, "Model must be compiled before calling getTensorNames"
        program = self._build.executable.program
        names = list(value_names(program))
        if self._build.interface.optimizer is not None:
            parameters = [name for group in self._build.executable.update.parameters for name in group]  # type: ignore[union-attr]
            names += [f"{UPDATED}{name}" for name in parameters]
            names += [f"{UPDATED}model.{name}" for name in parameters]
            names += sorted({n for group in self._build.interface.optimizer.hyper() for n in group})
        return names

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """The value that an anchored tensor had in the latest call."""
        anchored = self._engine.anchored if self._engine is not None else {}
        assert short_name in anchored, f"No tensor with name {short_name} found"
        return anchored[short_name]

    def cycleCount(self) -> int:
        """Device cycles of the last run."""
        if not self._options._Popart.options.get("instrumentWithHardwareCycleCounter"):
            raise createPoptorchError(
                "Cycle count logging is disabled. Please set option logCycleCount to True to enable."
            )
        if not self._ever_ran:
            raise createPoptorchError("Please run the model at least once before obtaining cycle count.")
        raise createPoptorchError(
            "The IPU Model that predicts cycles is not part of this release: there is no cycle count to report"
        )

    def compilationTime(self) -> datetime.timedelta:
        """How long the last compilation took."""
        if self._build is None or self._compile_time is None:
            raise createPoptorchError("Please compile the model before obtaining compilation time.")
        if not self._options._show_compilation_progress_bar:
            raise createPoptorchError(
                "Please set showCompilationProgressBar option to obtain compilation time."
            )
        return self._compile_time

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Time stamps of the inputs and outputs of the last call."""
        if self._engine is None:
            return {key: [[]] for key in counters.EMPTY}
        return self._engine.counters.as_dict()

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
