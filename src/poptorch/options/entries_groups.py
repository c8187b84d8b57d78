"""Rows of the option table for the groups of ``poptorch.Options`` and for ``TensorLocationSettings``."""

from __future__ import annotations

from typing import Any

import torch

from poptorch import autocasting
from poptorch.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from poptorch.options import behaviours as do
from poptorch.options.rows import Effect, Key, Option, Parameter, Refusal

_TYPE = "Unexpected type"
_ENABLED = Parameter("enabled", bool)

_TRAINING = (
    Option(
        group="Training",
        method="gradientAccumulation",
        parameters=(Parameter("gradient_accumulation", int),),
        keys=(Key("gradient_accumulation", 1),),
        doc="""How many micro-batches contribute to one weight update. Pipelined training needs at least as
        many as there are pipeline stages; inference needs 1. Batch normalisation still sees single
        micro-batches.""",
        effect="host",
        effect_note="the weights are updated once in this many micro-batches.",
        example="8",
        stored="8",
        refusals=(Refusal(("8",), AssertionError, _TYPE),),
    ),
    Option(
        group="Training",
        method="accumulationAndReplicationReductionType",
        parameters=(Parameter("reduction_type", ReductionType),),
        keys=(Key("accumulation_and_replication_reduction_type", ReductionType.Mean),),
        apply=do.reduction_type,
        doc="""Whether gradients are averaged or summed over micro-batches and replicas, whatever the
        reduction of the loss is.""",
        effect="host",
        effect_note="decides what the optimizer receives.",
        example="poptorch.ReductionType.Sum",
        stored="<ReductionType.Sum: 0>",
        refusals=(
            Refusal(
                (ReductionType.NoReduction,),
                ValueError,
                "accumulationAndReplicationReductionType must be set to",
            ),
            Refusal((1,), ValueError, "accumulationAndReplicationReductionType must be set to"),
        ),
    ),
    Option(
        group="Training",
        method="setMeanAccumulationAndReplicationReductionStrategy",
        parameters=(Parameter("mean_reduction_strategy", MeanReductionStrategy),),
        keys=(Key("meanAccumulationAndReplicationReductionStrategy", MeanReductionStrategy.Post),),
        doc="""When the division of a mean takes place. An optimizer that accumulates in float16 overrides it
        with ``Running``.""",
        effect="host",
        effect_note="changes the order of the arithmetic, and with float16 what overflows.",
        example="poptorch.MeanReductionStrategy.Running",
        stored="<MeanReductionStrategy.Running: 0>",
        refusals=(Refusal((0,), AssertionError, _TYPE),),
    ),
    Option(
        group="Training",
        method="setAutomaticLossScaling",
        parameters=(_ENABLED,),
        keys=(Key("automaticLossScalingSettings.enabled", declared=bool, store="popart"),),
        doc="Let the loss scale follow the size of the gradients; it becomes a variable of the optimizer.",
        effect="host",
        effect_note="the loss scale is adapted while training.",
        example="True",
        stored="True",
    ),
    Option(
        group="Training",
        method="setConvolutionDithering",
        parameters=(_ENABLED,),
        keys=(Key("convolutionOptions", declared=dict, store="popart"),),
        apply=do.set_convolution_dithering,
        doc="Spread convolutions over the tiles from different starting points, to balance memory.",
        effect="modelled",
        effect_note="the IPU Model lays convolutions out accordingly; results do not depend on it.",
        example="True",
        stored="{'enableConvDithering': True}",
    ),
    Option(
        group="Training",
        method="accumulationReductionType",
        parameters=(Parameter("reduction_type", ReductionType),),
        apply=do.calls("accumulationAndReplicationReductionType"),
        doc="The old name of ``accumulationAndReplicationReductionType``.",
        effect="host",
        effect_note="as accumulationAndReplicationReductionType.",
        example="poptorch.ReductionType.Sum",
        stored="",
        refusals=(Refusal((1,), ValueError, "accumulationAndReplicationReductionType must be set to"),),
        since="2.0",
        until="2.1",
        replacement="accumulationAndReplicationReductionType",
    ),
)

_RUNNING_STATISTICS = "runningStatisticsAlwaysFloat needs to be set to a bool"

_PRECISION = (
    Option(
        group="Precision",
        method="autocastEnabled",
        parameters=(Parameter("autocast_enabled", bool),),
        keys=(Key("autocast_enabled", True),),
        apply=do.autocast_enabled,
        doc="The master switch for autocasting: when off, no autocast region has any effect.",
        effect="host",
        effect_note="decides whether autocast regions cast.",
        example="False",
        stored="False",
        refusals=(Refusal((1,), ValueError, "autocastEnabled must be set to either True or False"),),
        since="2.1",
        until="3.0",
    ),
    Option(
        group="Precision",
        method="autocastPolicy",
        parameters=(Parameter("autocast_policy", autocasting.Policy),),
        keys=(
            Key("autocast_policy", autocasting.default, autocasting.Policy),
            Key("autocast_policy_dict", autocasting.default.names()),
        ),
        apply=do.autocast_policy,
        doc="Which operations are cast to which type inside an autocast region.",
        effect="host",
        effect_note="decides the types inside autocast regions.",
        example="poptorch.autocasting.Policy(fp16=[torch.matmul])",
        stored="Policy(fp16=[matmul], fp32=[], promote=[], demote=[])",
        refusals=(Refusal(("fp16",), ValueError, "autocastPolicy must be set to an instance of"),),
        since="2.1",
        until="3.0",
    ),
    Option(
        group="Precision",
        method="halfFloatCasting",
        parameters=(Parameter("half_float_casting", HalfFloatCastingBehavior),),
        keys=(Key("half_float_casting", HalfFloatCastingBehavior.Default),),
        apply=do.half_float_casting,
        doc="The type of operations that mix float16 and float32: float16 (the default), or as in PyTorch.",
        effect="host",
        effect_note="decides the type of mixed operations.",
        example="poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat",
        stored="<HalfFloatCastingBehavior.HalfUpcastToFloat: 1>",
        refusals=(Refusal((1,), ValueError, "halfFloatCasting must be set to"),),
        until="3.0",
    ),
    Option(
        group="Precision",
        method="runningStatisticsAlwaysFloat",
        parameters=(Parameter("value", bool),),
        keys=(Key("running_statistics_always_float", True),),
        apply=do.running_statistics_always_float,
        doc="Whether batch normalisation keeps its running statistics in float32 whatever its input type.",
        effect="host",
        effect_note="decides the type of the running statistics.",
        example="False",
        stored="False",
        refusals=(Refusal((0,), ValueError, _RUNNING_STATISTICS),),
        until="3.0",
    ),
    Option(
        group="Precision",
        method="runningVarianceAlwaysFloat",
        parameters=(Parameter("value", bool),),
        apply=do.calls("runningStatisticsAlwaysFloat"),
        doc="The old name of ``runningStatisticsAlwaysFloat``.",
        effect="host",
        effect_note="as runningStatisticsAlwaysFloat.",
        example="False",
        stored="",
        refusals=(Refusal((0,), ValueError, _RUNNING_STATISTICS),),
        since="2.0",
        until="2.1",
        replacement="runningStatisticsAlwaysFloat",
    ),
    Option(
        group="Precision",
        method="enableFloatingPointExceptions",
        parameters=(_ENABLED,),
        keys=(Key("enableFloatingPointChecks", declared=bool, store="popart"),),
        apply=do.enable_floating_point_exceptions,
        doc="Raise an error at run time for a division by zero, an overflow, or an invalid operation.",
        effect="host",
        effect_note="results are checked after each operation.",
        example="True",
        stored="True",
        refusals=(Refusal((1,), AssertionError, "enableFloatingPointExceptions needs to be set to a bool"),),
    ),
    Option(
        group="Precision",
        method="enableStochasticRounding",
        parameters=(_ENABLED,),
        keys=(Key("enableStochasticRounding", declared=bool, store="popart"),),
        doc="Round float16 results up or down at random, so that the expectation is the exact value.",
        effect="host",
        effect_note="float16 results are rounded at random.",
        example="True",
        stored="True",
    ),
    Option(
        group="Precision",
        method="setPartialsType",
        parameters=(Parameter("dtype", torch.dtype),),
        keys=(
            Key("partialsTypeMatMuls", declared=str, store="popart"),
            Key("convolutionOptions", declared=dict, store="popart"),
        ),
        apply=do.set_partials_type,
        doc="The type of partial sums in matrix products and convolutions: torch.float or torch.half.",
        effect="modelled",
        effect_note="the IPU Model counts cycles and memory with it; the host always sums in float32.",
        example="torch.half",
        stored="'half'",
        refusals=(
            Refusal((torch.float64,), ValueError, "parameter to setPartialsType should be either"),
            Refusal(("half",), ValueError, "parameter to setPartialsType should be either"),
        ),
    ),
)


def _location_setter(what: str, key: str, method: str) -> Option:
    return Option(
        group="TensorLocations",
        method=method,
        parameters=(Parameter("location", "poptorch.options.groups.TensorLocationSettings"),),
        keys=(Key(key, declared=dict),),
        apply=do.location(key),
        doc=f"Where {what} live. Later changes of ``location`` have no effect.",
        effect="modelled",
        effect_note="the IPU Model places them; on the host they stay in memory.",
        example="poptorch.TensorLocationSettings().useOnChipStorage(False)",
        stored="{'onChip': 0}",
        refusals=(Refusal(({"onChip": 0},), AssertionError),),
    )


_TENSOR_LOCATIONS = (
    Option(
        group="TensorLocations",
        method="numIOTiles",
        parameters=(Parameter("num_tiles", int),),
        keys=(Key("numIOTiles", declared=int),),
        apply=do.num_io_tiles,
        doc="How many tiles of each IPU are set aside for input and output: an even number from 32 to 192.",
        effect="modelled",
        effect_note="the IPU Model takes them from the computing tiles; overlapped I/O requires them.",
        example="64",
        stored="64",
        refusals=(
            Refusal((10,), AssertionError, "numIOTiles must be an even number between 32 and 192."),
            Refusal((193,), AssertionError, "numIOTiles must be an even number between 32 and 192."),
            Refusal((33,), AssertionError, "numIOTiles must be an even number between 32 and 192."),
            Refusal(("64",), AssertionError),
        ),
    ),
    _location_setter("activations", "location_activation", "setActivationLocation"),
    _location_setter("weights", "location_weight", "setWeightLocation"),
    _location_setter("optimizer states", "location_optimizer", "setOptimizerLocation"),
    _location_setter("gradient accumulators", "location_accumulator", "setAccumulatorLocation"),
)


def _threshold(method: str, doc: str) -> Option:
    return Option(
        group="TensorLocationSettings",
        method=method,
        parameters=(Parameter("min_elements", int),),
        keys=(Key(method, declared=int),),
        doc=doc,
        effect="modelled",
        effect_note="used where the IPU Model places tensors.",
        example="1024",
        stored="1024",
        refusals=(Refusal(("1024",), AssertionError),),
    )


def _switch(method: str, key: str, doc: str, *, effect: Effect = "modelled", removable: bool = False) -> Option:
    return Option(
        group="TensorLocationSettings",
        method=method,
        parameters=(Parameter("use", bool | None if removable else bool, True),),
        keys=(Key(key, declared=int),),
        apply=do.switch(key, removable=removable),
        doc=doc,
        effect=effect,
        effect_note="used where the IPU Model places tensors.",
        example="False",
        stored="0",
        refusals=(Refusal((1,), AssertionError),),
    )


_SHARDING = "useReplicatedTensorSharding"

_LOCATION_SETTINGS = (
    _threshold("minElementsForOffChip", "Tensors with fewer elements than this are never moved off chip."),
    _threshold("minElementsForReplicatedTensorSharding", "Only tensors with at least this many elements are sharded."),
    _switch(
        "useOnChipStorage",
        "onChip",
        "Whether the tensor stays on chip between uses; ``None`` forgets the setting.",
        removable=True,
    ),
    _switch(_SHARDING, _SHARDING, "Whether the tensor is split over the replicas."),
    _switch(
        "useIOTilesToLoad",
        "useIOTilesToLoad",
        "Whether I/O tiles load the tensor instead of computing tiles.",
    ),
    _switch("useIOTilesToStore", "useIOTilesToStore", "Whether a sharded tensor is kept on I/O tiles."),
)

_DISTRIBUTED = (
    Option(
        group="Distributed",
        method="disable",
        keys=(
            Key("num_distributed_processes", 1),
            Key("distributed_process_id", 0),
            Key("ipuof_configs", {}),
        ),
        apply=do.disable_distributed,
        doc="Be the only process, whatever the environment says.",
        effect="host",
        effect_note="no communication with other processes.",
        example="",
        stored="1",
    ),
    Option(
        group="Distributed",
        method="setEnvVarNames",
        parameters=(Parameter("var_num_processes", str), Parameter("var_process_id", str)),
        keys=(Key("num_distributed_processes", 1), Key("distributed_process_id", 0)),
        apply=do.set_env_var_names,
        doc="""Take the number of processes and the ID of this one from two environment variables, now; those
        that are not set count as 1 and 0.""",
        effect="host",
        effect_note="data loaders divide their data, and training sums gradients over all processes.",
        example='"MY_WORLD_SIZE", "MY_RANK"',
        stored="1",
    ),
    Option(
        group="Distributed",
        method="configureProcessId",
        parameters=(Parameter("process_id", int), Parameter("num_processes", int)),
        keys=(Key("num_distributed_processes", 1), Key("distributed_process_id", 0)),
        apply=do.configure_process_id,
        doc="Say which of how many processes this is.",
        effect="host",
        effect_note="data loaders divide their data, and training sums gradients over all processes.",
        example="1, 4",
        stored="4",
        refusals=(Refusal(("1", 4), AssertionError, _TYPE), Refusal((1, 4.0), AssertionError, _TYPE)),
    ),
    Option(
        group="Distributed",
        method="processesPerReplica",
        parameters=(Parameter("processes", int),),
        keys=(Key("processes_per_replica", declared=int),),
        apply=do.processes_per_replica,
        doc="""Let this many consecutive processes share each replica: its IPUs are divided into as many blocks of equal
        size, and each process runs the pipeline stages on one block. They read the same data. The original has
        nothing like it.""",
        effect="host",
        effect_note="activations and gradients travel between processes; each holds the weights of its own stages.",
        example="2",
        stored="2",
        refusals=(Refusal(("2",), AssertionError, _TYPE), Refusal((0,), AssertionError, "at least 1")),
    ),
)

_JIT = (
    Option(
        group="Jit",
        method="traceModel",
        parameters=(Parameter("trace_model", bool),),
        keys=(Key("trace_model", True), Key("tracing_requested", False, store="python")),
        apply=do.trace_model,
        doc="""True: types follow the rules of the tracing front end. False: those of the dispatcher, that is
        exactly PyTorch's. Both capture the model in the same way here.""",
        effect="host",
        effect_note="decides the types of operations that mix float16 and float32.",
        example="False",
        stored="False",
        refusals=(Refusal((0,), AssertionError, _TYPE),),
    ),
)


def _popart(method: str, *parameters: Parameter, **fields: Any) -> Option:
    return Option(group="_Popart", method=method, parameters=parameters, **fields)


_PASSTHROUGH = (
    _popart(
        "set",
        Parameter("key", str),
        Parameter("value", Any),
        apply=do.popart_set,
        doc="""Store ``value`` for the backend under ``key``. Nothing is checked before a model is compiled;
        values are bool, int, float, str, or lists, sets and dictionaries of these.""",
        effect="host",
        effect_note="depends on the key, see the table of backend keys.",
        example='"autoRecomputation", 3',
        stored="",
    ),
    _popart(
        "setEngineOptions",
        Parameter("engine_options", dict[str, str]),
        keys=(Key("engineOptions", declared=dict, store="popart"),),
        apply=do.popart_set_engine_options,
        doc="Options of the engine by name; replaces earlier ones.",
        effect="modelled",
        effect_note="``debug.allowOutOfMemory`` decides about programs that do not fit, ``autoReport.*`` on reports.",
        example='{"debug.allowOutOfMemory": "true"}',
        stored="{'debug.allowOutOfMemory': 'true'}",
    ),
    _popart(
        "setPatterns",
        Parameter("patterns", dict[str, bool]),
        Parameter("level", int, 2),
        keys=(
            Key("patterns", declared=dict, store="popart"),
            Key("patterns_level", declared=int, store="popart"),
        ),
        apply=do.popart_set_patterns,
        doc="""Switch rewrite patterns of the compiler on or off, on top of level 0 (none), 1 (mandatory), 2
        (default) or 3 (all).""",
        effect="none",
        effect_note="the patterns belong to the original's compiler; the values are checked and kept.",
        example='{"PadSum": True}, 0',
        stored="{'PadSum': True}",
        refusals=(Refusal((["PadSum"],), AssertionError), Refusal(({"PadSum": True}, "0"), AssertionError)),
    ),
)

GROUPS: tuple[Option, ...] = (
    _TRAINING + _PRECISION + _TENSOR_LOCATIONS + _LOCATION_SETTINGS + _DISTRIBUTED + _JIT + _PASSTHROUGH
)
