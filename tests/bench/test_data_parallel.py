"""The prediction of training steps, and the simulation of their exchange."""

from __future__ import annotations

import pytest
from data_parallel import (
    Compute,
    Exchange,
    Portion,
    Sharding,
    Training,
    Workload,
    exchange_seconds,
    exposed,
    operations,
    volume,
)
from exchange_simulation import simulate
from hypothesis import given
from hypothesis import strategies as st
from transport import Collective, Link, Transport

WIRE = Transport("example", dict.fromkeys(Collective, Link(5e-5, 8e-10)))
COUNTS = st.integers(2, 1024)
EXCHANGES = st.sampled_from(Exchange)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    sizes = draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=6))
    ready = sorted(draw(st.floats(0, 1)) for _ in sizes)
    portions = tuple(Portion(4 * size, share) for size, share in zip(sizes, ready, strict=True))
    return Workload("any", portions, portions, Sharding(tuple(sizes), bucket_bytes=1 << 20))


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    compute = Compute(draw(st.floats(0, 0.1)), draw(st.floats(1e-4, 0.1)))
    samples = draw(st.integers(1, 64))
    return Training(draw(workloads()), compute, samples, 1024, draw(st.integers(1, samples)))


@given(workloads(), EXCHANGES)
def test_one_process_exchanges_nothing(workload: Workload, exchange: Exchange) -> None:
    assert operations(workload, 1, exchange) == []
    assert volume(workload, 1, exchange) == 0
    assert exchange_seconds(workload, WIRE, 1, exchange) == 0


@given(workloads(), COUNTS, st.sampled_from([Exchange.AFTER, Exchange.OVERLAPPED]))
def test_the_volume_is_that_of_a_ring_and_grows(workload: Workload, processes: int, exchange: Exchange) -> None:
    sent = volume(workload, processes, exchange)
    assert sent == pytest.approx(2 * (processes - 1) / processes * workload.gradient_bytes)
    assert volume(workload, processes + 1, exchange) > sent


@given(workloads(), COUNTS)
def test_sharding_sends_as_much_and_padding(workload: Workload, processes: int) -> None:
    whole, sharded = volume(workload, processes, Exchange.AFTER), volume(workload, processes, Exchange.SHARDED)
    padding = 8 * processes * len(workload.sharding.elements)
    assert whole <= sharded * (1 + 1e-9)
    assert sharded <= whole + padding


@given(trainings(), COUNTS)
def test_overlap_hides_at_most_the_last_back_propagation(training: Training, processes: int) -> None:
    def seconds(exchange: Exchange) -> float:
        return training.seconds(WIRE, processes, exchange, training.samples)

    alone = training.compute.seconds(training.samples)
    backward = training.compute.per_sample * training.compute.backward * training.micro_batch
    assert alone <= seconds(Exchange.OVERLAPPED) <= seconds(Exchange.AFTER) * (1 + 1e-9)
    assert seconds(Exchange.AFTER) - seconds(Exchange.OVERLAPPED) <= backward * (1 + 1e-9)


@given(trainings(), COUNTS, EXCHANGES)
def test_efficiency_is_at_most_one(training: Training, processes: int, exchange: Exchange) -> None:
    assert training.weak_efficiency(WIRE, 1, exchange) == 1
    assert 0 < training.weak_efficiency(WIRE, processes, exchange) <= 1
    assert training.strong_speedup(WIRE, processes, exchange) <= processes * (1 + 1e-9)


@given(trainings())
def test_without_any_cost_of_messages_weak_scaling_is_perfect(training: Training) -> None:
    free = Transport("free", dict.fromkeys(Collective, Link(0.0, 0.0)))
    for exchange in Exchange:
        assert training.weak_efficiency(free, 1024, exchange) == pytest.approx(1)


def test_processes_that_share_cores_take_turns_and_hide_nothing() -> None:
    crowded = Transport("crowded", WIRE.links, cores=2)
    portions = (Portion(4_000_000, 0.1),)
    training = Training(Workload("any", portions, portions, Sharding(())), Compute(0.0, 1.0), 1, 8, 1)
    after, overlapped = (training.seconds(crowded, 8, it, 1) for it in (Exchange.AFTER, Exchange.OVERLAPPED))
    assert after == overlapped == pytest.approx(4 * (1 + WIRE.seconds(Collective.ALL_REDUCE, 8, 4_000_000)))


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=8))
def test_the_closed_form_is_that_of_portions_that_take_turns(portions: list[tuple[float, float]]) -> None:
    free = 0.0
    for ready, seconds in sorted(portions):
        free = max(free, ready) + seconds
    assert exposed(portions, 5.0) == pytest.approx(max(0.0, free - 5.0))


def closed_form(ready: list[float], sizes: list[int], processes: int) -> float:
    costs = [WIRE.seconds(Collective.ALL_REDUCE, processes, size) for size in sizes]
    return exposed(zip(ready, costs, strict=True), 0.0)


@given(workloads(), st.integers(2, 12), st.floats(0.001, 1))
def test_the_simulation_of_equal_processes_ends_when_the_closed_form_says(
    workload: Workload, processes: int, backward: float
) -> None:
    ready = [it.ready * backward for it in workload.as_ready]
    sizes = [it.size for it in workload.as_ready]
    found = simulate([ready] * processes, sizes, WIRE.links[Collective.ALL_REDUCE])
    assert found == pytest.approx(closed_form(ready, sizes, processes))


@given(workloads(), st.lists(st.floats(0.5, 1), min_size=2, max_size=8))
def test_the_simulation_of_uneven_processes_lies_between_the_fastest_and_the_slowest(
    workload: Workload, lengths: list[float]
) -> None:
    sizes = [it.size for it in workload.as_ready]
    ready = [[it.ready * length for it in workload.as_ready] for length in lengths]
    found = simulate(ready, sizes, WIRE.links[Collective.ALL_REDUCE])
    portions = list(zip(*ready, strict=True))
    fastest = closed_form([min(times) for times in portions], sizes, len(lengths))
    slowest = closed_form([max(times) for times in portions], sizes, len(lengths))
    assert fastest * (1 - 1e-9) <= found <= slowest * (1 + 1e-9)


def test_one_process_is_done_when_it_has_computed() -> None:
    assert simulate([[0.5, 1.0]], [8, 8], Link(1.0, 1.0)) == 1.0
