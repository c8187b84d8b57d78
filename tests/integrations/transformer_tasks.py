"""Eight tasks of ``transformers`` with tiny random models and data, and both trainers on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import Trainer, TrainingArguments

from poptorch.integrations.transformers import IPUConfig, IPUTrainer, IPUTrainingArguments

VOCABULARY, LENGTH = 40, 6
Item = dict[str, torch.Tensor]


def _ids(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape or (LENGTH,), generator=random)


def _text(random: torch.Generator) -> Item:
    mask = torch.ones(LENGTH, dtype=torch.long)
    mask[int(torch.randint(3, LENGTH, (), generator=random)) :] = 0
    return {"input_ids": _ids(random), "attention_mask": mask}


def _label(random: torch.Generator, classes: int = 3) -> torch.Tensor:
    return torch.randint(0, classes, (), generator=random)


def masked(random: torch.Generator) -> Item:
    labels = _ids(random)
    labels[torch.rand(LENGTH, generator=random) < 0.4] = -100
    labels[0] = 5
    return {**_text(random), "labels": labels}


def causal(random: torch.Generator) -> Item:
    ids = _ids(random)
    labels = ids.clone()
    labels[: int(torch.randint(0, 3, (), generator=random))] = -100
    return {"input_ids": ids, "labels": labels}


def classified(random: torch.Generator) -> Item:
    return {**_text(random), "labels": _label(random)}


def rated(random: torch.Generator) -> Item:
    return {**_text(random), "labels": torch.rand((), generator=random)}


def tagged(random: torch.Generator) -> Item:
    labels = torch.randint(0, 3, (LENGTH,), generator=random)
    labels[-1] = -100
    return {**_text(random), "labels": labels}


def answered(random: torch.Generator) -> Item:
    return {**_text(random), "start_positions": _label(random), "end_positions": _label(random) + 2}


def chosen(random: torch.Generator) -> Item:
    return {"input_ids": _ids(random, 2, LENGTH), "labels": _label(random, 2)}


def seen(random: torch.Generator) -> Item:
    return {"pixel_values": torch.randn(3, 16, 16, generator=random), "labels": _label(random)}


def translated(random: torch.Generator) -> Item:
    return {**_text(random), "labels": _ids(random, 4)}


@dataclass(frozen=True)
class Task:
    """A model class, the configuration of a tiny one, and how an item of the data is made."""

    model: str
    item: Callable[[torch.Generator], Item]
    settings: dict[str, Any]

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        kind = getattr(transformers, self.model)
        model = kind(kind.config_class(**self.settings))
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    def data(self, items: int = 24) -> list[Item]:
        random = torch.Generator().manual_seed(1)
        return [self.item(random) for _ in range(items)]


_BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip

TASKS = {
    "fill-mask": Task("BertForMaskedLM", masked, _BERT),
    "text-generation": Task("GPT2LMHeadModel", causal, {
        "vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}),
    "text-classification": Task("BertForSequenceClassification", classified, {**_BERT, "num_labels": 3}),
    "regression": Task("BertForSequenceClassification", rated, {**_BERT, "num_labels": 1}),
    "token-classification": Task("BertForTokenClassification", tagged, {**_BERT, "num_labels": 3}),
    "question-answering": Task("BertForQuestionAnswering", answered, _BERT),
    "multiple-choice": Task("BertForMultipleChoice", chosen, _BERT),
    "image-classification": Task("ViTForImageClassification", seen, {
        "image_size": 16, "patch_size": 8, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_labels": 3}),
    "translation": Task("BartForConditionalGeneration", translated, {
        "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1, "forced_eos_token_id": None, "dropout": 0.0, "attention_dropout": 0.0}),
}  # fmt: skip


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    """Arguments that both trainers take."""
    return {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "max_steps": 3,
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "learning_rate": 1e-2,
        **changes,
    }  # fmt: skip


def plain_trainer(task: Task, folder: Path, **changes: Any) -> Trainer:
    """The trainer of ``transformers`` on the CPU."""
    args = TrainingArguments(**arguments(folder, use_cpu=True, **changes))
    return Trainer(task.build(), args, train_dataset=task.data(), eval_dataset=task.data(7))


def ipu_trainer(task: Task, folder: Path, config: IPUConfig | None = None, **changes: Any) -> IPUTrainer:
    """Ours, with the same data."""
    args = IPUTrainingArguments(**arguments(folder, **changes))
    return IPUTrainer(task.build(), args, ipu_config=config, train_dataset=task.data(), eval_dataset=task.data(7))


def losses(trainer: Trainer) -> list[float]:
    """The losses in a trainer's log, one for each step."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
