"""Worker threads that run a task graph: as many as the host has cores, however many IPUs the model asks for.

torch lets go of the interpreter lock inside operations, so threads are enough. Each worker has its own share of the
cores for the inside of operations; more runnable threads than cores would make everything many times slower.
"""

from __future__ import annotations

import atexit
import heapq
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from poptorch.devices.cores import CoreShare
from poptorch.profiling.trace import NO_TRACE, SpanKind, Trace
from poptorch.runtime.clock import JobRecord
from poptorch.runtime.tasks import Task, TaskGraph

Rest = Callable[[], "Sequence[Rest]"]
"""Work that no task waits for. It may return more of it, for workers without a task."""

Execute = Callable[[Task], Rest | None]
"""Runs a task; what it returns is done next, after the tasks that waited for this one were told."""


Begun = Callable[[Callable[[int], None], Callable[[BaseException], None]], None]
"""Called when a graph is about to run, with a function to tell it that a task elsewhere is over, and one to stop it."""


def _alone(arrived: Callable[[int], None], stop: Callable[[BaseException], None]) -> None:
    """All tasks of a graph are here."""


LAST_WORK_S = 2.0
"""How long the end of the program waits for tasks that are under way."""


@dataclass
class _Run:
    """The state of one graph being run; everything is guarded by ``changed``."""

    graph: TaskGraph
    execute: Execute
    trace: Trace = NO_TRACE
    changed: threading.Condition = field(default_factory=threading.Condition)
    ready: list[tuple[tuple[int, int, int], int]] = field(default_factory=list)
    leftovers: list[Rest] = field(default_factory=list)
    """For workers that find no task."""

    records: list[JobRecord] = field(default_factory=list)
    error: BaseException | None = None
    stopped: bool = False
    inside: int = 0
    """Workers that are still running tasks of this graph."""

    caller: int = field(default_factory=lambda: thread_served())
    """The thread that waits for the graph to be run."""

    width: int = 1
    """How many workers there are."""

    failed: Callable[[BaseException], None] = field(default=lambda error: None)
    """Called once, with what stops the run."""

    def __post_init__(self) -> None:
        self._successors = self.graph.successors()
        self._waiting = [len(w) for w in self.graph.waits_for]
        elsewhere = self.graph.elsewhere
        self._left = len(self.graph.tasks) - len(elsewhere)
        self.ready = [
            (t.urgency, t.index) for t in self.graph.tasks if not self._waiting[t.index] and t.index not in elsewhere
        ]
        heapq.heapify(self.ready)
        self.stopped = self._left == 0
        self._busy = self.width  # workers that do not wait inside of a task
        self._stand_ins: list[threading.Thread] = []

    def work(self, worker: int) -> None:
        """Take tasks, and the leftover work of others, until none is left or one has failed."""
        outer, _inside.run = _inside.run, self
        try:
            while (next_one := self._take()) is not None:
                if isinstance(next_one, Task):
                    self._run(next_one, worker)
                else:
                    self._done(self._leftover(next_one, worker))
                del next_one  # and what it holds, before waiting for another
        except BaseException as error:  # noqa: BLE001  (handed to the caller, whatever it is)
            self.stop(error)
        finally:
            _inside.run = outer

    def pause(self) -> None:
        """The worker on this thread waits for another task: a thread takes its place, if none is left."""
        with self.changed:
            self._busy -= 1
            if self.stopped or (self._busy and not self.ready):
                return
            self._busy += 1
            stand_in = threading.Thread(target=self._stand_in, name="poptorch-stand-in", daemon=True)
            self._stand_ins.append(stand_in)
        stand_in.start()

    def resume(self) -> None:
        """It goes on."""
        with self.changed:
            self._busy += 1
            self.changed.notify_all()  # a thread in its place has one too many beside it

    def _stand_in(self) -> None:
        torch.get_num_threads()  # takes the process-wide default first, which would overwrite ours later
        torch.set_num_threads(1)
        _inside.worker, _inside.caller, _inside.stands_in = 0, self.caller, True
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            self.work(0)

    def join(self) -> None:
        """Wait for the threads that took the places of others."""
        for thread in self._stand_ins:
            thread.join()

    def _take(self) -> Task | Rest | None:
        with self.changed:
            while not self.ready and not self.leftovers and not self.stopped and not self._is_surplus():
                self.changed.wait()
            if self.stopped:
                return None
            if self._is_surplus():
                self._busy -= 1
                self.changed.notify()  # another one takes what this one was told of
                return None
            return self.graph.tasks[heapq.heappop(self.ready)[1]] if self.ready else self.leftovers.pop()

    def _is_surplus(self) -> bool:
        return _inside.stands_in and self._busy > self.width

    def _leftover(self, work: Rest, worker: int) -> Sequence[Rest]:
        with self.trace.span(SpanKind.LEFTOVER, worker=worker):
            return work()

    def _run(self, task: Task, worker: int) -> None:
        start = time.perf_counter()
        rest = self.execute(task)
        released = time.perf_counter()
        self._release(task.index, busy=rest is not None)
        leftovers = () if rest is None else rest()
        ended = released if rest is None else time.perf_counter()
        self.records.append(JobRecord(task, worker, start, ended, released, threading.get_ident()))
        self._done(leftovers)

    def arrived(self, index: int) -> None:
        """A task of another process is over."""
        self._release(index, busy=True)

    def _release(self, index: int, busy: bool) -> None:
        """Tasks that waited for this one may start."""
        with self.changed:
            before = len(self.ready)
            for following in self._successors[index]:
                self._waiting[following] -= 1
                if not self._waiting[following]:
                    heapq.heappush(self.ready, (self.graph.tasks[following].urgency, following))
            more = len(self.ready) - before - (not busy)  # a worker with nothing else to do takes one of them itself
            if more > 0:
                self.changed.notify(more)

    def _done(self, leftovers: Sequence[Rest]) -> None:
        """A task, or some leftover work, is over and has left this to do."""
        with self.changed:
            self.leftovers.extend(reversed(leftovers))
            self._left += len(leftovers) - 1
            if not self._left:
                self.stopped = True
                self.changed.notify_all()
            elif len(leftovers) > 1:
                self.changed.notify(len(leftovers) - 1)

    def stop(self, error: BaseException | None = None) -> None:
        """No new task starts; the first error is the one that counts."""
        with self.changed:
            first = self.error is None and error is not None
            if self.error is None:
                self.error = error
            self.stopped = True
            self.changed.notify_all()
        if first and error is not None:
            self.failed(error)


Failed = Callable[[BaseException], None]


def nobody_else(error: BaseException) -> None:
    """Nobody else needs to know."""


@contextmanager
def waiting() -> Iterator[Callable[[], bool]]:
    """In here, the task on this thread waits for others. Gives a function that says whether they will not come."""
    run = _inside.run
    if run is None:
        yield lambda: False
        return
    run.pause()
    try:
        yield lambda: run.stopped
    finally:
        run.resume()


def run_inline(
    graph: TaskGraph,
    execute: Execute,
    trace: Trace = NO_TRACE,
    begun: Begun = _alone,
    failed: Failed = nobody_else,
) -> list[JobRecord]:
    """Run the graph on the calling thread, with all its cores inside operations."""
    run = _Run(graph, execute, trace, failed=failed)
    begun(run.arrived, run.stop)
    run.work(0)
    run.join()
    if run.error is not None:
        raise run.error
    return run.records


class WorkerPool:
    """Threads that wait for graphs to run. One graph runs at a time."""

    def __init__(self, share: CoreShare) -> None:
        self.share = share
        self._turn = threading.Lock()
        self._wake = threading.Condition()
        self._run: _Run | None = None
        self._generation = 0
        self._idle = 0
        self._threads = [
            threading.Thread(target=self._live, args=(n,), name=f"poptorch-worker-{n}", daemon=True)
            for n in range(share.workers)
        ]
        before = torch.get_num_threads()
        with self._wake:
            for thread in self._threads:
                thread.start()
            while self._idle < share.workers:
                self._wake.wait()
        # The bound of each thread is its own, but the last one set is also what new threads start with.
        torch.set_num_threads(before)

    def run(
        self,
        graph: TaskGraph,
        execute: Execute,
        trace: Trace = NO_TRACE,
        begun: Begun = _alone,
        failed: Failed = nobody_else,
    ) -> list[JobRecord]:
        """Run all tasks; raises what a task raises, after the tasks under way are done."""
        run = _Run(graph, execute, trace, width=self.share.workers, failed=failed)
        with self._turn:
            try:
                begun(run.arrived, run.stop)
                with self._wake:
                    self._run = run
                    self._generation += 1
                    self._idle = 0
            except BaseException as error:
                run.stop(error)
                raise
            finally:  # workers that are told to start are always waited for
                self._wait_for_workers(run)
                run.join()
        if run.error is not None:
            raise run.error
        return run.records

    def _wait_for_workers(self, run: _Run) -> None:
        interruption: BaseException | None = None
        with self._wake:
            while self._idle < self.share.workers:
                try:
                    self._wake.notify_all()  # an interruption may have come before they heard of it
                    self._wake.wait()
                except BaseException as error:  # noqa: BLE001  (an interruption of the user)
                    interruption = error
                    run.stop(error)
            self._run = None
        if interruption is not None:
            raise interruption

    def stop(self) -> bool:
        """Start no more tasks of the graph that runs now, if one does; returns whether one did."""
        run = self._run
        if run is not None:
            run.stop(SystemExit())  # ends the thread that waits for it, without a word
        return run is not None

    def finish(self, patience_s: float) -> None:
        """Start no more tasks, and wait for those under way."""
        if not self.stop():
            return
        with self._wake:
            self._wake.wait_for(lambda: self._idle >= self.share.workers, patience_s)

    def _live(self, worker: int) -> None:
        torch.get_num_threads()  # takes the process-wide default first, which would overwrite ours later
        torch.set_num_threads(self.share.threads)
        _inside.worker = worker
        generation = 0
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            while True:
                with self._wake:
                    self._idle += 1
                    if self._idle == self.share.workers:
                        self._wake.notify_all()
                    while self._generation == generation:
                        self._wake.wait()
                    generation = self._generation
                    run = self._run
                if run is not None:
                    _inside.caller = run.caller
                    run.work(worker)
                    _inside.caller = None
                del run  # what the tasks hold must not outlive the call


class _Inside(threading.local):
    worker: int | None = None
    caller: int | None = None
    """The thread that waits for the work of this one."""

    run: _Run | None = None
    """The graph that it works on."""

    stands_in: bool = False
    """Whether it took the place of a worker that waits."""


_inside = _Inside()


def thread_served() -> int:
    """The thread whose call the current one works for: itself, or for a worker the one that waits for its work.

    >>> thread_served() == threading.get_ident()
    True
    """
    return threading.get_ident() if _inside.caller is None else _inside.caller


_pools: dict[tuple[int, int], WorkerPool] = {}
_pools_lock = threading.Lock()


def stop_pools() -> None:
    """At exit: threads that still wait for work that pools do shall not wait any longer."""
    for pool in list(_pools.values()):
        pool.stop()


def _wait_for_pools() -> None:
    """At exit: a thread inside of an operation of torch would abort the process when the interpreter goes away."""
    for pool in list(_pools.values()):
        pool.finish(LAST_WORK_S)


atexit.register(_wait_for_pools)


def _forget_pools() -> None:
    """In a forked child the threads do not exist."""
    global _pools_lock
    _pools.clear()
    _pools_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def run_tasks(
    graph: TaskGraph,
    execute: Execute,
    share: CoreShare,
    trace: Trace = NO_TRACE,
    begun: Begun = _alone,
    failed: Failed = nobody_else,
) -> list[JobRecord]:
    """Run the graph with this share of the host; a task that itself runs a model does so on its own thread."""
    if share.workers == 1 or _inside.worker is not None:
        return run_inline(graph, execute, trace, begun, failed)
    with _pools_lock:
        key = share.workers, share.threads
        if key not in _pools:
            _pools[key] = WorkerPool(share)
        pool = _pools[key]
    return pool.run(graph, execute, trace, begun, failed)
