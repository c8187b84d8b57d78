"""Tiny models of many families of ``transformers``, with random weights and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY, LENGTH, BATCH = 40, 6, 2


@dataclass(frozen=True)
class Family:
    """A model class with a small configuration. ``inputs`` makes arguments of ``forward``, with labels last."""

    model: str
    inputs: Callable[[torch.Generator], dict[str, torch.Tensor]]
    settings: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The model, without dropout, so that it computes the same twice."""
        torch.manual_seed(0)
        kind = getattr(transformers, self.model)
        config = kind.config_class(**self.settings)
        model = kind(config)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    def example(self, seed: int = 0) -> dict[str, torch.Tensor]:
        """Arguments for one call."""
        return self.inputs(torch.Generator().manual_seed(seed))


def _ids(generator: torch.Generator, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=generator)


def _mask() -> torch.Tensor:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, LENGTH - 2 :] = 0
    return mask


def causal(generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids = _ids(generator)
    return {"input_ids": ids, "attention_mask": _mask(), "labels": ids.clone()}


def unmasked(generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids = _ids(generator)
    return {"input_ids": ids, "labels": ids.clone()}


def classified(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(generator), "attention_mask": _mask(), "labels": torch.tensor([0, 1])}


def translated(generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids, targets = _ids(generator), _ids(generator, 4)
    return {"input_ids": ids, "attention_mask": _mask(), "decoder_input_ids": targets, "labels": targets.clone()}


def images(size: int = 16) -> Callable[[torch.Generator], dict[str, torch.Tensor]]:
    def make(generator: torch.Generator) -> dict[str, torch.Tensor]:
        pixels = torch.randn(BATCH, 3, size, size, generator=generator)
        return {"pixel_values": pixels, "labels": torch.tensor([0, 1])}

    return make


def _decoder(**settings: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, **settings,
    }  # fmt: skip


def _encoder(**settings: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 16, "pad_token_id": 0, "type_vocab_size": 2, **settings,
    }  # fmt: skip


def _vision(**settings: Any) -> dict[str, Any]:
    return {
        "image_size": 16, "patch_size": 8, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, **settings,
    }  # fmt: skip


_BART = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip

FAMILIES = {
    "gpt2": Family("GPT2LMHeadModel", causal, {
        "vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_neo": Family("GPTNeoForCausalLM", causal, {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 4,
        "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16, "bos_token_id": 1,
        "eos_token_id": 2}),
    "gpt_neox": Family("GPTNeoXForCausalLM", causal, _decoder()),
    "gptj": Family("GPTJForCausalLM", causal, {
        "vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4,
        "bos_token_id": 1, "eos_token_id": 2}),
    "opt": Family("OPTForCausalLM", causal, {
        "vocab_size": VOCABULARY, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 16, "word_embed_proj_dim": 16, "dropout": 0.0, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2}),
    "bloom": Family("BloomForCausalLM", causal, {
        "vocab_size": VOCABULARY, "hidden_size": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}),
    "falcon": Family("FalconForCausalLM", causal, _decoder(num_kv_heads=1)),
    "llama": Family("LlamaForCausalLM", causal, _decoder()),
    "mistral": Family("MistralForCausalLM", causal, _decoder(sliding_window=4)),
    "mixtral": Family("MixtralForCausalLM", causal, _decoder(num_local_experts=2, num_experts_per_tok=1)),
    "qwen2": Family("Qwen2ForCausalLM", causal, _decoder()),
    "qwen3": Family("Qwen3ForCausalLM", causal, _decoder(head_dim=8)),
    "gemma": Family("GemmaForCausalLM", causal, _decoder(head_dim=8)),
    "gemma2": Family("Gemma2ForCausalLM", causal, _decoder(head_dim=8, sliding_window=4)),
    "phi": Family("PhiForCausalLM", causal, _decoder()),
    "phi3": Family("Phi3ForCausalLM", causal, _decoder()),
    "olmo": Family("OlmoForCausalLM", causal, _decoder()),
    "stablelm": Family("StableLmForCausalLM", causal, _decoder()),
    "starcoder2": Family("Starcoder2ForCausalLM", causal, _decoder()),
    "mamba": Family("MambaForCausalLM", unmasked, {
        "vocab_size": VOCABULARY, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}),
    "bert": Family("BertForMaskedLM", causal, _encoder()),
    "roberta": Family("RobertaForMaskedLM", causal, _encoder(max_position_embeddings=20)),
    "distilbert": Family("DistilBertForSequenceClassification", classified, {
        "vocab_size": VOCABULARY, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2,
        "max_position_embeddings": 16}),
    "albert": Family("AlbertForMaskedLM", causal, _encoder(embedding_size=8)),
    "electra": Family("ElectraForSequenceClassification", classified, _encoder(embedding_size=8)),
    "deberta_v2": Family("DebertaV2ForMaskedLM", causal, _encoder(
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4)),
    "mpnet": Family("MPNetForMaskedLM", causal, _encoder(max_position_embeddings=20)),
    "xlm_roberta": Family("XLMRobertaForSequenceClassification", classified, _encoder(max_position_embeddings=20)),
    "t5": Family("T5ForConditionalGeneration", translated, {
        "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
        "dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 0}),
    "bart": Family("BartForConditionalGeneration", translated, dict(_BART)),
    "marian": Family("MarianMTModel", translated, dict(_BART)),
    "pegasus": Family("PegasusForConditionalGeneration", translated, dict(_BART)),
    "vit": Family("ViTForImageClassification", images(), _vision()),
    "deit": Family("DeiTForImageClassification", images(), _vision()),
    "beit": Family("BeitForImageClassification", images(), _vision(drop_path_rate=0.0)),
    "dinov2": Family("Dinov2ForImageClassification", images(), _vision(mlp_ratio=2)),
    "swin": Family("SwinForImageClassification", images(32), {
        "image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4,
        "drop_path_rate": 0.0}),
    "convnext": Family("ConvNextForImageClassification", images(32), {
        "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "drop_path_rate": 0.0}),
    "resnet": Family("ResNetForImageClassification", images(32), {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
}  # fmt: skip
