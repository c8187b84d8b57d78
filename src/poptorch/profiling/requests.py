"""What ``PVTI_OPTIONS`` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poptorch import environment
from poptorch._logging import logger

_EXAMPLE = '{"enable":"true", "directory":"traces"}'


@dataclass(frozen=True)
class TraceRequest:
    """Whether a trace of the whole process is written, and where to."""

    enabled: bool = False
    directory: Path = Path()


def trace_request(text: str | None) -> TraceRequest:
    """What a text of ``PVTI_OPTIONS`` asks for. What cannot be understood is ignored with a warning that names it.

    >>> trace_request('{"enable":"true", "directory":"/tmp/traces"}')
    TraceRequest(enabled=True, directory=PosixPath('/tmp/traces'))
    >>> trace_request(None)
    TraceRequest(enabled=False, directory=PosixPath('.'))
    """
    settings = _settings(text)
    for key in settings.keys() - {"enable", "directory"}:
        logger.warning("PVTI_OPTIONS: the key %r is unknown and has no effect; enable and directory are known", key)
    enable, directory = str(settings.get("enable", "false")).lower(), settings.get("directory", "")
    if enable not in ("true", "false"):
        logger.warning("PVTI_OPTIONS: the key 'enable' is %r; use true or false. No trace is written.", enable)
    if not isinstance(directory, str):
        logger.warning("PVTI_OPTIONS: the key 'directory' is %r, which is no path", directory)
        directory = ""
    return TraceRequest(enable == "true", Path(directory))


def _settings(text: str | None) -> dict[str, Any]:
    settings, problem = environment.json_object(text)
    if problem:
        logger.warning(
            "PVTI_OPTIONS must be a JSON object such as %s; %s is none: %s. No trace is written.",
            _EXAMPLE, environment.quoted(str(text)), problem,
        )  # fmt: skip
    return settings
