"""Placement: which stage, phase and IPU each part of a model runs on."""

from poptorch.placement.auto import Split
from poptorch.placement.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    BlockHook,
    LegacyBeginBlockFn,
    removeBlocks,
)
from poptorch.placement.legacy import IPU, BeginPhase, IpuId, PhaseId
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
    "IPU",
    "BeginBlock",
    "BeginPhase",
    "Block",
    "BlockFunction",
    "BlockHook",
    "BlockId",
    "ExecutionStrategy",
    "IpuId",
    "LegacyBeginBlockFn",
    "ParallelPhasedExecution",
    "Phase",
    "PhaseId",
    "PhasedExecution",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Split",
    "Stage",
    "removeBlocks",
]
