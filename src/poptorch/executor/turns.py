"""Turns: one executor serves one call at a time, and callers that wait are served in the order of their arrival."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from poptorch.errors import createPoptorchError
from poptorch.runtime.workers import LAST_WORK_S, stop_pools, thread_served

P = ParamSpec("P")
T = TypeVar("T")


_Lock: Any = type(threading.RLock())


class _Place(_Lock):
    """A caller's place in the queue: a lock that is held from before the caller arrives until it has left."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.before: _Place | None = None
        self.passed = False
        """Whether the turn came; a caller that was interrupted while it waited leaves without it."""

        self.taken = True
        """Whether the caller is still there, as far as it could say."""

    def is_held(self) -> bool:
        """Whether the calling thread has this place."""
        return bool(self._is_owned())


_queues: weakref.WeakSet[Turns] = weakref.WeakSet()


class Turns:
    """The queue of one executor.

    A caller waits for the place before its own. Places are given up by the interpreter itself, at the end of a ``with``
    statement on a lock: whenever Ctrl-C comes, the next caller gets its turn.

    >>> turns = Turns()
    >>> turns.take(lambda: turns.take(lambda: "a turn within a turn is the same one"))
    'a turn within a turn is the same one'
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._joined: Turns | None = None
        self._reset()
        _queues.add(self)

    def _reset(self) -> None:
        self._process = os.getpid()
        self._last: _Place | None = None
        self._current: _Place | None = None

    def join(self, other: Turns) -> None:
        """From the next caller on, wait in the other queue. To be called when nobody is inside who waits for it.

        >>> one, other = Turns(), Turns()
        >>> one.join(other)
        >>> other.take(one.is_mine)
        True
        """
        if other is not self and not other.follows(self):
            self.take(setattr, self, "_joined", other)

    def follows(self, other: Turns) -> bool:
        """Whether threads wait there instead of here."""
        return self._joined is other

    def is_mine(self) -> bool:
        """Whether the calling thread, or the one that it works for, has the turn."""
        if self._joined is not None:
            return self._joined.is_mine()
        current = self._current
        if current is None:
            return False
        if current.is_held():
            return True
        served = thread_served()  # a thread that is waiting for us, so it has not left its place
        return served != threading.get_ident() and served == current.thread

    def thread_inside(self) -> int | None:
        """The thread that has the turn."""
        current = self._current
        return current.thread if current is not None and current.taken else None

    def close(self) -> Callable[[float], None] | None:
        """Let no more callers in, for ever. Returns how to wait for one that is inside, if there is one."""
        if self._process != os.getpid() or self.is_mine():
            return None
        place = _Place()
        place.acquire()
        with self._guard:
            before, self._last = self._last, place
        place.before = before
        if before is None:
            return None
        if before.acquire(blocking=False):  # free after the new place was there: who comes now waits for that one
            before.release()
            return None

        def wait(seconds: float) -> None:
            if before.acquire(timeout=max(0.0, seconds)):
                before.release()

        return wait

    def take(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function when it is this caller's turn."""
        if self._process != os.getpid():  # a forked child has no thread that could give up a place
            self._guard = threading.Lock()
            self._reset()
        if self._joined is not None:
            return self._joined.take(function, *args, **kwargs)
        if self.is_mine():
            return function(*args, **kwargs)
        last = self._last
        if last is not None and not last.taken:  # as a rule there is one caller, and its old place will do
            with last:
                if self._last is last:  # no other caller came in between, and who comes now waits for this place
                    last.thread = threading.get_ident()
                    return self._call(last, function, *args, **kwargs)
        place = _Place()
        with place:
            with self._guard:
                place.before, self._last = self._last, place
            self._wait(place)
            return self._call(place, function, *args, **kwargs)

    def _call(self, place: _Place, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        place.taken = True
        try:
            return function(*args, **kwargs)
        finally:
            place.taken = False

    def _wait(self, place: _Place) -> None:
        before = place.before
        if before is not None:
            with _waiting.at(self):
                while before is not None:
                    with before:  # free as soon as that caller has left
                        pass
                    before = None if before.passed else before.before
        self._current = place
        place.passed = True
        place.before = None  # or each place would keep all earlier ones alive


class _Waiting:
    """Which threads wait for which turns, to find those that wait for each other.

    Operations on the CPU may call other executors. Two threads that do so the other way round would wait for ever.
    Whoever comes last sees the whole circle, so it is enough to look once.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._threads: dict[int, tuple[int, Turns]] = {}

    @contextlib.contextmanager
    def at(self, turns: Turns) -> Iterator[None]:
        """Wait in here; an error if that would be for ever."""
        own, served = threading.get_ident(), thread_served()
        try:
            with self._guard:
                self._threads[own] = served, turns
                if self._is_circle({own, served}, turns):
                    raise createPoptorchError(
                        "Executors wait for each other: this thread is in a call of an executor that another thread "
                        "waits for, and that thread is in a call of the executor that this one wants. Operations on "
                        "the CPU that call other executors have to do so in one order in all threads, or be called by "
                        "one thread at a time."
                    )
            yield
        finally:
            self._threads.pop(own, None)

    def _is_circle(self, own: set[int], turns: Turns) -> bool:
        seen, ahead = {turns}, [turns]
        while ahead:
            inside = ahead.pop().thread_inside()
            if inside in own:
                return True
            # A thread waits where it does, and where those do that work for it.
            further = {other for thread, (served, other) in self._threads.items() if inside in (thread, served)} - seen
            seen |= further
            ahead += further
        return False


_waiting = _Waiting()


_ARRIVAL_S = 0.05
"""How long the end of the program gives a thread that has left a call to come to the next one, where it stays."""


def _end_calls() -> None:
    """At exit: daemon threads that still train come to a halt between two calls.

    The interpreter ends threads the moment they ask for its lock. One that is inside of an operation of torch then
    aborts the process.
    """
    end = time.monotonic() + LAST_WORK_S
    waits = [wait for wait in [queue.close() for queue in list(_queues)] if wait is not None]
    if not waits:
        return
    stop_pools()
    for wait in waits:
        wait(end - time.monotonic())
    time.sleep(_ARRIVAL_S)


atexit.register(_end_calls)


Method = TypeVar("Method", bound=Callable[..., Any])


def in_turn(method: Method) -> Method:
    """A method that runs when it is the caller's turn at the object's ``_turns``."""

    @functools.wraps(method)
    def taking_turns(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._turns.take(method, self, *args, **kwargs)

    return cast(Method, taking_turns)
