"""The checks that options pass through when they reach the backend, at compile time.

>>> validate_options({"enableStableNorm": True})
>>> validate_options({"enableStabelNorm": True})
Traceback (most recent call last):
...
poptorch.errors.UnknownOptionError: ... Unknown bool option enableStabelNorm. Did you mean 'enableStableNorm'?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poptorch._logging import backend as log
from poptorch.errors import Error, UnknownOptionError, backend_error
from poptorch.options.backend_keys import (
    HARDWARE_INSTRUMENTATION,
    IPU_VERSIONS,
    KNOWN_KEYS,
    POSITIVE_KEYS,
    PROGRESS_KEY,
    BackendKey,
    Kind,
)
from poptorch.options.containers import suggestion

_PATTERN_LEVELS = range(4)
_BELOW_ZERO = "std::exception"
_LARGEST = 2**64 - 1


def validate_options(options: Mapping[str, Any]) -> None:
    """Check the dictionary made by ``Options.toDict``, and log each accepted value at DEBUG.

    Keys that do not exist, values of a wrong kind and numbers out of range raise ``poptorch.Error``.
    """
    for key, value in options.items():
        if key == PROGRESS_KEY and callable(value):
            continue
        _validate_one(key, value)
    _validate_patterns(options)
    _validate_numbers(options)
    if "use_model" in options:
        log.info("From the user configuration: Ipu model: %s", "Enabled" if options["use_model"] else "Disabled")


def announce_precision(precision: Any) -> None:
    """Log the settings of ``Options.Precision`` that concern a compilation, at DEBUG."""
    log.debug(
        "poptorch.Options set runningStatisticsAlwaysFloat to %s",
        _shown(precision.running_statistics_always_float),
    )


def resolve_derived(user: Mapping[str, Any], key: str, derived: Any) -> Any:
    """The value of a backend option that other options imply: what the user forced through ``_Popart`` wins.

    >>> resolve_derived({}, "enablePipelining", True)
    True
    >>> resolve_derived({"enablePipelining": False}, "enablePipelining", False)
    False
    """
    if key not in user:
        return derived
    if user[key] != derived:
        log.warning("%s forced by the user from default to %s", key, _shown(user[key]))
    return user[key]


def _validate_one(key: str, value: Any) -> None:
    kind = _kind_of(value)
    if kind is None:
        raise backend_error(
            f"Unknown value type {type(value)} for option {key}. Values are bool, int, float, str, or lists, "
            "sets and dictionaries of these."
        )
    known = KNOWN_KEYS.get((kind, key))
    if known is None:
        raise _unknown(kind, key)
    if kind == "set / vector":
        _validate_elements(known, value)
    elif kind == "map":
        _validate_entries(known, value)
    else:
        if kind == "uint64":
            _validate_integer(known, value)
        log.debug("poptorch.Options set %s to value %s", key, _shown(value))


def _kind_of(value: Any) -> Kind | None:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "uint64"
    if isinstance(value, float):
        return "floating point"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "set / vector"
    if isinstance(value, Mapping):
        return "map"
    return None


def _unknown(kind: Kind, key: str) -> Error:
    kinds = [known_kind for known_kind, name in KNOWN_KEYS if name == key]
    if kinds:
        hint = f" It takes a value of kind {kinds[0]}."
    else:
        hint = suggestion(key, (name for known_kind, name in KNOWN_KEYS if known_kind == kind))
    return backend_error(f"Unknown {kind} option {key}.{hint}", kind=UnknownOptionError)


def _validate_integer(known: BackendKey, value: int) -> None:
    if value < 0:
        raise backend_error(f"Option {known.name} is {int(value)}, but cannot be below zero.", _BELOW_ZERO)
    if value > _LARGEST:
        raise backend_error(f"Option {known.name} is {int(value)}, which does not fit into 64 bits.")
    if known.values is not None and value not in tuple(known.values):
        raise _out_of_range(known.values.__name__, known.name, value, tuple(known.values))


def _out_of_range(enum_name: str, key: str, value: object, members: tuple[Any, ...]) -> Error:
    choices = ", ".join(f"{int(member)} ({member.name})" for member in members)
    return backend_error(f"Value for {enum_name} out of range: option {key} is {value}, choose from {choices}.")


def _validate_elements(known: BackendKey, elements: Any) -> None:
    instruments = known.name == "hardwareInstrumentations"
    for element in elements:
        expected = int if instruments else (str, int)
        if not isinstance(element, expected) or isinstance(element, bool):
            raise backend_error(f"Unknown value type {type(element)} for option {known.name}, inside its list.")
        if instruments and element not in tuple(HARDWARE_INSTRUMENTATION):
            members = tuple(HARDWARE_INSTRUMENTATION)
            raise _out_of_range(HARDWARE_INSTRUMENTATION.__name__, known.name, element, members)
        log.debug("poptorch.Options added %s to %s", element, known.name)


def _validate_entries(known: BackendKey, entries: Mapping[Any, Any]) -> None:
    for name, value in entries.items():
        allowed: tuple[type, ...] = (bool, int, str) if known.passthrough else (bool, int, str, float, list)
        if not isinstance(value, allowed) or (known.passthrough and not isinstance(name, str)):
            raise backend_error(f"Unknown value type {type(value)} for option {known.name}[{name}].")
        log.debug("poptorch.Options set %s[%s] to %s", known.name, name, as_text(value))
    if known.name == "available_memory_proportion":
        _validate_memory_shares(entries)


def as_text(value: Any) -> str:
    """How a value inside a dictionary reaches the backend: as text, with ``True`` as 1.

    >>> as_text(True), as_text(3), as_text("half")
    ('1', '3', 'half')
    """
    return str(int(value)) if isinstance(value, int) else str(value)


def _validate_memory_shares(shares: Mapping[Any, Any]) -> None:
    for ipu, share in shares.items():
        if not isinstance(share, (int, float)) or not 0 < share <= 1 or ipu < 0:  # also refuses NaN
            raise backend_error(
                f"The available memory proportion of IPU{ipu} is {share}; IPUs are numbered from 0 and "
                "proportions lie between 0 and 1; 0 itself would leave nothing. "
                "See Options.setAvailableMemoryProportion."
            )


def _validate_patterns(options: Mapping[str, Any]) -> None:
    if "patterns" in options and "patterns_level" not in options:
        raise backend_error("'patterns' should not be set directly: use Options._Popart.setPatterns(patterns, level)")
    if "patterns_level" in options and options["patterns_level"] not in _PATTERN_LEVELS:
        raise backend_error(f"Value for PatternsLevel out of range: {options['patterns_level']} is not 0, 1, 2 or 3.")


def _validate_numbers(options: Mapping[str, Any]) -> None:
    for key in POSITIVE_KEYS:
        if options.get(key, 1) < 1:
            raise backend_error(f"Option {key} is {options[key]}, but must be at least 1.")
    process, processes = options.get("distributed_process_id", 0), options.get("num_distributed_processes", 1)
    if process >= processes:
        raise backend_error(
            f"This is process {process} of {processes}, but processes are numbered from 0. See "
            "Options.Distributed.configureProcessId and the environment variables OMPI_COMM_WORLD_RANK and "
            "OMPI_COMM_WORLD_SIZE."
        )
    version = options.get("ipu_version", IPU_VERSIONS[0])
    if version not in IPU_VERSIONS:
        raise backend_error(f"There is no IPU version {version}: use one of {IPU_VERSIONS} in useOfflineIpuTarget.")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, int) else str(value)
