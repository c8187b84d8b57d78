"""A vision transformer: pre-training on many pictures, fine-tuning on few, with ``transformers``.

Pre-training reads digits. Fine-tuning then learns another question, whether a digit is even or odd, from 64 pictures
alone; the same network with random weights cannot learn it from so few. The model trains in a pipeline over two IPUs.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import torch
import transformers

from poptorch.integrations.transformers import IPUConfig, IPUTrainer, IPUTrainingArguments

GLYPHS = (
    "01110100011001110101110011000101110", "00100011000010000100001000010001110",
    "01110100010000100010001000100011111", "11111000100010000010000011000101110",
    "00010001100101010010111110001000010", "11111100001111000001000011000101110",
    "00110010001000011110100011000101110", "11111000010001000100010000100001000",
    "01110100011000101110100011000101110", "01110100011000101111000010001001100",
)  # fmt: skip
SIZE = 12
IPUS = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, inference_layers_per_ipu=[-1])


def picture(random: torch.Generator) -> tuple[torch.Tensor, int]:
    """A coloured digit on a noisy ground, in the middle or a dot beside it."""
    digit, top, left = (int(torch.randint(0, most, (), generator=random)) for most in (10, 2, 2))
    pixels = 0.3 * torch.randn(3, SIZE, SIZE, generator=random)
    glyph = torch.tensor([float(dot) for dot in GLYPHS[digit]]).reshape(7, 5)
    pixels[:, top + 2 : top + 9, left + 3 : left + 8] += glyph * (0.5 + torch.rand(3, 1, 1, generator=random))
    return pixels, digit


def rows(count: int, random: torch.Generator, kinds: int) -> list[dict[str, Any]]:
    """Pictures, labelled with ten digits or with two kinds of them."""
    return [
        {"pixel_values": pixels, "labels": digit % kinds} for pixels, digit in (picture(random) for _ in range(count))
    ]


def learn(
    model: transformers.ViTForImageClassification, train: list[dict[str, Any]], new: list[dict[str, Any]], epochs: int
) -> float:
    """Train; returns the share of new pictures with the right answer."""
    arguments = IPUTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, per_device_eval_batch_size=32,
        num_train_epochs=epochs, learning_rate=3e-3, warmup_steps=4, logging_steps=20, save_strategy="no",
        report_to=[], seed=0,
    )  # fmt: skip
    trainer = IPUTrainer(
        model, arguments, ipu_config=IPUS, train_dataset=train, eval_dataset=new,
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )  # fmt: skip
    trainer.train()
    return trainer.evaluate()["eval_accuracy"]


def main() -> dict[str, Any]:
    """Train three times; returns what the gallery draws."""
    begun = time.perf_counter()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)

    def network(labels: int) -> transformers.ViTForImageClassification:
        return transformers.ViTForImageClassification(
            transformers.ViTConfig(
                image_size=SIZE, patch_size=3, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=labels,
            )
        )  # fmt: skip

    base = network(10)
    digits = learn(base, rows(1024, random, 10), rows(256, random, 10), 8)

    few, new = rows(64, random, 2), rows(256, random, 2)
    tuned = network(2)
    tuned.vit.load_state_dict(base.vit.state_dict())  # all but the head
    results = {"pre-trained": learn(tuned, few, new, 12), "from random weights": learn(network(2), few, new, 12)}
    print(f"reads {digits:.1%} of new digits after pre-training")
    for name, right in results.items():
        print(f"even or odd, from 64 pictures, {name}: {right:.1%}")
    print(f"{time.perf_counter() - begun:.1f} s")
    assert digits > 0.65
    assert results["pre-trained"] > results["from random weights"] + 0.1
    return {"pictures": [picture(random)[0] for _ in range(12)], "digits": digits, **results}


if __name__ == "__main__":
    main()
