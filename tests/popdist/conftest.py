"""The environment of a launcher, without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import popdist


@pytest.fixture(autouse=True)
def _no_backend() -> Iterator[None]:
    popdist.finalizeBackend()
    yield
    popdist.finalizeBackend()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the variables that PopRun sets for one instance."""

    def set_variables(*, total: int, local: int, ipus: int, instance: int, uniform: int = 1) -> None:
        layout = {
            "POPDIST_NUM_TOTAL_REPLICAS": total,
            "POPDIST_NUM_LOCAL_REPLICAS": local,
            "POPDIST_NUM_IPUS_PER_REPLICA": ipus,
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": uniform,
            "POPDIST_REPLICA_INDEX_OFFSET": instance * local,
            "POPDIST_LOCAL_INSTANCE_INDEX": instance,
            "OMPI_COMM_WORLD_SIZE": total // local,
            "OMPI_COMM_WORLD_RANK": instance,
        }
        for name, value in layout.items():
            monkeypatch.setenv(name, str(value))

    return set_variables
