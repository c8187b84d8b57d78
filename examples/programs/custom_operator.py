"""A custom operator: a spiking network, whose neurons are written in C++.

A neuron adds up what comes in, fires when it is above a threshold, and is reset then. Whether it fires is a step, and a
step has no useful gradient; `spike_op.cpp` says what to use instead. The program builds the operator, compares it with
the same one in Python, and trains a network through it that recognises rhythms. It needs a C++ compiler.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

KINDS, STEPS, INPUTS, NEURONS, EPOCHS = 4, 20, 8, 48, 8


def spike(x: torch.Tensor, domain: str) -> torch.Tensor:
    """Whether neurons fire. The example says type and shape of the output."""
    (fires,) = poptorch.custom_op([x], "Spike", domain, 1, example_outputs=[x], attributes={"slope": 4.0})
    return fires


class Spiking(nn.Module):
    """One layer of neurons that also hear each other; the head counts who fired how often."""

    def __init__(self, domain: str = "com.acme") -> None:
        super().__init__()
        self.domain = domain
        self.hear = nn.Linear(INPUTS, NEURONS)
        self.talk = nn.Linear(NEURONS, NEURONS, bias=False)
        self.head = nn.Linear(NEURONS, KINDS)

    def forward(self, beats: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        charge = fires = self.hear(beats[:, 0]) * 0.0
        fired = []
        for step in range(STEPS):
            charge = 0.9 * charge * (1 - fires) + self.hear(beats[:, step]) + self.talk(fires)
            fires = spike(charge - 1.0, self.domain)
            fired.append(fires)
        history = torch.stack(fired, 1)  # (rows, STEPS, NEURONS)
        scores = self.head(history.mean(1))
        return scores, history, nn.functional.cross_entropy(scores, kinds)


def rhythms(count: int, random: torch.Generator) -> TensorDataset:
    """Beats on all inputs with a distance that the kind says, a random beginning, and noise."""
    kinds = torch.randint(0, KINDS, (count,), generator=random)
    begin = torch.randint(0, 8, (count, 1), generator=random)
    beats = (torch.arange(STEPS) + begin) % (2 + kinds[:, None]) == 0
    noise = torch.rand(count, STEPS, INPUTS, generator=random)
    return TensorDataset((beats[:, :, None] ^ (noise < 0.1)).float(), kinds)


def main() -> dict[str, Any]:
    """Build, compare, train; returns what the gallery draws."""
    begun = time.perf_counter()
    # 1. Building makes a library and loads it. That is the whole installation.
    with tempfile.TemporaryDirectory() as folder:
        library = poptorch.buildCustomOp("spike", Path(__file__).parent / "spike_op.cpp", folder)
        print(f"built {Path(library).name} in {time.perf_counter() - begun:.1f} s")

    # 2. The same operator in Python: two functions on tensors. It is slower, and good to try ideas and to compare.
    poptorch.registerCustomOp(
        "Spike", "com.acme.python", 1,
        forward=lambda x, *, slope: (x > 0).to(x.dtype),
        gradient=lambda gradients, inputs, outputs, *, slope: [gradients[0] / (1 + slope * inputs[0].abs()).square()],
        attributes={"slope": "Float"},
    )  # fmt: skip
    random = torch.Generator().manual_seed(1)
    data, new = rhythms(1024, random), rhythms(512, random)
    first = []
    for domain in ("com.acme", "com.acme.python"):
        torch.manual_seed(0)
        model = Spiking(domain)
        poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))(*data[:64])
        first.append(model.hear.weight.detach().clone())
    print(f"weights after a step with C++ and with Python differ by {(first[0] - first[1]).abs().max():.1e}")

    # 3. Train through it, as through any operator.
    torch.manual_seed(0)
    model = Spiking()
    options = poptorch.Options().deviceIterations(4)
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=1e-2))
    loader = poptorch.DataLoader(options, data, batch_size=32, shuffle=True)
    bar = tqdm(total=EPOCHS * len(loader), desc="training")
    for _ in range(EPOCHS):
        for beats, kinds in loader:
            bar.set_postfix(loss=f"{training(beats, kinds)[2].item():.3f}")
            bar.update()
    bar.close()

    scores, history, _ = poptorch.inferenceModel(model.eval())(*new.tensors)
    right = (scores.argmax(1) == new.tensors[1]).float().mean().item()
    print(f"recognises {right:.1%} of new rhythms, neurons fire in {history.mean():.1%} of the time, ", end="")
    print(f"{time.perf_counter() - begun:.1f} s")
    assert torch.allclose(*first, atol=1e-6)
    assert right > 0.85
    return {"history": history, "kinds": new.tensors[1]}


if __name__ == "__main__":
    main()
