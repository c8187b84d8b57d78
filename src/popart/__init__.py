"""The enumerations of PopART that programs pass to ``poptorch.Options()._Popart.set``, and nothing else.

Programs for IPUs import ``popart`` for these numbers. There is no PopART here: ``poptorch`` compiles models itself.

>>> import poptorch
>>> options = poptorch.Options()
>>> _ = options._Popart.set("subgraphCopyingStrategy", int(SubgraphCopyingStrategy.JustInTime))
"""

from __future__ import annotations

import enum
from typing import NoReturn

from poptorch._version import __version__
from poptorch.enums import ReductionType, SyncPattern

__all__ = [
    "AccumulateOuterFragmentSchedule",
    "BatchSerializationBatchSchedule",
    "RecomputationType",
    "ReductionType",
    "SubgraphCopyingStrategy",
    "SyncPattern",
    "SyntheticDataMode",
    "VirtualGraphMode",
    "__version__",
]


class AccumulateOuterFragmentSchedule(enum.IntEnum):
    """How the operations that update weights are ordered: ``accumulateOuterFragmentSettings.schedule``."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SubgraphCopyingStrategy(enum.IntEnum):
    """When the inputs and outputs of a subgraph are copied: ``subgraphCopyingStrategy``."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyntheticDataMode(enum.IntEnum):
    """Which numbers take the place of data from the host: ``syntheticDataMode``."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


# By a call: "None" is a word of Python and no name for a line of a class.
RecomputationType = enum.IntEnum(
    "RecomputationType", {"None": 0, "Standard": 1, "NormOnly": 2, "Pipeline": 3, "RecomputeAll": 4}
)
RecomputationType.__doc__ = "Which activations are computed again in the backward pass: ``autoRecomputation``."


class VirtualGraphMode(enum.IntEnum):
    """How operations are assigned to IPUs: ``virtualGraphMode``."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class BatchSerializationBatchSchedule(enum.IntEnum):
    """How the parts of a serialised batch are ordered: ``batchSerializationSettings.batchSchedule``."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"This 'popart' is a compatibility package that comes with poptorch: it has no {name!r}, only the enumerations "
        f"that programs pass to poptorch.Options()._Popart.set ({', '.join(__all__[:-1])}). Programs that build graphs "
        "with PopART itself need Graphcore's SDK."
    )
