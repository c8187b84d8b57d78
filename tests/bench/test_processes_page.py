"""The page about scaling: it follows from the measurements, and these are about what the package really does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import data_parallel_models as models
import process_jobs
import processes_page
import pytest
import torch
from transport import Collective

from poptorch.distributed.exchange import ProcessExchange

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data() -> Mapping[str, Any]:
    return json.loads((ROOT / "bench" / "processes.json").read_text())


def test_the_page_is_that_of_the_measurements(data: Mapping[str, Any]) -> None:
    docs = ROOT / "docs"
    assert (docs / processes_page.PAGE).read_text() == processes_page.page(data), "python bench/processes.py page"
    assert (docs / processes_page.PICTURE).read_text() == processes_page.picture(data)


def test_all_that_is_predicted_was_measured(data: Mapping[str, Any]) -> None:
    measured = {(it["processes"], it["model"], it["samples"]) for it in data["check"]["rows"]}
    assert measured == {(count, *case) for count in process_jobs.COUNTS for case in process_jobs.checked_cases(count)}
    assert {it["processes"] for it in data["transport"]["rows"]} == {2, 4, 8}
    assert {it["size"] for it in data["transport"]["rows"]} == set(process_jobs.SIZES)


def test_parameters_of_the_models(data: Mapping[str, Any]) -> None:
    counts = {}
    for name in ("BERT-base", "ResNet-50"):
        counts[name] = processes_page.workload_from(data["models"][name]).gradient_bytes // 4
    assert counts == {"BERT-base": 109_514_298, "ResNet-50": 25_557_032}


def test_what_is_kept_about_a_model_is_what_it_exchanges(data: Mapping[str, Any]) -> None:
    for name, trainable in models.SMALL.items():
        assert processes_page.workload_from(data["models"][name]) == models.workload_of(trainable(1), name)


class Recorder:
    """A group of processes that only notes what it is asked for."""

    pids = None

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[tuple[Collective, int]] = []

    def start_sum(self, tensor: torch.Tensor) -> Recorder:
        self.asked.append((Collective.ALL_REDUCE, tensor.nbytes))
        return self

    def start_scatter_sum(self, parts: torch.Tensor, own: torch.Tensor) -> Recorder:
        self.asked.append((Collective.REDUCE_SCATTER, parts.nbytes))
        return self

    def start_gather_parts(self, own: torch.Tensor, parts: torch.Tensor) -> Recorder:
        self.asked.append((Collective.ALL_GATHER, parts.nbytes))
        return self

    def advance(self) -> None:
        pass

    def wait(self) -> None:
        pass


SIZES = {"bias": 100, "large": 3_000_000, "middle": 900_000, "other": 800_000, "small": 7}


@pytest.fixture
def gradients() -> dict[str, torch.Tensor]:
    return {name: torch.ones(count, device="meta") for name, count in SIZES.items()}


def test_portions_are_those_of_the_exchange(gradients: dict[str, torch.Tensor]) -> None:
    group = Recorder(4)
    with torch.device("meta"):
        ProcessExchange(group).start(gradients, {}).take()  # type: ignore[arg-type]
    portions = models.portions_of(gradients)
    assert len(group.asked) == len(portions)
    for (kind, size), names in zip(group.asked, portions, strict=True):
        assert kind is Collective.ALL_REDUCE
        assert 0 <= size - sum(gradients[name].nbytes for name in names) < 64 * len(names)  # padding


def test_portions_of_sharded_state_are_those_of_the_exchange(gradients: dict[str, torch.Tensor]) -> None:
    group = Recorder(4)
    held = {name: (0, -(-count // 4)) for name, count in SIZES.items() if count >= models.MIN_SHARDED}
    with torch.device("meta"):
        exchange = ProcessExchange(group)  # type: ignore[arg-type]
        exchange.start(gradients, held).take()
        exchange.gather({name: gradients[name] for name in held}, held)
    sharding = models.Sharding(tuple(SIZES[name] for name in held), bucket_bytes=models.BUCKET_BYTES)
    expected = sharding.portions(4)
    assert [size for kind, size in group.asked if kind is Collective.REDUCE_SCATTER] == expected
    assert [size for kind, size in group.asked if kind is Collective.ALL_GATHER] == expected


def test_gradients_of_later_layers_are_ready_first() -> None:
    shares = models.ready_shares(models.small_mlp(1))
    ready = [shares[f"net.{layer}.weight"] for layer in (0, 2, 4)]
    assert ready == sorted(ready, reverse=True)
    assert ready[0] == 1
    assert 0 < ready[2] < 0.1  # 10 of more than a thousand outputs
