"""Speech: CTC training on sounds without marks where a letter begins, and beam search on the device.

"Speech" is made here: each letter is a chord of two tones of random length and loudness, with noise and with pauses.
The model sees the spectrum and writes letters; CTC sums over all ways to align them. The beam-search decoder is a part
of the inference program, with the scores of letters as its input.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

LETTERS = "-aeioust"  # the first one is the blank of CTC
WORDS = ("sea", "tea", "toast", "oats", "site", "east", "tie", "sue", "out", "suit", "oasis", "state")
FRAMES, BANDS, LONGEST, EPOCHS = 40, 24, max(map(len, WORDS)), 14


def speak(count: int, random: torch.Generator) -> TensorDataset:
    """Spectra (rows, FRAMES, BANDS), letters (rows, LONGEST), and how many letters there are."""
    spectra = 0.3 * torch.rand(count, FRAMES, BANDS, generator=random)
    letters = torch.zeros(count, LONGEST, dtype=torch.long)
    lengths = torch.zeros(count, dtype=torch.long)
    for row in range(count):
        word = WORDS[int(torch.randint(0, len(WORDS), (), generator=random))]
        lengths[row] = len(word)
        at = int(torch.randint(0, 4, (), generator=random))
        for place, letter in enumerate(word):
            number = LETTERS.index(letter)
            letters[row, place] = number
            lasts = int(torch.randint(3, 7, (), generator=random))
            loud = 0.5 + torch.rand((), generator=random)
            spectra[row, at : at + lasts, [2 * number, (5 * number + 3) % BANDS]] += loud
            at += lasts + int(torch.randint(0, 2, (), generator=random))
    return TensorDataset(spectra, letters, lengths)


class Listener(nn.Module):
    """A convolution over time and a GRU, then scores of letters for every second frame."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv1d(BANDS, 48, 5, stride=2, padding=2)
        self.far = nn.GRU(48, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, len(LETTERS))

    def forward(
        self, spectra: torch.Tensor, letters: torch.Tensor | None = None, lengths: torch.Tensor | None = None
    ) -> Any:
        heard = torch.relu(self.near(spectra.mT)).mT
        scores = self.head(self.far(heard)[0]).log_softmax(-1).transpose(0, 1)  # (time, rows, letters)
        times = torch.full((scores.shape[1],), scores.shape[0], dtype=torch.int32)
        if letters is None:
            # Log probabilities, lengths and letters of the best paths: here of the two best of 8 that are followed.
            return poptorch.ctc_beam_search_decoder(scores, times, beam_width=8, top_paths=2)
        return nn.functional.ctc_loss(scores, letters, times, lengths, zero_infinity=True)


def word(letters: torch.Tensor, length: torch.Tensor) -> str:
    return "".join(LETTERS[letter] for letter in letters[: int(length)].tolist())


def main() -> dict[str, Any]:
    """Train and listen; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = Listener()
    options = poptorch.Options().deviceIterations(2)
    training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=6e-3))
    loader = poptorch.DataLoader(options, speak(512, random), batch_size=32, shuffle=True)
    losses = []
    bar = tqdm(total=EPOCHS * len(loader), desc="training")
    for _ in range(EPOCHS):
        for batch in loader:
            losses.append(training(*batch).item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            bar.update()
    bar.close()

    spectra, letters, lengths = speak(64, random).tensors
    sure, found_lengths, found = poptorch.inferenceModel(model.eval())(spectra)
    right = 0
    for row in range(len(spectra)):
        said = word(letters[row], lengths[row])
        heard = [word(found[row, path], found_lengths[row, path]) for path in range(2)]
        right += heard[0] == said
        if row < 4:
            print(
                f"said {said:6} heard {heard[0]:6} ({sure[row, 0].exp():.0%}), or {heard[1]} ({sure[row, 1].exp():.0%})"
            )
    print(f"hears {right / len(spectra):.1%} of new words without a mistake, {time.perf_counter() - begun:.1f} s")
    assert right / len(spectra) > 0.85
    return {"spectrum": spectra[0], "word": word(letters[0], lengths[0]), "losses": losses}


if __name__ == "__main__":
    main()
