"""How a session comes to native code: from the first call, at the call that the program fixes, or never."""

from __future__ import annotations

import dataclasses
import time

from poptorch import environment
from poptorch._logging import logger
from poptorch.compiler.observers import Dump
from poptorch.executable.host_code import HostCode
from poptorch.executor import background
from poptorch.executor.background import Background, Handed
from poptorch.executor.host_weights import HostWeights
from poptorch.host.native.building import native_code
from poptorch.host.store.code_store import CodeStore, NotStored
from poptorch.options import Options
from poptorch.options.progress import Progress
from poptorch.profiling.trace import SpanKind
from poptorch.runtime.engine import Engine

BEGIN_AFTER_SECONDS = 0.5
"""A program that is over sooner gains nothing from compiling it; the clock decides about the beginning only."""

BEGIN_AFTER_SHARE = 0.25
"""Of the calls before native code joins: so late it begins in any case."""


class LevelChange:
    """The level of one session's code.

    When native code joins is fixed by the program: at call ``native_after``, or with the first one, if an earlier
    process has left it. When its compilation begins is not, because nothing depends on it but the time of waiting.
    """

    def __init__(
        self, engine: Engine, weights: HostWeights, options: Options, store: CodeStore, dump: Dump | None, alone: bool
    ) -> None:
        """``alone``: no other process works on the same program, which would have to be told."""
        self._engine = engine
        self._weights = weights
        self._options = options
        self.store = store
        """Where native code comes from, and what there is of it."""

        self._dump = dump
        self._beside = alone and dump is None and environment.BACKGROUND.read()
        self._background: Background | None = None
        self._first: float | None = None
        self._calls = 0

    def start(self, progress: Progress) -> None:
        """Before the first call."""
        after = self._code.native_after
        if after == 0:
            self._use_native_code(progress)
        elif after is not None and self._beside:
            try:
                with self.store.as_it_is():
                    self._use_native_code(progress)
            except NotStored:
                return
            logger.info("Native code was found in %s: it runs from the first call on", self.store)

    @property
    def _code(self) -> HostCode:
        return self._engine.executable.code

    def count(self, after: int) -> None:
        """After as many calls as the program itself fixes, take native code.

        Calls before a checkpoint count as well, by the position of random numbers that was restored from it. So a
        program that is resumed runs the code that it would have run otherwise, and goes on with the same bits.
        A job that has run for a while does not end because the compiler cannot work: it goes on as it was.
        """
        loop = self._code.loop
        resumed = self._engine.random.position // (loop.device_iterations * loop.gradient_accumulation)
        earlier = max(self._calls, resumed)
        self._calls += 1
        if earlier < after:
            if self._beside and self._background is None:
                self._begin(earlier, after)
            return
        began = time.monotonic()
        try:
            told = self._wait()
            with Progress(self._options, 0) as progress:
                self._use_native_code(progress)
            if self._code.formats:  # what was moved does not lie in the host's memory any more
                self._weights.end_overlay()
        except Exception as error:  # noqa: BLE001  whatever a compiler may raise
            what = f"{type(error).__name__}: {error}".partition("\n\nSet TORCHDYNAMO")[0]
            logger.warning("The program stays interpreted, because compiling it to native code failed: %s", what)
            self._engine.install(dataclasses.replace(self._code, native_after=None))
        else:
            took = time.monotonic() - began
            logger.warning("Native code runs from call %d on. %sThe change took %.1f s.", earlier + 1, told, took)

    def _begin(self, earlier: int, after: int) -> None:
        """Start compiling once it is likely that it pays."""
        if self._first is None:
            self._first = time.monotonic()
        if earlier >= BEGIN_AFTER_SHARE * after or time.monotonic() - self._first >= BEGIN_AFTER_SECONDS:
            self._background = background.begin(self._engine.executable.device, self._code)
            self._beside = self._background is not None

    def _wait(self) -> str:
        """Let the process beside finish; says what it did."""
        compiling, self._background = self._background, None
        if compiling is None:
            return ""
        if not compiling.is_over:
            logger.warning(
                "Waiting for native code, which runs from this call on, and has been compiled for %.1f s so far: %s",
                compiling.seconds,
                compiling.at,
            )
        made = compiling.take()
        if made is None:
            return ""
        self.store.add(Handed(made))
        return f"It was compiled beside the program for {compiling.seconds:.1f} s. "

    def _use_native_code(self, progress: Progress) -> None:
        executable = self._engine.executable
        with self._engine.trace.span(SpanKind.COMPILE, label="native code"):
            code = native_code(executable.device, executable.code, self.store, progress, self._dump)
            self._engine.install(code)

    def close(self) -> None:
        """Nothing is compiled any more."""
        if self._background is not None:
            self._background.close()
            self._background = None
