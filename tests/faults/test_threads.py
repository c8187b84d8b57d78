"""Several threads use one executor: each call is served alone, and the results are those of one thread."""

from __future__ import annotations

import copy
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.executor.turns import Turns
from poptorch.runtime import weight_overlay

WIDTH = 64


class Regression(nn.Module):
    def __init__(self, pipelined: bool = False) -> None:
        super().__init__()
        self.pipelined = pipelined
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pipelined:
            poptorch.Block.start("a", ipu_id=0)
        y = torch.tanh(self.first(x))
        if self.pipelined:
            poptorch.Block.start("b", ipu_id=1)
        y = self.second(y)
        return y, poptorch.identity_loss((y * y).mean(), "none")


def make(pipelined: bool = False) -> tuple[Regression, Any]:
    torch.manual_seed(0)
    model = Regression(pipelined)
    options = poptorch.Options()
    if pipelined:
        options.Training.gradientAccumulation(3)
    return model, poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def together(*functions: Callable[[], None]) -> None:
    """Run all at the same time; raises what one of them raises."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  (raised below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("tries", [4, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_a_look_at_the_weights_does_not_change_training(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_overlay, "WORTHWHILE", 1)
    x, calls = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)), 30
    expected: dict[str, torch.Tensor] = {}
    for attempt in range(tries + 1):
        model, executor = make()
        executor.compile(x)
        done = threading.Event()

        def train(executor: Any = executor, done: threading.Event = done) -> None:
            for _ in range(calls):
                executor(x)
            done.set()

        def look(model: Regression = model, done: threading.Event = done) -> None:
            while not done.wait(0.003):
                assert float(model.first.weight.abs().max()) < 10

        together(train, *([look] if attempt else []))
        state = {name: value.clone() for name, value in model.state_dict().items()}
        expected = expected or state
        for name, value in state.items():
            assert torch.equal(value, expected[name]), f"{name} in try {attempt}"
        executor.destroy()
    print(f"{tries} trainings of {calls} calls with looks from another thread")


@pytest.mark.parametrize("tries", [8, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_the_first_call_may_come_from_four_threads(tries: int) -> None:
    x = torch.randn(2, WIDTH)
    for _ in range(tries):
        model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh())
        with torch.no_grad():
            expected = poptorch.inferenceModel(copy.deepcopy(model))(x)
        executor, results = poptorch.inferenceModel(model), []
        start = threading.Barrier(4)

        def call(executor: Any = executor, results: list[Any] = results, start: threading.Barrier = start) -> None:
            start.wait()
            results.append(executor(x))

        together(*[call] * 4)
        assert len(results) == 4
        assert all(torch.equal(result, expected) for result in results)
    print(f"{4 * tries} first calls")


@pytest.mark.parametrize("pipelined", [False, True], ids=["one part", "pipeline"])
@pytest.mark.parametrize("tries", [3, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_three_threads_train_as_one(pipelined: bool, tries: int) -> None:
    x, calls = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1)), 8
    alone, executor = make(pipelined)
    for _ in range(3 * calls):
        executor(x)
    expected = alone.state_dict()
    for _ in range(tries):
        model, executor = make(pipelined)

        def train(executor: Any = executor) -> None:
            for _ in range(calls):
                executor(x)

        together(*[train] * 3)
        for name, value in model.state_dict().items():
            assert torch.equal(value, expected[name]), name
    print(f"{3 * tries} threads with {calls} calls each")


@pytest.mark.parametrize("tries", [5, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_a_model_is_readable_after_destroy_during_a_call(tries: int) -> None:
    x = torch.randn(6, WIDTH)
    for attempt in range(tries):
        model, executor = make(pipelined=attempt % 2 == 1)
        executor.compile(x)
        started = threading.Event()

        def train(executor: Any = executor, started: threading.Event = started) -> None:
            for _ in range(10):
                executor(x)
                started.set()
                if not executor.isCompiled():
                    return

        def destroy(executor: Any = executor, started: threading.Event = started) -> None:
            started.wait()
            executor.destroy()

        together(train, destroy)
        executor.destroy()  # a call after the first destroy() compiled the model again
        assert type(model) is Regression
        assert all(torch.isfinite(value).all() for value in model.state_dict().values())
        assert torch.isfinite(model(x)[1])
    print(f"{tries} models destroyed during a call")


def test_inference_follows_training_in_another_thread() -> None:
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(2))
    model, training = make()
    inference, calls = poptorch.inferenceModel(model), 30
    training(x)
    inference(x)
    allowed: list[torch.Tensor] = []
    seen: list[torch.Tensor] = []
    twin, expected = make()
    expected(x)
    twin_inference = poptorch.inferenceModel(twin)
    allowed.append(twin_inference(x)[0])
    for _ in range(calls):
        expected(x)
        allowed.append(twin_inference(x)[0])

    def train() -> None:
        for _ in range(calls):
            training(x)

    def infer() -> None:
        seen.extend(inference(x)[0] for _ in range(calls))

    together(train, infer)
    assert all(any(torch.equal(it, one) for one in allowed) for it in seen)
    print(f"{calls} inferences during {calls} training calls")


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((8,), 2.0))
        self.layers, self.norm = nn.ModuleList(nn.Linear(8, 8) for _ in range(10)), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * self.scale
        return self.norm(x)


@pytest.mark.parametrize("tries", [4, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_a_plain_module_can_be_used_while_another_thread_compiles_it(tries: int) -> None:
    x, uses = torch.ones(2, 8), 0
    for _ in range(tries):
        model = Deep().eval()
        expected, done = model(x).detach(), threading.Event()

        def use(model: Deep = model, expected: torch.Tensor = expected, done: threading.Event = done) -> None:
            nonlocal uses
            while not done.is_set():
                result = model(x)
                assert type(result) is torch.Tensor
                assert torch.equal(result.detach(), expected)
                uses += 1

        def compile(model: Deep = model, expected: torch.Tensor = expected, done: threading.Event = done) -> None:
            try:
                assert_close_sums(poptorch.inferenceModel(model)(x), expected, terms=8, steps=12)
            finally:
                done.set()

        together(use, compile)
    print(f"{uses} uses during {tries} compilations")


def test_a_recurrent_layer_that_another_thread_compiles_says_so() -> None:
    refused: list[str] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=use_elsewhere)
            thread.start()
            thread.join()
            return self.layer(x)[0]

    def use_elsewhere() -> None:
        try:
            model.layer(torch.zeros(2, 1, 4))
        except poptorch.Error as error:
            refused.append(str(error))

    model = Model()
    poptorch.inferenceModel(model)(torch.zeros(2, 1, 4))
    assert refused
    assert "another thread compiles" in refused[0]
    refused.clear()
    use_elsewhere()
    assert not refused


def test_code_that_knows_the_original_module_is_captured_with_it() -> None:
    model = nn.Linear(3, 3)
    model.forward = lambda x: nn.functional.linear(x, model.weight)  # type: ignore[method-assign]
    executor = poptorch.inferenceModel(model)
    x = torch.ones(1, 3)
    before = executor(x)
    with torch.no_grad():
        model.weight.mul_(2)
    executor.copyWeightsToDevice()
    assert torch.equal(executor(x), 2 * before)


def test_waiting_callers_are_served_in_order() -> None:
    turns, callers = Turns(), 20
    served: list[int] = []
    begun, release = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        release.wait()

    threads = [threading.Thread(target=turns.take, args=(first,))]
    threads[0].start()
    begun.wait()
    for number in range(callers):
        threads.append(threading.Thread(target=turns.take, args=(served.append, number)))
        threads[-1].start()
        time.sleep(0.02)  # it arrives before the next one
    release.set()
    for thread in threads:
        thread.join(10)
    assert served == list(range(callers))
    print(f"{callers} callers in a queue")


def test_a_caller_that_is_interrupted_while_it_waits_lets_the_next_one_wait_on() -> None:
    turns, served = Turns(), list[str]()
    begun, release = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        release.wait()
        served.append("first")

    holder = threading.Thread(target=turns.take, args=(first,))
    holder.start()
    begun.wait()
    follower = threading.Thread(target=turns.take, args=(served.append, "third"))

    def interrupt() -> None:
        follower.start()
        time.sleep(0.1)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, lambda *_: interrupt())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            turns.take(served.append, "second")
    finally:
        signal.signal(signal.SIGALRM, before)
    time.sleep(0.1)
    assert served == []
    release.set()
    for thread in (holder, follower):
        thread.join(10)
        assert not thread.is_alive()
    assert served == ["first", "third"]


def test_a_host_operation_of_a_pipeline_may_look_at_its_own_model() -> None:
    class Looking(Regression):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y, loss = super().forward(x)
            return look(y)[0], loss

    def at_the_model(y: torch.Tensor) -> torch.Tensor:
        return y + 0 * len(model.state_dict())

    look = poptorch.CPU(at_the_model, "look")
    model = Looking(pipelined=True)
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    done = threading.Event()

    def train() -> None:
        for _ in range(3):
            executor(torch.ones(6, WIDTH))
        done.set()

    together(train)
    assert done.is_set()
