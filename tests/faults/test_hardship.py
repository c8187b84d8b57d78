"""Full and read-only file systems, clocks that jump, signals: training goes on with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import poptorch
from poptorch.executable import file as container
from poptorch.executable.file import File

PROGRAM = Path(__file__).with_name("hardship_program.py")

pytestmark = pytest.mark.slow


def run(folder: Path, what: str, **variables: str) -> tuple[str, str]:
    """What the program printed, and its log; ``folder`` is where it writes."""
    everything = {
        "POPTORCH_CODEGEN": "interpret",
        "POPTORCH_DUMP": str(folder / "dump"),
        "PVTI_OPTIONS": json.dumps({"enable": "true", "directory": str(folder / "traces")}),
        "POPTORCH_KEY_FILE": str(folder / "key"),
        "POPTORCH_DEVICES_DIR": str(folder / "devices"),
        **variables,
    }
    command = [sys.executable, str(PROGRAM), str(folder), what]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **everything}, timeout=110)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    return done.stdout, done.stderr


def weights_in(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("weights ")]
    return line


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> str:
    """The weights that come out where nothing is wrong."""
    output, _ = run(tmp_path_factory.mktemp("undisturbed"), "none")
    assert "not saved" not in output
    return weights_in(output)


@pytest.mark.parametrize("size", [512, 65_536])
def test_a_full_disk(size, undisturbed, tmp_path):
    output, log = run(tmp_path, f"full={size}")
    assert weights_in(output) == undisturbed
    assert ("not saved" in output) == (not (tmp_path / "saved.poptorch").exists())
    if size == 512:
        assert "not saved" in output
    assert "cannot be written" in log
    assert not list(tmp_path.rglob("*.poptorch-saving"))
    for path in tmp_path.rglob("*.poptorch"):
        assert File(path).names()


def test_a_file_system_that_nothing_can_be_written_to(undisturbed):
    output, log = run(Path("/proc/none"), "none")
    assert weights_in(output) == undisturbed
    assert "not saved" in output
    for what in ("POPTORCH_DUMP", "not locked for other processes", "Nothing is cached", "report", "trace"):
        assert what in log


def test_a_clock_that_jumps(undisturbed, tmp_path):
    output, _ = run(tmp_path, "clock")
    assert weights_in(output) == undisturbed
    assert "not saved" not in output


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_signals_at_random_moments(count, undisturbed, tmp_path):
    output, _ = run(tmp_path, f"signals={count}")
    assert weights_in(output) == undisturbed
    assert int(output.splitlines()[-1].removeprefix("signals ")) >= count


SAVING = """
import sys
from poptorch.executable import file as container
sections = {"a": b"1" * 300_000, "b": b"2" * 300_000}
print("ready", flush=True)
while True:
    container.write(sys.argv[1], sections)
"""


@pytest.mark.parametrize("tries", [8, pytest.param(100, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])])
def test_programs_killed_while_they_save(tries, tmp_path, capsys):
    """After each, the file is whole, and at most one unfinished file is left, which the next save removes."""
    path = tmp_path / "saved"
    with capsys.disabled():
        print(f" {tries} killed", end="")
    for number in range(tries):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.013 * (number % 11) / 10)
        process.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        process.communicate()
        if path.exists():
            assert {name: len(File(path).bytes(name)) for name in ("a", "b")} == {"a": 300_000, "b": 300_000}
        assert len(os.listdir(tmp_path)) <= 2
    container.write(tmp_path / "last", {})
    assert sorted(os.listdir(tmp_path)) == sorted({"last", path.name} & {"last", *os.listdir(tmp_path)})


SOAK_SECONDS = 20 * 60


def counted() -> dict[str, float]:
    """What a process has: memory in MiB, descriptors, threads, and shared memory."""
    own = Path("/proc/self")
    pages = int((own / "statm").read_text().split()[1])
    return {
        "MiB": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "descriptors": len(os.listdir(own / "fd")),
        "threads": len(os.listdir(own / "task")),
        "shared mappings": sum("/dev/shm" in line or "memfd" in line for line in (own / "maps").open()),
    }


@pytest.mark.exhaustive
@pytest.mark.timeout(SOAK_SECONDS + 900)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the system's account of memory")
def test_twenty_minutes_of_training_with_native_code_take_nothing(tmp_path, monkeypatch, capsys):
    """Training, validating, loading by processes and saving, again and again: what a process has stays the same."""
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    from hardship_program import Classifier, Items

    options = poptorch.Options().deviceIterations(2).randomSeed(5)
    model = Classifier()
    training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=1e-3))
    first: dict[str, float] = {}
    seconds = float(os.environ.get("SOAK_SECONDS", SOAK_SECONDS))
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < seconds or rounds < 20:
        loader = poptorch.DataLoader(options, Items(), 4, num_workers=1, mode=poptorch.DataLoaderMode.Async)
        for x, label in loader:
            training(x, label)
        loader.terminate()
        training.save(str(tmp_path / "saved.poptorch"))
        torch.save(model.state_dict(), tmp_path / "checkpoint")
        rounds += 1
        if rounds == 10:
            first = counted()
    last = counted()
    with capsys.disabled():
        print(f" {rounds} rounds in {time.monotonic() - began:.0f} s: {first} at first, {last} at last", end="")
    assert last["MiB"] < first["MiB"] + 20
    assert last["descriptors"] <= first["descriptors"] + 1
    assert last["threads"] <= first["threads"] + 1
    assert last["shared mappings"] <= first["shared mappings"] + 1
