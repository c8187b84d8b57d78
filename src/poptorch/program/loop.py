"""How one call repeats the micro-batch program, and which of its outputs are returned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poptorch.enums import CommGroupType, OutputMode
from poptorch.errors import createPoptorchError


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of a call: device iteration, accumulation step, replica."""

    iteration: int
    step: int
    replica: int


@dataclass(frozen=True)
class Loop:
    """The nest of loops inside one call, slowest first: device iterations, accumulation steps, replicas.

    >>> loop = Loop(device_iterations=2, gradient_accumulation=1, replicas=2)
    >>> [(micro_batch.iteration, micro_batch.replica) for micro_batch in loop.micro_batches()]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """

    device_iterations: int = 1
    gradient_accumulation: int = 1
    replicas: int = 1
    input_group_size: int = 1
    input_group_type: CommGroupType = CommGroupType.Consecutive
    output_mode: OutputMode = OutputMode.All
    return_period: int = 1
    first_replica: int = 0
    """The global number of this process's first replica."""

    all_replicas: int = 0
    """How many replicas there are in all processes; 0: only those of this one."""

    @property
    def input_groups(self) -> int:
        """How many different input slices one accumulation step needs."""
        return self.replicas // self.input_group_size

    @property
    def input_factor(self) -> int:
        """Rows of an input divided by the rows of a micro-batch."""
        return self.device_iterations * self.gradient_accumulation * self.input_groups

    def global_replica(self, replica: int) -> int:
        """The number of a replica of this process among those of all processes."""
        return self.first_replica + replica

    @property
    def replicas_of_job(self) -> int:
        """The replicas of all processes."""
        return self.all_replicas or self.replicas

    @property
    def all_micro_batches_per_update(self) -> int:
        """Micro-batches that an update combines, those of other processes included."""
        return self.gradient_accumulation * self.replicas_of_job

    @property
    def micro_batches_per_update(self) -> int:
        """Micro-batches of this process that an update combines."""
        return self.gradient_accumulation * self.replicas

    def micro_batches(self) -> Iterator[MicroBatch]:
        """All micro-batches of a call, in order."""
        for iteration in range(self.device_iterations):
            for step in range(self.gradient_accumulation):
                for replica in range(self.replicas):
                    yield MicroBatch(iteration, step, replica)

    def multiplicity(self, mode: OutputMode | None = None, period: int | None = None) -> int:
        """How many blocks an output consists of."""
        mode, period = self._mode(mode, period)
        if mode is OutputMode.All:
            return self.device_iterations * self.gradient_accumulation * self.replicas
        if mode is OutputMode.EveryN:
            return self.device_iterations // period * self.gradient_accumulation * self.replicas
        return self.replicas

    def output_block(
        self, micro_batch: MicroBatch, mode: OutputMode | None = None, period: int | None = None
    ) -> int | None:
        """Where the micro-batch's output goes, or ``None`` when it is not returned."""
        mode, period = self._mode(mode, period)
        if mode is OutputMode.Sum:
            return micro_batch.replica
        if mode is OutputMode.Final:
            return micro_batch.replica if self.is_last(micro_batch) else None
        iteration = micro_batch.iteration
        if mode is OutputMode.EveryN:
            if (iteration + 1) % period:
                return None
            iteration //= period
        return (iteration * self.gradient_accumulation + micro_batch.step) * self.replicas + micro_batch.replica

    def is_last(self, micro_batch: MicroBatch) -> bool:
        """Whether it is the last one of its replica in a call."""
        last = micro_batch.iteration == self.device_iterations - 1
        return last and micro_batch.step == self.gradient_accumulation - 1

    def position(self, micro_batch: MicroBatch) -> int:
        """Its number among the micro-batches of its replica."""
        return micro_batch.iteration * self.gradient_accumulation + micro_batch.step

    def check(self) -> None:
        """Refuse a return period that does not fit the device iterations."""
        mode, period = self.output_mode, self.return_period
        if mode is OutputMode.EveryN and (period > self.device_iterations or self.device_iterations % period):
            raise createPoptorchError(
                f"The output return period ({period}) of OutputMode.EveryN must divide deviceIterations "
                f"({self.device_iterations})."
            )

    def _mode(self, mode: OutputMode | None, period: int | None) -> tuple[OutputMode, int]:
        if mode is None:
            return self.output_mode, self.return_period
        return mode, period or 1

    def explain(self) -> str:
        """The factors of the batch dimension, for messages."""
        parts = [f"deviceIterations {self.device_iterations}"]
        if self.input_group_size == 1:
            parts.append(f"replicationFactor {self.replicas}")
        else:
            parts.append(f"replicationFactor {self.replicas} / input group size {self.input_group_size}")
        parts.append(f"gradientAccumulation {self.gradient_accumulation}")
        return " * ".join(parts)
