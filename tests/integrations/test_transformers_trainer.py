"""``IPUTrainer`` against the plain ``Trainer`` on the CPU: losses, weights, evaluation, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformer_tasks import TASKS, Task, arguments, ipu_trainer, losses, plain_trainer
from transformers import Trainer, TrainerCallback, TrainingArguments

import poptorch
from poptorch.integrations.transformers import IPUConfig, IPUTrainer, IPUTrainingArguments

RTOL = 2e-4  # an update divides by small second moments: rounding of sums grows
ATOL = 2e-4


def assert_same_models(given: nn.Module, expected: nn.Module) -> None:
    assert type(given) is type(expected)
    torch.testing.assert_close(given.state_dict(), expected.state_dict(), rtol=RTOL, atol=ATOL)


def assert_same_results(given: Trainer, expected: Trainer) -> None:
    assert losses(given) == pytest.approx(losses(expected), rel=RTOL)
    assert_same_models(given.model, expected.model)


@pytest.mark.parametrize("name", TASKS)
def test_losses_weights_and_evaluation_equal_those_of_the_plain_trainer(name: str, tmp_path: Path) -> None:
    changes = {"optim": "sgd", "learning_rate": 0.1}  # Adam makes steps of what is zero but for rounding
    trainers = plain_trainer(TASKS[name], tmp_path, **changes), ipu_trainer(TASKS[name], tmp_path, **changes)
    results = [(each.train(), each.evaluate(), each.predict(TASKS[name].data(7))) for each in trainers]
    assert_same_results(trainers[1], trainers[0])
    (trained, evaluated, predicted), (our_trained, our_evaluated, our_predicted) = results
    assert our_trained.training_loss == pytest.approx(trained.training_loss, rel=RTOL)
    assert trainers[1].state.total_flos == trainers[0].state.total_flos > 0
    assert our_evaluated["eval_loss"] == pytest.approx(evaluated["eval_loss"], rel=RTOL)
    assert_same_arrays(our_predicted.predictions, predicted.predictions)


def assert_same_arrays(given: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            assert_same_arrays(one, other)
    else:
        np.testing.assert_allclose(given, expected, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("name", ["fill-mask", "text-generation", "text-classification"])
def test_accumulation_equals_that_of_the_plain_trainer(name: str, tmp_path: Path) -> None:
    """Whether losses are divided by the labels of all accumulated batches, or by their number."""
    expected = plain_trainer(TASKS[name], tmp_path, gradient_accumulation_steps=2)
    given = ipu_trainer(TASKS[name], tmp_path, gradient_accumulation_steps=2)
    for trainer in (expected, given):
        trainer.train()
    assert_same_results(given, expected)


@pytest.mark.parametrize("name", ["text-generation", "image-classification"])
def test_replicas_equal_larger_batches(name: str, tmp_path: Path) -> None:
    expected = plain_trainer(TASKS[name], tmp_path, per_device_train_batch_size=4)
    config = IPUConfig(replication_factor=2, inference_replication_factor=2, inference_device_iterations=2)
    given = ipu_trainer(TASKS[name], tmp_path, config)
    for trainer in (expected, given):
        trainer.train()
    assert_same_results(given, expected)
    # 7 rows: a whole call has 8, so these go through smaller programs
    assert given.evaluate()["eval_loss"] == pytest.approx(expected.evaluate()["eval_loss"], rel=RTOL)


def test_a_pipeline_over_two_ipus(tmp_path: Path) -> None:
    config = IPUConfig(layers_per_ipu=[1, -1], inference_device_iterations=2, recompute_checkpoint_every_layer=True)
    expected = plain_trainer(TASKS["text-generation"], tmp_path, gradient_accumulation_steps=4)
    given = ipu_trainer(TASKS["text-generation"], tmp_path, config, gradient_accumulation_steps=4)
    used = []
    given.add_callback(OnStep(lambda: used.append(given._training.executor.executable.device.ipus_per_replica)))
    for trainer in (expected, given):
        trainer.train()
    assert_same_results(given, expected)
    assert set(used) == {2}
    assert given.evaluate()["eval_loss"] == pytest.approx(expected.evaluate()["eval_loss"], rel=RTOL)


class OnStep(TrainerCallback):
    """Calls something after each step."""

    def __init__(self, action: Any) -> None:
        self._action = action

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._action()


def test_device_iterations_make_several_updates_in_a_step(tmp_path: Path) -> None:
    constant = {"lr_scheduler_type": "constant"}
    expected = plain_trainer(TASKS["text-generation"], tmp_path, max_steps=4, **constant)
    given = ipu_trainer(TASKS["text-generation"], tmp_path, IPUConfig(device_iterations=2), max_steps=2, **constant)
    for trainer in (expected, given):
        trainer.train()
    one, two, three, four = losses(expected)
    assert losses(given) == pytest.approx([(one + two) / 2, (three + four) / 2], rel=RTOL)
    assert_same_models(given.model, expected.model)


@pytest.mark.parametrize("changes", [
    {"optim": "sgd", "learning_rate": 0.1},
    {"optim": "rmsprop", "max_grad_norm": 0.0},
    {"weight_decay": 0.1, "warmup_steps": 2, "max_grad_norm": 0.0},
    {"label_smoothing_factor": 0.1},
], ids=lambda changes: next(iter(changes)) + "=" + str(next(iter(changes.values()))))  # fmt: skip
def test_training_arguments_have_their_effect(changes: dict[str, Any], tmp_path: Path) -> None:
    trainers = [make(TASKS["text-classification"], tmp_path, **changes) for make in (plain_trainer, ipu_trainer)]
    for trainer in trainers:
        trainer.train()
    assert_same_results(trainers[1], trainers[0])


def test_evaluation_and_checkpoints_in_the_middle_of_training(tmp_path: Path) -> None:
    changes = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
               "load_best_model_at_end": True}  # fmt: skip
    task = TASKS["text-classification"]
    trainers = [make(task, tmp_path / make.__name__, **changes) for make in (plain_trainer, ipu_trainer)]
    for trainer in trainers:
        trainer.train()
    found, expected = ([e["eval_loss"] for e in t.state.log_history if "eval_loss" in e] for t in reversed(trainers))
    assert len(found) == 3
    assert found == pytest.approx(expected, rel=RTOL)
    assert_same_results(trainers[1], trainers[0])


def test_a_checkpoint_is_read_by_transformers_and_resumed(tmp_path: Path) -> None:
    task = TASKS["text-generation"]
    changes = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole = ipu_trainer(task, tmp_path / "whole", **changes)
    whole.train()
    folder = tmp_path / "whole" / "checkpoint-2"
    assert json.loads((folder / "config.json").read_text())["architectures"] == [task.model]
    assert IPUConfig.from_pretrained(folder) == IPUConfig()
    resumed = ipu_trainer(task, tmp_path / "resumed", **changes)
    resumed.train(resume_from_checkpoint=str(folder))
    assert losses(resumed)[-2:] == losses(whole)[-2:]
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    read = getattr(transformers, task.model).from_pretrained(tmp_path / "whole" / "checkpoint-4")
    torch.testing.assert_close(read.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_dropout_goes_on_where_it_was(tmp_path: Path) -> None:
    plain = TASKS["text-generation"]
    task = Task(plain.model, plain.item, {**plain.settings})

    def with_dropout(folder: str) -> IPUTrainer:
        trainer = ipu_trainer(task, tmp_path / folder, save_strategy="steps", save_steps=1, max_steps=3)
        for module in trainer.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.5
        return trainer

    whole, resumed = with_dropout("whole"), with_dropout("resumed")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert losses(resumed)[-2:] == losses(whole)[-2:]


def test_training_goes_on_with_a_second_call(tmp_path: Path) -> None:
    trainers = [make(TASKS["text-classification"], tmp_path) for make in (plain_trainer, ipu_trainer)]
    for trainer in trainers:
        trainer.train()
        trainer.train()
    assert_same_models(trainers[1].model, trainers[0].model)


def test_the_loss_of_a_subclass(tmp_path: Path) -> None:
    def compute_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        loss, outputs = base_of(self).compute_loss(self, model, inputs, return_outputs=True)
        loss = loss + 0.1 * outputs["logits"].square().mean() if torch.is_tensor(outputs["logits"]) else loss
        return (loss, outputs) if return_outputs else loss

    def base_of(trainer: Any) -> Any:
        return type(trainer).__mro__[1]

    task, found = TASKS["text-classification"], []
    for base, kind, changes in (
        (Trainer, TrainingArguments, {"use_cpu": True}),
        (IPUTrainer, IPUTrainingArguments, {}),
    ):
        own = type("Own", (base,), {"compute_loss": compute_loss})
        trainer = own(task.build(), kind(**arguments(tmp_path, **changes)), train_dataset=task.data())
        trainer.train()
        found.append(losses(trainer))
    assert found[1] == pytest.approx(found[0], rel=RTOL)


def test_metrics_of_the_user(tmp_path: Path) -> None:
    def accuracy(prediction: Any) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}

    trainers = [make(TASKS["text-classification"], tmp_path) for make in (plain_trainer, ipu_trainer)]
    for trainer in trainers:
        trainer.compute_metrics = accuracy
    expected, given = (trainer.evaluate() for trainer in trainers)
    assert given["eval_accuracy"] == expected["eval_accuracy"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_batches_of_another_length_are_refused_with_words(tmp_path: Path) -> None:
    trainer = ipu_trainer(TASKS["text-generation"], tmp_path)
    trainer.train_dataset = [{"input_ids": item["input_ids"][:size], "labels": item["labels"][:size]}
                             for size in (6, 5) for item in TASKS["text-generation"].data(2)]  # fmt: skip
    trainer.args.train_sampling_strategy = "sequential"
    with pytest.raises(poptorch.Error, match=r"other shapes than the first one.*max_length"):
        trainer.train()


@pytest.mark.parametrize("name", ["fp16", "bf16", "torch_compile", "gradient_checkpointing"])
def test_arguments_for_other_devices_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(poptorch.Error, match=f"{name} cannot be used on IPUs"):
        IPUTrainingArguments(output_dir=str(tmp_path), **{name: True})


def test_an_optimizer_that_ipus_do_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(poptorch.Error, match=r"Adagrad does not run on IPUs.*adamw_torch"):
        ipu_trainer(TASKS["regression"], tmp_path, optim="adagrad").train()


def test_plain_training_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(poptorch.Error, match="IPUTrainer needs IPUTrainingArguments"):
        IPUTrainer(TASKS["regression"].build(), TrainingArguments(str(tmp_path)))
