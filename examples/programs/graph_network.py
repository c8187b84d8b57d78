"""A graph network with PyTorch Geometric: molecules of different sizes in programs of one size.

The "molecules" are random trees of atoms, some of which have a ring. To say which ones, a network must pass messages
around. The loader packs as many graphs as fit into a micro-batch of fixed size, and fills it up with padding.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_add_pool
from tqdm import tqdm

import poptorch
from poptorch_geometric import FixedSizeDataLoader, FixedSizeOptions, FixedSizeStrategy

KINDS, SIZES, EPOCHS = 3, FixedSizeOptions(num_nodes=96, num_edges=200, num_graphs=12), 12


def molecule(random: torch.Generator) -> Data:
    """A tree of 5 to 14 atoms; every second one has one more bond, which closes a ring."""
    atoms = int(torch.randint(5, 15, (), generator=random))
    bonds = [(child, int(torch.randint(0, child, (), generator=random))) for child in range(1, atoms)]
    ring = int(torch.randint(0, 2, (), generator=random))
    while len(bonds) < atoms - 1 + ring:
        one, other = torch.randint(0, atoms, (2,), generator=random).tolist()
        if one > other and (one, other) not in bonds:
            bonds.append((one, other))
    both = torch.tensor(bonds + [(other, one) for one, other in bonds]).T
    kinds = torch.randint(0, KINDS, (atoms,), generator=random)
    return Data(x=nn.functional.one_hot(kinds, KINDS).float(), edge_index=both.contiguous(), y=torch.tensor([ring]))


class Network(nn.Module):
    """Three rounds of messages, then a sum over the atoms of each graph."""

    def __init__(self) -> None:
        super().__init__()
        widths = (KINDS, 32, 32, 32)
        self.rounds = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(one, other), nn.ReLU(), nn.Linear(other, other)))
            for one, other in itertools.pairwise(widths)
        )
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, batch: Any) -> Any:
        atoms = batch.x
        for layer in self.rounds:
            atoms = layer(atoms, batch.edge_index).relu()
        # What would be found out from data must be said: how many graphs there are, padding included.
        scores = self.head(global_add_pool(atoms, batch.batch, size=SIZES.num_graphs))
        if not self.training:
            return scores
        labels = torch.where(batch.graphs_mask, batch.y, -100)  # padding has no label
        return scores, nn.functional.cross_entropy(scores, labels)


def main() -> dict[str, Any]:
    """Train and test; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    graphs, new = [[molecule(random) for _ in range(count)] for count in (1500, 300)]
    model = Network()
    # A whole batch of PyG goes into the model; each call takes four of them.
    options = poptorch.Options().deviceIterations(4)
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=5e-3))
    packed = {"fixed_size_options": SIZES, "fixed_size_strategy": FixedSizeStrategy.StreamPack}
    loader = FixedSizeDataLoader(graphs, batch_size=SIZES.num_graphs, options=options, **packed)
    losses, real, slots = [], 0, 0
    bar = tqdm(range(EPOCHS), desc="epochs")
    for _ in bar:
        for batch in loader:
            _, loss = training(batch)
            losses.append(loss.item())
            real, slots = real + int(batch.nodes_mask.sum()), slots + len(batch.nodes_mask)
        bar.set_postfix(loss=f"{losses[-1]:.3f}")

    inference = poptorch.inferenceModel(model.eval())
    right = count = 0
    for batch in FixedSizeDataLoader(new, batch_size=SIZES.num_graphs, **packed):
        found = inference(batch).argmax(1)
        right += int((found == batch.y)[batch.graphs_mask].sum())
        count += int(batch.graphs_mask.sum())
    print(f"{real / slots:.0%} of the atoms in a micro-batch are real ones, the rest is padding")
    print(f"finds the rings in {right / count:.1%} of {count} new molecules, {time.perf_counter() - begun:.1f} s")
    assert right / count > 0.9
    return {"graphs": new[:6], "losses": losses}


if __name__ == "__main__":
    main()
