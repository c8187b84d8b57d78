"""Programs that PopRun, ``mpirun`` and ``torchrun`` start: what they find, and that they train the same weights."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch
from closeness import assert_close_sums

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from training import REPLICAS, ROWS, STEPS, train  # noqa: E402

from distributed_cases import CASES  # noqa: E402
from distributed_cases import ROWS as CASE_ROWS  # noqa: E402
from distributed_cases import STEPS as CASE_STEPS  # noqa: E402

pytestmark = pytest.mark.timeout(400)
PATIENCE = 300
TYPES = [torch.float16, torch.float32, torch.int8, torch.int16, torch.int32, torch.int64]


def run(command: list[str], folder: Path, **variables: str) -> tuple[str, list[dict[str, Any]]]:
    """What a job printed, and what its processes wrote."""
    settings = {"POPTORCH_CODEGEN": "interpret", "HOME": str(folder), "POPTORCH_VIPU_DIR": str(folder / "vipu")}
    environment = {**os.environ, **settings, **variables}
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    files = sorted(folder.glob("[0-9]*.pt"))
    return done.stdout, [torch.load(file, weights_only=False) for file in files]


def poprun(*options: str) -> list[str]:
    return [sys.executable, "-m", "popdist.poprun", *options]


def mpirun() -> str:
    found = shutil.which("mpirun")
    if found is None:
        assert not os.environ.get("REQUIRE_MPI"), "there is no mpirun, and .ci/run says that there must be one"
        pytest.skip("there is no mpirun (package openmpi-bin)")
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    """The weights of one process with all replicas."""
    trained = train(poptorch.Options().replicationFactor(REPLICAS), 0, 1)
    weights = {name: value.clone() for name, value in trained.state_dict().items()}
    trained.destroy()
    return weights


def assert_same_training(found: list[dict[str, Any]], expected: dict[str, torch.Tensor]) -> None:
    for one in found:
        assert_close_sums(one["weights"], expected, terms=REPLICAS * ROWS, steps=2 * STEPS, scale=1.0)
        for name, value in one["weights"].items():
            assert torch.equal(value, found[0]["weights"][name])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """Two instances with two replicas each, with a cache."""
    folder = tmp_path_factory.mktemp("two")
    options = ["--num-replicas=4", "--num-instances=2", f"--executable-cache-path={folder}/cache"]
    return run([*poprun(*options), sys.executable, "job_program.py", str(folder)], folder)


def test_the_layout_of_two_instances(two: tuple[str, list[dict[str, Any]]]) -> None:
    printed, found = two
    assert sorted(line for line in printed.splitlines() if "done" in line) == [
        f"[1,{i}]<stdout>:instance {i} of 2 is done" for i in range(2)
    ]
    assert [one["layout"] for one in found] == [(4, 2, 0, 2, 0, 0), (4, 2, 2, 2, 1, 1)]
    assert [one["process"] for one in found] == [(0, 2), (1, 2)]
    assert [one["plain process"] for one in found] == [2, 2]
    assert [one["device"] for one in found] == [64, 65]
    assert all(one["backend"] and one["cache"] and not one["backend afterwards"] for one in found)


def test_two_instances_train_the_weights_of_one(
    two: tuple[str, list[dict[str, Any]]], alone: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same_training(two[1], alone)


def test_collectives(two: tuple[str, list[dict[str, Any]]]) -> None:
    for one in two[1]:
        assert [(t.dtype, t.tolist()) for t in one["sums"]] == [(dtype, [3, 3]) for dtype in TYPES]
        assert [(t.dtype, t.tolist()) for t in one["gathered"]] == [(dtype, [[0], [1]]) for dtype in TYPES]
        assert [(t.dtype, t.tolist()) for t in one["told"]] == [(dtype, [1]) for dtype in (*TYPES, torch.bool)]
        assert one["named"] == {"a": 3, "bb": 5, "ccc": 7}


def test_functions_on_one_instance(two: tuple[str, list[dict[str, Any]]]) -> None:
    first, second = (one["some"] for one in two[1])
    assert first == {"result": "saved by 1", "calls": [0], "failed": True, "total after": 2}
    assert second == {"result": None, "calls": [], "failed": False, "total after": 2}


def test_horovod(two: tuple[str, list[dict[str, Any]]]) -> None:
    found = [one["horovod"] for one in two[1]]
    assert [one["layout"] for one in found] == [(0, 2, 0, 2), (1, 2, 1, 2)]
    for one in found:
        assert one["mean"].tolist() == one["average"].tolist() == [0.5, 1.0]
        assert (one["sum"].dtype, one["sum"].tolist()) == (torch.float16, [1.0, 2.0])
        assert [t.tolist() for t in one["grouped"]] == [[1.0, 1.0], [1, 1]]
        assert (one["seed"].tolist(), one["timings"].tolist()) == ([7], [0.0, 1.0])
        assert (one["rows"].tolist(), one["object"]) == ([0, 1, 1], {"name": 1})
    assert torch.equal(found[0]["weights"], found[1]["weights"])


def test_weights_of_one_instance_for_all(two: tuple[str, list[dict[str, Any]]]) -> None:
    assert torch.equal(two[1][0]["outputs"], two[1][1]["outputs"])


def test_four_instances_offline_with_mpirun(tmp_path: Path, alone: dict[str, torch.Tensor]) -> None:
    mpirun()
    options = ["--host=localhost", "--num-replicas=4", "--num-instances=4", "--offline-mode=on"]
    _, found = run([*poprun(*options), sys.executable, "job_program.py", str(tmp_path)], tmp_path)
    assert [one["layout"] for one in found] == [(4, 1, i, 4, i, i) for i in range(4)]
    assert_same_training(found, alone)
    for one in found:
        assert torch.equal(one["outputs"], found[0]["outputs"])
        assert one["named"] == {"a": 10, "bb": 14, "ccc": 18}
        assert [t.tolist() for t in one["sums"]] == [[10, 10]] * len(TYPES)
        assert one["some"]["total after"] == 4


def test_the_sample_of_the_user_guide_with_mpirun(tmp_path: Path, alone: dict[str, torch.Tensor]) -> None:
    """A partition with two parts: each process sees the two IPUs of its own."""
    command = mpirun()
    create = ["create", "partition", "my_partition", "--size", "4", "--num-gcds", "2", "--gcd-sync-replicas", "4"]
    run([sys.executable, "-m", "popdist.vipu", *create], tmp_path)
    assert sorted(path.name for path in (tmp_path / ".ipuof.conf.d").iterdir()) == [
        "my_partition_gcd0_ipuof.conf", "my_partition_gcd1_ipuof.conf",
    ]  # fmt: skip
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    _, found = run([command, *options, "-np", "2", sys.executable, "sample.py", str(tmp_path)], tmp_path)
    assert [one["process"] for one in found] == [(0, 2), (1, 2)]
    assert [one["devices"] for one in found] == [[True, True, False]] * 2
    assert_same_training(found, alone)


def test_the_sample_with_torchrun(tmp_path: Path, alone: dict[str, torch.Tensor]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    _, found = run([*command, "sample.py", str(tmp_path)], tmp_path)
    assert [one["process"] for one in found] == [(0, 2), (1, 2)]
    assert_same_training(found, alone)


def test_the_sample_with_poprun(tmp_path: Path, alone: dict[str, torch.Tensor]) -> None:
    options = ["--num-replicas=4", "--num-instances=2", "--vipu-partition=mine"]
    _, found = run([*poprun(*options), sys.executable, "sample.py", str(tmp_path)], tmp_path)
    assert [one["devices"] for one in found] == [[True, True, False]] * 2, "the two IPUs of each part"
    assert_same_training(found, alone)
    assert not list((tmp_path / "vipu").glob("*.json")), "the partition went with the job"


LAUNCHED = ["two replicas each, sgd", "two replicas each", "two replicas each, lamb", "two replicas each, all"]
"""SGD, AdamW, LAMB; SGD with accumulation and float16 under automatic loss scaling."""


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, torch.Tensor]]:
    """What one process with four replicas gets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POPTORCH_CODEGEN", "interpret")
        return {name: CASES[name].train() for name in LAUNCHED}


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("launcher", ["poprun", "torchrun", "mpirun"])
def test_every_launcher_trains_the_weights_of_one_process(
    launcher: str, processes: int, tmp_path: Path, expected: dict[str, dict[str, torch.Tensor]]
) -> None:
    options = {
        "poprun": [*poprun("--num-replicas=4", f"--num-instances={processes}"), sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"],
        "mpirun": ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(processes)],
    }
    command = [mpirun(), *options["mpirun"], sys.executable] if launcher == "mpirun" else options[launcher]
    _, found = run([*command, "launched.py", str(tmp_path), *LAUNCHED], tmp_path)
    assert len(found) == processes
    for name in LAUNCHED:
        case, whole = CASES[name], expected[name]
        bounds = {"terms": 1 if case.half else 4 * case.accumulation * CASE_ROWS, "steps": 4 * CASE_STEPS, "scale": 1.0}
        for one in found:
            weights = {key: value for key, value in one[name].items() if key.endswith(("weight", "bias"))}
            assert weights
            dtype = torch.float16 if case.half else None
            assert_close_sums(weights, {key: whole[key] for key in weights}, **bounds, dtype=dtype)
            assert all(torch.equal(value, found[0][name][key]) for key, value in weights.items())


def test_the_others_name_an_instance_that_is_killed(tmp_path: Path) -> None:
    settings = {"POPTORCH_CODEGEN": "interpret", "HOME": str(tmp_path), "POPTORCH_VIPU_DIR": str(tmp_path / "vipu")}
    command = [*poprun("--num-replicas=2", "--num-instances=2"), sys.executable, "killed.py"]
    environment = {**os.environ, **settings}
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 128 + signal.SIGKILL
    assert "Instance 1 " in done.stderr
    assert re.search(r"\[1,0\]<stderr>:.*RecoverableError.*process 1 .* has died", done.stderr), done.stderr[-3000:]
    assert "PARTITION_RESET" in done.stderr
