"""Something goes wrong inside a worker: the call ends with that error, and the executor stays usable."""

from __future__ import annotations

import threading

import pytest
import torch
from parallel_models import Perceptron, make_model, make_options

import poptorch
from host_code import change_stages
from poptorch.devices import cores
from poptorch.devices.cores import CoreShare
from poptorch.executable.host_code import Code
from poptorch.runtime import workers
from poptorch.runtime.tasks import Task, TaskGraph
from poptorch.runtime.workers import WorkerPool, run_inline
from poptorch.schedule import Job


class Fault(RuntimeError):
    pass


def executor_that_fails(ipus, strategy, replicas=1):
    """A training executor whose second stage fails when ``switch`` is set, and that switch."""
    model = make_model(Perceptron, ipus)
    options = make_options(strategy, replicas=replicas)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(0)
    data = Perceptron.data(16 * replicas, generator)
    executor.compile(*data)
    stages = executor.executable.code.stages
    broken = len(stages) - 1 if ipus is None else 1
    switch = threading.Event()

    def failing(number, stage):
        def run(*args):
            if switch.is_set():
                raise Fault("the second stage is broken")
            return stage.code.run(*args)

        return Code(run, stage.code.source) if number == broken else stage.code

    change_stages(executor, failing)
    return executor, model, data, switch


CASES = [
    ((0, 1, 2, 3), poptorch.PipelinedExecution, 1),
    ((0, 1, 2, 3), poptorch.PipelinedExecution, 2),
    ((0, 1, 2, 3), poptorch.ShardedExecution, 1),
    (None, poptorch.ShardedExecution, 2),
]


@pytest.mark.parametrize(("ipus", "strategy", "replicas"), CASES)
def test_the_error_reaches_the_caller_and_the_executor_goes_on(ipus, strategy, replicas):
    executor, model, data, switch = executor_that_fails(ipus, strategy(), replicas)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    switch.set()
    for _ in range(2):
        with pytest.raises(Fault, match="the second stage is broken") as caught:
            executor(*data)
        assert any(entry.name == "run" for entry in caught.traceback)  # the place of the fault, not of the wait
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    switch.clear()
    after_fault = executor(*data)
    again, _, _, _ = executor_that_fails(ipus, strategy(), replicas)
    for a, b in zip(after_fault, again(*data), strict=True):
        assert torch.equal(a, b)


def graph_of(count, waits_for=()):
    graph = TaskGraph()
    for index in range(count):
        graph.tasks.append(Task(index, Job.parse(f"{index}F@0"), 0, 0, 0, index))
        graph.waits_for.append(set())
    for task, needed in waits_for:
        graph.waits_for[task].add(needed)
    return graph


def test_tasks_after_the_fault_do_not_start():
    pool = WorkerPool(CoreShare(workers=2, threads=1))
    graph = graph_of(40, [(i, i - 2) for i in range(2, 40)])
    started = []

    def execute(task):
        started.append(task.index)
        if task.index == 4:
            raise Fault("here")

    with pytest.raises(Fault, match="here"):
        pool.run(graph, execute)
    assert len(started) < 40
    assert len(pool.run(graph_of(3), lambda task: None)) == 3


def test_an_interruption_of_a_task_is_not_lost():
    with pytest.raises(KeyboardInterrupt):
        run_inline(graph_of(2), lambda task: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_more_ipus_than_cores_are_not_more_threads():
    before = threading.active_count()
    share = CoreShare.of(width=64)
    assert share.workers * share.threads <= max(cores.usable_cores(), torch.get_num_threads())
    workers.run_tasks(graph_of(64), lambda task: None, share)
    assert threading.active_count() - before <= cores.usable_cores()


def test_workers_keep_their_own_number_of_threads():
    main = torch.get_num_threads()
    seen = set()
    pool = WorkerPool(CoreShare(workers=2, threads=1))
    pool.run(graph_of(8), lambda task: seen.add(torch.get_num_threads()))
    assert seen == {1}
    assert torch.get_num_threads() == main
    inherited = []
    thread = threading.Thread(target=lambda: inherited.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert inherited == [main]


def test_a_task_that_runs_a_graph_itself_does_not_wait_for_its_own_pool():
    share = CoreShare(workers=2, threads=1)
    inner = []

    def execute(task):
        workers.run_tasks(graph_of(2), lambda t: inner.append(t.index), share)

    workers.run_tasks(graph_of(4), execute, share)
    assert len(inner) == 8
