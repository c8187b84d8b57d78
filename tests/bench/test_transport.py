"""The α-β model of a transport, and its fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport import Collective, Link, Sample, Transport, crowding, fit

COUNTS = st.integers(2, 2048)
SIZES = st.integers(4, 1 << 30)
LINKS = st.builds(Link, st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8))
RINGS = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)


@given(COUNTS, SIZES)
def test_an_all_reduce_sends_twice_what_is_not_a_processs_own(processes: int, size: int) -> None:
    sent = Collective.ALL_REDUCE.volume(processes, size)
    assert sent == pytest.approx(2 * (processes - 1) / processes * size)
    assert sent < 2 * size


@given(COUNTS, SIZES)
def test_reduce_scatter_and_all_gather_make_an_all_reduce(processes: int, size: int) -> None:
    halves = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    assert sum(it.rounds(processes) for it in halves) == Collective.ALL_REDUCE.rounds(processes)
    volume = sum(it.volume(processes, size) for it in halves)
    assert volume == pytest.approx(Collective.ALL_REDUCE.volume(processes, size))


@pytest.mark.parametrize("kind", Collective)
def test_one_process_sends_nothing(kind: Collective) -> None:
    assert kind.rounds(1) == 0
    assert kind.volume(1, 1 << 20) == 0


@given(st.sampled_from(RINGS), COUNTS, SIZES, LINKS)
def test_more_processes_and_more_bytes_take_longer(kind: Collective, processes: int, size: int, link: Link) -> None:
    wire = Transport("any", {kind: link})
    assert kind.volume(processes + 1, size) > kind.volume(processes, size)
    assert wire.seconds(kind, processes + 1, size) > wire.seconds(kind, processes, size)
    assert wire.seconds(kind, processes, size + 4096) > wire.seconds(kind, processes, size)


@given(st.integers(1, 64), st.integers(1, 64))
def test_processes_take_turns_only_where_there_are_too_few_cores(processes: int, cores: int) -> None:
    assert crowding(processes, cores) == (1.0 if processes <= cores else processes / cores)


@given(st.sampled_from(RINGS), LINKS, st.sampled_from([None, 1, 2, 4]))
def test_a_fit_finds_the_link_that_made_the_times(kind: Collective, link: Link, cores: int | None) -> None:
    wire = Transport("any", {kind: link}, cores)
    made = [
        Sample(kind, count, size, wire.seconds(kind, count, size)) for count in (2, 4, 8) for size in (4, 4096, 1 << 26)
    ]
    found = fit(made, cores)
    assert found.link.latency == pytest.approx(link.latency, rel=1e-6)
    assert found.link.seconds_per_byte == pytest.approx(link.seconds_per_byte, rel=1e-6)
    assert found.worst_error < 1e-6


@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4))
def test_a_fit_is_never_negative(seconds: list[float]) -> None:
    sizes = (4, 4096, 1 << 20, 1 << 26)
    found = fit([Sample(Collective.ALL_REDUCE, 2, n, t) for n, t in zip(sizes, seconds, strict=True)], None)
    assert found.link.latency >= 0
    assert found.link.seconds_per_byte >= 0
    assert found.median_error <= found.worst_error
