"""POPTORCH_FAULTS: failures that surface as the errors of real devices, and what is left after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from staged_classifier import StagedClassifier
from torch import nn

import poptorch
from poptorch.executor import level_change
from poptorch.runtime.faults import current_rehearsal, faults_of


@pytest.fixture(autouse=True)
def _counts_begin_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("POPTORCH_FAULTS", raising=False)
    assert current_rehearsal() is None
    yield
    monkeypatch.delenv("POPTORCH_FAULTS", raising=False)
    current_rehearsal()


ITERATIONS, ACCUMULATION = 3, 3
KINDS = ["one part", "pipelined", "replicated"]


class Setup:
    def __init__(self, kind: str, iterations: int = ITERATIONS) -> None:
        torch.manual_seed(0)
        self.model = StagedClassifier(kind == "pipelined", 4, 8, nn.Dropout(0.5))
        options = poptorch.Options().deviceIterations(iterations).randomSeed(1)
        options.Training.gradientAccumulation(ACCUMULATION)
        if kind != "pipelined":
            options.setExecutionStrategy(poptorch.ShardedExecution())
        self.replicas = 2 if kind == "replicated" else 1
        options.replicationFactor(self.replicas)
        self.rows = iterations * ACCUMULATION * self.replicas * 2
        self.optimizer = poptorch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.executor = poptorch.trainingModel(self.model, options, self.optimizer)

    def data(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.rows, 4, generator=generator), torch.randint(0, 3, (self.rows,), generator=generator)

    def state(self) -> dict[str, Any]:
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        moments = {name: value.clone() for name, value in self.optimizer.state_dict()["ipu_state"].items()}
        return {**weights, **moments, "random": torch.tensor(self.executor.rng_state)}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fault", "error_type", "origin", "action"),
    [
        ("ipu_reset", poptorch.RecoverableError, "poplar_recoverable_runtime_error", "IPU_RESET"),
        ("partition_reset", poptorch.RecoverableError, "poplar_recoverable_runtime_error", "PARTITION_RESET"),
        ("full_reset", poptorch.RecoverableError, "poplar_recoverable_runtime_error", "FULL_RESET"),
        ("unrecoverable", poptorch.UnrecoverableError, "poplar_unrecoverable_runtime_error", None),
        ("unknown_error", poptorch.Error, "poplar_unknown_runtime_error", None),
        ("worker_error", poptorch.Error, "std::exception", None),
    ],
)
def test_a_failure_has_all_fields(
    kind: str, fault: str, error_type: type, origin: str, action: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_FAULTS", f"{fault}: call=2, iteration=3")
    setup = Setup(kind)
    setup.executor(*setup.data(1))
    with pytest.raises(poptorch.Error) as raised:
        setup.executor(*setup.data(2))
    error = raised.value
    assert type(error) is error_type
    assert error.type == origin
    assert getattr(error, "recovery_action", None) == action
    assert "POPTORCH_FAULTS asks for this failure (fault 1, call 2)" in error.message
    assert "IPU 0 of replica" in error.message
    innermost, *outer = error.location.splitlines()
    assert innermost.startswith("  [0] stage 0 on IPU 0 of replica ")
    assert outer == ["  [1] device iteration 3", "  [2] running the program"]
    assert ("Recovery action required" in str(error)) == (action is not None)
    if fault == "worker_error":
        assert ("poptorch-worker-" in error.message) == (kind != "one part")


@pytest.mark.parametrize(
    ("kind", "place", "where"),
    [
        ("pipelined", "ipu=1", "stage 1 on IPU 1 of replica 0"),
        ("pipelined", "stage=1", "stage 1 on IPU 1 of replica 0"),
        ("replicated", "replica=1", "stage 0 on IPU 0 of replica 1"),
    ],
)
def test_a_failure_can_have_a_place(kind: str, place: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_FAULTS", f"ipu_reset:{place}")
    setup = Setup(kind)
    with pytest.raises(poptorch.RecoverableError) as raised:
        setup.executor(*setup.data(1))
    assert where in raised.value.location


def test_a_place_that_is_not_there_is_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset:ipu=7;ipu_reset:iteration=4")
    setup = Setup("pipelined")
    setup.executor(*setup.data(1))
    said = [record.getMessage() for record in caplog.records]
    assert any("fault 1 (ipu_reset) cannot strike this training model, which has no ipu 7" in line for line in said)
    assert any("which has no iteration 4" in line for line in said)


def test_text_that_is_not_understood_fails_the_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset:call=three")
    setup = Setup("one part")
    with pytest.raises(poptorch.Error, match="POPTORCH_FAULTS is not understood at position 16"):
        setup.executor(*setup.data(1))
    monkeypatch.delenv("POPTORCH_FAULTS")
    setup.executor(*setup.data(1))


def test_a_link_error_fails_the_compilation_and_not_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_FAULTS", "link_error:compilation=1")
    setup = Setup("pipelined")
    with pytest.raises(poptorch.Error) as raised:
        setup.executor.compile(*setup.data(1))
    assert raised.value.type == "poplar_link_error"
    assert ". Output: error: undefined symbol" in raised.value.message
    assert "linking the training program" in raised.value.location
    assert not setup.executor.isCompiled()
    setup.executor(*setup.data(1))


def test_what_is_broken_stays_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_FAULTS", "unrecoverable:call=2,iteration=2")
    setup = Setup("one part")
    setup.executor(*setup.data(1))
    for _ in range(2):
        with pytest.raises(poptorch.UnrecoverableError):
            setup.executor(*setup.data(2))
    setup.executor.destroy()
    again = Setup("one part")
    with pytest.raises(poptorch.UnrecoverableError):
        again.executor(*again.data(1))


def failing_calls(calls: int) -> list[int]:
    executor, failed = poptorch.inferenceModel(nn.ReLU()), []
    for call in range(calls):
        try:
            executor(torch.ones(2))
        except poptorch.RecoverableError:
            failed.append(call)
    return failed


def test_chance_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for seed in (1, 2, 1):
        monkeypatch.setenv("POPTORCH_FAULTS", f"seed={seed}; ipu_reset:probability=0.25")
        failed = failing_calls(200)
        assert found.setdefault(seed, failed) == failed
        assert 20 < len(failed) < 80
    assert found[1] != found[2]


def test_each_fault_counts_the_calls_of_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset:call=2,program=inference")
    setup = Setup("one part")
    for seed in range(3):
        setup.executor(*setup.data(seed))
    assert failing_calls(4) == [1]
    assert failing_calls(4) == []  # calls are counted over all models of the process


# --- what does not change ----------------------------------------------------------------------------------------


def test_without_the_variable_an_engine_has_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup("one part")
    setup.executor.compile(*setup.data(1))
    assert faults_of(setup.executor.executable) is None
    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset:program=inference")
    assert faults_of(setup.executor.executable) is None
    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset:program=training")
    assert faults_of(setup.executor.executable) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_slow_devices_compute_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Setup(kind)
    expected = [plain.executor(*plain.data(seed)) for seed in range(3)]
    slept: list[float] = []
    monkeypatch.setenv("POPTORCH_FAULTS", "slow:call=2..3,seconds=0.001,replica=0")
    monkeypatch.setattr("poptorch.runtime.faults.time.sleep", slept.append)
    slow = Setup(kind)
    for seed, outputs in enumerate(expected):
        for one, other in zip(slow.executor(*slow.data(seed)), outputs, strict=True):
            assert torch.equal(one, other)
    assert_same(slow.state(), plain.state())
    assert len(slept) >= 2
    assert set(slept) == {0.001}


# --- what is left after a failure --------------------------------------------------------------------------------


def resume_in_place(setup: Setup, kind: str) -> Setup:
    return setup


def resume_attached_again(setup: Setup, kind: str) -> Setup:
    setup.executor.detachFromDevice()
    setup.executor.attachToDevice()
    return setup


def resume_compiled_again(setup: Setup, kind: str) -> Setup:
    weights, optimizer, random = setup.model.state_dict(), setup.optimizer.state_dict(), setup.executor.rng_state
    setup.executor.destroy()
    fresh = Setup(kind)
    fresh.model.load_state_dict(weights)
    fresh.executor.compile(*fresh.data(0))
    fresh.optimizer.load_state_dict(optimizer)
    fresh.executor.rng_state = random
    return fresh


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resume", [resume_in_place, resume_attached_again, resume_compiled_again])
def test_training_goes_on_after_a_recoverable_failure(kind: str, resume: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call fails in its third device iteration: two updates are done, and the host shows them."""
    whole = Setup(kind, iterations=1)
    broken = Setup(kind)
    for iteration in range(5):
        seed, part = divmod(iteration, ITERATIONS)
        rows = slice(part * whole.rows, (part + 1) * whole.rows)
        whole.executor(*(tensor[rows] for tensor in broken.data(seed + 1)))

    monkeypatch.setenv("POPTORCH_FAULTS", "ipu_reset:call=2,iteration=3")
    broken.executor(*broken.data(1))
    with pytest.raises(poptorch.RecoverableError):
        broken.executor(*broken.data(2))
    assert_same(broken.state(), whole.state())

    resumed = resume(broken, kind)
    resumed.executor(*resumed.data(3))
    for part in range(ITERATIONS):
        rows = slice(part * whole.rows, (part + 1) * whole.rows)
        whole.executor(*(tensor[rows] for tensor in resumed.data(3)))
    assert_same(resumed.state(), whole.state())


def test_calls_before_a_checkpoint_count_towards_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a resumed program would run other code, with other bits, than one that was never interrupted."""
    monkeypatch.setattr("poptorch.host.levels.SWITCH_AFTER_SECONDS", 1e-9)  # after one call
    compiled: list[bool] = []

    def native(device: Any, code: Any, *rest: Any) -> Any:
        compiled.append(True)
        raise RuntimeError("not now")

    monkeypatch.setattr(level_change, "native_code", native)
    fresh, resumed = Setup("one part"), Setup("one part")
    fresh.executor(*fresh.data(1))
    assert not compiled
    resumed.executor.compile(*resumed.data(1))
    resumed.executor.rng_state = fresh.executor.rng_state
    resumed.executor(*resumed.data(2))
    assert compiled
