"""Pipelines and generation on IPUs against ``transformers`` itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformer_tasks import TASKS

import poptorch
from poptorch.integrations.transformers import FixedShapes, IPUConfig, IPUGenerator, pipeline

WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", "[SEP]", *(f"w{number}" for number in range(34))]
TEXTS = ["w1 w2 w3", "w4 w5", "w6 w7 w8 w9 w10", "w1"]


@pytest.fixture
def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", bos_token="[BOS]",
        eos_token="[EOS]", sep_token="[SEP]", cls_token="[BOS]",
    )  # fmt: skip


def assert_same(given: Any, expected: Any) -> None:
    assert type(given) is type(expected)
    if isinstance(expected, dict):
        assert list(given) == list(expected)
        for name in expected:
            assert_same(given[name], expected[name])
    elif isinstance(expected, (list, tuple)):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert given == pytest.approx(expected, rel=1e-4, abs=1e-6)
    else:
        assert given == expected


@pytest.mark.parametrize(("task", "texts"), [
    ("text-classification", TEXTS),
    ("token-classification", TEXTS),
    ("fill-mask", ["w1 [MASK] w3", "w4 w5 w6 [MASK]"]),
    ("feature-extraction", TEXTS),
])  # fmt: skip
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_pipeline_equals_that_of_transformers(task: str, texts: Any, batch_size: int, tokenizer: Any) -> None:
    model = TASKS[task if task in TASKS else "fill-mask"].build().eval()
    if task == "feature-extraction":
        model = model.bert
    expected = transformers.pipeline(task, model, tokenizer=tokenizer, device="cpu", batch_size=batch_size)(texts)
    ours = pipeline(task, model, tokenizer=tokenizer, max_length=12, batch_size=batch_size)
    assert_same(ours(texts), expected)
    assert "forward" not in vars(model)


def test_texts_of_all_lengths_use_one_program(tokenizer: Any) -> None:
    model = TASKS["text-classification"].build()
    config = IPUConfig(layers_per_ipu=[1, 1], inference_device_iterations=2, inference_replication_factor=2)
    call = FixedShapes(model, config, max_length=8)
    for text in TEXTS:
        encoded = tokenizer(text, return_tensors="pt")
        expected = model(**encoded)
        found = call(**encoded)
        assert type(found) is type(expected)
        torch.testing.assert_close(found.logits, expected.logits)
    (executor,) = call._executors.values()
    assert executor.executable.device.ipus_per_replica == 2


def test_images() -> None:
    model = TASKS["image-classification"].build()
    pixels = torch.randn(5, 3, 16, 16)
    found = FixedShapes(model, batch_size=2)(pixel_values=pixels)
    torch.testing.assert_close(found.logits, model(pixel_values=pixels).logits)


def test_a_text_that_is_too_long(tokenizer: Any) -> None:
    made = pipeline("text-classification", TASKS["text-classification"].build(), tokenizer=tokenizer, max_length=3)
    with pytest.raises(poptorch.Error, match=r"This text has 5 tokens, and the program was made for 3.*max_length"):
        made("w1 w2 w3 w4 w5")


# -- generation --------------------------------------------------------------------------------------------------------


def decoder(name: str) -> nn.Module:
    if name == "gpt2":
        return TASKS["text-generation"].build().eval()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def prompts() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 40, (2, 5), generator=random)
    mask = torch.ones_like(ids)
    mask[0, :2], ids[0, :2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("settings", [
    {"do_sample": False},
    {"do_sample": False, "repetition_penalty": 1.5},
    {"do_sample": True, "top_k": 5, "temperature": 0.7},
    {"do_sample": False, "num_beams": 3},
], ids=["greedy", "penalty", "sampling", "beams"])  # fmt: skip
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_equals_that_of_transformers(name: str, settings: dict[str, Any]) -> None:
    model = decoder(name)
    generator = IPUGenerator(
        model, IPUConfig(layers_per_ipu=[1, 1]), prompt_length=7, max_new_tokens=6, batch_size=3,
        num_beams=settings.get("num_beams", 1),
    )  # fmt: skip
    for _ in range(2):  # the second call finds compiled programs, and caches with the tokens of the first
        torch.manual_seed(5)
        expected = model.generate(**prompts(), max_new_tokens=6, **settings)
        torch.manual_seed(5)
        assert generator.generate(**prompts(), max_new_tokens=6, **settings).tolist() == expected.tolist()


def test_scores_equal_those_of_transformers() -> None:
    model = decoder("llama")
    settings: dict[str, Any] = {
        "do_sample": False, "max_new_tokens": 5, "output_scores": True, "return_dict_in_generate": True
    }  # fmt: skip
    expected = model.generate(**prompts(), **settings)
    found = IPUGenerator(model, prompt_length=5, max_new_tokens=5, batch_size=2).generate(**prompts(), **settings)
    torch.testing.assert_close(found.scores, expected.scores)


def test_the_caches_stay_on_the_device() -> None:
    generator = IPUGenerator(decoder("gpt2"), prompt_length=5, max_new_tokens=6, batch_size=2)
    generator.generate(**prompts(), do_sample=False)
    writer = generator._writer
    assert writer is not None
    names = dict(generator._step.named_buffers(recurse=False))  # type: ignore[union-attr]
    assert [tuple(tensor.shape) for tensor in names.values()] == [(2, 2, 11, 8)] * 4 + [()]
    output = writer(torch.ones(2, 1).long(), torch.ones(2, 11).long(), torch.ones(2, 1).long(), torch.arange(2).int())
    assert isinstance(output, torch.Tensor)  # logits, and no caches


def test_a_pipeline_that_generates(tokenizer: Any) -> None:
    model = decoder("gpt2")
    expected = transformers.pipeline("text-generation", model, tokenizer=tokenizer, device="cpu")
    ours = pipeline("text-generation", model, tokenizer=tokenizer, max_length=8, max_new_tokens=5)
    settings = {"max_new_tokens": 5, "do_sample": False}
    assert ours("w1 w2 w3", **settings) == expected("w1 w2 w3", **settings)


@pytest.mark.parametrize(("inputs", "expected"), [
    ({"input_ids": torch.ones(1, 9).long()}, "9 tokens with 1 beams do not fit a generator for 1 prompts of up to 5"),
    ({"input_ids": torch.ones(2, 3).long()}, "2 prompts of 3 tokens"),
    ({"input_ids": torch.ones(1, 3).long(), "num_beams": 2}, "with 2 beams do not fit"),
    ({"input_ids": torch.ones(1, 3).long(), "max_new_tokens": 7}, "7 new tokens do not fit"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(inputs: dict[str, Any], expected: str) -> None:
    generator = IPUGenerator(decoder("gpt2"), prompt_length=5, max_new_tokens=6)
    with pytest.raises(poptorch.Error, match=expected):
        generator.generate(**inputs)


def test_models_with_an_encoder_are_refused() -> None:
    with pytest.raises(poptorch.Error, match="IPUGenerator is for decoders"):
        IPUGenerator(TASKS["translation"].build())
