"""C++ compilers work beside each other and beside Python, and nothing of them is left behind."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest
import torch
from torch._inductor import codecache
from torch._inductor.utils import fresh_cache

from poptorch.host.native import async_compile as kernels
from poptorch.host.native.async_compile import side_by_side
from poptorch.host.native.inductor import EntryPoint, Target, compile_graph, decompose, fake_mode
from poptorch.host.store import kernel_files as binaries


@pytest.fixture(autouse=True)
def two_compilers(monkeypatch):
    """An empty cache, and as many compilers at a time as a machine with two cores has."""
    monkeypatch.setattr("torch._inductor.async_compile.get_compile_threads", lambda: 2)
    with fresh_cache():
        yield


def compiled(factor, entry=EntryPoint.PYTHON):
    """A kernel for ``(x + 1) * factor``."""
    with fake_mode():
        fakes = [torch.empty(40)]
        graph_module = decompose(lambda x: ((x + 1) * factor,), fakes)
        return compile_graph(graph_module, fakes, Target(1, entry)).run


@pytest.mark.parametrize("entry", EntryPoint)
def test_waiting_is_done_once_at_the_end(entry):
    seen = []
    with side_by_side(lambda done, count: seen.append((done, count))):
        calls = [compiled(2, entry), compiled(3, entry)]
        assert not seen
        assert len(kernels._pending.kernels) == 2
    assert seen == [(0, 2), (1, 2)]
    assert kernels._pending.kernels is None
    x = torch.arange(40.0)
    assert [call([x])[0].tolist() for call in calls] == [((x + 1) * 2).tolist(), ((x + 1) * 3).tolist()]
    for call in calls:  # and they can be written down like any other
        blobs = {}
        data = binaries.describe(call, lambda content, blobs=blobs: blobs.setdefault(str(len(blobs)), content) and "0")
        assert len(data["libraries"]) == len(blobs) == 1


def test_without_it_kernels_are_there_at_once():
    with side_by_side():
        pass
    assert compiled(5)([torch.ones(40)])[0].tolist() == [10.0] * 40


def test_other_threads_wait_as_before():
    results = []
    with side_by_side():
        thread = threading.Thread(target=lambda: results.append(compiled(7)([torch.ones(40)])[0]))
        thread.start()
        thread.join()
        assert not kernels._pending.kernels
    assert results[0].tolist() == [14.0] * 40


def test_compilers_run_at_the_same_time(monkeypatch):
    """Two that wait for each other both come to an end."""
    meeting = threading.Barrier(2, timeout=60)
    real = codecache._worker_compile_cpp

    def compile_together(*args):
        if threading.current_thread() is not threading.main_thread():
            meeting.wait()
        return real(*args)

    kernels.prepare_compiler().wait()
    monkeypatch.setattr(codecache, "_worker_compile_cpp", compile_together)
    with side_by_side():
        calls = [compiled(2), compiled(3)]
    assert [call([torch.ones(40)])[0][0].item() for call in calls] == [4, 6]


def test_an_error_of_the_compiler_comes_back(monkeypatch):
    def fail(*args):
        raise RuntimeError("the disk is full")

    kernels.prepare_compiler().wait()
    monkeypatch.setattr(codecache, "_worker_compile_cpp", fail)
    with pytest.raises(RuntimeError, match="the disk is full"), side_by_side():
        compiled(11)
    assert kernels._pending.kernels is None


def test_an_interrupt_starts_no_more_compilers(monkeypatch):
    gate, begun = threading.Event(), []

    def compile_when_told(*args):
        begun.append(args)
        gate.wait(60)

    kernels.prepare_compiler().wait()
    monkeypatch.setattr(codecache, "_worker_compile_cpp", compile_when_told)

    def interrupted():
        with side_by_side():
            for factor in (2, 3, 4, 5):
                compiled(factor)
            while len(begun) < 2:  # as many as there are cores
                time.sleep(0.01)
            jobs.extend(kernels._pending.jobs)
            raise KeyboardInterrupt

    jobs: list[Future] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert len(begun) == 2
        assert [job.cancelled() for job in jobs] == [False, False, True, True]
    finally:
        gate.set()


class FakeSet:
    """An instruction set that the compiler knows, or does not."""

    def __init__(self, name, works):
        self.name, self.works = name, works

    def __str__(self):
        return self.name

    def __bool__(self):
        return self.works


@pytest.mark.parametrize(("widest_works", "asked"), [(True, [True]), (False, [])])
def test_the_widest_instruction_set_speaks_for_the_others(monkeypatch, widest_works, asked):
    from torch._inductor import config, cpu_vec_isa

    sets = [FakeSet("new", False), FakeSet("wide extended", widest_works), FakeSet("wide", True)]
    trusted = []
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", sets)
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["wide", "extended"])
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", lambda: trusted.append(config.cpp.vec_isa_ok))
    kernels._find_instruction_set()
    assert trusted == asked
