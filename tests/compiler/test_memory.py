"""The memory map: which tensors there are, of which type and shape, and where they live."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import poptorch
from poptorch.capture.arguments import Signature
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.memory import Category, Home, Location, MemoryMap
from poptorch.compiler.request import CompileRequest, update_settings
from poptorch.enums import CommGroupType, OverlapMode
from poptorch.optim.spec import describe
from poptorch.program.replica_groups import ReplicaGrouping


class Net(nn.Module):
    """A buffer, a constant, an input and a target, a result and a loss; in two parts, if asked for."""

    def __init__(self, parts=1, rows=None):
        super().__init__()
        self.fc = nn.Linear(4, 4) if rows is None else nn.ParameterDict({"weight": torch.ones(rows, 4, 4)})
        self.register_buffer("scale", torch.ones(4))
        self.offset = torch.arange(4)
        self.last = nn.Linear(4, 3)
        self.parts = parts

    def forward(self, x, target=None):
        if self.parts > 1:
            poptorch.Block.start("0", ipu_id=0)
        hidden = x @ self.fc["weight"] if isinstance(self.fc, nn.ParameterDict) else self.fc(x)
        x = torch.relu(hidden * self.scale + self.offset)
        if self.parts > 1:
            poptorch.Block.start("1", ipu_id=1)
        x = self.last(x)
        return x if target is None else (x, nn.functional.mse_loss(x, target))


def options_for(accumulation=1, replicas=1, strategy=None, **locations):
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    for category, settings in locations.items():
        getattr(options.TensorLocations, f"set{category}Location")(settings)
    return options


def trained(model, options, optimizer, groups=(), rows=2):
    """The map of a training program whose micro-batches have so many rows."""
    dtype = model.last.weight.dtype
    count = rows * options.Training.gradient_accumulation * options.replication_factor
    call = Signature(model.forward).bind((torch.ones(count, 4, dtype=dtype), torch.ones(count, 3, dtype=dtype)), {})
    spec = describe(optimizer(model.parameters(), lr=0.1), update_settings(options))
    request = CompileRequest(model, call, options, training=True, optimizer_spec=spec, groups=dict(groups))
    return lower_for_device(request).memory


def adam(**types):
    return lambda parameters, lr: poptorch.optim.Adam(parameters, lr=lr, **types)


def types_of(memory, category):
    return {h.name: (h.shape, h.dtype) for h in memory.of(category)}


def settings():
    return poptorch.TensorLocationSettings()


# -- which tensors, and of which type ------------------------------------------------------------------------------


def test_buffers_constants_inputs_and_outputs_are_on_chip_and_whole():
    everything_away = dict.fromkeys(
        ("Weight", "Optimizer", "Accumulator", "Activation"), settings().useOnChipStorage(False)
    )
    memory = trained(Net(), options_for(2, 2, **everything_away), adam())
    assert types_of(memory, Category.BUFFER) == {"scale": ((4,), torch.float32)}
    assert list(types_of(memory, Category.CONSTANT).values()) == [((4,), torch.int64)]
    assert types_of(memory, Category.INPUT) == {"x": ((2, 4), torch.float32), "target": ((2, 3), torch.float32)}
    assert types_of(memory, Category.OUTPUT) == {
        "output 0": ((2, 3), torch.float32),
        "output 1": ((), torch.float32),
    }
    away = {h.category for h in memory.streaming()}
    assert away == {Category.WEIGHT, Category.OPTIMIZER, Category.ACCUMULATOR}
    assert all(h.shards == 1 for h in memory.homes)


def test_the_loss_scale_is_an_input():
    memory = trained(Net(), options_for(), adam(loss_scaling=8.0))
    assert types_of(memory, Category.INPUT)["loss scale"] == ((), torch.float32)


def test_inference_has_no_optimizer_and_no_accumulators():
    model = Net()
    call = Signature(model.forward).bind((torch.ones(2, 4),), {})
    memory = lower_for_device(CompileRequest(model, call, poptorch.Options(), training=False)).memory
    assert {h.category for h in memory.homes} == {
        Category.WEIGHT, Category.BUFFER, Category.CONSTANT, Category.INPUT, Category.OUTPUT
    }  # fmt: skip


@pytest.mark.parametrize("replicas", [1, 2])
def test_without_accumulation_there_are_no_accumulators(replicas):
    assert trained(Net(), options_for(1, replicas), adam()).of(Category.ACCUMULATOR) == []


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accum_type", [torch.float16, torch.float32])
@pytest.mark.parametrize("half", [True, False])
def test_accumulators_have_the_type_of_the_optimizer(accum_type, half, replicas):
    model = Net().half() if half else Net()
    memory = trained(model, options_for(2, replicas), adam(accum_type=accum_type))
    accumulators, weights = types_of(memory, Category.ACCUMULATOR), types_of(memory, Category.WEIGHT)
    assert accumulators == {f"Accum___{name}": (shape, accum_type) for name, (shape, _) in weights.items()}
    assert {dtype for _, dtype in weights.values()} == {torch.float16 if half else torch.float32}


def test_combined_velocities_are_the_accumulators():
    def combined(**settings):
        return lambda parameters, lr: poptorch.optim.SGD(parameters, lr=lr, use_combined_accum=True, **settings)

    memory = trained(Net().half(), options_for(2), combined(momentum=0.9))
    assert memory.of(Category.ACCUMULATOR) == []
    assert types_of(memory, Category.OPTIMIZER)["Accl___fc.weight"] == ((4, 4), torch.float16)
    plain = trained(Net().half(), options_for(2), combined())  # no velocity
    assert types_of(plain, Category.ACCUMULATOR)["Accum___fc.weight"] == ((4, 4), torch.float16)  # the weight's type
    assert plain.of(Category.OPTIMIZER) == []


def test_optimizer_state_has_its_own_types():
    memory = trained(Net().half(), options_for(), adam(first_order_momentum_accum_type=torch.float16))
    state = types_of(memory, Category.OPTIMIZER)
    assert state["Accl1___fc.weight"] == ((4, 4), torch.float16)
    assert state["Accl2___fc.weight"] == ((4, 4), torch.float32)
    assert state["Step___fc.weight"] == ((), torch.float32)


def test_a_replica_holds_the_row_of_its_group():
    """A weight that differs between replicas cannot be split over them."""
    grouping = ReplicaGrouping(CommGroupType.NoGrouping, 0, replicas=2)
    sharding = settings().useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(2)
    options = options_for(2, 2, Weight=sharding, Optimizer=sharding, Accumulator=sharding)
    homes = {h.name: h for h in trained(Net(rows=2), options, adam(), {"fc.weight": grouping}).homes}
    for name in ("fc.weight", "Accum___fc.weight", "Accl1___fc.weight"):
        assert (homes[name].shape, homes[name].shards) == ((4, 4), 1)
    assert homes["Step___fc.weight"].shape == ()
    for name in ("last.weight", "Accum___last.weight", "Accl1___last.weight"):
        assert (homes[name].shape, homes[name].shards) == ((3, 4), 2)


def test_inputs_and_outputs_know_when_they_are_copied():
    class Marked(nn.Module):
        def forward(self, x):
            x = poptorch.set_overlap_for_input(x, OverlapMode.OverlapAccumulationLoop)
            return poptorch.set_overlap_for_output(x + 1, OverlapMode.OverlapDeviceIterationLoop)

    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.TensorLocations.numIOTiles(32)
    options.setExecutionStrategy(poptorch.ShardedExecution())
    model = Marked()
    call = Signature(model.forward).bind((torch.ones(2, 4),), {})
    memory = lower_for_device(CompileRequest(model, call, options, training=False)).memory
    assert [h.overlap for h in memory.homes] == [
        OverlapMode.OverlapAccumulationLoop,
        OverlapMode.OverlapDeviceIterationLoop,
    ]
    assert "on chip, overlap: OverlapAccumulationLoop" in str(memory)


def test_the_table_shows_shapes_and_types():
    text = str(trained(Net().half(), options_for(2), adam(accum_type=torch.float32)))
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert lines["fc.weight"] == ["weight", "float16[4,4]", "32", "on", "chip"]
    assert lines["Accum___fc.weight"] == ["accumulator", "float32[4,4]", "64", "on", "chip"]
    assert lines["scale"] == ["buffer", "float16[4]", "8", "on", "chip"]


# -- activations ---------------------------------------------------------------------------------------------------


def phased(**locations):
    return options_for(1, 2, poptorch.SerialPhasedExecution("0", "1"), **locations)


@pytest.mark.parametrize(("limit", "away"), [(8, True), (9, False), (8 * 4, False)])
def test_limits_of_activations_are_in_elements(limit, away):
    """Two rows of four elements wait between the passes, and their 32 bytes do not count."""
    location = settings().useOnChipStorage(False).minElementsForOffChip(limit)
    memory = trained(Net(parts=2), phased(Activation=location), adam())
    waiting = [h for h in memory.of(Category.ACTIVATION) if h.shape == (2, 4)]
    assert {h.bytes for h in waiting} == {32}
    assert {h.on_chip for h in waiting} == {not away}


@pytest.mark.parametrize(("limit", "shards"), [(8, 2), (9, 1), (8 * 4, 1)])
def test_limits_of_sharding_are_in_elements(limit, shards):
    location = settings().useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(limit)
    waiting = trained(Net(parts=2), phased(Activation=location), adam()).of(Category.ACTIVATION)
    assert {h.shards for h in waiting if h.elements == 8} == {shards}


def test_activations_have_their_own_type():
    memory = trained(Net(parts=2).half(), phased(), adam())
    waiting = memory.of(Category.ACTIVATION)
    assert waiting
    assert {h.dtype for h in waiting} <= {torch.float16, torch.bool}
    assert all(h.bytes == math.prod(h.shape) * h.dtype.itemsize for h in waiting)


def test_each_phase_loads_what_it_uses():
    memory = trained(Net(parts=2), phased(), adam())
    parts = {h.name: h.parts for h in memory.homes}
    assert (parts["fc.weight"], parts["last.weight"]) == ((0,), (1,))
    assert (parts["scale"], parts["x"]) == ((0,), (0,))
    assert (parts["target"], parts["output 0"], parts["output 1"]) == ((1,), (1,), (1,))
    first = [h for h in memory.streaming() if 0 in h.parts]
    assert memory.loaded_by(0) == sum(h.bytes_per_replica for h in first)
    assert {h.category for h in first} == {Category.WEIGHT, Category.OPTIMIZER, Category.ACTIVATION}
    assert {"x", "scale", "target", "output 1"} <= {h.name for h in memory.on_chip_during(0)}
    assert memory.peak_on_chip() < memory.bytes_per_replica()


# -- sizes ---------------------------------------------------------------------------------------------------------

DTYPES = st.sampled_from([torch.float16, torch.float32, torch.int64, torch.bool])
HOMES = st.builds(
    Home,
    name=st.just("t"),
    category=st.sampled_from(Category),
    shape=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    dtype=DTYPES,
    on_chip=st.booleans(),
    shards=st.integers(1, 5),
    parts=st.sets(st.integers(0, 2), min_size=1).map(tuple),
)


@given(st.lists(HOMES, max_size=8))
def test_a_replica_holds_its_share_of_every_tensor(homes):
    memory = MemoryMap(tuple(homes), 3)
    sizes = [math.ceil(math.prod(h.shape) / h.shards) * h.dtype.itemsize for h in homes]
    assert memory.bytes_per_replica() == sum(sizes)
    assert sum(memory.bytes_per_replica(category) for category in Category) == sum(sizes)
    for home, size in zip(homes, sizes, strict=True):
        assert home.bytes <= home.shards * size < home.bytes + home.shards * home.element_size
    for part in range(3):
        resident = sum(h.bytes_per_replica for h in memory.on_chip_during(part))
        assert resident == memory.loaded_by(part) + sum(h.bytes_per_replica for h in homes if h.on_chip)
        assert resident <= memory.peak_on_chip() <= memory.bytes_per_replica()


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 4))
def test_limits_are_inclusive(elements, limit, replicas):
    location = Location(on_chip=False, sharded=True, min_off_chip=limit, min_sharded=limit)
    assert location.stays_on_chip(elements) == (elements < limit)
    assert location.is_sharded(elements, replicas) == (elements >= limit and replicas > 1)
