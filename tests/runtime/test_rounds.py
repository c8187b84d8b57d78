"""Gradients leave for other processes while back-propagation goes on, and what is left of them is freed."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.executable.executable import Executable
from poptorch.host import build
from poptorch.host.native import outlining
from poptorch.profiling.trace import NO_TRACE
from poptorch.runtime.exchange import ExchangeTransfer, Gradients, Ranges
from poptorch.runtime.rounds import RoundExchange

LAYERS, WIDTH, ROWS = 6, 16, 4


class OnTheWay:
    """Gradients whose sum is there when it is asked for. Until then there is a copy of them."""

    def __init__(self, copies: Sequence[torch.Tensor], sums: Gradients) -> None:
        self._copies = copies
        self._sums = sums

    def advance(self) -> None:
        pass

    def take(self) -> Gradients:
        self._copies = ()
        return self._sums


class Twin:
    """Another process with the same data: sums are twice as large, and of shards this is the first process."""

    is_local = False

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.abandoned = 0
        self.peak = 0
        """The most bytes of whole gradients, and of their copies on the way, that were alive when some left."""

        self.fails_at: int | None = None
        self._tensors: list[weakref.ref[torch.Tensor]] = []

    @property
    def started(self) -> list[tuple[str, ...]]:
        return [event for event in self.events if isinstance(event, tuple)]

    def start(self, gradients: Gradients, held: Ranges) -> ExchangeTransfer:
        if len(self.started) == self.fails_at:
            raise RuntimeError("no way")
        self.events.append(tuple(gradients))
        copies = [gradient.clone() for gradient in gradients.values()]
        self._tensors += [weakref.ref(tensor) for tensor in (*gradients.values(), *copies)]
        alive = [tensor for ref in self._tensors if (tensor := ref()) is not None]
        self.peak = max(self.peak, sum(tensor.nbytes for tensor in alive))
        sums = {n: (2 * g).reshape(-1)[slice(*held[n])].clone() if n in held else 2 * g for n, g in gradients.items()}
        return OnTheWay(copies, sums)

    def abandon(self) -> None:
        self.abandoned += 1

    def sum_counts(self, count: int) -> int:
        return 2 * count

    def gather(self, tensors: Gradients, held: Ranges) -> None:
        """The elements of the other process keep their old values."""


class FakeJob:
    """A job whose other process is made up."""

    twin: Twin
    team = None

    @classmethod
    def of(cls, options: poptorch.Options, training: bool) -> FakeJob | None:
        return cls() if training and options.Distributed.numProcesses > 1 else None

    def exchange(self, executable: Executable) -> Twin:
        return self.twin

    def agree(self, session: object) -> None:
        """The other process has no opinion."""

    def failed(self, error: BaseException) -> None:
        """It does not listen either."""


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Twin:
    """Replaces the other processes, and makes a bucket of each layer."""
    monkeypatch.setattr("poptorch.executor.session.Job", FakeJob)
    monkeypatch.setattr(build, "EXCHANGE_BYTES", WIDTH * WIDTH * 4 + 1)
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    FakeJob.twin = Twin()
    return FakeJob.twin


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return poptorch.identity_loss(x.pow(2).mean(), reduction="none")


def options_of_two(replicas: int = 1, accumulation: int = 1) -> poptorch.Options:
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    options.Distributed.configureProcessId(0, 2)
    return options


def sharded(options: poptorch.Options, accumulators: bool) -> poptorch.Options:
    settings = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    settings.minElementsForReplicatedTensorSharding(WIDTH + 1)  # weights, not biases
    options.TensorLocations.setOptimizerLocation(settings)
    if accumulators:
        options.TensorLocations.setAccumulatorLocation(settings)
    return options


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.AdamW(model.parameters(), lr=0.01)


def data(replicas: int, accumulation: int) -> torch.Tensor:
    return torch.randn(ROWS * replicas * accumulation, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_each_bucket_leaves_once_and_the_sum_is_used(twin: Twin, replicas: int, accumulation: int) -> None:
    model = Layers()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options_of_two(replicas, accumulation), optimizer)
    x = data(replicas, accumulation)
    for _ in range(2):
        executor(x)
    assert twin.started == 2 * list(executor.executable.code.gradients)
    assert twin.started[:LAYERS] == [(f"layers.{i}.weight", f"layers.{i}.bias") for i in reversed(range(LAYERS))]
    again = torch.optim.SGD(reference.parameters(), lr=0.1)  # the mean over both processes, which have the same data
    for _ in range(2):
        again.zero_grad()
        reference(x).backward()
        again.step()
    assert_close_sums(dict(model.named_parameters()), dict(reference.named_parameters()), terms=64, steps=8)


def test_the_code_goes_on_after_it_has_handed_gradients_out(twin: Twin) -> None:
    model = Layers()
    executor = poptorch.trainingModel(model, options_of_two(), torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(data(1, 1))
    lines = executor.executable.code.micro_batch.source.splitlines()
    hands = [number for number, line in enumerate(lines) if "hand(" in line and "def " not in line]
    assert len(hands) == LAYERS
    products = [number for number, line in enumerate(lines) if "_mm_" in line]
    for before, after in itertools.pairwise(hands):
        assert any(before < number < after for number in products)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_native_code_hands_gradients_out_between_its_kernels(
    twin: Twin, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = outlining.compile_graph

    def compile_graph(*arguments: Any, **named: Any) -> outlining.Compiled:
        compiled = made(*arguments, **named)

        def run(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
            outputs = compiled.run(inputs)
            twin.events.append("kernel")
            return outputs

        return outlining.Compiled(run, compiled.strides)

    monkeypatch.setattr(outlining, "compile_graph", compile_graph)
    monkeypatch.setattr(build, "EXCHANGE_BYTES", 2 * WIDTH * WIDTH * 4 + WIDTH * 4 + 1)
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    model = Layers()
    reference = copy.deepcopy(model)
    options = options_of_two(accumulation=accumulation)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x = data(1, accumulation)
    executor(x)
    hands = [index for index, event in enumerate(twin.events) if event != "kernel"]
    assert twin.started == list(executor.executable.code.gradients)
    assert len(hands) == LAYERS // 2
    assert all(twin.events[index - 1] == "kernel" for index in hands)
    again = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(x).backward()
    again.step()
    assert_close_sums(dict(model.named_parameters()), dict(reference.named_parameters()), terms=64, steps=4)


@pytest.mark.parametrize(("replicas", "accumulation", "accumulators"), [(1, 1, False), (2, 1, False), (1, 3, True)])
def test_of_sharded_gradients_only_some_buckets_are_whole_at_a_time(
    twin: Twin, replicas: int, accumulation: int, accumulators: bool
) -> None:
    model = Layers()
    options = sharded(options_of_two(replicas, accumulation), accumulators)
    executor = poptorch.trainingModel(model, options, adamw(model))
    for _ in range(2):
        executor(data(replicas, accumulation))
    groups = executor.executable.code.loop.groups_per_update
    assert not accumulators or groups > 1
    bucket = (WIDTH + 1) * WIDTH * 4
    assert len(twin.started) == 2 * LAYERS * (groups if accumulators else 1)
    assert twin.peak <= 3 * bucket, f"{twin.peak / bucket:.1f} of {LAYERS} buckets"
    state = executor.session.engine.optimizer_state
    sizes = {tensor.numel() for tensors in state[0].values() for tensor in tensors if tensor.dim()}
    assert sizes == {WIDTH * WIDTH // 2, WIDTH}


def test_whole_accumulators_are_scattered_once(twin: Twin) -> None:
    model = Layers()
    executor = poptorch.trainingModel(model, sharded(options_of_two(1, 3), accumulators=False), adamw(model))
    executor(data(1, 3))
    assert len(twin.started) == LAYERS


def test_where_accumulators_lie_does_not_change_the_weights(twin: Twin) -> None:
    found = []
    for accumulators in (False, True):
        model = Layers()
        executor = poptorch.trainingModel(model, sharded(options_of_two(1, 3), accumulators), adamw(model))
        for _ in range(2):
            executor(data(1, 3))
        found.append({name: p.detach().clone() for name, p in model.named_parameters()})
        executor.destroy()
    assert_close_sums(*found, terms=64, steps=8)


def test_gradients_without_other_processes_are_returned_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "EXCHANGE_BYTES", 1)
    model = Layers()
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(data(1, 2))
    assert executor.executable.code.stages[0].buckets == ()
    assert len(executor.executable.code.gradients) == 1


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("fails_at", "abandoned"), [(0, 0), (2, 1)])
def test_a_call_that_fails_after_gradients_have_left_ends_the_job(
    twin: Twin, replicas: int, fails_at: int, abandoned: int
) -> None:
    model = Layers()
    executor = poptorch.trainingModel(model, options_of_two(replicas), torch.optim.SGD(model.parameters(), lr=0.1))
    executor(data(replicas, 1))
    twin.fails_at = len(twin.started) + fails_at
    with pytest.raises(RuntimeError, match="no way"):
        executor(data(replicas, 1))
    assert twin.abandoned == abandoned


def test_buckets_leave_in_their_order_whenever_they_are_ready(twin: Twin) -> None:
    model = Layers()
    executor = poptorch.trainingModel(model, options_of_two(), torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(data(1, 1))
    exchange = RoundExchange(twin, executor.executable, NO_TRACE)
    gradients: list[Mapping[str, torch.Tensor]] = [
        {name: torch.ones(2) for name in names} for names in executor.executable.code.gradients
    ]
    for number in (2, 1, 5, 0, 4, 3):
        exchange.ready(number, gradients[number])
    assert twin.started == list(executor.executable.code.gradients)
    assert set(exchange.take()) == {name for name, _ in model.named_parameters()}
    assert exchange.take() == {}
