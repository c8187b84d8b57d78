"""What the log says about a strategy: tools that read logs look for these lines."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from poptorch.ambient import Placement
from poptorch.placement.strategies import (
    ExecutionStrategy,
    ParallelPhasedExecution,
    PhasedExecution,
    SerialPhasedExecution,
    ShardedExecution,
)

_LOCATIONS = ("location_activation", "location_weight", "location_optimizer", "location_accumulator")


def strategy_lines(strategy: ExecutionStrategy, given: Collection[str]) -> Iterator[str]:
    """Settings that a phased strategy implies; ``given`` are the locations that the user chose.

    >>> print(*strategy_lines(SerialPhasedExecution("a", "b"), _LOCATIONS), sep="\\n")
    executionPhaseSettings.stages set to value 1
    executionPhaseSettings.phases set to value 2
    set serial_phases_execution to value true
    """
    if not isinstance(strategy, PhasedExecution):
        return
    yield f"executionPhaseSettings.stages set to value {2 if isinstance(strategy, ParallelPhasedExecution) else 1}"
    yield f"executionPhaseSettings.phases set to value {strategy.numbering().span}"
    for location in _LOCATIONS:
        if location not in given:
            yield f"{location} set to value useOnChipStorage(False)"
    if isinstance(strategy, SerialPhasedExecution):
        yield "set serial_phases_execution to value true"


def placement_of(strategy: ExecutionStrategy, placement: Placement) -> str:
    """Where an operation runs, as one writes it after the type of its result.

    >>> placement_of(ShardedExecution(), Placement(stage=2, ipu=1))
    'mode(Sharded), ipu(1), stage(2)'
    """
    if isinstance(strategy, PhasedExecution):
        return f"mode(Phased), ipu({placement.ipu}), phase({placement.phase})"
    mode = "Sharded" if isinstance(strategy, ShardedExecution) else "Pipelined"
    return f"mode({mode}), ipu({placement.ipu}), stage({placement.stage})"
