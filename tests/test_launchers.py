"""Which launcher counts, when several have left their variables."""

from __future__ import annotations

import pytest

import poptorch
from poptorch.launchers import JobLayout, job_name, layout

TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


def open_mpi(process: int, processes: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(process), "OMPI_COMM_WORLD_SIZE": str(processes)}


def mpich(process: int, processes: int) -> dict[str, str]:
    return {"PMI_RANK": str(process), "PMI_SIZE": str(processes), "PMI_ID": str(process)}


def slurm(process: int, processes: int) -> dict[str, str]:
    return {"SLURM_PROCID": str(process), "SLURM_STEP_NUM_TASKS": str(processes)}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({**open_mpi(0, 1), **TORCHRUN}, (1, 2)),
        ({**mpich(0, 1), **TORCHRUN}, (1, 2)),
        ({**slurm(0, 1), **TORCHRUN}, (1, 2)),
        ({**open_mpi(0, 1), **BY_HAND}, (1, 2)),
        ({**slurm(3, 4), **TORCHRUN, "GROUP_WORLD_SIZE": "4", "RANK": "7", "WORLD_SIZE": "8"}, (7, 8)),
        ({**open_mpi(3, 4), **TORCHRUN, "GROUP_WORLD_SIZE": "4", "RANK": "7", "WORLD_SIZE": "8"}, (7, 8)),
        ({**open_mpi(1, 2), **TORCHRUN}, (1, 2)),
        ({**slurm(0, 2), **open_mpi(3, 8)}, (3, 8)),
        ({**slurm(0, 2), **mpich(3, 8)}, (3, 8)),
        ({**slurm(0, 2), **mpich(0, 2), **open_mpi(3, 8)}, (3, 8)),
        ({**open_mpi(0, 1), **slurm(1, 2)}, (1, 2)),
        ({**open_mpi(0, 1), **mpich(1, 2)}, (1, 2)),
        ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", **slurm(2, 4)}, (0, 1)),
    ],
)
def test_the_nearest_launcher_counts(variables: dict[str, str], expected: tuple[int, int]) -> None:
    assert layout(variables) == JobLayout(*expected)


@pytest.mark.parametrize(
    ("variables", "first", "second"),
    [
        (
            {**open_mpi(0, 2), **TORCHRUN},
            "torchrun says that it is process 1 of 2",
            "Open MPI says that it is process 0 of 2",
        ),
        ({**open_mpi(0, 2), **BY_HAND, "WORLD_SIZE": "4"}, "Open MPI says that it is process 0 of 2", "1 of 4"),
        ({**mpich(1, 3), **open_mpi(0, 2)}, "Open MPI says that it is process 0 of 2", "MPICH or Intel MPI says"),
    ],
)
def test_launchers_that_contradict_each_other(variables: dict[str, str], first: str, second: str) -> None:
    with pytest.raises(poptorch.Error) as error:
        layout(variables)
    assert first in str(error.value)
    assert second in str(error.value)
    assert "env -u" in str(error.value)


def test_processes_of_mpich_name_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for process in range(2):
        for name, value in mpich(process, 2).items():
            monkeypatch.setenv(name, value)
        names.append(job_name())
    assert len(set(names)) == 1
