"""A discrete-event simulation of the exchange of gradients, message by message around the ring.

Each process has one link to the next process, which sends one message at a time, first come, first served. In round 0
of a portion, a process sends its own part once it has computed the portion. In each later round it passes on what it
got in the round before. After ``2·(P - 1)`` rounds every process has the sum.

The closed form of :func:`data_parallel.exposed` knows no single messages. Where all processes are equally fast, both
must agree. Where they are not, the simulation says how much the closed form is off.

>>> simulate([[0.0], [0.0]], [8000], Link(1e-3, 1e-6))  # 2 rounds of 1 ms + 4 ms
0.01
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from transport import Collective, Link


class Send(NamedTuple):
    """A process is able to send its message of one round of one portion."""

    time: float
    portion: int
    turn: int
    process: int


def simulate(ready: Sequence[Sequence[float]], sizes: Sequence[int], link: Link) -> float:
    """When the last process has the last portion; ``ready[process][portion]`` is when it has its own gradients."""
    processes = len(ready)
    last = Collective.ALL_REDUCE.rounds(processes) - 1
    finish = max((max(times, default=0.0) for times in ready), default=0.0)
    if last < 0:
        return finish
    free = [0.0] * processes
    waiting = [Send(ready[p][k], k, 0, p) for p in range(processes) for k in range(len(sizes))]
    heapq.heapify(waiting)
    while waiting:
        now = heapq.heappop(waiting)
        free[now.process] = max(now.time, free[now.process]) + link.seconds(1, sizes[now.portion] / processes)
        arrival, receiver = free[now.process], (now.process + 1) % processes
        if now.turn == last:
            finish = max(finish, arrival)
        else:
            able = max(arrival, ready[receiver][now.portion])
            heapq.heappush(waiting, Send(able, now.portion, now.turn + 1, receiver))
    return finish
