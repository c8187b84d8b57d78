"""Placement: which stage, phase and IPU each part of a model runs on."""

from poptorch.placement.strategies import (
    BlockId,
    ExecutionStrategy,
    ParallelPhasedExecution,
    Phase,
    PhasedExecution,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)

__all__ = [
    "BlockId",
    "ExecutionStrategy",
    "ParallelPhasedExecution",
    "Phase",
    "PhasedExecution",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
]
