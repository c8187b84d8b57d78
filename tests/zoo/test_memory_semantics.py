"""Writing in place, views, and state that ``forward`` changes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from against_eager import check_inference, check_training
from torch import nn
from torch.nn import functional as F
from zoo_architecture import WithLoss

import poptorch
from closeness import assert_close_sums


class Applied(nn.Module):
    """A linear layer and a function of its result."""

    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(self.linear(x))


def chain(y: torch.Tensor) -> torch.Tensor:
    return y.add_(1).mul_(0.5).relu_()


def rows_and_columns(y: torch.Tensor) -> torch.Tensor:
    y = y * 1
    y[:, 0] = 0
    y[1:3, 2:4] += 2
    y[:, -1] *= y[:, 1].detach().clone()
    return y


def through_views(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    left, right = y[:, :3], y.narrow(1, 3, 3)
    left.mul_(2)
    right.transpose(0, 1)[0].add_(1)
    y.view(-1)[::7].zero_()
    return y


def indexed(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[torch.tensor([0, 3]), torch.tensor([1, 1])] = 5.0
    y.index_put_((torch.tensor([2]), torch.tensor([2])), torch.tensor([1.0]), accumulate=True)
    y.masked_fill_(y > 1, 0.5)
    y.scatter_(1, torch.zeros(5, 1, dtype=torch.long), 0.25)
    return y


def into_empty(y: torch.Tensor) -> torch.Tensor:
    result = torch.empty(y.shape[1], y.shape[0])
    for i, column in enumerate(y.unbind(1)):
        result[i] = column * i
    return result.t()


def out_variants(y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scratch = torch.empty_like(y)
        torch.add(y.detach(), 1, out=scratch)
    return y * scratch


def strided(y: torch.Tensor) -> torch.Tensor:
    y = y.contiguous()
    windows = y.as_strided((5, 3, 4), (6, 1, 1))
    return windows.sum(1) + y.unfold(1, 4, 1).mean(1) + y.expand(2, 5, 6)[1, :, :4] + y.flip(0).roll(1, 1)[:, :4]


@pytest.mark.parametrize(
    "function",
    [chain, rows_and_columns, through_views, indexed, into_empty, out_variants, strided],
    ids=lambda f: f.__name__,
)
def test_in_place_operations_and_views(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    check_inference(Applied(function), x)
    target = torch.zeros_like(Applied(function)(x))
    check_training(WithLoss(Applied(function), F.mse_loss, 1), [(x, target)] * 3)


def test_overlapping_outputs_are_independent_tensors() -> None:
    model = poptorch.inferenceModel(Applied(lambda y: (y, y[0], y.t(), [y, y.view(-1)])))
    whole, row, transposed, (again, flat) = model(torch.randn(5, 4))
    kept = whole.clone()
    for other in (row, transposed, again, flat):
        other.zero_()
    assert torch.equal(whole, kept)
    assert whole.is_contiguous()
    assert transposed.is_contiguous()


def test_returned_inputs_and_weights_are_copies() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("table", torch.ones(2))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x, self.weight, self.table, x + self.weight

    module = Returns()
    model = poptorch.inferenceModel(module)
    x = torch.zeros(2)
    for tensor in model(x)[:3]:
        tensor.fill_(7.0)
    again = model(x)
    assert [t.tolist() for t in again] == [[0, 0], [1, 1], [1, 1], [1, 1]]
    assert x.tolist() == [0, 0]
    assert module.weight.tolist() == [1, 1]


class RunningMean(nn.Module):
    """Keeps statistics in buffers: one updated in place, one overwritten, one only read, one that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.zeros(3))
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(0), 0.1)
        self.calls += 1
        y = self.linear(x - self.mean) * self.scale
        self.last.copy_(y.detach().amax(0))
        return y + self.last


def test_buffers_carry_state_from_step_to_step() -> None:
    torch.manual_seed(0)
    model = WithLoss(RunningMean(), F.mse_loss, 1)
    check_training(model, [(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(4)])
    assert model.network.calls.item() == 4


def test_buffers_carry_state_inside_one_call() -> None:
    torch.manual_seed(0)
    module = RunningMean()
    twin = copy.deepcopy(module)
    model = poptorch.inferenceModel(module, poptorch.Options().deviceIterations(3))
    x = torch.randn(6, 4)
    with torch.no_grad():
        expected = torch.cat([twin(block) for block in x.chunk(3)])
    assert_close_sums(model(x), expected, terms=x.numel())
    assert module.calls.item() == 0, "an inference model never writes to the host by itself"
    model.copyWeightsToHost()
    assert module.calls.item() == 3
    assert_close_sums(module.mean, twin.mean, terms=x.numel())


def test_batch_norm_statistics_follow_eager() -> None:
    torch.manual_seed(0)
    last = nn.BatchNorm1d(3, momentum=0.3, affine=False)
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Sigmoid(), last)
    model = WithLoss(network, F.mse_loss, 1)
    check_training(model, [(torch.randn(5, 4), torch.randn(5, 3)) for _ in range(3)])
    assert network[1].num_batches_tracked.item() == 3
    check_inference(network.eval(), torch.randn(5, 4))


# -- losses --------------------------------------------------------------------------------------------------------


class Focal(nn.Module):
    """A loss module of the user's own."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nll = F.cross_entropy(logits, target.long(), reduction="none")
        return poptorch.identity_loss((1 - torch.exp(-nll)) ** 2 * nll, reduction="mean")


class Penalised(nn.Module):
    """Two losses and a penalty, declared as one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.focal = Focal()

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.linear(x)
        penalty = sum(p.square().sum() for p in self.parameters())
        total = self.focal(logits, target) + 0.5 * F.nll_loss(logits.log_softmax(-1), target.long()) + 0.01 * penalty
        return logits, poptorch.identity_loss(total, reduction="none")


def test_custom_losses_train_like_eager() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(3)]
    check_training(WithLoss(nn.Linear(4, 3), Focal(), 1), data)
    check_training(Penalised(), data)


class Remembers(nn.Module):
    """Plain attributes are no state: written in ``forward``, they start from the value before capture in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(3.0)
        self.child = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table.add_(x)
        self.table[0] = 7
        self.child.last = self.table * 2
        return self.child.last + self.table


def test_plain_attributes_are_constants_and_change_once_on_the_host() -> None:
    module = Remembers()
    model = poptorch.inferenceModel(module)
    for _ in range(2):
        assert model(torch.ones(3)).tolist() == [21, 6, 9]
    assert module.table.tolist() == [7, 2, 3]
    assert not hasattr(module.child, "last")
    module.table.fill_(100.0)
    assert model(torch.ones(3)).tolist() == [21, 6, 9]
