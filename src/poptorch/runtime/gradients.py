"""Where gradients go: one sink for all stages, micro-batches and replicas.

    code of a stage ── add(stage, bucket, micro_batch, replica, values)
                          │
                       bucket: adds them in an order that does not depend on timing (`accumulate`, `products`)
                          │
                          ├── alone ──────────────── take() ──▶ update
                          └── other processes ──▶ RoundExchange ── take() ──▶ update

Gradients that code returns at its end are a bucket of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from poptorch.executable.executable import Executable
from poptorch.executable.groups import MANY_REPLICAS
from poptorch.runtime.accumulate import GradientAccumulator, accumulator_for
from poptorch.runtime.rounds import RoundExchange
from poptorch.runtime.values.factored import Gradient
from poptorch.runtime.workers import Rest

Final = Callable[[Mapping[str, torch.Tensor]], None]
"""Takes the combined gradients of a bucket."""

_LEAST_ALONE = 64
"""How long the last product of a round must be for the ones before to be multiplied without it: each reads and writes
the accumulator once, which takes as long as a product of 32."""


class GradientSink:
    """Takes the gradients of a round, bucket by bucket, and gives the update what it needs."""

    def __init__(
        self, executable: Executable, workers: int = 1, stages: Sequence[Sequence[Sequence[str]]] | None = None
    ) -> None:
        """``workers`` is how many threads bring gradients.

        ``stages`` has the names of the parameters of each bucket of each stage, if not those of the code.
        """
        code = executable.code
        names = [stage.gradients for stage in code.stages] if stages is None else stages
        self._replicas = code.loop.replicas
        self._in_order = code.alone and stages is None
        self._buckets: list[list[_InOrder | _AnyOrder]] = [
            [_InOrder(executable, b) if self._in_order else _AnyOrder(executable, b, workers) for b in buckets]
            for buckets in names
        ]
        self._all = [bucket for buckets in self._buckets for bucket in buckets]
        self._exchange: RoundExchange | None = None

    def begin(self, exchange: RoundExchange | None) -> None:
        """Before a call; one that failed may have left something. ``exchange`` takes buckets as they become final."""
        self._exchange = exchange
        for number, bucket in enumerate(self._all):
            bucket.reset()
            bucket.final = None if exchange is None else partial(exchange.ready, number)
            if isinstance(bucket, _InOrder):
                bucket.adds = exchange is None or not exchange.scatters_every_group

    def add(
        self, stage: int, bucket: int, micro_batch: int, replica: int, values: Sequence[Gradient]
    ) -> Sequence[Rest]:
        """Take what one stage computed for one micro-batch, or group, on one replica; on any thread.

        After the last ones, when threads begin to run out of tasks, there may be work to do, which is returned in
        jobs for any number of them.
        """
        return self._buckets[stage][bucket].add(micro_batch * self._replicas + replica, values)

    def take(self) -> Mapping[str, torch.Tensor]:
        """The gradients of the round by parameter name; where there are other processes, combined with theirs."""
        if self._exchange is not None:
            return self._exchange.take()
        if len(self._all) == 1:
            return self._all[0].take()
        return {name: gradient for bucket in self._all for name, gradient in bucket.take().items()}

    def reset(self) -> None:
        """Forget an unfinished round."""
        for bucket in self._all:
            bucket.reset()


class _InOrder:
    """Gradients that one thread brings, one micro-batch after the other."""

    def __init__(self, executable: Executable, names: Sequence[str]) -> None:
        self._accumulator = GradientAccumulator(executable, names)
        self._count = executable.code.loop.groups_per_update
        self._seen = 0
        self.final: Final | None = None
        self.adds = True
        """Whether they are added up here, and not by the exchange."""

    def add(self, position: int, gradients: Sequence[Gradient]) -> Sequence[Rest]:
        """Take the next ones."""
        accumulator, final = self._accumulator, self.final
        if final is None:
            accumulator.add(gradients)
        elif not self.adds:
            final(accumulator.typed(gradients))
        else:
            accumulator.add(gradients)
            self._seen += 1
            if self._seen == self._count:
                self._seen = 0
                final(accumulator.take())
        return ()

    def take(self) -> dict[str, torch.Tensor]:
        """The combined gradients by parameter name."""
        return self._accumulator.take()

    def reset(self) -> None:
        """Forget an unfinished round."""
        self._seen = 0
        self._accumulator.reset()


class _AnyOrder:
    """Gradients that any thread brings at any time; early ones wait here until it is their turn."""

    def __init__(self, executable: Executable, names: Sequence[str], workers: int) -> None:
        self._accumulator = accumulator_for(executable, names)
        self._replicas = executable.code.loop.replicas
        self._count = executable.code.loop.groups_per_update
        self._late = self._count - (1 if self._replicas >= MANY_REPLICAS else workers)
        self._early: dict[int, Sequence[Gradient]] = {}
        self._next = 0
        self._busy = False
        self._open = 0
        """How many jobs were returned that are not done."""

        self._ended = False
        self._lock = threading.Lock()
        self.final: Final | None = None

    def add(self, position: int, gradients: Sequence[Gradient]) -> Sequence[Rest]:
        """Take the gradients of one place in the order; what is left to do is returned."""
        with self._lock:
            self._early[position] = gradients
            if self._busy:
                return ()  # the thread that is adding will find it
            self._busy = True
        while True:
            with self._lock:
                ready = self._early.pop(self._next, None)
                if ready is None:
                    self._busy = False
                    last = self._next == self._count
                    break
                position = self._next
                self._next += 1
            # While there are tasks for all threads, products are multiplied soon, for the sake of memory.
            self._accumulator.add(ready, position % self._replicas, at_once=position < self._late)
            if self._next == self._count - 1:
                # Idle threads can multiply these while the last micro-batch is still under way.
                self._accumulator.close(least=_LEAST_ALONE)
        if last:
            self._accumulator.close()
        jobs = [partial(self._multiply, job) for job in self._accumulator.unfinished()]
        with self._lock:
            self._open += len(jobs)
            self._ended = last
        if last and not jobs:
            self._announce()
        return jobs

    def _multiply(self, job: Callable[[], None]) -> Sequence[Rest]:
        job()
        with self._lock:
            self._open -= 1
        self._announce()
        return ()

    def _announce(self) -> None:
        """Hand the sum on, if it is complete; once."""
        if self.final is None:
            return
        with self._lock:
            if self._open or not self._ended:
                return
            self._ended = False
        self.final(self.take())

    def take(self) -> dict[str, torch.Tensor]:
        """The combined gradients by parameter name."""
        assert not self._early, f"{len(self._early)} gradients were never added"
        self._next = 0
        self._ended = False
        return self._accumulator.take()

    def reset(self) -> None:
        """Forget an unfinished round."""
        self._early.clear()
        self._next = self._open = 0
        self._busy = self._ended = False
        self._accumulator.reset()
