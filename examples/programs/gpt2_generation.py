"""GPT-2 learns a language, and then writes in it: training and generation on IPUs with ``transformers``.

The language has words of letters that follow each other in the alphabet. Generation keeps its caches on the IPU: one
program reads the prompt, another one adds a letter after the other.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from typing import Any

import torch
import transformers

from poptorch.integrations.transformers import IPUConfig, IPUGenerator, IPUTrainer, IPUTrainingArguments

LETTERS = "-ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH = 16


def text(random: torch.Generator) -> torch.Tensor:
    """Words of three to six letters with dashes between them."""
    letters: list[int] = []
    while len(letters) < LENGTH:
        size = int(torch.randint(3, 7, (), generator=random))
        first = int(torch.randint(1, 27 - size, (), generator=random))
        letters += [*range(first, first + size), 0]
    return torch.tensor(letters[:LENGTH])


def successors(letters: str) -> float:
    """The share of letters that follow the one before, or a dash."""
    pairs = list(itertools.pairwise(letters))
    fine = [LETTERS.index(b) == LETTERS.index(a) + 1 or "-" in (a, b) for a, b in pairs]
    return sum(fine) / len(fine)


def main() -> dict[str, Any]:
    """Do all of it; returns what the gallery draws."""
    begun = time.perf_counter()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=len(LETTERS), n_positions=2 * LENGTH, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip
    data = [{"input_ids": letters, "labels": letters} for letters in (text(random) for _ in range(1024))]
    arguments = IPUTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=6, learning_rate=1e-2,
        logging_steps=16, save_strategy="no", report_to=[], seed=0,
    )  # fmt: skip
    # Two IPUs with a layer each; four updates in each step of the trainer.
    config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, device_iterations=2)
    trainer = IPUTrainer(model, arguments, ipu_config=config, train_dataset=data)
    trainer.train()

    generator = IPUGenerator(model, config, prompt_length=4, max_new_tokens=20, batch_size=3)
    prompts = torch.tensor([[LETTERS.index(letter)] for letter in "AHP"])
    written = generator.generate(prompts, max_new_tokens=20, do_sample=True, top_k=3)
    words = ["".join(LETTERS[letter] for letter in row) for row in written.tolist()]
    share = sum(map(successors, words)) / len(words)
    print(*words, sep="\n")
    print(f"{share:.1%} of the letters are right, {time.perf_counter() - begun:.1f} s")
    assert share > 0.7
    return {"words": words, "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]}


if __name__ == "__main__":
    main()
