"""Two operators written in C++, in a model that trains through them.

Run it with ``python examples/custom_op/custom_op.py``; it needs a C++ compiler.
"""

from __future__ import annotations

from pathlib import Path

import torch

import poptorch

HERE = Path(__file__).parent


class Network(torch.nn.Module):
    """A linear layer, the cube of its output, and a leaky ReLU; the loss in training."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.Linear(4, 4)
        self.after = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        bias = torch.ones_like(x)
        # Two inputs, two outputs; the templates say that there are two results like x.
        shifted, _ = poptorch.custom_op([self.before(x), bias], "Cube", "com.acme", 1, example_outputs=[x, x])
        (active,) = poptorch.custom_op(
            [shifted], "LeakyRelu", "com.acme", 1, example_outputs=[x], attributes={"alpha": 0.02}
        )
        result = self.after(active)
        if target is None:
            return result
        return torch.nn.functional.mse_loss(result, target)


def main() -> None:
    """Compile the operators, show them once, then train through them."""
    for name in ("cube", "leaky_relu"):
        library = poptorch.buildCustomOp(f"custom_{name}_op", HERE / f"{name}_op.cpp", HERE / "build")
        print("built", Path(library).name)

    torch.manual_seed(0)
    model = Network()
    x = torch.rand(16, 4)
    target = x.prod(dim=1, keepdim=True)
    trainer = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.05))
    losses = [trainer(x, target).item() for _ in range(50)]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert losses[-1] < losses[0] / 2
    trainer.destroy()

    model.eval()
    print("prediction", poptorch.inferenceModel(model)(x[:1]))


if __name__ == "__main__":
    main()
