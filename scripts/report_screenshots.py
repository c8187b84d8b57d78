"""Takes the pictures of report pages for the documentation: a small transformer on four pipelined IPUs.

    python scripts/report_screenshots.py

Needs Chromium and its driver, and Pillow. Writes docs/images/report-*.png.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import poptorch

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests" / "report" / "page"))

from page_view import View, chromium  # noqa: E402

WIDTH = 1200
IPUS, ACCUMULATION, SIZE, WORDS = 4, 8, 64, 1000


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(SIZE), nn.MultiheadAttention(SIZE, 4, batch_first=True)
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Guesses words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, SIZE), nn.Linear(SIZE, WORDS)
        self.layers = nn.ModuleList([Block() for _ in range(IPUS)])

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x)
        return scores, nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def write_report(folder: Path) -> Path:
    """Train a little; the page."""
    torch.manual_seed(0)
    model = Model()
    for ipu in range(1, IPUS):
        poptorch.BeginBlock(model.layers[ipu], ipu_id=ipu)
    options = poptorch.Options().enableProfiling(str(folder)).modelName("transformer")
    options.Training.gradientAccumulation(ACCUMULATION)
    training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=1e-3))
    for _ in range(3):
        words = torch.randint(0, WORDS, (2 * ACCUMULATION, 32))
        training(words, words)
    training.destroy()
    return folder / "transformer" / "report.html"


def take(view: View, name: str, theme: str, height: int) -> None:
    """One picture of what the page shows now, with few colours, so that it stays small."""
    view.choose("#theme", theme)
    view.driver.set_window_size(WIDTH, height)
    view.run("document.activeElement.blur(); window.scrollTo(0, 0); return new Promise(done => setTimeout(done, 1500))")
    file = IMAGES / f"report-{name}.png"
    view.driver.save_screenshot(str(file))
    Image.open(file).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(file, optimize=True)
    print(file, f"{file.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """Three pictures."""
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        view = View(driver, write_report(Path(folder)))
        view.open("memory")
        take(view, "memory", "light", 870)
        view.open("pipeline")
        take(view, "pipeline", "light", 1440)
        view.open("trace")
        view.press_button("trace", "Flame")
        view.until("return document.querySelector('#panel-trace .chart[data-drawn]')")
        view.run(
            "return Plotly.relayout(document.querySelector('#panel-trace .chart'), {'xaxis.range': [1000, 13000]})"
        )
        take(view, "trace", "dark", 740)


if __name__ == "__main__":
    main()
