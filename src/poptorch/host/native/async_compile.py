"""Kernels on their way: C++ compilers run in processes of their own while Python goes on with the next graph.

Inductor starts a compiler for each kernel of a graph, as many at a time as there are cores, and then waits for all of
them, with one core at most busy before the first and after the last. Here it goes on with the next graph instead, and
the caller waits once for all graphs. What the compiler itself needs before its first kernel, the instruction set
that it can compile for and a precompiled header, is made while Python still takes the first graph apart.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any

from poptorch._logging import logger

_EMPTY = 'extern "C" void kernel(const float* in_ptr0) {}'
"""Asked for, and never compiled: what goes before it is what is wanted."""


class _Pending(threading.local):
    """What one thread has not waited for yet; ``None``: it waits at once, as Inductor does."""

    kernels: list[Callable[[], None]] | None = None
    jobs: list[Future[Any]] | None = None


_pending = _Pending()


@contextmanager
def side_by_side(report: Callable[[int, int], None] = lambda done, count: None) -> Iterator[None]:
    """Graphs compiled within need not wait for their kernels, which are there when it ends.

    ``report`` hears at the end how many graphs are complete, and of how many. Whatever this raises, and also when it
    is interrupted, no compiler is started any more.
    """
    if _pending.kernels is not None:
        yield
        return
    kernels: list[Callable[[], None]] = []
    jobs: list[Future[Any]] = []
    _pending.kernels, _pending.jobs = kernels, jobs
    try:
        yield
        for done, load in enumerate(kernels):
            report(done, len(kernels))
            load()
    finally:
        _pending.kernels = _pending.jobs = None
        for job in jobs:
            job.cancel()  # those that have not begun


@cache
def wait_later() -> None:
    """Teach Inductor, once, not to wait in threads that are in :func:`side_by_side`."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads
    from torch._inductor.codecache import CppWrapperCodeCache

    original_wait, original_submit = AsyncCompile.wait, AsyncCompile.submit
    original_load = CppWrapperCodeCache.load_pybinding

    def wait(self: Any, scope: dict[str, Any]) -> None:
        if _pending.kernels is None or get_compile_threads() <= 1:
            original_wait(self, scope)
        else:
            _pending.kernels.append(lambda: original_wait(self, scope))

    def submit(task: Callable[..., Any]) -> Any:
        job = original_submit(task)
        if _pending.jobs is not None and isinstance(job, Future):
            _pending.jobs.append(job)
        return job

    def load_pybinding(*args: Any, **kwargs: Any) -> Any:
        if _pending.kernels is None or get_compile_threads() <= 1:
            return original_load(*args, **kwargs)
        load = CppWrapperCodeCache.load_pybinding_async(*args, **{**kwargs, "submit_fn": submit})
        scope = sys._getframe(1).f_globals
        entry = _Entry()
        _pending.kernels.append(lambda: entry.become(load(), scope))
        return entry

    AsyncCompile.wait = wait  # type: ignore[method-assign]
    AsyncCompile.submit = staticmethod(submit)  # type: ignore[method-assign]
    CppWrapperCodeCache.load_pybinding = staticmethod(load_pybinding)  # type: ignore[method-assign]


class _Entry:
    """Stands for the function of a library that is being compiled."""

    def become(self, function: Any, scope: dict[str, Any]) -> None:
        """Put the function in all places of Inductor's module where this object is."""
        for name in [name for name, value in scope.items() if value is self]:
            scope[name] = function
        for cell in scope["call"].__closure__:
            if cell.cell_contents is self:
                cell.cell_contents = function


# -- what the compiler needs first ---------------------------------------------------------------------------------


class _Readiness:
    """The C++ compiler made ready in the background."""

    def __init__(self) -> None:
        import torch._inductor.compile_fx  # noqa: F401  here, because two threads must not import it at once

        context = contextvars.copy_context()  # with the settings of Inductor
        self._thread = threading.Thread(target=context.run, args=(self._make,), name="poptorch-compiler", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def _make(self) -> None:
        from torch._inductor.codecache import CppPythonBindingsCodeCache

        try:
            _find_instruction_set()
            CppPythonBindingsCodeCache.load_pybinding_async(["const float*"], _EMPTY)
        except Exception as error:  # noqa: BLE001  it happens again, and is reported, when a kernel is compiled
            logger.debug("The C++ compiler could not be prepared: %s", error)


@cache
def prepare_compiler() -> _Readiness:
    """Begin, unless that is done, to make ready what the C++ compiler needs; ``wait()`` for it before using it."""
    return _Readiness()


def _find_instruction_set() -> None:
    """Find out what the compiler can compile for, beginning with all that the processor has.

    Inductor would also try everything less, for seconds each. A processor that has AVX-512 with extensions can use it
    without them, and AVX2. A compiler that is older than the processor is left to Inductor.
    """
    from torch._inductor import config, cpu_vec_isa

    offered = set(cpu_vec_isa.x86_isa_checker())  # empty for other processors, which have one candidate each
    sets = [isa for isa in cpu_vec_isa.supported_vec_isa_list if offered.issuperset(str(isa).split())]
    if sets and sets[0]:  # the widest; it is tried when it is asked whether it is true
        with config.patch({"cpp.vec_isa_ok": True}):
            cpu_vec_isa.valid_vec_isa_list()
