"""The executable cache: where a program finds native code, and which of several processes compiles it."""

from __future__ import annotations

import contextlib

from torch import nn

from poptorch._logging import logger
from poptorch.executable.executable import Executable
from poptorch.executable.file import File
from poptorch.host.store import cache
from poptorch.host.store.code_store import CodeStore
from poptorch.options import Options


def cache_directory(options: Options) -> str | None:
    """Where the options want native code to be kept; ``None`` for nowhere."""
    settings = options._Popart.options
    directory: str | None = settings.get("cachePath") if settings.get("enableEngineCaching") else None
    return directory


def code_store(executable: Executable, directory: str | None, exported: File | None) -> CodeStore:
    """Where the executable takes its native code from: what an earlier process left."""
    if directory is not None and not cache.prepare_directory(directory):
        directory = None
    after = executable.code.native_after
    store = cache.store_for(executable.device, directory, exported, locally=after is not None)
    if after != 0:
        store.finish()
    return store


def turn_to_compile(options: Options, model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Of several processes with one cache, the first compiles while the others wait."""
    processes, directory = options.Distributed.numProcesses, cache_directory(options)
    if processes == 1:
        return contextlib.nullcontext()
    if directory is None:
        logger.warning(
            "Every one of %d processes compiles the model. Use poptorch.Options.enableExecutableCaching() to let "
            "them share the result.",
            processes,
        )
        return contextlib.nullcontext()
    return cache.one_at_a_time(directory, model, processes)
