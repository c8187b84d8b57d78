"""Errors about what ``forward`` does, and about operations."""

from poptorch.error_catalogue.entry import Entry

ENTRIES = (
    Entry(
        "PT2000",
        "forward() cannot be compiled",
        "`forward` runs once, on tensors without values, and its operations become a program. It does something that "
        "has no place in a program.",
        """
class Counted(nn.Module):
    def forward(self, x):
        return torch.bincount(x)

poptorch.inferenceModel(Counted())(torch.tensor([0, 1, 1]))
""",
        "The message says what to write instead. [Constraints](constraints.md) has the rules, and "
        "[Operations](operations.md) how to run a part of a model on the host.",
        """
class Counted(nn.Module):
    def forward(self, x):
        return torch.bincount(x, minlength=4)

poptorch.inferenceModel(Counted())(torch.tensor([0, 1, 1]))
""",
    ),
    Entry(
        "PT2001",
        "No loss",
        "A training model has to compute its loss in `forward`: back-propagation is part of the program.",
        """
layer = nn.Linear(4, 2)
poptorch.trainingModel(layer)(torch.ones(8, 4))
""",
        "Compute the loss in `forward` and return it. Wrap a loss of your own in `poptorch.identity_loss`: "
        "[Losses](losses.md).",
        """
class WithLoss(nn.Linear):
    def forward(self, x):
        return poptorch.identity_loss(super().forward(x), reduction="mean")

poptorch.trainingModel(WithLoss(4, 2))(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT2002",
        "Several losses",
        "The model computes several losses and joins them by operations that do not say which of them is the last.",
        """
class TwoLosses(nn.Linear):
    def forward(self, x, y):
        out = super().forward(x)
        return nn.functional.mse_loss(out, y) + nn.functional.l1_loss(out, y)

poptorch.trainingModel(TwoLosses(4, 2))(torch.ones(8, 4), torch.zeros(8, 2))
""",
        "Wrap their sum in `poptorch.identity_loss`: [Losses](losses.md#several-losses).",
        """
class TwoLosses(nn.Linear):
    def forward(self, x, y):
        out = super().forward(x)
        both = nn.functional.mse_loss(out, y) + nn.functional.l1_loss(out, y)
        return poptorch.identity_loss(both, reduction="none")

poptorch.trainingModel(TwoLosses(4, 2))(torch.ones(8, 4), torch.zeros(8, 2))
""",
    ),
    Entry(
        "PT2003",
        "A shape that depends on values",
        "A compiled program has static shapes. How many elements a mask selects is known only when it runs.",
        """
class Positive(nn.Module):
    def forward(self, x):
        return x[x > 0]

poptorch.inferenceModel(Positive())(torch.ones(8))
""",
        "Keep the shape and mark what counts: `torch.where`, `masked_fill`, `torch.topk`.",
        """
class Positive(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, 0)

poptorch.inferenceModel(Positive())(torch.ones(8))
""",
    ),
    Entry(
        "PT2004",
        "A buffer is reassigned",
        "`self.count = …` in `forward` makes another tensor. The program writes to the one that it knows.",
        """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count = self.count + 1
        return x * self.count

poptorch.inferenceModel(Counting())(torch.ones(8))
""",
        "Write into the buffer: [Buffers](weights.md#buffers-keep-state).",
        """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.copy_(self.count + 1)
        return x * self.count

poptorch.inferenceModel(Counting())(torch.ones(8))
""",
    ),
    Entry(
        "PT2005",
        "forward() needs values on the host",
        "`x.numpy()`, `torch.save(x)` and pickling need values, and the tensors of `forward` have none.",
        """
class Saving(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy()) * 2

poptorch.inferenceModel(Saving())(torch.ones(8))
""",
        "Use operations of torch, or run the function on the host with `poptorch.CPU`: [Operations](operations.md).",
        """
class Doubling(nn.Module):
    def forward(self, x):
        return x * 2

poptorch.inferenceModel(Doubling())(torch.ones(8))
""",
    ),
    Entry(
        "PT2006",
        "A module that cannot be wrapped",
        "TorchScript modules are compiled already. Lazy modules have no shapes yet.",
        """
poptorch.inferenceModel(torch.jit.trace(nn.ReLU(), torch.ones(8)))
""",
        "Wrap the `nn.Module` itself. Call a lazy module once before you wrap it.",
        """
poptorch.inferenceModel(nn.ReLU())
""",
    ),
    Entry(
        "PT2007",
        "Nothing to compute",
        "The model returns nothing that depends on an operation.",
        """
class Nothing(nn.Module):
    def forward(self, x):
        x + 1

poptorch.inferenceModel(Nothing())(torch.ones(8))
""",
        "Return what the model computes.",
        """
class Next(nn.Module):
    def forward(self, x):
        return x + 1

poptorch.inferenceModel(Next())(torch.ones(8))
""",
    ),
    Entry(
        "PT5000",
        "An operation refuses its arguments",
        "An operation of `poptorch` was given arguments that it cannot compute with.",
        """
class Sliced(nn.Module):
    def forward(self, x, start):
        return poptorch.dynamic_slice(x, 0, start, 3, 1)

poptorch.inferenceModel(Sliced())(torch.ones(8), torch.tensor([2]))
""",
        "The message says which argument, and what it may be. [Operations](operations.md) has an example of each.",
        """
class Sliced(nn.Module):
    def forward(self, x, start):
        return poptorch.dynamic_slice(x, 0, start, 4, 1)

poptorch.inferenceModel(Sliced())(torch.ones(8), torch.tensor([2]))
""",
    ),
)
