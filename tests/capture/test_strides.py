"""Tensors that do not lie in memory in the order of their dimensions: ``forward`` sees the user's strides."""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest
import torch
from torch import nn

import poptorch
from poptorch.ops.memory_order import order_in_memory


class ByAddress(nn.Module):
    """Reads the result of a convolution by its strides."""

    example: ClassVar = (3, 5, 5)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        h = self.conv(x)
        return h.as_strided(h.size(), h.stride()) * torch.arange(4).view(1, 4, 1, 1)


class Transposed(nn.Module):
    """A weight in the order of columns, seen as a row and by its strides."""

    example: ClassVar = (6,)

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 6).t())

    def forward(self, x):
        return x @ self.w.as_strided((4, 6), (6, 1)).t() + self.w.t().view(-1)[:4] * self.w.is_contiguous()


class Flattened(nn.Module):
    """Channels last, then a row for each image."""

    example: ClassVar = (3, 5, 5)

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(100, 2)

    def forward(self, x):
        return self.fc(self.conv(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1))


class Written(nn.Module):
    """Writes through views of what lies in another order."""

    example: ClassVar = (3, 5, 5)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("count", torch.zeros(2, 3).t())
        self.constant = torch.randn(4, 4).t()

    def forward(self, x):
        h = self.conv(x)
        h.permute(0, 2, 3, 1).view(x.shape[0], -1).mul_(2)
        self.count.t().view(-1)[1:3].add_(1)
        row = self.count.as_strided((6,), (1,))
        return h * self.constant.t().view(-1)[1] + row[2]


class Looped(nn.Module):
    """A loop whose body looks at a weight of the model by its strides."""

    example: ClassVar = (6,)

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 6).t())

    def forward(self, x):
        if not torch.jit.is_tracing() and poptorch.isRunningOnIpu():
            return poptorch.for_loop(3, self.body, [x @ self.w])[0]
        y = x @ self.w
        for _ in range(3):
            y = self.body(y)
        return y

    def body(self, y):
        return y * 0.5 + self.w.t().view(-1)[:4] + self.w.as_strided((4,), (2,), 1)


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        return y, poptorch.identity_loss((y**2).mean(), "none")


def train_both(model, options, batches):
    """Train wrapped and by torch in float64; yields outputs and states side by side."""
    reference = copy.deepcopy(model).double()
    assert [p.stride() for p in reference.parameters()] == [p.stride() for p in model.parameters()]
    for module in reference.modules():
        if isinstance(getattr(module, "constant", None), torch.Tensor):
            module.constant = module.constant.double()
    executor = poptorch.trainingModel(WithLoss(model), options, torch.optim.SGD(model.parameters(), lr=0.05))
    torch_optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    steps = options.Training.gradient_accumulation * options.replication_factor
    for batch in batches:
        executor(batch)
        torch_optimizer.zero_grad()
        for part in batch.double().chunk(steps):
            ((reference(part) ** 2).mean() / steps).backward()
        torch_optimizer.step()
    for (name, own), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        assert own.stride() == theirs.stride(), name
        assert_close_sums(own.double(), theirs, name)


def assert_close_sums(own, theirs, name):
    torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-6, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("model", [ByAddress, Transposed, Flattened, Written, Looped])
@pytest.mark.parametrize("how", ["plain", "accumulation", "replicas"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_training_is_that_of_torch(model, how, channels_last):
    if model is Written and (how == "replicas" or not channels_last):
        pytest.skip("replicas do not share what they write, and torch refuses the view of what lies in rows")
    torch.manual_seed(0)
    options = poptorch.Options()
    if how == "accumulation":
        options.Training.gradientAccumulation(2)
    if how == "replicas":
        options.replicationFactor(2)
    module = model()
    batches = [torch.randn(4, *model.example) for _ in range(2)]
    if channels_last and len(model.example) == 3:
        module.to(memory_format=torch.channels_last)
        batches = [b.contiguous(memory_format=torch.channels_last) for b in batches]
    elif channels_last:
        batches = [torch.randn(*model.example, 4).t() for _ in range(2)]
    train_both(module, options, batches)


@pytest.mark.parametrize("model", [ByAddress, Flattened])
def test_native_code_too(model, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    torch.manual_seed(0)
    module = model().to(memory_format=torch.channels_last)
    batches = [torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)] * 2
    train_both(module, poptorch.Options(), batches)


def test_other_strides_than_at_the_first_call():
    """The program takes elements, in whatever order they come."""
    model = Flattened().to(memory_format=torch.channels_last)
    executor = poptorch.inferenceModel(model)
    x = torch.randn(2, 3, 5, 5)
    expected = model(x)
    for given in (x.contiguous(memory_format=torch.channels_last), x, x.transpose(2, 3).contiguous().transpose(2, 3)):
        torch.testing.assert_close(executor(given), expected)


class Asks(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("b", torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
        self.seen = []

    def forward(self, x):
        self.seen.append((x.stride(), x.is_contiguous(), self.w.stride(), self.b.stride()))
        return (x @ self.w).sum() + self.b.sum()


def test_forward_sees_the_strides_of_the_user():
    model, x = Asks(), torch.randn(6, 3).t()
    model(x)
    poptorch.inferenceModel(model)(x)
    assert model.seen[-1] == model.seen[0]
    assert model.seen[0][:2] == ((1, 3), False)


class Repeated(nn.Module):
    def forward(self, x):
        return x.expand(3, 4).as_strided((2, 2), (1, 1)) + x.mul(2.0)[:, :2]


class Gaps(nn.Module):
    def forward(self, x):
        return x.as_strided((2, 2), (8, 1))


def test_memory_that_is_not_that_of_one_tensor():
    """By address, a view of a view means the memory of the first; gaps between elements are not on the device."""
    x = torch.randn(1, 4)
    torch.testing.assert_close(poptorch.inferenceModel(Repeated())(x), Repeated()(x))
    with pytest.raises(poptorch.Error, match=r"order of memory, which has gaps.*test_strides\.py:\d+\)"):
        poptorch.inferenceModel(Gaps())(torch.randn(4, 8)[:, :6])


class AsItLies(nn.Module):
    """By address, but with the tensor's own size and strides."""

    def forward(self, x):
        return x.as_strided(x.size(), x.stride()) + torch.as_strided_copy(x, x.size(), x.stride())


def test_a_tensor_with_gaps_seen_by_its_own_strides():
    for x in (torch.randn(4, 8)[:, ::2], torch.randn(4, 1).expand(4, 3), torch.randn(3, 8)[:, :6].t()):
        torch.testing.assert_close(poptorch.inferenceModel(AsItLies())(x), 2 * x)


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.empty(2, 3), [0, 1]),
        (torch.empty(2, 3).t(), [1, 0]),
        (torch.empty(2, 1, 3).transpose(0, 2), [2, 1, 0]),
        (torch.empty(()), []),
        (torch.empty(3, 4)[:, :2], None),
        (torch.empty(3, 1).expand(3, 4), None),
        (torch.empty(6)[1:4], None),
    ],
)
def test_order_in_memory(tensor, order):
    found = order_in_memory(tensor)
    if order is None:
        assert found is None
    else:
        assert found is not None
        assert tensor.permute(found).is_contiguous()
