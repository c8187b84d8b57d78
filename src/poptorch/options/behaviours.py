"""The setters that do more than store one value: what they check, and what they store.

Each function takes the option container and the arguments of the call, and is named in the option table. All
checks come before the first change, so that a refused call leaves nothing half-done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from poptorch import environment
from poptorch._logging import UNLIMITED_REPEATS, logger
from poptorch.autocasting import Policy
from poptorch.enums import (
    CommGroupType,
    ConnectionType,
    HalfFloatCastingBehavior,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from poptorch.options.containers import require, require_type
from poptorch.placement.strategies import ExecutionStrategy

_PROFILING_ENTRIES = ("debug.allowOutOfMemory", "autoReport.directory", "autoReport.all")
_NORMAL_DISTRIBUTED = 2
_PARTIALS_NAMES = {torch.float32: "float", torch.float16: "half"}


def _require_instance(method: str, value: object, expected: type) -> None:
    require(
        isinstance(value, expected),
        f"{method} expects a {expected.__name__}, but got {value!r} of type {type(value)}",
    )


def _add_to_popart_dict(popart: Any, key: str, entries: dict[str, Any]) -> None:
    popart.set(key, {**popart.options.get(key, {}), **entries})


def calls(method: str) -> Callable[..., None]:
    """The behaviour of an old name: do what today's method does."""

    def forward(opts: Any, *arguments: Any) -> None:
        getattr(opts, method)(*arguments)

    return forward


# --- Options: execution shape -------------------------------------------------------------------------------


def input_replica_grouping(opts: Any, input_group_size: int, input_group_type: CommGroupType) -> None:
    require_type("input_group_size", input_group_size, int)
    require_type("input_cgt", input_group_type, CommGroupType)
    if input_group_type == CommGroupType.NoGrouping:
        input_group_size, input_group_type = 1, CommGroupType.Consecutive
    if input_group_type == CommGroupType.All:
        raise ValueError(
            "input_group_type cannot be All: every replica would get the same input. "
            "Use CommGroupType.Consecutive or CommGroupType.Orthogonal."
        )
    replicas = opts.replication_factor
    if input_group_size > replicas:
        raise ValueError(
            f"input_group_size cannot be larger than replication_factor ({input_group_size} > {replicas}). "
            "Call replicationFactor first."
        )
    if input_group_size < 1 or replicas % input_group_size:
        raise ValueError(
            f"input_group_size must be a factor of replication_factor: {input_group_size} does not divide "
            f"{replicas}. Call replicationFactor first."
        )
    opts.set(input_group_size=input_group_size, input_cgt=input_group_type)


def set_execution_strategy(opts: Any, strategy: ExecutionStrategy) -> None:
    require(
        isinstance(strategy, ExecutionStrategy),
        "setExecutionStrategy expects an object made from PipelinedExecution, ShardedExecution, "
        f"SerialPhasedExecution or ParallelPhasedExecution, but got {strategy!r}",
    )
    opts._execution_strategy = strategy


def set_available_memory_proportion(opts: Any, available_memory_proportion: dict[str, float]) -> None:
    require_type("available_memory_proportion", available_memory_proportion, dict)
    by_index = {_ipu_index(key): share for key, share in available_memory_proportion.items()}
    opts.set(available_memory_proportion=by_index)


def _ipu_index(key: str) -> int:
    if not isinstance(key, str):
        raise AttributeError(f"Available memory proportions are keyed by text such as 'IPU0', not by {key!r}")
    require(
        key.startswith("IPU"),
        f"Available memory proportions are expected to be keyed by 'IPU0', 'IPU1', … Invalid key: {key}",
    )
    try:
        return int(key[len("IPU") :])
    except ValueError:
        raise ValueError(f"{key!r} does not end in an IPU number; write 'IPU0', 'IPU1', …") from None


# --- Options: outputs ---------------------------------------------------------------------------------------


def output_mode(opts: Any, output_mode: OutputMode, output_return_period: int | None) -> None:
    _require_instance("outputMode", output_mode, OutputMode)
    if output_return_period is not None:
        require_type("output_return_period", output_return_period, int)
    if output_mode == OutputMode.EveryN:
        require(
            output_return_period is not None and output_return_period > 0,
            f"EveryN anchor must have output_return_period set to valid positive integer, not {output_return_period!r}",
        )
    elif output_return_period:
        logger.info("Anchor return period argument ignored with output_mode set to %s", output_mode)
    opts.set(output_mode=int(output_mode), output_return_period=output_return_period or 1)


def anchor_tensor(
    opts: Any,
    short_name: str,
    long_name: str,
    output_mode: OutputMode | None,
    output_return_period: int | None,
) -> None:
    follows_model = output_mode is None
    mode = OutputMode.Default if output_mode is None else output_mode
    period = output_return_period if mode == OutputMode.EveryN else 1
    stored_mode = int(mode) if isinstance(mode, OutputMode) else mode
    opts.anchored_tensors[short_name] = [long_name, follows_model, stored_mode, period]


# --- Options: devices ---------------------------------------------------------------------------------------


def connection_type(opts: Any, connection_type: ConnectionType) -> None:
    _require_instance("connectionType", connection_type, ConnectionType)
    opts.set(connection_type=int(connection_type))


def sync_pattern(opts: Any, sync_pattern: SyncPattern) -> None:
    _require_instance("syncPattern", sync_pattern, SyncPattern)
    opts.set(sync_pattern=int(sync_pattern))


def use_offline_ipu_target(opts: Any, ipu_version: int) -> None:
    require_type("ipu_version", ipu_version, int)
    opts.createOrSet(ipu_version=ipu_version)
    opts.set(connection_type=int(ConnectionType.Never))


# --- Options: compiling, caching, profiling -----------------------------------------------------------------


def enable_executable_caching(opts: Any, path: str | None) -> None:
    if path is None:
        opts._popart.set("enableEngineCaching", False)
        return
    require(
        isinstance(path, (str, os.PathLike)),
        f"enableExecutableCaching expects the path of a directory, or None for no cache, but got {path!r}",
    )
    opts._popart.set("cachePath", os.fspath(path))
    opts._popart.set("enableEngineCaching", True)


def enable_profiling(opts: Any, profile_dir: str | None) -> None:
    in_environment = environment.POPLAR_ENGINE_OPTIONS.read() or ""
    clashes = [name for name in _PROFILING_ENTRIES if name in in_environment]
    if clashes:
        logger.warning(
            "enableProfiling sets %s, and so does the environment, which wins. "
            "Check content of POPLAR_ENGINE_OPTIONS: %s",
            ", ".join(clashes),
            in_environment,
        )
    entries = {
        "debug.allowOutOfMemory": "true",
        "autoReport.directory": os.fspath(profile_dir) if profile_dir else ".",
        "autoReport.all": "true",
    }
    _add_to_popart_dict(opts._popart, "engineOptions", entries)


def enable_synthetic_data(opts: Any, enabled: bool) -> None:
    opts._popart.set("syntheticDataMode", _NORMAL_DISTRIBUTED if enabled else 0)


def disable_module_namescope(opts: Any) -> None:
    opts._module_namescope_enabled = False


def source_location_excludes(opts: Any, excludes: list[str]) -> None:
    opts._source_location_excludes = _texts("sourceLocationExcludes", excludes)


def append_to_location_excludes(opts: Any, *excludes: str) -> None:
    added = _texts("appendToLocationExcludes", excludes)
    opts._source_location_excludes = [*opts._source_location_excludes, *added]


def _texts(method: str, values: Any) -> list[str]:
    require(
        isinstance(values, (list, tuple)) and all(isinstance(value, str) for value in values),
        f"{method} expects parts of file names (strings), but got {values!r}",
    )
    return list(values)


def max_repeat_logs(opts: Any, max_lines: int | None) -> None:
    opts.set(max_repeat_logs=UNLIMITED_REPEATS if max_lines is None else max_lines)


def updatable_named_buffers(opts: Any, buffers: list[str]) -> None:
    opts._popart.set("updatableNamedBuffers", _texts("updatableNamedBuffers", buffers))


def random_seed(opts: Any, random_seed: int) -> None:
    _require_instance("randomSeed", random_seed, int)
    opts.createOrSet(random_seed=random_seed)
    torch.manual_seed(random_seed)


# --- Training -----------------------------------------------------------------------------------------------


def reduction_type(training: Any, reduction_type: ReductionType) -> None:
    allowed = (ReductionType.Mean, ReductionType.Sum)
    if not isinstance(reduction_type, ReductionType) or reduction_type not in allowed:
        raise ValueError(
            "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or "
            f"poptorch.ReductionType.Sum, not {reduction_type!r}"
        )
    training.set(accumulation_and_replication_reduction_type=reduction_type)


def set_convolution_dithering(training: Any, enabled: bool) -> None:
    _add_to_popart_dict(training._popart, "convolutionOptions", {"enableConvDithering": enabled})


# --- Precision ----------------------------------------------------------------------------------------------


def autocast_enabled(precision: Any, autocast_enabled: bool) -> None:
    if not isinstance(autocast_enabled, bool):
        raise ValueError(f"autocastEnabled must be set to either True or False, not {autocast_enabled!r}")
    precision.set(autocast_enabled=autocast_enabled)


def autocast_policy(precision: Any, autocast_policy: Policy) -> None:
    if not isinstance(autocast_policy, Policy):
        raise ValueError(
            f"autocastPolicy must be set to an instance of poptorch.autocasting.Policy, not {autocast_policy!r}"
        )
    precision.set(autocast_policy=autocast_policy, autocast_policy_dict=autocast_policy.names())


def half_float_casting(precision: Any, half_float_casting: HalfFloatCastingBehavior) -> None:
    if not isinstance(half_float_casting, HalfFloatCastingBehavior):
        names = ", ".join(f"poptorch.{member}" for member in map(_member_name, HalfFloatCastingBehavior))
        raise ValueError(f"halfFloatCasting must be set to one of {names}, not {half_float_casting!r}")
    precision.set(half_float_casting=half_float_casting)


def _member_name(member: HalfFloatCastingBehavior) -> str:
    return f"{type(member).__name__}.{member.name}"


def running_statistics_always_float(precision: Any, value: bool) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"runningStatisticsAlwaysFloat needs to be set to a bool, not {value!r}")
    precision.set(running_statistics_always_float=value)


def enable_floating_point_exceptions(precision: Any, enabled: bool) -> None:
    require(isinstance(enabled, bool), f"enableFloatingPointExceptions needs to be set to a bool, not {enabled!r}")
    precision._popart.set("enableFloatingPointChecks", enabled)


def set_partials_type(precision: Any, dtype: torch.dtype) -> None:
    name = _PARTIALS_NAMES.get(dtype) if isinstance(dtype, torch.dtype) else None
    if name is None:
        raise ValueError(f"parameter to setPartialsType should be either torch.float or torch.half, not {dtype!r}")
    precision._popart.set("partialsTypeMatMuls", name)
    _add_to_popart_dict(precision._popart, "convolutionOptions", {"partialsType": name})


# --- TensorLocations and TensorLocationSettings -------------------------------------------------------------


def num_io_tiles(locations: Any, num_tiles: int) -> None:
    message = f"numIOTiles must be an even number between 32 and 192. Got {num_tiles!r}"
    require(isinstance(num_tiles, int) and not isinstance(num_tiles, bool), message)
    require(32 <= num_tiles <= 192 and num_tiles % 2 == 0, message)
    locations.createOrSet(numIOTiles=num_tiles)


def location(key: str) -> Callable[..., None]:
    """The behaviour of a location setter: keep a snapshot of the settings under ``key``."""

    def store(locations: Any, location: Any) -> None:
        from poptorch.options.groups import TensorLocationSettings

        _require_instance(key, location, TensorLocationSettings)
        locations.createOrSet(**{key: location.toDict()})

    return store


def switch(key: str, *, removable: bool = False) -> Callable[..., None]:
    """The behaviour of a yes-or-no location setting: kept as 1 or 0; ``None`` forgets it where allowed."""

    def store(settings: Any, use: bool | None) -> None:
        if use is None and removable:
            settings.deleteIfExists(key)
            return
        _require_instance(key, use, bool)
        settings.createOrSet(**{key: int(bool(use))})

    return store


# --- Distributed --------------------------------------------------------------------------------------------


def configure_process_id(distributed: Any, process_id: int, num_processes: int) -> None:
    require_type("distributed_process_id", process_id, int)
    require_type("num_distributed_processes", num_processes, int)
    distributed.set(num_distributed_processes=num_processes, distributed_process_id=process_id)


def disable_distributed(distributed: Any) -> None:
    configure_process_id(distributed, 0, 1)
    if distributed.exists("processes_per_replica"):
        distributed.set(processes_per_replica=1)


def processes_per_replica(distributed: Any, processes: int) -> None:
    require_type("processes_per_replica", processes, int)
    require(processes >= 1, f"A replica is shared by at least 1 process, not by {processes}.")
    distributed.createOrSet(processes_per_replica=processes)


def set_env_var_names(distributed: Any, var_num_processes: str, var_process_id: str) -> None:
    num_processes = environment.integer(var_num_processes, 1)
    process_id = environment.integer(var_process_id, 0)
    configure_process_id(distributed, process_id, num_processes)


# --- Jit ----------------------------------------------------------------------------------------------------


def trace_model(jit: Any, trace_model: bool) -> None:
    jit.set(trace_model=trace_model)
    # The default is True, but only programs that say so are held to the tracer's narrow argument types.
    jit._tracing_requested = trace_model


# --- _Popart ------------------------------------------------------------------------------------------------


def popart_set(popart: Any, key: str, value: Any) -> None:
    popart.options[key] = value


def popart_set_engine_options(popart: Any, engine_options: dict[str, str]) -> None:
    popart.options["engineOptions"] = engine_options


def popart_set_patterns(popart: Any, patterns: dict[str, bool], level: int) -> None:
    require(isinstance(patterns, dict), f"setPatterns expects a dictionary of pattern names, but got {patterns!r}")
    require(
        isinstance(level, int) and not isinstance(level, bool),
        f"setPatterns expects a level from 0 to 3, but got {level!r}",
    )
    popart.options.update(patterns=patterns, patterns_level=level)
