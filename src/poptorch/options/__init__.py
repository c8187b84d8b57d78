"""``poptorch.Options``, its groups, and the table that they are made from (:mod:`poptorch.options.table`)."""

from __future__ import annotations

import importlib
from typing import Any

from poptorch.options.config_file import ConfigFileError
from poptorch.options.groups import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from poptorch.options.passthrough import _PopartOptions
from poptorch.options.root import Options
from poptorch.placement.strategies import ExecutionStrategy as _IExecutionStrategy
from poptorch.placement.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)

__all__ = [
    "ConfigFileError",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_IExecutionStrategy",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]


def __getattr__(name: str) -> Any:
    if name == "Attribute":
        # Lives with the other scopes of a model, in a room that may use this one: found when asked for.
        return importlib.import_module("poptorch.ops.scopes").Attribute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
