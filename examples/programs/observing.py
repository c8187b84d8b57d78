"""Observing tensors: why does this network not learn?

Eight layers, and the loss stays where it is. Anchors bring any inner value of the program back after each call, without
a change of the model: here the gradients of all layers. They show what is wrong; then the repaired network learns.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

LAYERS, WIDTH, EPOCHS = 8, 32, 3


class Deep(nn.Module):
    """Layers of squashed values; ``kind`` says how they begin."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 2)
        for layer in self.layers:
            if kind == "small weights":
                nn.init.normal_(layer.weight, std=0.02)
            else:
                nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("tanh"))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        scores = self.head(x)
        return scores, nn.functional.cross_entropy(scores, labels)


def points(count: int) -> TensorDataset:
    """Points with many coordinates, on two sides of a bent surface."""
    values = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))
    return TensorDataset(values, (values[:, :8].sum(1) + values[:, 8].square() > 1).long())


def train(kind: str) -> tuple[list[float], torch.Tensor]:
    """Losses, and the size of the gradients: one row for each call, one column for each layer."""
    torch.manual_seed(0)
    model = Deep(kind)
    options = poptorch.Options()
    # An anchor has a name of ours, and the name of a value of the program. `getTensorNames()` of a compiled model lists
    # all of them: results of layers ("layers.0/Tanh:0"), gradients, weights after the update, state of the optimizer.
    for index in range(LAYERS):
        options.anchorTensor(f"gradient {index}", f"Gradient___layers.{index}.weight")
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    losses, sizes = [], []
    loader = poptorch.DataLoader(options, points(2048), batch_size=32)
    bar = tqdm(total=EPOCHS * len(loader), desc=kind)
    for _ in range(EPOCHS):
        for values, labels in loader:
            losses.append(training(values, labels)[1].item())
            found = [training.getAnchoredTensor(f"gradient {index}").norm() for index in range(LAYERS)]
            sizes.append(torch.stack(found))
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            bar.update()
    bar.close()
    if kind == "small weights":
        names = training.getTensorNames()
        print(f"the program has {len(names)} values, among them {', '.join(names[:3])}, {names[-1]}")
    return losses, torch.stack(sizes)


def main() -> dict[str, Any]:
    """Train both networks; returns what the gallery draws."""
    begun = time.perf_counter()
    results = {kind: train(kind) for kind in ("small weights", "weights that keep sizes")}
    print("size of the gradients in the first call, from the first layer to the last:")
    for kind, (_, sizes) in results.items():
        print(f"  {kind:24}", " ".join(f"{size:.0e}" for size in sizes[0]))

    # The same question, in one line: print a value where it is computed, without bringing it to the host's program.
    class Printing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.ipu_print_tensor(torch.tanh(x), "squashed") * 2

    poptorch.inferenceModel(Printing())(torch.tensor([0.0, 1.0, 10.0]))

    last = {kind: sum(losses[-20:]) / 20 for kind, (losses, _) in results.items()}
    for kind, loss in last.items():
        print(f"the loss with {kind}: {loss:.3f}")
    print(f"{time.perf_counter() - begun:.1f} s")
    bad, good = results.values()
    assert bad[1][0, 0] < 1e-3 * bad[1][0, -1], "gradients vanish on the way to the first layer"
    assert good[1][0, 0] > 0.1 * good[1][0, -1]
    assert last["weights that keep sizes"] < last["small weights"] - 0.1
    return results


if __name__ == "__main__":
    main()
