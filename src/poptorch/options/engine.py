"""Engine options: settings of the compiler and the profiler by name, from the options and the environment."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from poptorch import environment
from poptorch._logging import log_once, warn_once

_EXAMPLE = '{"autoReport.all":"true"}'

READ = frozenset({
    "autoReport.all", "autoReport.directory", "autoReport.outputGraphProfile", "autoReport.outputExecutionProfile",
    "autoReport.executionProfileProgramRunCount", "autoReport.outputLoweredVars", "autoReport.outputDebugInfo",
    "autoReport.streamAtEachRun", "debug.allowOutOfMemory", "profiler.includeFlopEstimates",
    "profiler.includeCycleEstimates",
})  # fmt: skip
"""What this package acts upon."""

_NO_FILE = {
    "autoReport.outputArchive": "there is no archive of IPU code",
    "autoReport.outputSerializedGraph": "the program is in profile.json and in getTensorNames()",
    "target.saveArchive": "there is no archive of IPU code",
}
"""Requests for files that cannot exist here, with the reason."""

_HARDWARE = frozenset({
    "debug.instrument", "debug.instrumentCompute", "debug.instrumentExternalExchange", "debug.instrumentControlFlow",
    "debug.computeInstrumentationLevel", "debug.retainDebugInformation", "debug.outputAllSymbols",
    "profiler.perExecutionStreamCopyCycles", "profiler.format", "profiler.blocks.filter", "profiler.programs.filter",
    "profiler.blocks.tile", "target.syncReplicasIndependently", "target.deterministicWorkers", "target.hostSyncTimeout",
    "opt.internalExchangeOptimisationTarget", "opt.enableMultiAccessCopies", "opt.enableInlining",
    "opt.maxComputeSetsPerLoweredCopy", "opt.useAutoloader", "opt.maxCompilationThreads", "exchange.enablePrefetch",
    "exchange.streamBufferOverlap", "exchange.multicastPolicy", "streamCallbacks.multiThreadMode",
    "streamCallbacks.numWorkerThreads",
})  # fmt: skip
"""What steers counters, buffers and the compiler of real IPUs. Results do not depend on it."""

_ELSEWHERE = {
    "prng.seed": "use Options.randomSeed()",
    "prng.enableStochasticRounding": "use Options.Precision.enableStochasticRounding()",
}
"""What changes results, and has an option of its own."""


def engine_options(options: Any) -> dict[str, str]:
    """What the options and the environment say; the environment wins.

    >>> from poptorch import Options
    >>> engine_options(Options().enableProfiling("out"))["autoReport.directory"]
    'out'
    """
    given: dict[str, Any] = dict(options._Popart.options.get("engineOptions", {}))
    given.update(_in_environment(environment.POPLAR_ENGINE_OPTIONS.read()))
    for key, value in given.items():
        _mention(key, value)
    return {key: _text(value) for key, value in given.items()}


def is_true(settings: Mapping[str, str], key: str, default: bool = False) -> bool:
    """A setting that is true or false; anything else is mentioned, and the default stays.

    >>> is_true({"autoReport.all": "True"}, "autoReport.all"), is_true({}, "autoReport.all")
    (True, False)
    """
    value = settings.get(key, "").strip().lower()
    if value in ("true", "1", "yes", "on"):
        return True
    if value in ("false", "0", "no", "off"):
        return False
    if key in settings:
        shown = environment.quoted(value)
        warn_once(("engine option", key, value), f"The engine option {key!r} is {shown}; use true or false.")
    return default


def wants_report(settings: Mapping[str, str]) -> bool:
    """Whether any part of a report is asked for.

    >>> wants_report({"autoReport.outputGraphProfile": "true"}), wants_report({"autoReport.directory": "x"})
    (True, False)
    """
    everything = is_true(settings, "autoReport.all")
    parts = ("autoReport.outputGraphProfile", "autoReport.outputExecutionProfile")
    return any(is_true(settings, part, everything) for part in parts)


def _in_environment(text: str | None) -> dict[str, Any]:
    given, problem = environment.json_object(text)
    if problem:
        warn_once(
            ("POPLAR_ENGINE_OPTIONS", text),
            f"POPLAR_ENGINE_OPTIONS must be a JSON object such as {_EXAMPLE}; {environment.quoted(str(text))} is none: "
            f"{problem}. It has no effect.",
        )
    return given


def _mention(key: str, value: Any) -> None:
    """Say once that a setting has no effect, and why."""
    if key in _HARDWARE:
        message = f"The engine option {key!r} steers real IPUs and has no effect on virtual ones."
        log_once(logging.INFO, ("engine option", key), message)
    elif key in _ELSEWHERE:
        warn_once(("engine option", key), f"The engine option {key!r} has no effect: {_ELSEWHERE[key]}.")
    elif key in _NO_FILE:
        if _text(value).lower() == "true":
            warn_once(("engine option", key), f"The engine option {key!r} has no effect: {_NO_FILE[key]}.")
    elif key not in READ:
        near = difflib.get_close_matches(key[:100], [*READ, *_NO_FILE, *_HARDWARE, *_ELSEWHERE], 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        shown = environment.quoted(key)
        warn_once(("engine option", key), f"The engine option {shown} is unknown and has no effect.{hint}")


def _text(value: Any) -> str:
    """As JSON writes it: users give ``true`` and ``"true"`` for the same thing."""
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = ["READ", "engine_options", "is_true", "wants_report"]
