"""Buffers and other tensors of a module (section 6), and what happens to tensors that are not inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from op_samples import Alone, normal
from torch import Tensor, nn

import poptorch
from closeness import assert_close_sums


class Counter(nn.Module):
    """Adds its input to a buffer, one way or another."""

    def __init__(self, how: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("count", torch.zeros(2, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "+=":
            self.count += x
        elif self.how == "add_":
            self.count.add_(x)
        elif self.how == "copy_":
            self.count.copy_(self.count + x)
        elif self.how == "slice":
            self.count[:] = self.count + x
        elif self.how == "index":
            self.count[torch.tensor([0, 1])] += x
        elif self.how == "twice":
            self.count.fill_(100)
            self.count.copy_(x * 3)
        elif self.how == "reassign":
            self.count = self.count + x
        elif self.how == "delete":
            del self.count
            return x
        return self.count + 0


@pytest.mark.parametrize("how", ["+=", "add_", "copy_", "slice", "index"])
def test_a_changed_buffer_persists(how: str) -> None:
    model = Counter(how)
    executor = poptorch.inferenceModel(model)
    results = [executor(torch.tensor([1.0, 10.0])).tolist() for _ in range(3)]
    assert results == [[1, 10], [2, 20], [3, 30]]
    assert model.count.tolist() == [0, 0]
    executor.copyWeightsToHost()
    assert model.count.tolist() == [3, 30]


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.int64, torch.float64])
def test_buffers_keep_their_type(dtype: torch.dtype) -> None:
    model = Counter("+=", dtype)
    executor = poptorch.inferenceModel(model)
    x = torch.tensor([1, 2], dtype=dtype)
    executor(x)
    assert executor(x).tolist() == [2, 4]
    executor.copyWeightsToHost()
    assert model.count.dtype == dtype
    assert model.count.tolist() == [2, 4]


def test_the_last_of_two_writes_wins() -> None:
    executor = poptorch.inferenceModel(Counter("twice"))
    assert executor(torch.tensor([1.0, 2.0])).tolist() == [3, 6]


@pytest.mark.parametrize(
    ("how", "phrase"),
    [
        ("reassign", r"Buffer .*count is reassigned within the model"),
        ("delete", r"Buffer .*count is removed from the model"),
    ],
)
def test_rebinding_a_buffer_is_refused(how: str, phrase: str) -> None:
    model = Counter(how)
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.inferenceModel(model)(torch.ones(2))
    assert model.count.tolist() == [0, 0]


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_one_update_for_each_micro_batch(iterations: int, accumulation: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int32))
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.total += x.sum(0)
            return poptorch.identity_loss(self.layer(x), reduction="mean")

    options = poptorch.Options().deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    model = Model()
    x = normal(iterations * accumulation * 2, 2)
    poptorch.trainingModel(model, options)(x)
    assert int(model.steps) == iterations * accumulation
    assert_close_sums(model.total, x.sum(0), terms=len(x))


def test_a_plain_attribute_is_a_constant() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.tensor([1.0])

        def forward(self, x: Tensor) -> Tensor:
            self.plain += 1
            return x + self.plain

    model = Model()
    executor = poptorch.inferenceModel(model)
    assert [executor(torch.zeros(1)).item() for _ in range(3)] == [2, 2, 2]
    assert model.plain.item() == 2  # changed once, when the model was captured


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("replicas", [1, 2])
def test_constant_buffers_of_any_type(dtype: torch.dtype, replicas: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.tensor([0, 1, 1]).to(dtype))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.table

    executor = poptorch.inferenceModel(Model(), poptorch.Options().replicationFactor(replicas))
    assert executor(torch.ones(2 * replicas, 3)).float().tolist() == [[0, 1, 1]] * 2 * replicas


@pytest.mark.parametrize("momentum", [0.1, 0.9])
def test_batch_norm_statistics_over_several_steps(momentum: float) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3, momentum=momentum)

        def forward(self, x: Tensor) -> Any:
            y = self.norm(x)
            return y, poptorch.identity_loss((y**3).sum(), reduction="none")

    ours, reference = Model(), Model()
    training = poptorch.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.01))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.01)
    for step in range(4):
        x = normal(6, 3, seed=step)
        y, loss = training(x)
        expected, expected_loss = reference(x)
        optimizer.zero_grad()
        expected_loss.backward()
        optimizer.step()
        results = y, loss, dict(ours.state_dict())
        wanted = expected.detach(), expected_loss.detach(), dict(reference.state_dict())
        # The terms of the loss are up to 2**3; they cancel out.
        assert_close_sums(results, wanted, terms=x.numel(), steps=step + 1, scale=8.0)


def test_eval_inside_a_training_model_freezes_the_statistics() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3).eval()

        def forward(self, x: Tensor) -> Tensor:
            return poptorch.identity_loss(self.norm(x), reduction="sum")

    model = Model()
    poptorch.trainingModel(model)(normal(6, 3))
    assert model.norm.running_mean.tolist() == [0, 0, 0]
    assert model.norm.running_var.tolist() == [1, 1, 1]
    assert int(model.norm.num_batches_tracked) == 0
    assert model.norm.bias.tolist() != [0, 0, 0]


def test_inputs_in_a_list_are_changed_for_the_caller() -> None:
    class Model(nn.Module):
        def forward(self, pair: list[Tensor], other: tuple[Tensor, Tensor]) -> None:
            pair[0] += 1
            pair[1].mul_(other[0])
            other[1][0] = 5

    executor = poptorch.inferenceModel(Model())
    a, b, c, d = torch.zeros(2), torch.ones(2), torch.full((2,), 3.0), torch.zeros(2)
    for _ in range(2):
        assert executor([a, b], (c, d)) is None
    assert (a.tolist(), b.tolist(), c.tolist(), d.tolist()) == ([2, 2], [9, 9], [3, 3], [5, 0])


def test_repeated_calls_accumulate_and_other_tensors_are_untouched() -> None:
    executor = poptorch.inferenceModel(Alone(lambda x: x.add_(1)))
    mine, other = torch.ones(2), torch.zeros(2)
    executor(mine)
    executor(other)
    executor(mine)
    assert mine.tolist() == [3, 3]
    assert other.tolist() == [1, 1]


def test_byte_masks_may_be_written_through() -> None:
    def write(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        y, z = x * 1, x * 1
        y[mask] = 9.0
        z[mask] = value
        return y + z

    mask = torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8)
    result = poptorch.inferenceModel(Alone(write))(torch.zeros(2, 2), mask, torch.tensor(2.0))
    assert result.tolist() == [[11, 0], [0, 11]]


@pytest.mark.parametrize("view", ["transpose", "slice", "expand", "step"])
def test_inputs_need_not_be_contiguous(view: str) -> None:
    x = {
        "transpose": normal(4, 3).t(),
        "slice": normal(4, 6)[:, 2:5],
        "expand": normal(4, 1).expand(4, 3),
        "step": normal(8, 3)[::2],
    }[view]
    executor = poptorch.inferenceModel(Alone(lambda x: (x * 2, x.sum(1), x.reshape(-1))))
    expected = x * 2, x.sum(1), x.contiguous().view(-1)
    assert_close_sums(tuple(executor(x)), expected, terms=3, scale=x.abs().max().item())


def test_gradients_stop_where_the_model_says() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.detached, self.no_grad, self.free = (nn.Parameter(torch.ones(2)) for _ in range(3))
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

        @torch.no_grad()
        def decorated(self, x: Tensor) -> Tensor:
            return x * self.no_grad

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                a = x * self.no_grad
            a = a + self.decorated(x) + (self.detached * x).detach()
            return poptorch.identity_loss((a * self.free + self.frozen * x) ** 2, reduction="sum")

    model = Model()
    poptorch.trainingModel(model)(normal(3, 2))
    for name in ("detached", "no_grad", "frozen"):
        assert getattr(model, name).tolist() == [1, 1]
    assert model.free.tolist() != [1, 1]


def test_float16_follows_pytorch_without_tracing() -> None:
    options = poptorch.Options()
    options.Jit.traceModel(False)
    executor = poptorch.inferenceModel(Alone(lambda h, x: (h + x, h.float(), h * 2, h.sum())), options)
    results = executor(torch.ones(2, dtype=torch.float16), torch.ones(2))
    assert [r.dtype for r in results] == [torch.float32, torch.float32, torch.float16, torch.float16]


@pytest.mark.parametrize(("given", "returned"), [(torch.float64, torch.float32), (torch.int64, torch.int32)])
def test_wide_types_come_back_narrow(given: torch.dtype, returned: torch.dtype) -> None:
    executor = poptorch.inferenceModel(Alone(lambda x: (x + 1, x, torch.ones(2, dtype=given))))
    assert [r.dtype for r in executor(torch.ones(2, dtype=given))] == [returned] * 3
