"""Micro-batches that the host computes at once: IPUs compute one at a time, and know nothing of groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from poptorch.enums import CommGroupType
from poptorch.program.loop import Loop, MicroBatch
from poptorch.program.program import Program

MANY_REPLICAS = 4
"""From here on memory counts more than the speed of small products: all of them hold activations at once."""


@dataclass
class GroupedProgram(Program):
    """A program for several micro-batches, which are the first dimension of inputs, results and anchors."""

    group_size: int = 1


def group_size_of(program: Program) -> int:
    """How many micro-batches a program computes at once."""
    return program.group_size if isinstance(program, GroupedProgram) else 1


@dataclass(frozen=True)
class HostLoop(Loop):
    """A loop over groups of micro-batches.

    >>> loop = HostLoop(device_iterations=2, gradient_accumulation=2, group_size=2)
    >>> [loop.input_block(first) for first in loop.group_starts()]
    [0, 1]
    """

    group_size: int = 1
    """How many micro-batches of a replica the host computes at once; never some of before and some of after an update.
    """

    @staticmethod
    def of(loop: Loop, group_size: int = 1) -> HostLoop:
        """The loop of a device in groups."""
        fields = {field.name: getattr(loop, field.name) for field in dataclasses.fields(Loop)}
        return HostLoop(**fields, group_size=group_size)

    @property
    def groups_per_update(self) -> int:
        return self.micro_batches_per_update // self.group_size

    def group_starts(self) -> Iterator[MicroBatch]:
        """The first micro-batch of each group, in order."""
        if self.group_size == 1:
            return self.micro_batches()
        step = self.gradient_accumulation
        return (m for m in self.micro_batches() if (m.iteration * step + m.step) % self.group_size == 0)

    def members(self, first: MicroBatch) -> tuple[MicroBatch, ...]:
        """The micro-batches of the group that begins with ``first``."""
        if self.group_size == 1:
            return (first,)
        if self.gradient_accumulation > 1:
            return tuple(MicroBatch(first.iteration, first.step + i, first.replica) for i in range(self.group_size))
        return tuple(MicroBatch(first.iteration + i, first.step, first.replica) for i in range(self.group_size))

    def input_block(self, micro_batch: MicroBatch) -> int:
        """Which slice of the inputs the group of a micro-batch reads."""
        if self.input_group_type is CommGroupType.Orthogonal:
            group = micro_batch.replica % self.input_groups
        else:
            group = micro_batch.replica // self.input_group_size
        number = (micro_batch.iteration * self.gradient_accumulation + micro_batch.step) // self.group_size
        return number * self.input_groups + group
