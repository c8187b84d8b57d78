"""The executable cache: one file a graph, native code that is compiled once, damage that costs time only."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
import preloaded
from closeness import assert_close_sums
from poptorch.executable.file import File
from poptorch.host.native import optimizers
from poptorch.host.store import cache


def files(directory) -> list[Path]:
    return sorted(p for p in Path(directory).rglob("*") if p.is_file())


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A directory for the cache; what Inductor's own holds does not count."""
    monkeypatch.setattr(cache, "local_folder", lambda: None)
    return tmp_path / "cache"


def options(directory, **settings) -> poptorch.Options:
    made = poptorch.Options().randomSeed(1)
    made.enableExecutableCaching(str(directory))
    return made


# ---- interpreted: the file itself --------------------------------------------------------------------------------


def test_one_file_by_option(linear, batch, cached, log):
    poptorch.inferenceModel(linear, options(cached))(batch[0])
    assert len(files(cached)) == 1
    assert "set enableEngineCaching to value true" in log.text


def test_one_file_by_environment(linear, batch, cached, monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(cached))
    poptorch.inferenceModel(linear)(batch[0])
    assert len(files(cached)) == 1


def test_no_file_when_switched_off(linear, batch, cached):
    poptorch.inferenceModel(linear, options(cached).enableExecutableCaching(None))(batch[0])
    assert not cached.exists()


def test_the_ipu_model_is_not_cached(linear, batch, cached, log):
    poptorch.inferenceModel(linear, options(cached).useIpuModel(True))(batch[0])
    assert not files(cached)
    assert "enableExecutableCaching doesn't work with the IPU model" in log.text


def test_what_makes_a_graph(linear, batch, cached, log):
    poptorch.inferenceModel(linear, options(cached))(batch[0])
    with torch.no_grad():
        linear.fc.weight.add_(1)  # other weights
    log.clear()
    executor = poptorch.inferenceModel(linear, options(cached))
    assert_close_sums(executor(batch[0]), linear(batch[0]), terms=8)
    assert "Executable found in the cache" in log.text
    poptorch.inferenceModel(linear, options(cached).deviceIterations(2))(batch[0].repeat(2, 1))
    assert len(files(cached)) == 1
    poptorch.inferenceModel(linear, options(cached))(batch[0].repeat(2, 1))  # another shape
    assert len(files(cached)) == 2
    poptorch.trainingModel(linear, options(cached))(*batch)
    assert len(files(cached)) == 3


@pytest.mark.parametrize("damage", [lambda data: data[:99], lambda data: b"other", lambda data: data + b"x"])
def test_damaged_files_are_replaced(linear, batch, cached, log, damage):
    expected = poptorch.inferenceModel(linear, options(cached))(batch[0])
    (path,) = files(cached)
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    assert torch.equal(poptorch.inferenceModel(linear, options(cached))(batch[0]), expected)
    assert "The cached executable is made anew" in log.text
    assert path.read_bytes() == sound


def test_a_directory_that_cannot_be_made(linear, batch, tmp_path, log):
    (tmp_path / "file").write_text("")
    assert poptorch.inferenceModel(linear, options(tmp_path / "file"))(batch[0]).shape == (4, 2)
    assert "Nothing is cached: the directory" in log.text
    with pytest.raises(AssertionError, match=r"Cache folder .* is not writable"):
        poptorch.inferenceModel(linear, distributed(tmp_path / "file"))(batch[0])


# ---- several processes ---------------------------------------------------------------------------------------------

WAITING = """
    import pathlib, sys, time
    import poptorch
    from poptorch.host.store import cache
    poptorch.setLogLevel("DEBUG")
    directory, name = sys.argv[1:]
    notes = pathlib.Path(directory) / "notes"
    with cache.one_at_a_time(directory, "a model", 3):
        with notes.open("a") as file:
            file.write(f"{name}+\\n")
        time.sleep(0.3)
        with notes.open("a") as file:
            file.write(f"{name}-\\n")
        if name == "dies":
            import os
            os._exit(1)
"""


def started(directory, name) -> preloaded.Process:
    return preloaded.start(["-c", textwrap.dedent(WAITING), str(directory), name])


def test_one_process_at_a_time(tmp_path):
    processes = [started(tmp_path, name) for name in "abc"]
    logs = [p.communicate(timeout=120)[1] for p in processes]
    assert [p.returncode for p in processes] == [0, 0, 0], logs
    notes = (tmp_path / "notes").read_text().split()
    assert [n[0] for n in notes[::2]] == [n[0] for n in notes[1::2]], "two were inside at once"
    assert all("cache file locked" in text and "released the cache lock" in text for text in logs)
    assert files(tmp_path) == [tmp_path / "notes"], "the last one takes the lock file away"


def test_a_process_that_dies_gives_way(tmp_path):
    first = started(tmp_path, "dies")
    assert first.communicate(timeout=120) is not None
    assert started(tmp_path, "b").communicate(timeout=120)[1].count("cache file locked") == 1
    assert (tmp_path / "notes").read_text().split() == ["dies+", "dies-", "b+", "b-"]


def distributed(directory) -> poptorch.Options:
    made = poptorch.Options() if directory is None else options(directory)
    made.Distributed.configureProcessId(0, 2)
    return made


def test_processes_of_one_job_share_the_cache(linear, batch, cached, log):
    poptorch.inferenceModel(linear, distributed(cached))(batch[0])
    assert log.order("cache file locked", "Finished Poplar compilation", "released the cache lock")
    poptorch.inferenceModel(linear, distributed(cached))(batch[0])
    assert "Executable found in the cache" in log.text
    assert [p.suffix for p in files(cached)] == [".poptorch"]


def test_processes_without_a_cache_are_told(linear, batch, log):
    poptorch.inferenceModel(linear, distributed(None))(batch[0])
    assert "Use poptorch.Options.enableExecutableCaching()" in log.text


# ---- native code ---------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Everything that native code may hold: random numbers, statistics, a constant, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, target=None):
        y = self.norm(self.dropout(torch.relu(self.fc(x)))) + torch.arange(6.0)
        return y if target is None else (y, nn.functional.mse_loss(y, target))


@pytest.fixture
def natively(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")


def run(directory, lr=0.1, steps=1, accumulation=1, training=True):
    """Results of a model, and how many pieces were compiled for it."""
    torch.manual_seed(0)
    model = Noisy()
    opts = options(directory).deviceIterations(steps)
    x, target = torch.randn(4 * steps * accumulation, 6), torch.randn(4 * steps * accumulation, 6)
    if training:
        opts.Training.gradientAccumulation(accumulation)
        opts.outputMode(poptorch.OutputMode.All)
        executor = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
        results = [executor(x, target)[1] for _ in range(2)]
    else:
        executor = poptorch.inferenceModel(model.eval(), opts)
        results = [executor(x) for _ in range(2)]
    compiled = executor.session.store.compiled
    executor.destroy()
    return torch.cat([r.reshape(-1) for r in results]), compiled


@pytest.mark.usefixtures("natively")
def test_native_code_is_compiled_once(cached, log):
    first, compiled = run(cached)
    assert compiled == 1
    again, compiled = run(cached)
    assert compiled == 0
    assert torch.equal(first, again)
    assert len(files(cached)) == 1
    # What is no part of the code is no reason to compile it again.
    assert run(cached, lr=0.5)[1] == 0
    assert run(cached, steps=3)[1] == 0

    (path,) = files(cached)
    data = bytearray(path.read_bytes())
    library = next(n for n in File(path).names() if n.startswith("blob/"))
    position = data.index(File(path).bytes(library)) + 200
    data[position] ^= 1
    path.write_bytes(data)
    log.clear()
    again, compiled = run(cached)
    assert compiled == 1
    assert torch.equal(first, again)
    assert "cannot be used and is compiled again" in log.text
    assert run(cached)[1] == 0, "the damaged file was not replaced"


@pytest.mark.usefixtures("natively")
def test_accumulation_and_inference(cached):
    first, compiled = run(cached, accumulation=2)
    assert compiled == 2  # the micro-batch and the update
    again, compiled = run(cached, accumulation=2)
    assert compiled == 0
    assert torch.equal(first, again)
    assert run(cached, accumulation=2, lr=0.5)[1] == 0
    assert run(cached, accumulation=2, steps=3)[1] == 0
    first, compiled = run(cached, training=False)
    assert compiled == 1
    again, compiled = run(cached, training=False)
    assert compiled == 0
    assert torch.equal(first, again)


@pytest.mark.usefixtures("natively")
def test_an_update_that_stays_as_it_is_compiles_nothing(cached, monkeypatch):
    monkeypatch.setattr(optimizers, "MANY_WEIGHTS", 1)
    first, compiled = run(cached, accumulation=2)
    assert compiled == 1  # the micro-batch
    again, compiled = run(cached, accumulation=2)
    assert compiled == 0
    assert torch.equal(first, again)


@pytest.mark.usefixtures("natively")
def test_another_number_of_micro_batches_compiles_the_update_alone(cached, tmp_path, monkeypatch):
    """It divides by that number, which is compiled in as any constant attribute; the micro-batch is the same."""
    monkeypatch.setattr(cache, "local_folder", lambda: cache.Folder(tmp_path / "pieces"))
    assert run(cached, accumulation=2)[1] == 2
    assert run(cached, accumulation=3)[1] == 1
    assert run(cached, accumulation=3)[1] == 0


@pytest.mark.usefixtures("natively")
def test_exported_files_carry_native_code(cached, tmp_path):
    path = str(tmp_path / "model.poptorch")
    model = Noisy()
    executor = poptorch.inferenceModel(model.eval())
    x = torch.randn(4, 6)
    expected = executor(x)
    executor.save(path, export_model=False)
    loaded = poptorch.inferenceModel(model)
    loaded.loadExecutable(path)
    assert loaded.session.store.compiled == 0
    assert torch.equal(loaded(x), expected)
