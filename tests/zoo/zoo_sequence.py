"""Networks for sequences, written with torch's own layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from zoo_architecture import Architecture, Tensors
from zoo_vision import CLASSES, classification

WORDS = 11


class Recurrent(nn.Module):
    """Embedding, recurrent layers, classification of the last state."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6, padding_idx=0)
        self.layer = layer
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        y, _ = self.layer(self.embedding(words))
        return self.head(y[:, -1])


def rnn() -> nn.Module:
    return Recurrent(nn.RNN(6, 7, batch_first=True, nonlinearity="tanh"), 7)


def lstm() -> nn.Module:
    return Recurrent(nn.LSTM(6, 7, num_layers=2, batch_first=True), 7)


def gru() -> nn.Module:
    return Recurrent(nn.GRU(6, 5, batch_first=True, bidirectional=True), 10)


class CellLoop(nn.Module):
    """An LSTM cell in a Python loop, as people write it who need the states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.cell = nn.LSTMCell(6, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = self.embedding(words).unbind(1)
        h = c = torch.zeros(words.shape[0], 8)
        states = []
        for x in steps:
            h, c = self.cell(x, (h, c))
            states.append(h)
        return self.head(h), torch.stack(states, 1)


class TransformerEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.position = nn.Parameter(0.1 * torch.randn(1, 6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        padding = words == 0
        y = self.encoder(self.embedding(words) + self.position, src_key_padding_mask=padding)
        return self.head(y[:, 0])


class TransformerDecoder(nn.Module):
    """Encoder and decoder with a causal mask; predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        y = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(y)  # (B, T, words)


class Seq2SeqWithAttention(nn.Module):
    """GRU encoder; the decoder attends to all its states (additive attention)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(2 * width, width)
        self.keys, self.query = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.head = nn.Linear(2 * width, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, last = self.encoder(self.source(source))  # (B, S, w), (1, B, w)
        keys, h = self.keys(memory), last[0]
        logits = []
        for t in range(target.shape[1]):
            scores = self.score(torch.tanh(keys + self.query(h)[:, None]))  # (B, S, 1)
            context = (scores.softmax(1) * memory).sum(1)
            h = self.cell(torch.cat([self.target(target[:, t]), context], -1), h)
            logits.append(self.head(torch.cat([h, context], -1)))
        return torch.stack(logits, 1)


class CtcSpeech(nn.Module):
    """Strided convolutions over a spectrogram, a recurrent layer, log-probabilities of letters."""

    def __init__(self, bands: int = 6, letters: int = 5) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(bands, 8, 3, stride=2, padding=1), nn.Hardtanh(0, 20))
        self.norm = nn.BatchNorm1d(8)
        self.recurrent = nn.GRU(8, 6, batch_first=True)
        self.letters = nn.Linear(6, letters)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.front(spectrogram)).mT  # (B, T, 8)
        y, _ = self.recurrent(y)
        return self.letters(y).log_softmax(-1)


def ctc(log_probabilities: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    rows, steps, _ = log_probabilities.shape
    return F.ctc_loss(
        log_probabilities.transpose(0, 1),
        letters,
        torch.full((rows,), steps, dtype=torch.long),
        torch.full((rows,), letters.shape[1], dtype=torch.long),
    )


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates and skip connections."""

    def __init__(self, width: int = 5, layers: int = 3) -> None:
        super().__init__()
        self.begin = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(layers))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.end = nn.Conv1d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        total = torch.zeros_like(x)
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            y = F.glu(gate(F.pad(x, (2**i, 0))), dim=1)
            total += skip(y)
            x = x + y
        return self.end(F.relu(total))


def _sentences(rows: int) -> tuple[Tensors, Tensors]:
    words = torch.randint(1, WORDS, (rows, 6))
    words[:, -1] = 0
    return (words,), (torch.randint(CLASSES, (rows,)),)


def _translations(rows: int) -> tuple[Tensors, Tensors]:
    source, target = torch.randint(WORDS, (rows, 5)), torch.randint(WORDS, (rows, 5))
    return (source, target[:, :-1].contiguous()), (target[:, 1:].contiguous(),)


def _speech(rows: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(rows, 6, 16),), (torch.randint(1, 5, (rows, 3)),)


def _waves(rows: int) -> tuple[Tensors, Tensors]:
    wave = torch.randn(rows, 1, 13)
    return (wave[..., :-1].contiguous(),), (wave[..., 1:].contiguous(),)


def next_word(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten().long())


ARCHITECTURES = [
    Architecture("rnn", rnn, _sentences, classification, cuts=("layer", "head")),
    Architecture("lstm", lstm, _sentences, classification, cuts=("layer", "head")),
    Architecture("gru", gru, _sentences, classification, cuts=("layer", "head")),
    Architecture(
        "lstm_cell_loop", CellLoop, _sentences, lambda out, target: classification(out[0], target), cuts=("head",)
    ),
    Architecture(
        "transformer_encoder", TransformerEncoder, _sentences, classification, cuts=("encoder.layers.1", "head")
    ),
    Architecture("transformer_decoder", TransformerDecoder, _translations, next_word, cuts=("transformer.decoder",)),
    Architecture("seq2seq_attention", Seq2SeqWithAttention, _translations, next_word, cuts=("keys",)),
    Architecture("ctc_speech", CtcSpeech, _speech, ctc, cuts=("recurrent", "letters")),
    Architecture("wavenet", WaveNet, _waves, F.mse_loss, cuts=("gates.1", "end")),
]
