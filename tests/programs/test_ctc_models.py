"""Speech models of ``transformers`` with a CTC loss, as their users train them, against plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn

import poptorch

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 12,
    "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "pad_token_id": 0, "apply_spec_augment": False,
    "mask_time_prob": 0.0, "layerdrop": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0,
}  # fmt: skip
MODELS = {
    "wav2vec2": (transformers.Wav2Vec2ForCTC, transformers.Wav2Vec2Config, {}),
    "hubert": (transformers.HubertForCTC, transformers.HubertConfig, {"ctc_loss_reduction": "mean"}),
    "data2vec": (transformers.Data2VecAudioForCTC, transformers.Data2VecAudioConfig, {}),
    "unispeech": (transformers.UniSpeechForCTC, transformers.UniSpeechConfig, {"ctc_zero_infinity": True}),
}
LABELS = torch.tensor([
    [[3, 4, 5, -100, -100], [1, 2, 2, 7, -100]],
    [[9, 8, 7, 6, 5], [2, -100, -100, -100, -100]],
])  # fmt: skip


class Trained(nn.Module):
    """As users wrap a model to choose what it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_values: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(input_values=input_values, labels=labels)
        return output.loss, output.logits


@pytest.mark.filterwarnings("ignore:The value .* of a tensor was used by Python")
@pytest.mark.parametrize("name", MODELS)
def test_trains_as_in_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    kind, config, settings = MODELS[name]
    torch.manual_seed(0)
    model = kind(config(**{**SIZES, **settings})).train()
    expected = copy.deepcopy(model)
    executor = poptorch.trainingModel(Trained(model), optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.01)
    for labels in LABELS:
        x = torch.randn(2, 200)
        loss, logits = executor(x, labels)
        optimizer.zero_grad()
        output = expected(input_values=x, labels=labels)
        output.loss.backward()
        optimizer.step()
        torch.testing.assert_close(loss, output.loss.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(logits, output.logits.detach(), rtol=1e-3, atol=1e-4)
    for key, parameter in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(key), parameter, rtol=1e-3, atol=1e-4)
    executor.destroy()
