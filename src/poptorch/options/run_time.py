"""Options of a compiled program: which of them can still change."""

from __future__ import annotations

from typing import Any

from poptorch.options.containers import OptionContainer
from poptorch.options.root import Options
from poptorch.options.rows import ABSENT

_COMPILED = frozenset(
    {
        "device_iterations", "replication_factor", "input_group_size", "input_cgt", "available_memory_proportion",
        "broadcast_buffers", "output_mode", "output_return_period", "anchored_tensors",
    }
)  # fmt: skip
_COMPILED_PRIVATE = ("_execution_strategy", "_module_namescope_enabled", "_strict_compatibility")
_COMPILED_GROUPS = ("Training", "Precision", "TensorLocations", "Jit")


def restore_compiled(options: Options, compiled: Options) -> list[str]:
    """Give options that a program was compiled with their values again; returns the names of those that had others.

    >>> compiled, options = Options(), Options().deviceIterations(4).useIpuId(1)
    >>> restore_compiled(options, compiled), options.device_iterations, options.ipu_id
    (['device_iterations'], 1, 1)
    """
    names = [key for key in _COMPILED if _restore(options, compiled, key)]
    for group in _COMPILED_GROUPS:
        ours, theirs = getattr(options, group), getattr(compiled, group)
        keys = {*ours._values, *theirs._values}
        names += [f"{group}.{key}" for key in keys if _restore(ours, theirs, key)]
    for name in _COMPILED_PRIVATE:
        if repr(getattr(options, name)) != repr(getattr(compiled, name)):
            setattr(options, name, getattr(compiled, name))
            names.append(name.lstrip("_"))
    return sorted(names)


def _restore(ours: OptionContainer, theirs: OptionContainer, key: str) -> bool:
    value: Any = theirs._values.get(key, ABSENT)
    if repr(ours._values.get(key, ABSENT)) == repr(value):
        return False
    if value is ABSENT:
        del ours._values[key]
    else:
        ours._values[key] = value
    return True
