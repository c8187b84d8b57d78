"""Gradients of a round that begin their way to other processes while back-propagation still goes on."""

from __future__ import annotations

import threading
from collections import deque

import torch

from poptorch.compiler.memory import Category
from poptorch.executable.executable import Executable
from poptorch.profiling.trace import SpanKind, Trace
from poptorch.runtime.accumulate import GradientAccumulator
from poptorch.runtime.exchange import ExchangeTransfer, GradientExchange, Gradients

_UNDER_WAY = 2
"""How many buckets may be on their way at a time where processes keep shards: each has a copy of a whole gradient."""


def scatters_every_group(executable: Executable) -> bool:
    """Whether processes hold shards of the accumulators as well: each group's gradients are scattered at once.

    This is for one replica in one part. Several would have to be added up before.
    """
    update, code = executable.update, executable.code
    if update is None or not update.held or not code.alone or code.loop.groups_per_update == 1:
        return False
    return executable.device.memory.is_sharded(Category.ACCUMULATOR)


class RoundExchange:
    """Exchanges the gradients of one round after the other, bucket by bucket.

    Buckets may become ready in any order and on any thread. They begin their way in the order of
    :attr:`HostCode.gradients`, which is the same in all processes.
    """

    def __init__(self, exchange: GradientExchange, executable: Executable, trace: Trace) -> None:
        update = executable.update
        assert update is not None
        self._exchange = exchange
        self._held = update.held
        self._trace = trace
        self._names = executable.code.gradients
        self._lock = threading.Lock()
        self._early: dict[int, Gradients] = {}
        self._next = 0
        self._under_way: deque[tuple[int, ExchangeTransfer]] = deque()
        self._found: dict[str, torch.Tensor] = {}
        self.scatters_every_group = scatters_every_group(executable)
        self._accumulators = (
            [GradientAccumulator(executable, names) for names in self._names] if self.scatters_every_group else None
        )
        """Of the elements that this process holds."""

    def ready(self, bucket: int, gradients: Gradients) -> None:
        """A bucket is final; any thread may say so. Its gradients belong to the exchange from now on."""
        with self._lock:
            self._early[bucket] = gradients
            while self._next in self._early:
                while self._held and len(self._under_way) >= _UNDER_WAY:
                    self._land()
                transfer = self._exchange.start(self._early.pop(self._next), self._held)
                self._under_way.append((self._next, transfer))
                self._next = (self._next + 1) % len(self._names)

    def _land(self) -> None:
        bucket, transfer = self._under_way.popleft()
        found = transfer.take()
        if self._accumulators is None:
            self._found.update(found)
        else:
            self._accumulators[bucket].add([found[name] for name in self._names[bucket]])

    def take(self) -> Gradients:
        """Wait for all buckets of a round: the combined gradients, or what this process holds of them."""
        with self._lock, self._trace.span(SpanKind.EXCHANGE):
            assert not self._early, f"buckets {sorted(self._early)} wait for others"
            assert not self._next, f"bucket {self._next} never became ready"
            for _, transfer in self._under_way:
                transfer.advance()
            while self._under_way:
                self._land()
            if self._accumulators is not None:
                return {name: g for accumulator in self._accumulators for name, g in accumulator.take().items()}
            found, self._found = self._found, {}
            return found

    def abandon(self) -> None:
        """The call has failed. If some gradients of the round have left, the other processes cannot go on."""
        with self._lock:
            if self._next or self._under_way or self._found:
                self._exchange.abandon()
