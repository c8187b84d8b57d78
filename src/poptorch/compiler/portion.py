"""What one process runs of a device program whose replicas are shared by several processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poptorch.compiler.passes.stages import StageProgram
from poptorch.compiler.plan import Plan
from poptorch.errors import createPoptorchError
from poptorch.program.program import Program, Role
from poptorch.program.update import UpdateProgram

_OPTION = "Options.Distributed.processesPerReplica"


@dataclass(frozen=True)
class Blocks:
    """Who runs which part of a plan: the IPUs of a replica in blocks of equal size, one for each process."""

    own: int
    """The block of this process."""

    count: int
    of_parts: tuple[int, ...]
    """The block that each part of the plan runs on."""

    users: Mapping[str, tuple[int, ...]] = field(repr=False)
    """The blocks that use each parameter and buffer."""

    homes: Mapping[str, int] = field(repr=False)
    """The block whose value of a parameter or buffer counts: where it is updated, or written, or used first."""

    updated: frozenset[str] = field(repr=False)
    """The parameters that the optimizer updates, in whatever block."""

    def of(self, stage: StageProgram) -> int:
        """The block that runs a stage."""
        return self.of_parts[stage.part]

    def is_own(self, stage: StageProgram) -> bool:
        """Whether this process runs a stage."""
        return self.of(stage) == self.own

    @property
    def held(self) -> frozenset[str]:
        """The parameters and buffers that this process needs."""
        return frozenset(name for name, users in self.users.items() if self.own in users)

    @property
    def updated_here(self) -> frozenset[str]:
        """The parameters that this process updates."""
        return frozenset(name for name in self.updated if self.homes[name] == self.own)

    @property
    def shared(self) -> list[str]:
        """The parameters that one process updates and others use as well, in an order that all processes know."""
        return sorted(name for name in self.updated if len(self.users[name]) > 1)


@dataclass(frozen=True)
class Portion:
    """The blocks of a device program, and the update of the parameters that this process updates."""

    blocks: Blocks
    update: UpdateProgram | None
    optimizer: Any = None
    """Description of the optimizer, restricted to these parameters."""


def blocks_of(program: Program, plan: Plan, ipus: int, own: int, count: int) -> Blocks:
    """Divide the IPUs of a replica among ``count`` processes; refuses what cannot be divided."""
    _check(program, plan, ipus, count)
    size = ipus // count
    of_parts = tuple(part.ipu // size for part in plan.parts)
    users: dict[str, set[int]] = {}
    for stage in plan.stages:
        for port in stage.program.ports:
            if port.role in (Role.PARAMETER, Role.BUFFER):
                users.setdefault(port.name, set()).add(of_parts[stage.part])
    updaters = {name: of_parts[stage.part] for stage in plan.stages for name in stage.gradients}
    for name, block in updaters.items():
        users.setdefault(name, set()).add(block)
    _check_written(program, users)
    homes = {name: updaters.get(name, min(found)) for name, found in users.items()}
    ordered = {name: tuple(sorted(found)) for name, found in users.items()}
    return Blocks(own, count, of_parts, ordered, homes, frozenset(updaters))


def check_optimizer(optimizer: Any) -> None:
    """Refuse an update that measures all gradients together: no process has all of them."""
    if optimizer is not None and not math.isinf(optimizer.max_grad_norm):
        raise createPoptorchError(
            f"max_grad_norm needs the gradients of all parameters in one place, and {_OPTION} divides them among "
            "processes. Leave max_grad_norm out, or run whole replicas in each process."
        )


def _check(program: Program, plan: Plan, ipus: int, count: int) -> None:
    if plan.ordering.is_phased:
        raise createPoptorchError(
            f"{_OPTION}({count}) divides pipelines and sharded models, not phased ones: each phase uses all IPUs. Use "
            "PipelinedExecution or ShardedExecution."
        )
    if ipus < count or ipus % count:
        raise createPoptorchError(
            f"{_OPTION}({count}) divides the IPUs of a replica into {count} blocks of equal size, but the model uses "
            f"{ipus}. Place the model on a multiple of {count} IPUs, with poptorch.BeginBlock(..., ipu_id=...) for "
            "instance."
        )
    written = [port.name for port in program.mutated() if port.role is Role.INPUT]
    if written:
        raise createPoptorchError(
            f"forward() changes {', '.join(written)} in place. With {_OPTION} only the process that runs that stage "
            "would see it: return the new value instead."
        )


def _check_written(program: Program, users: Mapping[str, Iterable[int]]) -> None:
    for port in program.mutated():
        blocks = sorted(users.get(port.name, ()))
        if len(blocks) > 1:
            raise createPoptorchError(
                f"The model writes {port.name}, and stages of {len(blocks)} processes use it. With {_OPTION} each "
                "process has buffers of its own: use it in stages on IPUs of one process only."
            )
