"""Lightning on IPUs against Lightning on the CPU: losses, weights, logs, checkpoints; and what is refused."""

from __future__ import annotations

import csv
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import poptorch
from poptorch.integrations.lightning import IPUAccelerator, IPUStrategy

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def trainer(folder: Path, **settings: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return Trainer(default_root_dir=folder, **{"max_epochs": 1, "logger": False, **quiet, **settings})


def on_ipus(folder: Path, devices: int = 1, **settings: Any) -> Trainer:
    return trainer(folder, accelerator="ipu", devices=devices, **settings)


def on_cpu(folder: Path, **settings: Any) -> Trainer:
    return trainer(folder, accelerator="cpu", devices=1, **settings)


class Boring(BoringModel):
    """Lightning's own, with loaders of another size."""

    def __init__(self, batch_size: int, items: int = 16) -> None:
        seed_everything(1, verbose=False)
        super().__init__()
        self._sizes = (RandomDataset(32, items), batch_size)

    def _loader(self) -> DataLoader[Any]:
        return DataLoader(self._sizes[0], batch_size=self._sizes[1])

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = _loader


class Classifier(LightningModule):
    """Digits made of noise, two layers, Adam, a schedule for each step."""

    def __init__(self, batch_size: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.Tanh(), nn.Dropout(dropout))
        self.second = nn.Linear(24, 3)
        random = torch.Generator().manual_seed(2)
        images = torch.randn(36, 4, 4, generator=random)
        self._data = TensorDataset(images, images.flatten(1)[:, :3].argmax(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(images))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels = batch
        logits = self(images)
        loss = nn.functional.cross_entropy(logits, labels)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"accuracy": (logits.argmax(-1) == labels).float().mean()}, on_step=False, on_epoch=True)
        return {"loss": loss, "logits": logits}

    def validation_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("val_loss", loss)
        return loss

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch[0])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self._data, batch_size=self.hparams["batch_size"], drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self._data, batch_size=self.hparams["batch_size"])

    predict_dataloader = val_dataloader

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3)
        later = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, later], milestones=[3])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": both, "interval": "step"}}


def assert_same(given: nn.Module, expected: nn.Module) -> None:
    assert type(given) is type(expected)
    torch.testing.assert_close(given.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)


def metrics(of: Trainer) -> dict[str, float]:
    return {name: float(value) for name, value in of.callback_metrics.items() if not name.endswith("_step")}


def assert_same_metrics(given: Trainer, expected: Trainer) -> None:
    assert metrics(given) == pytest.approx(metrics(expected), rel=1e-4)


def test_the_boring_model(tmp_path: Path) -> None:
    models = [Boring(4), Boring(1)]
    trainers = [on_cpu(tmp_path, max_epochs=2), on_ipus(tmp_path, 4, max_epochs=2)]
    predicted = []
    for each, model in zip(trainers, models, strict=True):
        each.fit(model)
        each.validate(model, verbose=False)
        each.test(model, verbose=False)
        predicted.append(each.predict(model))
    assert isinstance(trainers[1].strategy, IPUStrategy)
    assert isinstance(trainers[1].accelerator, IPUAccelerator)
    assert trainers[1].global_step == trainers[0].global_step == 8
    assert_same(models[1], models[0])
    torch.testing.assert_close(predicted[1], predicted[0])


@pytest.mark.parametrize(("devices", "batch_size", "accumulation"), [(1, 4, 1), (2, 2, 1), (2, 2, 2), (1, 2, 4)])
def test_a_classifier(devices: int, batch_size: int, accumulation: int, tmp_path: Path) -> None:
    models = [Classifier(batch_size * devices), Classifier(batch_size)]
    settings = {"max_epochs": 2, "accumulate_grad_batches": accumulation, "gradient_clip_val": 0.5}
    trainers = [on_cpu(tmp_path, **settings), on_ipus(tmp_path, devices, **settings)]
    for each, model in zip(trainers, models, strict=True):
        model._data = TensorDataset(*model._data[:32])
        each.fit(model)
    assert trainers[1].global_step == trainers[0].global_step
    assert_same(models[1], models[0])
    assert_same_metrics(trainers[1], trainers[0])


def test_rows_that_are_left_at_the_end_are_validated(tmp_path: Path) -> None:
    models = [Classifier(5), Classifier(5)]
    given, expected = on_ipus(tmp_path, 2), on_cpu(tmp_path)  # 36 rows: 3 whole calls of 10, and 6
    expected.validate(models[0], verbose=False)
    given.validate(models[1], verbose=False)
    assert_same_metrics(given, expected)
    rows = [len(part) for part in given.predict(models[1])]
    assert rows == [10, 10, 10, 6]


def test_device_iterations(tmp_path: Path) -> None:
    models = [Classifier(4), Classifier(4)]
    for model in models:
        model.configure_optimizers = lambda model=model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model._data = TensorDataset(*model._data[:32])
    expected = on_cpu(tmp_path)
    strategy = IPUStrategy(poptorch.Options().deviceIterations(4))
    given = trainer(tmp_path, accelerator="ipu", devices=1, strategy=strategy)
    expected.fit(models[0])
    given.fit(models[1])
    assert (expected.global_step, given.global_step) == (8, 2)
    assert_same(models[1], models[0])
    assert_same_metrics(given, expected)


class Decaying(Classifier):
    """Changes the decay of the weights in each step, and not the learning rate."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.02)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.trainer.optimizers[0].param_groups[0]["weight_decay"] = 0.5 * batch_idx


def test_other_settings_of_the_optimizer_than_its_rate(tmp_path: Path) -> None:
    models = [Decaying(), Decaying()]
    for each, model in zip([on_cpu(tmp_path), on_ipus(tmp_path)], models, strict=True):
        each.fit(model)
    assert_same(models[1], models[0])


def test_schedules_do_not_warn_about_steps_that_the_device_makes(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        on_ipus(tmp_path).fit(Classifier())
    assert [str(each.message) for each in found if "optimizer.step()" in str(each.message)] == []


def test_a_pipeline(tmp_path: Path) -> None:
    models = [Classifier(4), Classifier(4)]
    poptorch.BeginBlock(models[1].second, ipu_id=1)
    inference = poptorch.Options().deviceIterations(2)
    strategy = IPUStrategy(inference_options=inference, ipus_per_replica=2)
    expected = on_cpu(tmp_path, accumulate_grad_batches=3)
    given = trainer(tmp_path, accelerator="ipu", devices=2, strategy=strategy, accumulate_grad_batches=3)
    expected.fit(models[0])
    given.fit(models[1])
    assert_same(models[1], models[0])
    assert_same_metrics(given, expected)


def test_checkpoints_go_on_with_the_same_bits(tmp_path: Path) -> None:
    def fitted(of: Trainer, **settings: Any) -> Classifier:
        model = Classifier(4, dropout=0.5)  # seeds torch, and by that the device
        of.fit(model, **settings)
        return model

    whole = fitted(on_ipus(tmp_path, 2, max_epochs=2))
    saved: list[Any] = []

    class Saver(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
            trainer.save_checkpoint(tmp_path / "saved.ckpt")
            saved.append(type(trainer.strategy))

    first = fitted(on_ipus(tmp_path, 2, max_epochs=1, callbacks=[Saver()]))
    second = fitted(on_ipus(tmp_path, 2, max_epochs=2), ckpt_path=tmp_path / "saved.ckpt", weights_only=False)
    assert saved == [IPUStrategy]
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)
    read = Classifier.load_from_checkpoint(tmp_path / "saved.ckpt", weights_only=False)
    torch.testing.assert_close(read.state_dict(), first.state_dict(), rtol=0, atol=0)


def test_checkpoints_of_the_trainer_s_own(tmp_path: Path) -> None:
    model = Classifier()
    each = on_ipus(tmp_path, enable_checkpointing=True)
    each.fit(model)
    assert each.checkpoint_callback is not None
    read = Classifier.load_from_checkpoint(each.checkpoint_callback.best_model_path, weights_only=False)
    torch.testing.assert_close(read.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_logger_has_the_same_numbers(tmp_path: Path) -> None:
    tables = []
    for make, name in ((on_cpu, "cpu"), (on_ipus, "ipu")):
        logger = CSVLogger(tmp_path, name=name, version=0)
        make(tmp_path, logger=logger, log_every_n_steps=1).fit(Classifier())
        with (tmp_path / name / "version_0" / "metrics.csv").open() as file:
            tables.append(
                [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
            )
    assert len(tables[1]) == len(tables[0]) > 8
    for given, expected in zip(*reversed(tables), strict=True):
        assert given == pytest.approx(expected, rel=1e-4)


def test_other_results_of_a_step_reach_the_hooks(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((outputs["loss"].shape, outputs["logits"].shape, len(batch[0])))

    on_ipus(tmp_path, 2, callbacks=[Look()]).fit(Classifier(4))
    assert seen == [(torch.Size([]), torch.Size([8, 3]), 8)] * 4


def test_the_number_of_the_batch(tmp_path: Path) -> None:
    class Numbered(Boring):
        def training_step(self, batch: Any, batch_idx: Any) -> Any:
            self.log("number", 1.0 * batch_idx, on_step=True, on_epoch=False)
            return self.step(batch)

    each = on_ipus(tmp_path)
    each.fit(Numbered(4))
    assert each.callback_metrics["number"] == 3


def test_the_module_is_an_ordinary_one_afterwards(tmp_path: Path) -> None:
    model = Classifier()
    on_ipus(tmp_path).fit(model)
    assert type(model) is Classifier
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


# -- what is refused ---------------------------------------------------------------------------------------------------


class ByHand(Boring):
    def __init__(self) -> None:
        super().__init__(4)
        self.automatic_optimization = False


class WithHook(Boring):
    def on_after_backward(self) -> None: ...


class SkipsSteps(Boring):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class LogsObjects(Boring):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("metric", object())  # type: ignore[arg-type]
        return self.step(batch)


class Adagrad(Boring):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adagrad(self.parameters())


@pytest.mark.parametrize(("model", "settings", "expected"), [
    (ByHand, {}, r"ByHand optimises by hand .*forward, backward and update are one program"),
    (lambda: WithHook(4), {}, r"WithHook has the hook on_after_backward\(\)"),
    (lambda: SkipsSteps(4), {}, r"training_step of \w*SkipsSteps must return the loss"),
    (lambda: LogsObjects(4), {}, r"self.log\('metric', ...\) in training_step was given a object"),
    (lambda: Adagrad(4), {}, r"The optimizer Adagrad does not run on IPUs"),
    (lambda: Boring(4), {"precision": "bf16-mixed"}, r"precision='bf16-mixed'\) is not for IPUs"),
    (lambda: Boring(4), {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, r"limit the norm"),
    (lambda: Boring(4), {"callbacks": [GradientAccumulationScheduler({0: 2})]}, r"accumulation of a compiled program"),
])  # fmt: skip
def test_what_cannot_be_compiled_is_refused(
    model: Any, settings: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(poptorch.Error, match=expected):
        on_ipus(tmp_path, **settings).fit(model())


def test_devices_and_ipus_per_replica_must_fit(tmp_path: Path) -> None:
    strategy = IPUStrategy(ipus_per_replica=2)
    with pytest.raises(poptorch.Error, match=r"devices=3\) is no multiple of ipus_per_replica=2"):
        trainer(tmp_path, accelerator="ipu", devices=3, strategy=strategy).fit(Boring(4))


def test_single_devices_cannot_be_chosen(tmp_path: Path) -> None:
    with pytest.raises(poptorch.Error, match=r"devices is the number of IPUs"):
        on_ipus(tmp_path, devices=[0, 1])  # type: ignore[arg-type]


def test_other_accelerators_are_chosen_as_before(tmp_path: Path) -> None:
    assert type(on_cpu(tmp_path).strategy).__name__ == "SingleDeviceStrategy"
