"""What is kept, for how long, and where."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from parallel_models import STRATEGIES, Perceptron, make_model, make_options, train
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import poptorch
from closeness import assert_close_sums
from host_code import change_stages, runner_of
from poptorch.compiler.memory import Category
from poptorch.devices import cores
from poptorch.host import levels
from poptorch.runtime import parallel, workers
from poptorch.runtime.residency import scheduled_activation_bytes, working_bytes


class Lifetimes:
    """Counts the bytes of the values that stages send, from the moment they exist until nobody holds them."""

    def __init__(self, executor):
        self.live = self.peak = 0
        self._lock = threading.Lock()
        change_stages(executor, lambda _, stage: _Watched(stage.code, len(stage.description.sends), self))

    def born(self, tensor):
        size = tensor.numel() * tensor.element_size()
        self._change(size)
        weakref.finalize(tensor, self._change, -size)

    def _change(self, size):
        with self._lock:
            self.live += size
            self.peak = max(self.peak, self.live)


class _Watched:
    def __init__(self, generated, sends, lifetimes):
        self._generated, self._sends, self._lifetimes = generated, sends, lifetimes
        self.source = generated.source

    def run(self, *args):
        outputs = self._generated.run(*args)
        for tensor in outputs[: self._sends]:
            self._lifetimes.born(tensor)
        return outputs


class Deep(nn.Module):
    """Two stages of four wide layers each: many activations inside a stage, one between the stages."""

    def __init__(self, checkpoint=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.checkpoint = checkpoint

    def forward(self, x, target):
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(str(index // 4), ipu_id=index // 4)
            x = torch.tanh(layer(x))
            if self.checkpoint and index == 1:
                x = poptorch.recomputationCheckpoint(x)
        return nn.functional.mse_loss(x, target)


def lifetimes_of(mode, model=None, accumulation=8):
    torch.manual_seed(0)
    model = Deep() if model is None else model
    options = make_options(poptorch.PipelinedExecution(), accumulation=accumulation)
    if mode is not None:
        options._Popart.set("autoRecomputation", mode)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.randn(accumulation * 4, 64), torch.randn(accumulation * 4, 64)
    executor.compile(*data)
    lifetimes = Lifetimes(executor)
    executor(*data)
    return lifetimes, executor


def test_recomputation_is_the_default_of_pipelines_and_memory_goes_down(monkeypatch):
    # One worker: how far several get ahead of each other depends on the load of the machine.
    monkeypatch.setattr(
        parallel, "run_tasks", lambda graph, execute, *_, **settings: workers.run_inline(graph, execute)
    )
    _, default = lifetimes_of(None)
    plan = default.plan
    asked, executor = lifetimes_of(3)
    without, _ = lifetimes_of(0)
    assert [e.num_bytes for e in plan.edges] == [e.num_bytes for e in executor.executable.code.edges]
    assert asked.peak < without.peak
    assert "run again" in "\n".join(default.program.log)


def test_nothing_outlives_the_call():
    for mode in (0, 3):
        lifetimes, executor = lifetimes_of(mode)
        assert lifetimes.live == 0
        assert runner_of(executor).residency.peak_stash_bytes > 0


def test_the_peak_is_what_the_schedule_needs():
    """Stage 0 is recomputed from the model's input, so only what stage 1 is working on is alive.

    Factors of gradients that are not multiplied yet may take half as much as the gradients.
    """
    lifetimes, executor = lifetimes_of(3)
    plan = executor.plan
    per_micro_batch = sum(edge.num_bytes for edge in plan.edges)
    gradients = sum(p.nbytes for layer in executor.model.layers[4:] for p in layer.parameters())
    # Stage 1 keeps one, stage 0 is one ahead; either may be yet another one ahead.
    assert lifetimes.peak <= 4 * per_micro_batch + gradients / 2


def test_each_checkpoint_adds_one_kept_tensor():
    _, plain = lifetimes_of(None)
    _, marked = lifetimes_of(None, Deep(checkpoint=True))

    def kept_by_stage_0(executor):
        plan = executor.plan
        return [e for e in plan.kept if e.producer == 0 and max(e.consumers) == 3]

    assert len(kept_by_stage_0(plain)) == 0  # the only input of stage 0 is the model's own
    assert len(kept_by_stage_0(marked)) == 1


class Allocations(TorchDispatchMode):
    """Counts the bytes of all memory that appears while it is active, until it is freed; one thread only."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known = {storage._cdata: storage for storage in map(torch.Tensor.untyped_storage, all_tensors())}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._known:
                self._born(tensor.untyped_storage())
        return result

    def _born(self, storage):
        self._known[storage._cdata] = None
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._died, storage._cdata, storage.nbytes())

    def _died(self, key, size):
        del self._known[key]
        self.live -= size


def all_tensors():
    """What lives between two calls: weights, accumulators, the optimizer's state, inputs."""
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))
    cpu = (t for t in found if not isinstance(t, FakeTensor) and t.device.type == "cpu")
    return [t for t in cpu if t.layout is torch.strided]  # others have no storage to ask for


class Wide(nn.Module):
    """Four stages of two layers; little in the way of weights."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

    def forward(self, x, target):
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(str(index // 2), ipu_id=index // 2)
            x = nn.functional.gelu(layer(x))
        return nn.functional.mse_loss(x, target)


@pytest.mark.parametrize("recomputation", [None, 0, 3])
def test_sixteen_ipus_need_weights_and_the_activations_of_their_schedule(monkeypatch, recomputation):
    """Four stages, four replicas. One worker, so that the order and with it the peak is always the same."""
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    monkeypatch.setattr(cores, "usable_cores", lambda: 1)
    model = Wide()
    options = make_options(poptorch.PipelinedExecution(), accumulation=8, replicas=4)
    if recomputation is not None:
        options._Popart.set("autoRecomputation", recomputation)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    data = torch.randn(8 * 4 * 256, 32), torch.randn(8 * 4 * 256, 32)
    executor(*data)  # from now on accumulators exist
    with Allocations() as allocations:
        executor(*data)
    runner = runner_of(executor)
    needed = scheduled_activation_bytes(executor.plan, runner.scheduled_tasks())
    assert needed > 10 * sum(p.nbytes for p in model.parameters())
    assert allocations.peak <= 1.2 * needed
    assert runner.residency.peak_stash_bytes <= needed


def test_what_a_schedule_needs():
    """Two stages, recomputed: stage 0 sends its result to stage 1, which sends a gradient back."""
    _, executor = lifetimes_of(3)
    runner, plan = runner_of(executor), executor.plan
    assert {edge.num_bytes for edge in plan.edges if edge.num_bytes > 4} == {4 * 64 * 4}
    sizes = [edge.num_bytes for edge in plan.edges]
    inside = {slot: working_bytes(stage.program) for slot, stage in ((s.slot, s) for s in plan.stages)}
    needed = scheduled_activation_bytes(plan, runner.scheduled_tasks())
    assert max(sizes) + inside[3] < needed <= 3 * sum(sizes) + sum(inside.values())


def test_what_stages_need_inside():
    """Activations of one layer are 1 KiB. What is kept for the backward pass is not inside, but between the stages."""
    activation = 4 * 64 * 4
    inside = {}
    for mode in (0, 3):
        plan = lifetimes_of(mode)[1].plan
        inside[mode] = {slot: working_bytes(stage.program) for slot, stage in ((s.slot, s) for s in plan.stages)}
    assert inside[0][0] == activation  # a product, on its way to the tanh that is kept
    assert inside[3][0] == 2 * activation  # nothing is kept: operand and result
    assert inside[3][3] >= 4 * activation > inside[0][3]  # three layers of stage 0 again, and a gradient
    assert inside[3][2] == inside[0][2]  # the last stage is never run again


# -- locations -----------------------------------------------------------------------------------------------------


def with_locations(replicas=4, strategy=None, ipus=None, **settings):
    options = make_options(strategy, accumulation=2, replicas=replicas)
    for category, setting in settings.items():
        getattr(options.TensorLocations, f"set{category}Location")(setting)
    return options


def sharded(minimum=2):
    settings = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    return settings.minElementsForReplicatedTensorSharding(minimum)


@pytest.mark.parametrize("optimizer", [poptorch.optim.AdamW, poptorch.optim.SGD, poptorch.optim.RMSprop])
def test_each_replica_owns_and_updates_its_shard_of_the_optimizer_state(optimizer):
    outputs, state, whole = train(Perceptron, None, with_locations(), optimizer=optimizer)
    outputs_sharded, state_sharded, executor = train(
        Perceptron, None, with_locations(Optimizer=sharded()), optimizer=optimizer
    )
    shards = executor.executable.update.shards
    if executor.executable.device.memory.bytes_per_replica(Category.OPTIMIZER):  # plain SGD has no state
        assert [s.owner for s in shards] == [0, 1, 2, 3]
        assert shards[1].ranges["layers.0.weight"] == (16, 32)
        full = whole.executable.device.memory.bytes_per_replica(Category.OPTIMIZER)
        assert executor.executable.device.memory.bytes_per_replica(Category.OPTIMIZER) < 0.3 * full
    assert_close_sums(outputs_sharded, outputs, terms=16, steps=4)
    assert_close_sums(state_sharded, state, terms=16, steps=4)


def test_the_optimizer_state_reads_whole():
    model = make_model(Perceptron)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05)
    options = with_locations(Optimizer=sharded())
    executor = poptorch.trainingModel(model, options, optimizer)
    executor(*Perceptron.data(16, torch.Generator().manual_seed(0)))
    assert executor.executable.update.shards
    state = optimizer.state_dict()["ipu_state"]
    assert state["Accl1___layers.0.weight"].shape == (8, 8)
    assert {int(v) for k, v in state.items() if k.startswith("Step")} == {1}


def test_small_tensors_are_not_sharded():
    executor = train(Perceptron, None, with_locations(Optimizer=sharded(minimum=64)))[2]
    homes = {h.name: h for h in executor.executable.device.memory.homes}
    assert homes["Accl1___layers.0.weight"].shards == 4
    assert homes["Accl1___layers.0.bias"].shards == 1
    assert homes["layers.0.weight"].shards == 1  # another category


def test_an_update_with_norms_of_whole_tensors_is_not_cut():
    executor = train(Perceptron, None, with_locations(Optimizer=sharded()), optimizer=poptorch.optim.LAMB)[2]
    assert executor.executable.update.shards == ()


def test_phased_models_keep_weights_in_streaming_memory():
    ipus, make = STRATEGIES["serial phased"]
    executor = train(Perceptron, ipus, with_locations(1, make()))[2]
    memory, residency = executor.executable.device.memory, runner_of(executor).residency
    assert {h.name for h in memory.streaming()} >= {"layers.0.weight", "Accl1___layers.3.weight"}
    assert memory.peak_on_chip() < memory.bytes_per_replica()
    assert residency.loaded_bytes > 0
    assert residency.stored_bytes == residency.loaded_bytes  # everything went back
    assert set(residency.held.values()) == {None}


def test_explicit_locations_win_over_the_strategy():
    ipus, make = STRATEGIES["serial phased"]
    on_chip = poptorch.TensorLocationSettings().useOnChipStorage(True)
    settings = dict.fromkeys(("Weight", "Optimizer", "Accumulator", "Activation"), on_chip)
    executor = train(Perceptron, ipus, with_locations(1, make(), **settings))[2]
    assert executor.executable.device.memory.streaming() == []
    assert runner_of(executor).residency.loaded_bytes == 0


def test_off_chip_without_phases():
    off = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(20)
    executor = train(Perceptron, None, with_locations(1, Optimizer=off))[2]
    names = {h.name for h in executor.executable.device.memory.streaming()}
    assert "Accl1___layers.0.weight" in names
    assert not any("bias" in name for name in names)
    assert "streaming memory" in str(executor.executable.device.memory)


# -- one IPU -------------------------------------------------------------------------------------------------------


class Tall(nn.Module):
    """Many layers with large activations and small weights."""

    LAYERS = 24

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(self.LAYERS))

    def forward(self, x, target):
        for index, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if index % 4 == 3 and index + 1 < self.LAYERS:
                x = poptorch.recomputationCheckpoint(x)
        return nn.functional.mse_loss(x, target)


def step_of(monkeypatch, make, data, mode=0):
    """The most bytes that were alive at once during a step, and losses."""
    torch.manual_seed(0)
    counting: list[Allocations] = []
    allocate = torch._C._dynamo.guards._empty_strided_cpu

    def empty(*args):
        """What native code calls for memory, unseen by dispatch modes."""
        tensor = allocate(*args)
        for allocations in counting:
            allocations._born(tensor.untyped_storage())
        return tensor

    model = make()
    options = poptorch.Options()
    options._Popart.set("autoRecomputation", mode)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    with monkeypatch.context() as patched:
        patched.setattr(torch._C._dynamo.guards, "_empty_strided_cpu", empty)
        losses = [executor(*data).item()]
        with Allocations() as allocations:
            counting.append(allocations)
            losses.append(executor(*data).item())
            counting.clear()
    return allocations.peak, losses


@pytest.mark.timeout(600)  # a C++ compiler at work
@pytest.mark.parametrize("level", ["interpret", "native"])
def test_recomputation_lowers_the_memory_of_a_step(monkeypatch, level):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    monkeypatch.setattr(levels, "PYTHON_SHOWS_SECONDS", 0.0)  # Python between the kernels: it can be watched
    activation = 1024 * 16 * 4
    data = torch.randn(1024, 16), torch.randn(1024, 16)
    without, expected = step_of(monkeypatch, Tall, data)
    assert without >= Tall.LAYERS * activation
    for mode, share in ((1, 0.65), (4, 0.45)):  # what crosses a few borders is kept; only what is marked is kept
        peak, losses = step_of(monkeypatch, Tall, data, mode)
        assert 3 * activation <= peak <= share * without, mode
        assert_close_sums(losses, expected, terms=1024 * 16, steps=2)


class Residual(nn.Module):
    """The half of a transformer's layers with the large activations."""

    LAYERS, ROWS, WIDTH = 4, 512, 16

    def __init__(self):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(self.WIDTH, 4 * self.WIDTH) for _ in range(self.LAYERS))
        self.down = nn.ModuleList(nn.Linear(4 * self.WIDTH, self.WIDTH) for _ in range(self.LAYERS))
        self.norm = nn.ModuleList(nn.LayerNorm(self.WIDTH) for _ in range(self.LAYERS))

    def forward(self, x, target):
        for up, down, norm in zip(self.up, self.down, self.norm, strict=True):
            x = norm(x + down(nn.functional.gelu(up(x))))
        return nn.functional.mse_loss(x, target)


def eager_step_of(model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        model(*data).backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    with Allocations() as allocations:
        step()
    return allocations.peak


@pytest.mark.timeout(600)  # a C++ compiler at work
def test_native_code_frees_activations_as_early_as_eager_pytorch(monkeypatch):
    """Gradients of weights are computed, and used, before the backward pass goes on to the layer before."""
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.setattr(levels, "PYTHON_SHOWS_SECONDS", 0.0)
    data = torch.randn(Residual.ROWS, Residual.WIDTH), torch.randn(Residual.ROWS, Residual.WIDTH)
    eager = eager_step_of(Residual(), data)
    kept = 2 * Residual.LAYERS * Residual.ROWS * 4 * Residual.WIDTH * 4  # the wide ones alone
    assert kept <= step_of(monkeypatch, Residual, data)[0] <= eager


class Scaled(torch.nn.Module):
    """A parameter without dimensions beside one that can be divided."""

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(0.5))
        self.bias = torch.nn.Parameter(torch.tensor([0.5, 1.0, 1.5]))

    def forward(self, x):
        return poptorch.identity_loss((x * self.factor + self.bias).square(), reduction="mean")


@pytest.mark.parametrize("kind", [poptorch.optim.SGD, poptorch.optim.Adam, poptorch.optim.RMSprop])
def test_parameters_without_dimensions_have_one_owner(kind):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for settings in ({}, {"Optimizer": sharded(0)}):
        model = Scaled()
        momentum = {} if kind is poptorch.optim.Adam else {"momentum": 0.9}
        optimizer = kind(model.parameters(), lr=0.1, **momentum)
        executor = poptorch.trainingModel(model, with_locations(2, **settings), optimizer)
        for _ in range(3):
            executor(x)
        found.append({name: value.clone() for name, value in model.state_dict().items()})
    assert_close_sums(found[1], found[0], terms=8, steps=3)
