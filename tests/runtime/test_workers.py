"""What workers take first, and the work that tasks leave behind."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from poptorch.devices.cores import CoreShare
from poptorch.runtime.tasks import Task, TaskGraph
from poptorch.runtime.workers import Rest, run_inline, run_tasks
from poptorch.schedule import Job


def graph_of(
    *jobs: str, waits_for: Sequence[set[int]] | None = None, replicas: Sequence[int] | None = None
) -> TaskGraph:
    """Tasks in ideal order, one for each tick."""
    graph = TaskGraph()
    for index, text in enumerate(jobs):
        job = Job.parse(text)
        replica = 0 if replicas is None else replicas[index]
        graph.tasks.append(Task(index, job, replica, job.part, index, index))
        graph.waits_for.append(set() if waits_for is None else waits_for[index])
    return graph


def order_of(graph: TaskGraph) -> list[str]:
    ran: list[str] = []
    run_inline(graph, lambda task: ran.append(str(task.job)))
    return ran


def test_a_micro_batch_is_brought_to_its_end_before_the_next_begins() -> None:
    waits_for = [set(), set(), {0}, {1}, {2}, {3}]
    graph = graph_of("0F@0", "1F@0", "0F@1", "1F@1", "0B@1", "1B@1", waits_for=waits_for)
    assert order_of(graph) == ["0F@0", "0F@1", "0B@1", "1F@0", "1F@1", "1B@1"]


def test_replicas_of_one_micro_batch_go_before_the_next_micro_batch() -> None:
    graph = graph_of("0F@0", "1F@0", "0F@0", "1F@0", replicas=[0, 0, 1, 1])
    ran: list[tuple[int, int]] = []
    run_inline(graph, lambda task: ran.append((task.job.micro, task.replica)))
    assert ran == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_work_that_tasks_leave_is_done_before_the_graph_counts_as_run(workers: int) -> None:
    done: list[str] = []

    def piece(name: str) -> Rest:
        return lambda: (done.append(name), ())[1]

    def execute(task: Task) -> Rest:
        return lambda: [piece(f"{task.index}.{n}") for n in range(3)]

    spans = run_tasks(graph_of("0F@0", "1F@0", "2F@0"), execute, CoreShare(workers, 1))
    assert sorted(done) == [f"{task}.{n}" for task in range(3) for n in range(3)]
    assert len(spans) == 3


def test_tasks_do_not_wait_for_the_rest_of_those_before() -> None:
    """Two workers: the rest of the first task waits for the second task, which needs the first one's results."""

    second_ran = threading.Event()

    def execute(task: Task) -> Rest | None:
        if task.index == 1:
            second_ran.set()
            return None

        def rest() -> Sequence[Rest]:
            assert second_ran.wait(30)
            return ()

        return rest

    run_tasks(graph_of("0F@0", "0F@1", waits_for=[set(), {0}]), execute, CoreShare(2, 1))
    assert second_ran.is_set()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("deep", [False, True])
def test_errors_of_work_left_behind_end_the_run(workers: int, deep: bool) -> None:
    def fails() -> Sequence[Rest]:
        raise ValueError("a piece failed")

    with pytest.raises(ValueError, match="a piece failed"):
        run_tasks(graph_of("0F@0", "1F@0"), lambda task: (lambda: [fails]) if deep else fails, CoreShare(workers, 1))
    run_tasks(graph_of("0F@0"), lambda task: None, CoreShare(workers, 1))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_without_leftover_work_ends_when_it_is_released(workers):
    def execute(task: Task) -> Rest | None:
        return (lambda: ()) if task.index else None

    spans = run_tasks(graph_of("0F@0", "1F@0"), execute, CoreShare(workers, 1))
    by_index = {span.task.index: span for span in spans}
    assert by_index[0].end == by_index[0].released
    assert by_index[1].end > by_index[1].released
