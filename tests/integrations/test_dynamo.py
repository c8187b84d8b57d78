"""``torch.compile(backend="poptorch")`` against eager PyTorch: values, gradients, state, training steps."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from poptorch.integrations.dynamo import compile_graph

Case = tuple[nn.Module, Callable[[], tuple[torch.Tensor, ...]]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="poptorch")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Counter(nn.Module):
    """Writes a buffer and an argument, returns a view of an argument, and the same value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1
        y = x * self.count
        x.add_(1)
        return y, x[:1], y


class Breaks(nn.Module):
    """Its graph breaks in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.sum().item() > 100:
            return y
        return y.cos() * 2


MODELS: dict[str, Callable[[], Case]] = {
    "linear": lambda: (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), lambda: (torch.randn(3, 4),)),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        lambda: (torch.randn(2, 2, 6, 6),),
    ),
    "attention": lambda: (Attention(), lambda: (torch.randn(2, 5, 8),)),
    "recurrent": lambda: (nn.GRUCell(4, 8), lambda: (torch.randn(3, 4), torch.randn(3, 8))),
    "embedding": lambda: (nn.EmbeddingBag(10, 4), lambda: (torch.randint(0, 10, (3, 5)),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_gradients_and_state_equal_those_of_eager(name: str) -> None:
    model, example = MODELS[name]()
    expected_model = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(3):
        inputs = example()
        result, expected = run(*inputs), expected_model(*inputs)
        torch.testing.assert_close(result, expected)
        result.square().sum().backward()
        expected.square().sum().backward()
        for one, other in zip(model.parameters(), expected_model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(model.state_dict(), expected_model.state_dict())
    model.eval()
    expected_model.eval()
    with torch.no_grad():
        torch.testing.assert_close(run(*inputs), expected_model(*inputs))


def test_training_steps_equal_those_of_eager() -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    models = [model, copy.deepcopy(model)]
    losses: list[list[float]] = []
    for each, run in zip(models, (compiled(models[0]), models[1]), strict=True):
        optimizer = torch.optim.Adam(each.parameters(), lr=0.05)
        random = torch.Generator().manual_seed(1)
        losses.append([])
        for _ in range(6):
            optimizer.zero_grad()
            x = torch.randn(8, 4, generator=random)
            loss = F.cross_entropy(run(x), x[:, :3].argmax(1))
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict())


def test_what_is_written_is_written_and_values_stay() -> None:
    model = Counter()
    expected_model = copy.deepcopy(model)
    run = compiled(model)
    kept = []
    for _ in range(2):
        x = torch.randn(3)
        x_expected = x.clone()
        found, expected = run(x), expected_model(x_expected)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x, x_expected)
        assert found[1].data_ptr() == x.data_ptr()
        kept.append((found[0], expected[0].clone()))
    assert model.count == 2
    for found, expected in kept:  # no later call has written to them
        torch.testing.assert_close(found, expected)


def test_graphs_that_break() -> None:
    x = torch.randn(4, requires_grad=True)
    found = compiled(Breaks())(x)
    torch.testing.assert_close(found, Breaks()(x))


def test_types_are_those_of_eager() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.argmax(), x.double() * 2, x > 0, x.to(torch.bfloat16)

    x = torch.randn(5)
    for found, expected in zip(compiled(function)(x), function(x), strict=True):
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)


def test_random_numbers_come_from_torch() -> None:
    run = compiled(nn.Dropout(0.5))
    torch.manual_seed(5)
    first, second = run(torch.ones(50)), run(torch.ones(50))
    torch.manual_seed(5)
    assert torch.equal(run(torch.ones(50)), first)
    assert not torch.equal(first, second)
    assert set(first.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(("function", "why"), [
    (torch.compile(lambda x: x.cos() + x.shape[0], backend="poptorch", dynamic=True), "its sizes may change"),
    (torch.compile(lambda x: x.half().cos(), backend="poptorch"), "half precision"),
], ids=["dynamic", "half"])  # fmt: skip
def test_other_graphs_run_as_they_are(function: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
    from poptorch import logger

    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    try:
        for size in (3, 4):
            x = torch.randn(size)
            expected = x.half().cos() if why == "half precision" else x.cos() + size
            torch.testing.assert_close(function(x), expected)
    finally:
        logger.removeHandler(caplog.handler)
    assert why in caplog.text


def test_generated_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from poptorch.integrations import dynamo

    sources = []
    plain = dynamo.generate_flat

    def generate(*args: Any) -> Any:
        sources.append(plain(*args).source)
        return plain(*args)

    monkeypatch.setattr(dynamo, "generate_flat", generate)
    x = torch.randn(2, 3, requires_grad=True)
    torch.compile(lambda x: x.tanh().exp(), backend=compile_graph)(x).sum().backward()
    assert len(sources) == 2  # forward and backward
    assert all(source.startswith("def graph(random,") for source in sources)


def test_options_are_refused() -> None:
    with pytest.raises(Exception, match="has no options"):
        torch.compile(nn.ReLU(), backend="poptorch", options={"fast": True})(torch.ones(1))


def test_a_fresh_interpreter_finds_the_backend_by_its_name() -> None:
    code = (
        "import sys, torch\n"
        "import torch._dynamo\n"
        "assert 'poptorch' in torch._dynamo.list_backends(), torch._dynamo.list_backends()\n"
        "assert 'poptorch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
