"""What passes between processes that share a replica."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch
from pipeline_cases import WIDTH, Net
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.passes.stages import Edge
from poptorch.compiler.request import request_for
from poptorch.runtime.crossings import Crossings, crossings_of
from poptorch.runtime.stage_messages import flat, packed_as, room_for
from poptorch.runtime.tasks import Work, build_tasks

MICRO = 8


def crossings(process: int, *, training: bool, replicas: int = 1, **model: Any) -> Crossings:
    """What one of two processes has of a pipeline."""
    with torch.device("meta"):
        net = Net(**model)
        batch = torch.empty(MICRO, WIDTH)
    options = poptorch.Options()
    options.Training.gradientAccumulation(MICRO)
    options.Distributed.configureProcessId(process, 2).processesPerReplica(2)
    if not training:
        options.deviceIterations(MICRO)
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1) if training else None
    arguments = (batch, batch) if training else (batch,)
    device = lower_for_device(request_for(net, options, arguments, optimizer=optimizer))
    assert device.blocks is not None
    graph = build_tasks(device.plan, Work.of_device(device.plan), MICRO, replicas, training=training)
    return crossings_of(graph, device.plan.stages, device.plan.edges, device.blocks)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("stages", [2, 4])
def test_what_one_sends_the_other_awaits(training: bool, replicas: int, stages: int) -> None:
    both = [crossings(p, training=training, replicas=replicas, stages=stages, skip=True) for p in range(2)]
    for one, other in (both, both[::-1]):
        sent = {(m.tag, m.edge) for messages in one.sent.values() for m in messages}
        awaited = {(m.tag, m.edge) for messages in other.awaited.values() for m in messages}
        assert sent == awaited
        assert sent
        assert one.graph.is_acyclic()
        assert one.graph.elsewhere == set(one.awaited)
    tags = [m.tag for one in both for messages in one.sent.values() for m in messages]
    assert len(tags) == len(set(tags)), "every message has a tag of its own"


def test_an_early_stage_of_inference_waits_for_later_ones_without_values() -> None:
    """Else it would run through all micro-batches, and their values would wait in memory."""
    first = crossings(0, training=False)
    assert {m.edge for messages in first.awaited.values() for m in messages} == {None}


def test_channels_have_an_order_in_which_tasks_can_run() -> None:
    one = crossings(1, training=True, replicas=2, stages=4)
    for channel in one.channels():
        ticks = [one.graph.tasks[index].tick for index in channel]
        assert ticks == sorted(ticks)
    assert sorted(index for channel in one.channels() for index in channel) == sorted(one.awaited)


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(3)), st.tuples(*[st.integers(0, 3)] * 3), st.booleans())
def test_a_value_lies_as_where_it_was_computed(order: list[int], shape: tuple[int, ...], spread: bool) -> None:
    value = torch.randn(shape).permute(order)
    if spread:
        value = value.unsqueeze(-1).expand(*value.shape, 2)
    edge = Edge("x", 0, (1,), tuple(value.shape), value.dtype, tuple(value.stride()))
    room = room_for(edge)
    message, arrived = packed_as(edge, value), flat(room)
    assert message.is_contiguous()
    assert message.numel() == arrived.numel() >= 1
    arrived.copy_(message)
    assert torch.equal(room, value)
    if value.numel() and not spread:
        assert room.stride() == value.stride() or not value.is_non_overlapping_and_dense()
