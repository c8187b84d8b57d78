"""Models of the ``transformers`` library with tiny random configurations."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: all weights are random

import torch
import transformers
from torch import nn
from zoo_architecture import Architecture, Tensors
from zoo_sequence import next_word
from zoo_vision import CLASSES, classification, images

WORDS, LENGTH = 32, 8


class LogitsOf(nn.Module):
    """Names the inputs as the library wants them and returns the logits only."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


def bert_classifier() -> nn.Module:
    """A BERT as users make it, that returns a ``ModelOutput``."""
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            num_labels=CLASSES,
        )
    )  # fmt: skip


def gpt2_generator() -> nn.Module:
    """A GPT-2 whose output weights are tied to its embedding."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def bert() -> nn.Module:
    return LogitsOf(bert_classifier(), "input_ids", "attention_mask")


def gpt2() -> nn.Module:
    return LogitsOf(gpt2_generator(), "input_ids")


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    return LogitsOf(transformers.T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids")


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=8,
        num_channels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=CLASSES,
    )  # fmt: skip
    return LogitsOf(transformers.ViTForImageClassification(config), "pixel_values")


def llama() -> nn.Module:
    """Rotary positions, grouped keys and values, gated feed-forward."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LogitsOf(transformers.LlamaForCausalLM(config), "input_ids")


def _masked_sentences(rows: int) -> tuple[Tensors, Tensors]:
    mask = torch.ones(rows, LENGTH, dtype=torch.long)
    mask[:, -2:] = 0
    return (torch.randint(WORDS, (rows, LENGTH)), mask), (torch.randint(CLASSES, (rows,)),)


def _texts(rows: int) -> tuple[Tensors, Tensors]:
    words = torch.randint(WORDS, (rows, LENGTH + 1))
    return (words[:, :-1].contiguous(),), (words[:, 1:].contiguous(),)


def _pairs_of_texts(rows: int) -> tuple[Tensors, Tensors]:
    words = torch.randint(WORDS, (rows, LENGTH))
    return (torch.randint(WORDS, (rows, LENGTH)), words[:, :-1].contiguous()), (words[:, 1:].contiguous(),)


ARCHITECTURES = [
    Architecture(
        "bert", bert, _masked_sentences, classification, cuts=("model.bert.encoder.layer.1", "model.classifier")
    ),
    Architecture("gpt2", gpt2, _texts, next_word, cuts=("model.transformer.h.1",)),
    Architecture("t5", t5, _pairs_of_texts, next_word, cuts=("model.decoder",)),
    Architecture("vit", vit, images(3, 16), classification, cuts=("model.classifier",)),
    Architecture("llama", llama, _texts, next_word, cuts=("model.lm_head",)),
]
