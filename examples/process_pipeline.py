"""A model whose two halves train in two processes, each of which has the weights of its own half only.

    torchrun --nproc-per-node 2 examples/process_pipeline.py

With one process, the same program trains the whole model. The losses are the same.
"""

from __future__ import annotations

import torch
from torch import nn

import poptorch


class Model(nn.Module):
    """Four layers on two IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        poptorch.BeginBlock(self.layers[2], ipu_id=1)  # this layer, and all that follows

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x, nn.functional.mse_loss(x, target)


def give_values(model: nn.Module, names: list[str]) -> None:
    """Weights for the parameters of this process, from the meta device: here random ones, else from a checkpoint."""
    values = {}
    for name in names:
        generator = torch.Generator().manual_seed(sum(map(ord, name)))  # the same in whichever process
        values[name] = torch.randn(model.get_parameter(name).shape, generator=generator) / 4
    model.load_state_dict(values, strict=False, assign=True)


def main() -> None:
    """Train for one epoch."""
    options = poptorch.Options().randomSeed(42)
    options.Training.gradientAccumulation(4)
    options.Distributed.processesPerReplica(min(2, options.Distributed.numProcesses))  # from the launcher

    torch.manual_seed(0)  # processes of one replica read the same data
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randn(64, 16))
    loader = poptorch.DataLoader(options, data, batch_size=4, shuffle=True)

    with torch.device("meta"):
        model = Model()
    x, y = next(iter(loader))
    give_values(model, poptorch.tensorsOfProcess(model, options, x, y))
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = poptorch.trainingModel(model, options, optimizer)
    for x, y in loader:
        _, loss = trainer(x, y)
        print(f"loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
