"""BERT on eight IPUs: pre-training of a pipeline over four, in two replicas, then fine-tuning, with ``transformers``.

The language is made up: a sentence has words of one of three dialects. So the words around a masked one say which it
can be, and the dialect is what fine-tuning learns to classify. The model is tiny and begins with random weights.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import torch
import transformers

from poptorch.integrations.transformers import IPUConfig, IPUTrainer, IPUTrainingArguments

MASK, FIRST, WORDS, DIALECTS, LENGTH = 3, 4, 12, 3, 8
IPUS = IPUConfig(
    layers_per_ipu=[1, 1, 1, 1],  # a pipeline over four IPUs
    replication_factor=2,  # twice
    gradient_accumulation_steps=8,  # at least as many as the pipeline has stages, forward and backward
    inference_layers_per_ipu=[-1],  # one IPU is enough for evaluation
)


def sentence(random: torch.Generator) -> tuple[torch.Tensor, int]:
    """A sentence, and its dialect."""
    dialect = int(torch.randint(0, DIALECTS, (), generator=random))
    return FIRST + WORDS * dialect + torch.randint(0, WORDS, (LENGTH,), generator=random), dialect


def masked(random: torch.Generator) -> dict[str, torch.Tensor]:
    """A sentence with one word to be found."""
    words, _ = sentence(random)
    at = torch.randint(0, LENGTH, (), generator=random)
    labels = torch.full((LENGTH,), -100)
    labels[at] = words[at]
    words = words.clone()
    words[at] = MASK
    return {"input_ids": words, "labels": labels}


def classified(random: torch.Generator) -> dict[str, torch.Tensor]:
    """A sentence and its class."""
    words, dialect = sentence(random)
    return {"input_ids": words, "labels": torch.tensor(dialect)}


def arguments(steps: int) -> IPUTrainingArguments:
    return IPUTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=2, per_device_eval_batch_size=32, max_steps=steps,
        learning_rate=5e-3, logging_steps=steps // 4, save_strategy="no", report_to=[], seed=0,
    )  # fmt: skip


def main() -> dict[str, Any]:
    """Do all of it; returns what the gallery draws."""
    begun = time.perf_counter()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=FIRST + WORDS * DIALECTS, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=DIALECTS,
    )  # fmt: skip

    # Pre-training: find the masked word. A step takes 2 rows x 2 replicas x 8 accumulated micro-batches.
    language = transformers.BertForMaskedLM(config)
    data = [masked(random) for _ in range(1024)]
    trainer = IPUTrainer(language, arguments(120), ipu_config=IPUS, train_dataset=data, eval_dataset=data[:64])
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    # Fine-tuning: a new head on the encoder that was trained.
    classifier = transformers.BertForSequenceClassification(config)
    classifier.bert.load_state_dict(language.bert.state_dict(), strict=False)
    rows = [classified(random) for _ in range(1024)]
    trainer = IPUTrainer(
        classifier, arguments(60), ipu_config=IPUS, train_dataset=rows,
        eval_dataset=[classified(random) for _ in range(128)],
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )  # fmt: skip
    trainer.train()
    right = trainer.evaluate()["eval_accuracy"]
    print(f"the loss of masked words fell from {before:.2f} to {after:.2f}")
    print(f"tells {right:.1%} of new sentences apart, {time.perf_counter() - begun:.1f} s")
    assert after < before - 0.1
    assert right > 0.85
    return {"losses": losses, "words": language.bert.embeddings.word_embeddings.weight.detach()}


if __name__ == "__main__":
    main()
