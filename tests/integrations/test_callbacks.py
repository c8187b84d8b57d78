"""Callbacks of executors, the loggers made of them, and ranges of ``torch.profiler``."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import profiler
from torch.profiler import ProfilerActivity, profile

import poptorch
from poptorch.integrations.callbacks import Callback, Event, MLflow, TensorBoard, WandB, values_of

X, TARGET = torch.ones(8, 2), torch.zeros(8, 1)


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        y = self.second(self.first(x).relu())
        return y if target is None else (y, nn.functional.mse_loss(y, target))


def training(options: poptorch.Options | None = None, model: nn.Module | None = None) -> poptorch.PoplarExecutor:
    model = Regression() if model is None else model
    return poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))


class Diary(Callback):
    """Writes down everything."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Event]] = []

    def on_compile(self, event: Event) -> None:
        self.events.append(("compile", event))

    def on_step(self, event: Event) -> None:
        self.events.append(("step", event))

    def on_update(self, event: Event) -> None:
        self.events.append(("update", event))

    def on_end(self, event: Event) -> None:
        self.events.append(("end", event))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def test_training_with_device_iterations() -> None:
    diary = Diary()
    executor = training(poptorch.Options().deviceIterations(4))
    executor.addCallback(diary)
    results = [executor(X, TARGET) for _ in range(2)]
    executor.destroy()
    assert diary.names == ["compile", "step", "update", "step", "update", "end"]
    assert [event.step for _, event in diary.events] == [0, 1, 1, 2, 2, 2]
    assert [event.updates for _, event in diary.events] == [0, 4, 4, 8, 8, 8]
    assert diary.events[1][1].result is results[0]
    assert all(event.seconds > 0 for _, event in diary.events[:-1])
    assert diary.events[1][1].optimizer is not None


def test_inference_has_no_updates() -> None:
    diary = Diary()
    executor = poptorch.inferenceModel(Regression())
    executor.addCallback(diary)
    executor(X)
    executor.destroy()
    assert diary.names == ["compile", "step", "end"]
    assert diary.events[1][1].optimizer is None


def test_a_callback_that_removes_itself_and_one_that_fails() -> None:
    class Once(Callback):
        count = 0

        def on_step(self, event: Event) -> None:
            self.count += 1
            handle.remove()

    class Fails(Callback):
        def on_step(self, event: Event) -> None:
            raise RuntimeError("the disk is full")

    once = Once()
    executor = poptorch.inferenceModel(Regression())
    handle = executor.addCallback(once)
    executor(X)
    executor(X)
    assert once.count == 1
    executor.addCallback(Fails())
    with pytest.raises(RuntimeError, match="the disk is full"):
        executor(X)
    with pytest.raises(poptorch.Error, match=r"derived from Callback, not function"):
        executor.addCallback(print_everything)  # type: ignore[arg-type]


def print_everything(event: Event) -> None:
    print(event)


def test_a_callback_does_not_keep_the_executor() -> None:
    diary = Diary()
    executor = poptorch.inferenceModel(Regression())
    executor.addCallback(diary)
    executor(X)
    executor.destroy()
    reference = __import__("weakref").ref(executor)
    del executor
    gc.collect()
    assert reference() is None


def test_without_callbacks_a_call_pays_less_than_a_microsecond() -> None:
    """What a call does for callbacks and ranges that nobody wants: two questions."""
    executor = poptorch.inferenceModel(Regression())

    def questions() -> float:
        begun = time.perf_counter()
        for _ in range(1000):
            if executor._callbacks is not None or profiler._is_profiler_enabled:
                raise AssertionError
        return (time.perf_counter() - begun) / 1000

    executor(X)
    assert executor._callbacks is None
    assert min(questions() for _ in range(50)) < 1e-6


# -- loggers -----------------------------------------------------------------------------------------------------------


def losses(executor: poptorch.PoplarExecutor, steps: int) -> list[float]:
    return [executor(X, TARGET)[1].mean().item() for _ in range(steps)]


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    executor = training(poptorch.Options().deviceIterations(2))
    executor.addCallback(TensorBoard(tmp_path, every=2, prefix="train/"))
    expected = losses(executor, 4)
    executor.destroy()
    log = EventAccumulator(str(tmp_path))
    log.Reload()
    found = log.Scalars("train/loss")
    assert [event.step for event in found] == [2, 4]
    # the log has the last loss of each call's iterations
    assert len(expected) == 4
    assert [event.value for event in log.Scalars("train/learning_rate")] == pytest.approx([0.1, 0.1])
    assert log.Scalars("train/compile_seconds")[0].value > 0


def test_values_that_the_user_chooses(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def largest(event: Event) -> dict[str, float]:
        return {"largest": event.result.max().item()}

    executor = poptorch.inferenceModel(Regression())
    executor.addCallback(TensorBoard(tmp_path, largest))
    expected = executor(X).max().item()
    executor.destroy()
    log = EventAccumulator(str(tmp_path))
    log.Reload()
    assert [event.value for event in log.Scalars("largest")] == pytest.approx([expected])


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    executor = training()
    logger = WandB(project="tests", mode="offline", dir=str(tmp_path), settings=wandb.Settings(x_disable_meta=True))
    executor.addCallback(logger)
    expected = losses(executor, 3)
    executor.destroy()
    wandb.teardown()  # its own process writes the file, and ends now
    (file,) = tmp_path.rglob("*.wandb")
    assert written(file, "loss") == pytest.approx(expected)


def written(file: Path, name: str) -> list[float]:
    """The values of one name in the log of an offline run: seven bytes, then records, each with seven before it."""
    from wandb.proto import wandb_internal_pb2

    data, at, found = file.read_bytes(), 7, []
    assert len(data) < 32768, "longer logs have blocks"
    while at < len(data):
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        items = [(item.key or ".".join(item.nested_key), item.value_json) for item in record.history.item]
        found += [float(value) for key, value in items if key == name]
        at += 7 + length
    return found


def test_mlflow_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    executor = training()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than the small distribution
    uri = (tmp_path / "runs").as_uri()
    logger = MLflow(tracking_uri=uri)
    executor.addCallback(logger)
    expected = losses(executor, 3)
    executor.destroy()
    client = MlflowClient(uri)
    found = client.get_metric_history(logger.run_id, "loss")
    assert [metric.value for metric in found] == pytest.approx(expected)
    assert [metric.step for metric in found] == [1, 2, 3]
    assert client.get_run(logger.run_id).info.status == "FINISHED"


@pytest.mark.parametrize(("result", "expected"), [
    ((torch.ones(3), torch.tensor([1.0, 3.0])), 2.0),
    ({"loss": torch.tensor(4.0), "logits": torch.ones(2)}, 4.0),
    (torch.tensor(5.0), 5.0),
    ((torch.tensor(6.0), torch.tensor([1, 2])), 6.0),
])  # fmt: skip
def test_the_loss_is_found(result: Any, expected: float) -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.5)
    event = Event(None, 1, 1, result, 0.1, optimizer)  # type: ignore[arg-type]
    assert values_of(event) == {"seconds": 0.1, "loss": expected, "learning_rate": 0.5}


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from poptorch.integrations import requirements

    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'needs wandb\. Install it with: pip install "poptorch\[callbacks\]"'):
        WandB()


# -- torch.profiler ----------------------------------------------------------------------------------------------------


def names(executor: poptorch.PoplarExecutor, *inputs: torch.Tensor, **settings: Any) -> dict[str, int]:
    executor(*inputs)
    with profile(activities=[ProfilerActivity.CPU], **settings) as profiler:
        executor(*inputs)
    return {event.key: event.count for event in profiler.key_averages() if event.key.startswith("poptorch")}


def test_a_call_and_its_parts_are_ranges() -> None:
    assert names(poptorch.inferenceModel(Regression()), X) == {
        "poptorch: inference call": 1, "poptorch: whole model": 1
    }  # fmt: skip
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    found = names(training(options), X, TARGET)
    assert found["poptorch: training call"] == 1
    assert found["poptorch: update"] == 1
    assert found["poptorch: whole model"] >= 1


def test_an_update_in_the_backward_pass() -> None:
    assert set(names(training(), X, TARGET)) == {"poptorch: training call", "poptorch: whole model and update"}


def test_stages_of_a_pipeline() -> None:
    model = Regression()
    poptorch.BeginBlock(model.second, ipu_id=1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    found = names(training(options, model), X, TARGET, experimental_config=every_thread)
    stages = [name for name in found if "of part" in name]
    assert sorted(stages) == [
        f"poptorch: {which} of part {part}" for which in ("backward", "forward") for part in (0, 1)
    ]
    assert all(found[name] >= 1 for name in stages)


def test_the_code_is_the_same_afterwards() -> None:
    executor = training()
    executor(X, TARGET)
    code = executor.executable.code
    names(executor, X, TARGET)
    assert executor.executable.code is code
