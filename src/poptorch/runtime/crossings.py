"""What passes between the processes that share a replica: which messages each task sends, and which it waits for.

All processes know the whole task graph of a round. A task of another process is over, for the tasks here that wait for
it, when the values that it sends here have arrived. One that has no value for this process sends an empty message. So
the order among tasks is that of one process. Every message of a round has a number of its own, the tag by which it is
found, and may arrive at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from poptorch.compiler.passes.stages import Edge, StageProgram
from poptorch.compiler.portion import Blocks
from poptorch.runtime.tasks import Task, TaskGraph


@dataclass(frozen=True)
class Message:
    """A value, or the news that a task is over, on its way between two processes."""

    tag: int
    block: int
    """Of the process at the other end."""

    edge: int | None
    """The value; ``None``: the task has none for that process."""


@dataclass(frozen=True)
class Crossings:
    """The tasks of one process, with what they exchange with those of others."""

    graph: TaskGraph
    """The tasks of this process, and those of others that they wait for."""

    sent: dict[int, list[Message]] = field(default_factory=dict)
    """By the index of the task in the graph, like the next one."""

    awaited: dict[int, list[Message]] = field(default_factory=dict)
    local_uses: dict[int, int] = field(default_factory=dict)
    """How many stages of this process use each edge."""

    def channels(self) -> list[list[int]]:
        """The tasks of other processes, one list for each of their stages, in an order in which they can run."""
        found: dict[int | None, list[int]] = {}
        for index in sorted(self.awaited, key=lambda i: (self.graph.tasks[i].tick, self.graph.tasks[i].replica, i)):
            found.setdefault(self.graph.tasks[index].stage, []).append(index)
        return list(found.values())


def crossings_of(graph: TaskGraph, stages: Sequence[StageProgram], edges: Sequence[Edge], blocks: Blocks) -> Crossings:
    """The part of a task graph that belongs to this process."""
    by_slot = {stage.slot: blocks.of(stage) for stage in stages}
    successors = graph.successors()
    owners = [blocks.of(stages[_stage(task)]) for task in graph.tasks]
    sent: dict[int, list[Message]] = {}
    awaited: dict[int, list[Message]] = {}
    tag = 0
    for task in graph.tasks:
        owner = owners[task.index]
        for other in sorted({owners[s] for s in successors[task.index]} - {owner}):
            values: list[int | None] = [
                edge for edge in stages[_stage(task)].sends if other in {by_slot[c] for c in edges[edge].consumers}
            ]
            for edge in values or [None]:
                if owner == blocks.own:
                    sent.setdefault(task.index, []).append(Message(tag, other, edge))
                if other == blocks.own:
                    awaited.setdefault(task.index, []).append(Message(tag, owner, edge))
                tag += 1
    here = [task for task in graph.tasks if owners[task.index] == blocks.own or task.index in awaited]
    number = {task.index: place for place, task in enumerate(here)}
    waits = [
        set() if task.index in awaited else {number[needed] for needed in graph.waits_for[task.index]} for task in here
    ]
    local = TaskGraph(
        [replace(task, index=number[task.index]) for task in here], waits, frozenset(number[i] for i in awaited)
    )
    uses = {i: sum(by_slot[c] == blocks.own for c in edge.consumers) for i, edge in enumerate(edges)}
    return Crossings(local, {number[i]: m for i, m in sent.items()}, {number[i]: m for i, m in awaited.items()}, uses)


def _stage(task: Task) -> int:
    assert task.stage is not None  # phased models are not divided
    return task.stage
