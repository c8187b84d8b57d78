"""How many micro-batches are computed at once: a question of the program and its loops, not of the machine."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import poptorch
from poptorch.enums import CommGroupType
from poptorch.executable.groups import HostLoop


@pytest.fixture(autouse=True)
def _sizes_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POPTORCH_GROUP")


def group_size_of(model, rows, *, accumulation=8, shape=(8,), configure=lambda options: None, **optimizer):
    """The size of the groups of a training model."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    configure(options)
    wrapped = WithLoss(model)
    executor = poptorch.trainingModel(wrapped, options, poptorch.optim.SGD(wrapped.parameters(), lr=0.1, **optimizer))
    executor.compile(torch.ones(rows * accumulation * options.replication_factor, *shape))
    return executor.executable.code.loop.group_size


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x), reduction="mean")


def wide(rows):
    return group_size_of(nn.Linear(1024, 1024), rows, shape=(1024,))


def test_products_get_enough_rows():
    assert [wide(rows) for rows in (16, 64, 128, 256)] == [8, 4, 2, 1]


def test_tiny_programs_are_computed_in_one_go():
    assert group_size_of(nn.Linear(8, 8), 2) == 8
    assert group_size_of(nn.Linear(8, 8), 2, accumulation=1) == 1


def test_activations_take_no_more_memory_than_weights():
    class Wasteful(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return torch.sin(torch.sin(x * self.weight))

    assert group_size_of(Wasteful(), 1, shape=(1 << 20,)) == 1


def test_many_replicas_have_enough_activations():
    sizes = [group_size_of(nn.Linear(8, 8), 2, configure=lambda o, n=n: o.replicationFactor(n)) for n in (2, 4)]
    assert sizes == [8, 1]


def test_a_pipeline_has_a_group_for_each_ipu():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    for ipu, layer in enumerate(model):
        poptorch.BeginBlock(layer, f"{ipu}", ipu_id=ipu)
    assert group_size_of(model, 2) == 2


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1.0
        return self.layer(x)


class Printing(nn.Linear):
    def forward(self, x):
        return poptorch.ipu_print_tensor(super().forward(x))


class Halved(nn.Linear):
    def forward(self, x):
        return super().forward(x.half()).float()


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Counting, {}),
        (lambda: Printing(8, 8), {}),
        (lambda: nn.Linear(8, 8), {"configure": lambda o: o.anchorTensor("y", "model/Gemm:0")}),
        (lambda: Halved(8, 8).half(), {}),
        (lambda: Halved(8, 8).half(), {"configure": lambda o: o.Training.setAutomaticLossScaling(True)}),
        (lambda: nn.Linear(8, 8), {"configure": lambda o: o.Precision.enableFloatingPointExceptions(True)}),
        (lambda: nn.Linear(8, 8), {"use_combined_accum": False, "accum_type": torch.float16}),
    ],
    ids=["buffer", "print", "anchor", "float16", "loss scaling", "checks", "half accumulators"],
)
def test_what_each_micro_batch_does_by_itself(make, settings):
    assert group_size_of(make(), 2, **settings) == 1


def test_phases_move_for_each_micro_batch():
    def phased(options):
        options.setExecutionStrategy(poptorch.SerialPhasedExecution(poptorch.Stage("a").ipu(0)))

    assert group_size_of(poptorch.BeginBlock(nn.Linear(8, 8), "a"), 2, configure=phased) == 1


@pytest.mark.parametrize(("wanted", "size"), [("1", 1), ("3", 4), ("8", 8), ("100", 8)])
def test_the_user_may_say(monkeypatch, wanted, size):
    monkeypatch.setenv("POPTORCH_GROUP", wanted)
    assert group_size_of(nn.Linear(8, 8), 2) == size


@given(
    iterations=st.integers(1, 3),
    groups=st.integers(1, 3),
    size=st.integers(1, 4),
    replicas=st.sampled_from([1, 2, 4]),
    training=st.booleans(),
    grouped=st.booleans(),
)
def test_groups_are_all_micro_batches(iterations, groups, size, replicas, training, grouped):
    steps = groups * size if training else 1
    loop = HostLoop(
        iterations if training else groups * size,
        steps,
        replicas,
        input_group_size=2 if grouped and replicas > 1 else 1,
        input_group_type=CommGroupType.Orthogonal if iterations % 2 else CommGroupType.Consecutive,
        group_size=size if steps > 1 or not training else 1,
    )
    alone = HostLoop(loop.device_iterations, steps, replicas, loop.input_group_size, loop.input_group_type)
    found = {}
    for first in loop.group_starts():
        for place, tick in enumerate(loop.members(first)):
            assert tick not in found
            found[tick] = loop.input_block(first), place
            assert tick.replica == first.replica
            assert not training or tick.iteration == first.iteration  # no update in between
    assert set(found) == set(loop.micro_batches())
    groups = loop.input_groups
    for tick, (block, place) in found.items():
        number, group = divmod(block, groups)
        assert (number * loop.group_size + place) * groups + group == alone.input_block(tick)
