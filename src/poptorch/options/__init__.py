"""``poptorch.Options``, its groups, and the table that they are made from (:mod:`poptorch.options.table`)."""

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

__all__ = [
    "ConfigFileError",
    "Options",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
