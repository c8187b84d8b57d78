"""Running statistics in replicated models: each replica keeps its own, and the host gets those of the first."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch

REPLICAS = 2
ROWS = 6
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Residual(nn.Module):
    """Two convolutions with norms, and a way around them."""

    def __init__(self, channels: int, make_norm=nn.BatchNorm2d) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(make_norm(channels) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.convs[0](x)))
        return F.relu(x + self.norms[1](self.convs[1](y)))


class Cnn(nn.Module):
    """A small residual network."""

    def __init__(self, make_norm=nn.BatchNorm2d, blocks: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = make_norm(4)
        self.layers = nn.ModuleList(Residual(4, make_norm) for _ in range(2))
        self.head = nn.Linear(4, 3)
        self.blocks = blocks

    def begin(self, number: int) -> None:
        if self.blocks:
            poptorch.Block.start(str(number), ipu_id=number)

    def forward(self, x, target=None):
        self.begin(0)
        x = self.layers[0](F.relu(self.norm(self.stem(x))))
        self.begin(1)
        x = self.head(self.layers[1](x).mean((2, 3)))
        return x if target is None else (x, F.cross_entropy(x, target))


class Functional(nn.Module):
    """A norm that somebody wrote: other names, and a counter of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.variance, self.scale, training=self.training, momentum=0.2)


class Copied(nn.Module):
    """The buffers of a BatchNorm in a module of its own, as code written for other devices has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        return F.batch_norm(x, self.running_mean, self.running_var, training=self.training)


class Rebinding(nn.BatchNorm2d):
    """Puts new statistics in the place of the old, as older layers do."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        with torch.no_grad():
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean
            self.running_var = torch.lerp(self.running_var, variance, 0.1)
            self.num_batches_tracked = self.num_batches_tracked + 1
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


NORMS = {
    "batch": nn.BatchNorm2d,
    "cumulative": lambda channels: nn.BatchNorm2d(channels, momentum=None),
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True, track_running_stats=True),
    "functional": Functional,
    "copied": Copied,
    "rebinding": Rebinding,
}


def in_eager(model: nn.Module, batches, *, iterations: int = 1, accumulation: int = 1) -> nn.Module:
    """The same training in float64; replicas share the weights, and each has buffers of its own."""
    model = copy.deepcopy(model).double()
    model.blocks = False
    replicas = [model, *(copy.deepcopy(model) for _ in range(REPLICAS - 1))]
    for other in replicas[1:]:
        for module, theirs in zip(model.modules(), other.modules(), strict=True):
            theirs._parameters = module._parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, target in batches:
        parts = zip(x.double().split(ROWS), target.split(ROWS), strict=True)
        for _ in range(iterations):
            optimizer.zero_grad()
            for _ in range(accumulation):
                for replica in replicas:
                    (replica(*next(parts))[1] / (accumulation * REPLICAS)).backward()
            optimizer.step()
    return model


def batches_of(count: int, factor: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    rows = ROWS * factor * REPLICAS
    # The replicas must differ in more than chance, or statistics in common would pass.
    offset = torch.linspace(-1, 1, rows).view(-1, 1, 1, 1)
    return [(torch.randn(rows, 2, 5, 5) + offset, torch.randint(3, (rows,))) for _ in range(count)]


def make_options(*, iterations: int = 1, accumulation: int = 1) -> poptorch.Options:
    options = poptorch.Options().replicationFactor(REPLICAS).deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    return options


def trained(model: nn.Module, options: poptorch.Options, batches) -> poptorch.PoplarExecutor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, options, optimizer)
    for batch in batches:
        executor(*batch)
    return executor


def assert_same_state(model: nn.Module, expected: nn.Module) -> None:
    found, wanted = model.state_dict(), expected.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name].double(), tensor.double(), rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("kind", NORMS)
def test_each_replica_keeps_its_own(kind):
    torch.manual_seed(0)
    model = Cnn(NORMS[kind])
    batches = batches_of(3, factor=4)
    expected = in_eager(model, batches, iterations=2, accumulation=2)
    executor = trained(model, make_options(iterations=2, accumulation=2), batches)
    assert_same_state(model, expected)
    executor.destroy()


@pytest.mark.parametrize("level", ["interpret", "native"])
def test_at_both_levels_of_code(level, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    torch.manual_seed(0)
    model = Cnn(lambda channels: nn.BatchNorm2d(channels, momentum=0.3))
    batches = batches_of(2, factor=2)
    expected = in_eager(model, batches, accumulation=2)
    executor = trained(model, make_options(accumulation=2), batches)
    assert_same_state(model, expected)
    executor.destroy()


def test_in_a_pipeline():
    torch.manual_seed(0)
    model = Cnn(blocks=True)
    batches = batches_of(2, factor=4)
    expected = in_eager(model, batches, accumulation=4)
    executor = trained(model, make_options(accumulation=4), batches)
    assert len(executor.plan.parts) == 2
    assert_same_state(model, expected)
    executor.destroy()


def test_replicas_have_different_statistics_on_the_device():
    torch.manual_seed(0)
    model = Cnn()
    executor = trained(model, make_options(), batches_of(1, factor=1))
    memory = executor.session.engine.memory
    first, second = (memory.replica_buffer(r, "norm.running_mean") for r in range(REPLICAS))
    assert not torch.allclose(first, second)
    assert torch.equal(model.norm.running_mean, first)
    executor.destroy()


def test_the_statistics_reach_inference_and_files(tmp_path):
    torch.manual_seed(0)
    model = Cnn()
    batches = batches_of(3, factor=1)
    expected = in_eager(model, batches)
    executor = trained(model, make_options(), batches[:2])
    middle = in_eager(_fresh(), batches[:2])

    x = torch.randn(4, 2, 5, 5)
    model.eval()
    inference = poptorch.inferenceModel(model, poptorch.Options())
    torch.testing.assert_close(inference(x), middle.eval()(x.double()).float(), rtol=1e-4, atol=1e-4)
    model.train()

    torch.save(model.state_dict(), tmp_path / "checkpoint.pt")
    executor(*batches[2])
    assert_same_state(model, expected)
    inference.destroy()
    executor.destroy()

    resumed = _fresh()
    resumed.load_state_dict(torch.load(tmp_path / "checkpoint.pt"))
    assert_same_state(resumed, middle)
    wanted = in_eager(resumed, batches[2:])
    again = trained(resumed, make_options(), batches[2:])
    assert_same_state(resumed, wanted)
    again.destroy()


def _fresh() -> Cnn:
    torch.manual_seed(0)
    return Cnn()


def test_half_precision_statistics():
    torch.manual_seed(0)
    model = Cnn().half()
    batches = batches_of(2, factor=1)
    expected = in_eager(model, batches)
    executor = trained(model, make_options(), [(x.half(), t) for x, t in batches])
    assert model.norm.running_mean.dtype is torch.float16
    torch.testing.assert_close(model.norm.running_mean.double(), expected.norm.running_mean, rtol=0.02, atol=0.02)
    torch.testing.assert_close(model.norm.running_var.double(), expected.norm.running_var, rtol=0.02, atol=0.02)
    executor.destroy()


class Counting(nn.Module):
    """Its norm is fine; the buffer that it writes itself is not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1.0)
        return self.norm(x)


class ByHand(nn.Module):
    """Running statistics that ``forward`` updates with operations of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(2))

    def forward(self, x):
        self.running_mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.running_mean


class ThroughAView(nn.Module):
    """Writes into a row of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 2))

    def forward(self, x):
        self.rows[1].copy_(x.mean(0))
        return x + self.rows.sum(0)


@pytest.mark.parametrize(("model", "name"), [(Counting, "calls"), (ByHand, "running_mean"), (ThroughAView, "rows")])
def test_what_forward_writes_itself_is_refused(model, name):
    options = poptorch.Options().replicationFactor(REPLICAS)
    with pytest.raises(poptorch.Error, match="PopTorch does not support broadcasting buffers") as error:
        poptorch.inferenceModel(model().train(), options)(torch.randn(8, 2))
    assert f"The model writes {name} (at " in str(error.value)
    assert "test_running_statistics.py" in str(error.value)


def test_synchronised_norms_say_that_they_are_not(capfd):
    torch.manual_seed(0)
    model = Cnn(nn.SyncBatchNorm)
    batches = batches_of(1, factor=1)
    plain = Cnn()
    plain.load_state_dict(model.state_dict())
    expected = in_eager(plain, batches)
    executor = trained(model, make_options(), batches)
    assert_same_state(model, expected)
    assert "SyncBatchNorm takes its statistics from the micro-batch of one replica" in capfd.readouterr().err
    executor.destroy()
