"""The enumerations of the public API, all of them re-exported as ``poptorch.<Name>``.

Members compare equal to their integer (``IntEnum``), because options store and compare plain integers.
The two exceptions, whose values are text, say so.
"""

from __future__ import annotations

import enum
from typing import Any


class OutputMode(enum.IntEnum):
    """Which of the results computed during one call come back to the host.

    >>> OutputMode.All == 2
    True
    """

    Final = 0
    """Only the last micro-batch of the call, one for each replica."""
    EveryN = 1
    """Every N-th micro-batch; N is the return period given next to the mode."""
    All = 2
    """Every micro-batch."""
    Sum = 3
    """One value: the element-wise sum over all micro-batches."""
    Default = 4
    """``All`` for inference, ``Final`` for training."""


class ConnectionType(enum.IntEnum):
    """When the program attaches to a device."""

    Always = 0
    """At the start, before compiling."""
    OnDemand = 1
    """Once an executable is ready to run."""
    Never = 2
    """Not at all: compile only."""


class SyncPattern(enum.IntEnum):
    """Which IPUs wait for each other when data moves between host and device."""

    Full = 0
    """Every transfer synchronises all IPUs."""
    SinglePipeline = 1
    """Each IPU may exchange data with the host on its own."""
    ReplicaAndLadder = 2
    """Groups of IPUs take turns between host transfers and computing, without waiting across groups."""


class ReductionType(enum.IntEnum):
    """How several values become one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(enum.IntEnum):
    """When the division that belongs to a mean takes place."""

    Running = 0
    """After every addition, so that the accumulator always holds the mean so far and cannot overflow."""
    Post = 1
    """Once, after everything is summed: faster, but the sum may overflow in float16."""
    PostAndLoss = 2
    """Legacy: by the replica count before the backward pass, by the accumulation count after it.

    The setter takes it; compiling refuses it.
    """


class HalfFloatCastingBehavior(enum.IntEnum):
    """The type of an operation that mixes float16 and float32 operands."""

    FloatDowncastToHalf = 0
    """float16."""
    HalfUpcastToFloat = 1
    """PyTorch's promotion rules: float32."""
    Default = 2
    """float16, unless ``Jit.traceModel(False)`` asks for PyTorch's rules."""


class DataLoaderMode(enum.IntEnum):
    """Where ``poptorch.DataLoader`` prepares its batches."""

    Sync = 0
    """In the calling process, when asked."""
    Async = 1
    """Ahead of time, in an ``AsynchronousDataAccessor``."""
    AsyncRebatched = 2
    """As ``Async``, with workers loading small pieces that the accessor joins: fewer leftovers."""


class SharingStrategy(enum.IntEnum):
    """How a dataset reaches the process of an ``AsynchronousDataAccessor``."""

    SharedMemory = 0
    """A spawned process reads it from shared memory: fast, limited in size."""
    FileSystem = 1
    """A spawned process reads it from a file: slower, larger."""
    Fork = 2
    """A forked process inherits it: nothing is copied, but unsafe in a program with threads."""
    ForkServer = 3
    """Forked from a server process that has one thread: safe with threads."""


class Liveness(enum.IntEnum):
    """When phased execution moves tensors out of the IPU's own memory."""

    AlwaysLive = 0
    """Never: they stay on chip between phases."""
    OffChipAfterFwd = 1
    """Between the forward and the backward pass."""
    OffChipAfterFwdNoOverlap = 2
    """As before, and loads and stores of neighbouring phases do not overlap: less memory, slower."""
    OffChipAfterEachPhase = 3
    """After every phase."""


class AutoStage(enum.IntEnum):
    """How blocks without an explicit stage are numbered."""

    SameAsIpu = 0
    """The stage is the number of the block's IPU."""
    AutoIncrement = 1
    """Each new block gets the next stage, from 0. Layers before the first block are stage 0, and blocks then follow."""


class MultiConvPlanType(enum.IntEnum):
    """How the convolutions inside a ``MultiConv`` are laid out in time."""

    Parallel = 0
    """Side by side."""
    Serial = 1
    """One after the other."""


class OverlapMode(enum.Enum):
    """How far host transfers may run ahead of computing. Values are text."""

    NoOverlap = "no_overlap"
    """Copy when needed: least memory."""
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    """Fetch for the next accumulation step through the I/O tiles."""
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
    """Fetch across device iterations too: more I/O tiles, faster."""


class MatMulSerializationMode(enum.Enum):
    """The dimension along which a serialised matrix product is cut. Values are text."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"
    """Not cut."""


class Compiler(enum.IntEnum):
    """The back end behind ``experimental.IPUScope`` and ``experimental.IPUContext``."""

    PopART = 0
    MLIR = 1


class CommGroupType(enum.IntEnum):
    """How N replicas are divided into groups of k."""

    All = 0
    """One group with every replica; k does not matter."""
    Consecutive = 1
    """``{0 … k-1}, {k … 2k-1}, …``"""
    Orthogonal = 2
    """With ``m = N / k`` groups: ``{0, m, 2m …}, {1, m+1 …}, …``"""
    NoGrouping = 3
    """Each replica on its own; k does not matter."""


class VariableRetrievalMode(enum.IntEnum):
    """Which replicas a variable is read back from."""

    OnePerGroup = 0
    """The first replica of each group."""
    AllReplicas = 2
    """Each replica."""


class _MultiConvPartialsType(enum.IntEnum):
    """Type of the intermediate results of a ``MultiConv``; torch dtypes took its place."""

    Float = 0
    Half = 1


_MultiConvPartialsType.__name__ = _MultiConvPartialsType.__qualname__ = "MultiConvPartialsType"

DEPRECATED: dict[str, tuple[Any, str]] = {
    "AnchorMode": (OutputMode, "poptorch.OutputMode"),
    "MultiConvPartialsType": (_MultiConvPartialsType, "a torch dtype (torch.float or torch.half)"),
}
"""Names of earlier releases: what they stand for, and what to write instead."""


def deprecated_name(name: str) -> Any:
    """The object behind a name of an earlier release; logs what to use instead.

    Raises ``KeyError`` for a name that no earlier release had.

    >>> deprecated_name("AnchorMode") is OutputMode
    True
    """
    value, replacement = DEPRECATED[name]
    from poptorch._logging import warn_deprecated  # only needed here, and the logger must not need the enums

    warn_deprecated(f"poptorch.{name}", replacement)
    return value


def __getattr__(name: str) -> Any:
    if name in DEPRECATED:
        return deprecated_name(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
