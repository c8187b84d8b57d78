"""The keys that the backend knows: what kind of value each takes, and what it does on virtual IPUs.

Keys of ``Options`` and its groups are here too, because ``Options.toDict`` puts all of them into one
dictionary.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from poptorch import enums
from poptorch.options.rows import Effect

Kind = Literal["bool", "uint64", "floating point", "string", "set / vector", "map"]


@dataclass(frozen=True)
class BackendKey:
    """One key of the backend."""

    name: str
    kind: Kind
    effect: Effect = "none"
    effect_note: str = "a detail of the original's compiler; checked, logged and not needed here"
    values: type[enum.IntEnum] | None = None
    """The meaning of the numbers, for keys (or elements of lists) that are enumerations."""
    passthrough: bool = True
    """Whether it is set through ``_Popart``; the others have setters of their own."""


def _values(name: str, *members: str) -> type[enum.IntEnum]:
    return enum.IntEnum(name, {member: number for number, member in enumerate(members)})  # type: ignore[return-value]


_ENUMERATED: dict[str, type[enum.IntEnum]] = {
    "autoRecomputation": _values("RecomputationType", "None", "Standard", "NormOnly", "Pipeline", "RecomputeAll"),
    "syntheticDataMode": _values("SyntheticDataMode", "Off", "Zeros", "RandomNormal", "RandomUniform"),
    "virtualGraphMode": _values("VirtualGraphMode", "Off", "Manual", "Auto", "ExecutionPhases"),
    "mergeVarUpdate": _values("MergeVarUpdateType", "None", "All", "AutoLoose", "AutoTight"),
    "subgraphCopyingStrategy": _values("SubgraphCopyingStrategy", "OnEnterAndExit", "JustInTime"),
    "autodiffSettings.stitchStrategy": _values(
        "AutodiffStitchStrategy",
        "RecomputeMinimal",
        "RecomputeAllNonInputs",
        "AddFwdOutputs",
        "SafeAddFwdOutputs",
    ),
    "accumulateOuterFragmentSettings.schedule": _values(
        "AccumulateOuterFragmentSchedule",
        "Scheduler",
        "Serial",
        "OverlapCycleOptimized",
        "OverlapMemoryOptimized",
    ),
    "batchSerializationSettings.transformContext": _values("BatchSerializationTransformContext", "Fwd", "Bwd"),
    "batchSerializationSettings.method": _values("BatchSerializationMethod", "UnrollDynamic", "UnrollStatic", "Loop"),
    "batchSerializationSettings.batchSchedule": _values(
        "BatchSerializationBatchSchedule", "Scheduler", "Isomorphic", "OverlapOnIo", "OverlapOnCompute"
    ),
    "accumulationAndReplicationReductionType": enums.ReductionType,
    "meanAccumulationAndReplicationReductionStrategy": _values("MeanReductionStrategy", "Running", "Post"),
    "automaticLossScalingSettings.gradientTensorTrackingMethod": _values(
        "GradientTensorTrackingMethod",
        "AllNonViewChangingGradientTensors",
        "ConvAndMatmulGradients",
        "GradientsOfUserSpecifiedTensors",
    ),
}

_BOOL = (
    "aliasZeroCopy",
    "automaticLossScalingSettings.enabled",
    "batchSerializationSettings.concatOnExecutionPhaseChange",
    "batchSerializationSettings.concatOnPipelineStageChange",
    "batchSerializationSettings.concatOnVirtualGraphChange",
    "compileEngine",
    "constantWeights",
    "decomposeGradSum",
    "delayVarUpdates",
    "disableGradAccumulationTensorStreams",
    "disableOptimizerStateTensorStreams",
    "dotOpNames",
    "enableDistributedReplicatedGraphs",
    "enableEngineCaching",
    "enableExplicitIR",
    "enableExplicitMainLoops",
    "enableFloatingPointChecks",
    "enableFullyConnectedPass",
    "enableGradientAccumulation",
    "enableInplaceAmbiguityChecking",
    "enableLoadAndOffloadRNGState",
    "enableMergeExchange",
    "enableNonStableSoftmax",
    "enableOutlining",
    "enableOutliningCopyCostPruning",
    "enablePipelining",
    "enablePrefetchDatastreams",
    "enableReplicatedGraphs",
    "enableSerializedMatmuls",
    "enableStableNorm",
    "enableStochasticRounding",
    "enableSupportedDataTypeCasting",
    "ensureFp32LossScaleTensor",
    "explicitRecomputation",
    "exportPoplarComputationGraph",
    "exportPoplarVertexGraph",
    "groupHostSync",
    "groupNormStridedChannelGrouping",
    "instrumentWithHardwareCycleCounter",
    "opxAliasChecking",
    "opxModifyChecking",
    "rearrangeAnchorsOnHost",
    "rearrangeStreamsOnHost",
    "replicatedCollectivesSettings.mergeAllReduceCollectives",
    "replicatedCollectivesSettings.prepareScheduleForMergingCollectives",
    "scheduleNonWeightUpdateGradientConsumersEarly",
    "separateCallOpPdfs",
    "strictOpVersions",
    "useHostCopyOps",
)

_UINT64 = (
    "accumulationFactor",
    "automaticLossScalingSettings.updatePeriod",
    "batchSerializationSettings.factor",
    "compilationProgressTotal",
    "defaultBufferingDepth",
    "defaultPrefetchBufferingDepth",
    "executionPhaseSettings.phases",
    "executionPhaseSettings.stages",
    "finalDotOp",
    "firstDotOp",
    "globalReplicaOffset",
    "globalReplicationFactor",
    "looseThresholdAtPeak",
    "mergeVarUpdateMemThreshold",
    "numIOTiles",
    "swapLimitScheduler",
    "transitiveClosureOptimizationThreshold",
)

_FLOAT = (
    "automaticLossScalingSettings.binEdgeLocation",
    "automaticLossScalingSettings.thresholdUpperCountProportion",
    "outlineSequenceBreakCost",
    "outlineThreshold",
    "timeLimitScheduler",
)

_STRING = (
    "cachePath",
    "customCodeletCompileFlags",
    "kahnTieBreaker",
    "logDir",
    "partialsTypeMatMuls",
    "saveInitializersToFile",
    "serializedPoprithmsShiftGraphsDir",
)

_LIST = (
    "accumulateOuterFragmentSettings.excludedVirtualGraphs",
    "customCodelets",
    "dotChecks",
    "hardwareInstrumentations",
    "updatableNamedBuffers",
)

_MAP = (
    "convolutionOptions",
    "engineOptions",
    "gclOptions",
    "lstmOptions",
    "matmulOptions",
    "reportOptions",
    "patterns",
)

_EFFECTS: dict[str, tuple[Effect, str]] = {
    "accumulationFactor": ("none", "use Options.Training.gradientAccumulation"),
    "accumulationAndReplicationReductionType": ("none", "use Options.Training.accumulationAndReplicationReductionType"),
    "meanAccumulationAndReplicationReductionStrategy": ("host", "when the division of a mean takes place"),
    "autoRecomputation": (
        "host",
        "which activations are computed again in the backward pass; unless it is set, a pipeline on the host keeps "
        "more than an IPU would (see parallel.md)",
    ),
    "automaticLossScalingSettings.enabled": ("host", "the loss scale is adapted while training"),
    "automaticLossScalingSettings.binEdgeLocation": ("host", "which gradients count as too large"),
    "automaticLossScalingSettings.thresholdUpperCountProportion": ("host", "how many may be too large"),
    "automaticLossScalingSettings.updatePeriod": ("host", "how often the loss scale is adapted"),
    "automaticLossScalingSettings.gradientTensorTrackingMethod": ("host", "which gradients are looked at"),
    "cachePath": ("host", "the directory of the executable cache"),
    "enableEngineCaching": ("host", "whether executables are cached"),
    "constantWeights": ("none", "weights can always be changed between runs here"),
    "enableFloatingPointChecks": ("host", "overflows and invalid operations raise"),
    "enableStochasticRounding": ("host", "float16 results are rounded at random"),
    "engineOptions": ("modelled", "whether a program that does not fit is an error; which reports are written"),
    "reportOptions": ("none", "the report of this package has no variants"),
    "syntheticDataMode": ("host", "inputs are generated instead of transferred"),
    "instrumentWithHardwareCycleCounter": ("modelled", "cycles are computed by the IPU Model"),
    "enablePipelining": ("host", "off: the stages of a pipeline run one after the other, as shards"),
    "enableStableNorm": ("modelled", "the IPU Model charges for it; the host always uses the accurate form"),
    "partialsTypeMatMuls": ("modelled", "cycles and memory of matrix products"),
    "convolutionOptions": ("modelled", "cycles and memory of convolutions"),
    "matmulOptions": ("modelled", "cycles and memory of matrix products"),
    "lstmOptions": ("modelled", "cycles and memory of recurrent layers"),
    "numIOTiles": ("modelled", "tiles set aside for input and output"),
    "updatableNamedBuffers": ("host", "buffers that can be refreshed on their own"),
    "virtualGraphMode": ("none", "blocks and stages say where operations run"),
    "logDir": ("later", "the directory of log files; prefer Options.logDir"),
    "patterns": ("none", "rewrite patterns of the original's compiler"),
}


def _passthrough(kind: Kind, names: Iterable[str]) -> list[BackendKey]:
    made = []
    for name in names:
        effect, note = _EFFECTS.get(name, (BackendKey.effect, BackendKey.effect_note))
        made.append(BackendKey(name, kind, effect, note, _ENUMERATED.get(name)))
    return made


HARDWARE_INSTRUMENTATION = _values("Instrumentation", "Outer", "Inner")

PASSTHROUGH_KEYS: tuple[BackendKey, ...] = (
    *_passthrough("bool", _BOOL),
    *_passthrough("uint64", [*_UINT64, *_ENUMERATED, "patterns_level"]),
    *_passthrough("floating point", _FLOAT),
    *_passthrough("string", _STRING),
    *_passthrough("set / vector", _LIST),
    *_passthrough("map", _MAP),
)
"""What may be set through ``_Popart``."""


def _own(kind: Kind, name: str, values: type[enum.IntEnum] | None = None) -> BackendKey:
    return BackendKey(name, kind, "host", "see the setter", values, passthrough=False)


_EXECUTION_MODE = _values("ExecutionMode", "Pipelined", "Sharded", "Phased")

OPTIONS_KEYS: tuple[BackendKey, ...] = (
    _own("bool", "auto_round_num_ipus"),
    _own("bool", "broadcast_buffers"),
    _own("bool", "separate_backward_phase"),
    _own("bool", "serial_phases_execution"),
    _own("bool", "use_model"),
    _own("uint64", "accumulation_and_replication_reduction_type", enums.ReductionType),
    _own("uint64", "connection_type", enums.ConnectionType),
    _own("uint64", "device_iterations"),
    _own("uint64", "distributed_process_id"),
    _own("uint64", "execution_mode", _EXECUTION_MODE),
    _own("uint64", "gradient_accumulation"),
    _own("uint64", "input_cgt", enums.CommGroupType),
    _own("uint64", "input_group_size"),
    _own("uint64", "ipu_id"),
    _own("uint64", "ipu_version"),
    _own("uint64", "max_repeat_logs"),
    _own("uint64", "num_distributed_processes"),
    _own("uint64", "output_mode", enums.OutputMode),
    _own("uint64", "output_return_period"),
    _own("uint64", "processes_per_replica"),
    _own("uint64", "random_seed"),
    _own("uint64", "replication_factor"),
    _own("uint64", "sync_pattern", enums.SyncPattern),
    _own("uint64", "tensors_liveness", enums.Liveness),
    _own("string", "log_dir"),
    _own("string", "model_name"),
    _own("map", "anchored_tensors"),
    _own("map", "available_memory_proportion"),
    _own("map", "ipuof_configs"),
    _own("map", "location_accumulator"),
    _own("map", "location_activation"),
    _own("map", "location_optimizer"),
    _own("map", "location_weight"),
)
"""What ``Options`` and its groups contribute themselves."""

PROGRESS_KEY = "compilation_progress_bar_fn"

KNOWN_KEYS: dict[tuple[Kind, str], BackendKey] = {(key.kind, key.name): key for key in PASSTHROUGH_KEYS + OPTIONS_KEYS}
"""All keys by kind and name; a key exists only for values of its kind."""

POSITIVE_KEYS = (
    "device_iterations",
    "gradient_accumulation",
    "replication_factor",
    "num_distributed_processes",
)
IPU_VERSIONS = (1, 2, 21)
