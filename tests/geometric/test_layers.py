"""Convolutions, norms, aggregations and poolings of PyG train as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import poptorch
from poptorch_geometric import TrainingStepper

NODES, EDGES, WIDTH = 10, 24, 4
_random = torch.Generator().manual_seed(0)
X, POINTS = torch.randn(NODES, WIDTH, generator=_random), torch.randn(NODES, 3, generator=_random)
_pairs = [(one, other) for other in range(NODES) for one in range(NODES) if one != other]
_chosen = torch.randperm(len(_pairs), generator=_random)[:EDGES].sort().values
PAIRS = torch.tensor(_pairs)[_chosen].T.contiguous()
WEIGHTS, FEATURES = torch.rand(EDGES, generator=_random), torch.rand(EDGES, 3, generator=_random)
KINDS, NODE_KINDS = (torch.randint(0, most, (n,), generator=_random) for most, n in ((3, EDGES), (2, NODES)))
GRAPHS = torch.tensor([0] * 6 + [1] * 4)
ALONE = {"add_self_loops": False}


def layers(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inside, outside), nn.ReLU(), nn.Linear(outside, outside))


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "AGNN": (lambda: pyg.AGNNConv(**ALONE), (X, PAIRS)),
    "ARMA": (lambda: pyg.ARMAConv(WIDTH, WIDTH), (X, PAIRS)),
    "CG": (lambda: pyg.CGConv(WIDTH, 3), (X, PAIRS, FEATURES)),
    "DNA": (lambda: pyg.DNAConv(WIDTH, **ALONE), (torch.stack([X, X + 1], 1), PAIRS)),
    "EG": (lambda: pyg.EGConv(WIDTH, 4, num_heads=2, num_bases=2, **ALONE), (X, PAIRS)),
    "Edge": (lambda: pyg.EdgeConv(layers(2 * WIDTH, WIDTH)), (X, PAIRS)),
    "FA": (lambda: pyg.FAConv(WIDTH, **ALONE), (X, X, PAIRS)),
    "FastRGCN": (lambda: pyg.FastRGCNConv(WIDTH, WIDTH, 3), (X, PAIRS, KINDS)),
    "FeaSt": (lambda: pyg.FeaStConv(WIDTH, WIDTH, **ALONE), (X, PAIRS)),
    "FiLM": (lambda: pyg.FiLMConv(WIDTH, WIDTH), (X, PAIRS)),
    "GATv2": (lambda: pyg.GATv2Conv(WIDTH, WIDTH, edge_dim=3, **ALONE), (X, PAIRS, FEATURES)),
    "GCN2": (lambda: pyg.GCN2Conv(WIDTH, 0.5, 0.5, 1, **ALONE), (X, X, PAIRS)),
    "GEN": (lambda: pyg.GENConv(WIDTH, WIDTH), (X, PAIRS)),
    "GINE": (lambda: pyg.GINEConv(layers(WIDTH, WIDTH), edge_dim=3), (X, PAIRS, FEATURES)),
    "GMM": (lambda: pyg.GMMConv(WIDTH, WIDTH, 3, 2), (X, PAIRS, FEATURES)),
    "Gated": (lambda: pyg.GatedGraphConv(WIDTH, 2), (X, PAIRS)),
    "General": (lambda: pyg.GeneralConv(WIDTH, WIDTH, in_edge_channels=3), (X, PAIRS, FEATURES)),
    "Graph": (lambda: pyg.GraphConv(WIDTH, WIDTH), (X, PAIRS, WEIGHTS)),
    "HEAT": (lambda: pyg.HEATConv(WIDTH, WIDTH, 2, 3, 2, 3, 3), (X, PAIRS, NODE_KINDS, KINDS, FEATURES)),
    "Hypergraph": (lambda: pyg.HypergraphConv(WIDTH, WIDTH), (X, PAIRS, None, None, NODES)),
    "LE": (lambda: pyg.LEConv(WIDTH, WIDTH), (X, PAIRS)),
    "MixHop": (lambda: pyg.MixHopConv(WIDTH, WIDTH, [0, 1, 2], **ALONE), (X, PAIRS)),
    "NN": (lambda: pyg.NNConv(WIDTH, WIDTH, layers(3, WIDTH * WIDTH)), (X, PAIRS, FEATURES)),
    "PDN": (lambda: pyg.PDNConv(WIDTH, WIDTH, 3, 8, **ALONE), (X, PAIRS, FEATURES)),
    "PNA": (
        lambda: pyg.PNAConv(WIDTH, WIDTH, ["mean", "min", "max", "std"], ["amplification"], torch.tensor([0, 2, 3])),
        (X, PAIRS),
    ),
    "PPF": (lambda: pyg.PPFConv(layers(WIDTH + 4, WIDTH), **ALONE), (X, POINTS, POINTS, PAIRS)),
    "PointNet": (lambda: pyg.PointNetConv(layers(WIDTH + 3, WIDTH), **ALONE), (X, POINTS, PAIRS)),
    "PointTransformer": (lambda: pyg.PointTransformerConv(WIDTH, WIDTH, **ALONE), (X, POINTS, PAIRS)),
    "RGAT": (lambda: pyg.RGATConv(WIDTH, WIDTH, 3, attention_mechanism="across-relation"), (X, PAIRS, KINDS)),
    "ResGated": (lambda: pyg.ResGatedGraphConv(WIDTH, WIDTH), (X, PAIRS)),
    "SAGE of several": (lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr=["mean", "max", "sum", "std"]), (X, PAIRS)),
    "SAGE with a median": (lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr="median"), (X, PAIRS)),
    "SG": (lambda: pyg.SGConv(WIDTH, WIDTH, K=2, **ALONE), (X, PAIRS)),
    "SSG": (lambda: pyg.SSGConv(WIDTH, WIDTH, 0.5, K=2, **ALONE), (X, PAIRS)),
    "Signed": (lambda: pyg.SignedConv(WIDTH, WIDTH, True), (X, PAIRS, PAIRS)),
    "TAG": (lambda: pyg.TAGConv(WIDTH, WIDTH), (X, PAIRS)),
}

OVER_GRAPHS: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "GraphNorm": (lambda: pyg.GraphNorm(WIDTH), {"batch_size": 2}),
    "GraphSizeNorm": (pyg.GraphSizeNorm, {"batch_size": 2}),
    "InstanceNorm": (lambda: pyg.InstanceNorm(WIDTH), {"batch_size": 2}),
    "LayerNorm": (lambda: pyg.LayerNorm(WIDTH), {"batch_size": 2}),
    "MeanSubtractionNorm": (pyg.MeanSubtractionNorm, {"dim_size": 2}),
    "PairNorm": (pyg.PairNorm, {"batch_size": 2}),
    "attention": (lambda: pyg.AttentionalAggregation(nn.Linear(WIDTH, 1)), {"dim_size": 2}),
    "degrees": (
        lambda: pyg.DegreeScalerAggregation(["mean"], ["identity"], torch.tensor([0, 2, 3])), {"dim_size": 2}
    ),
    "GRU": (lambda: pyg.aggr.GRUAggregation(WIDTH, WIDTH), {"dim_size": 2, "max_num_elements": 6}),
    "LSTM": (lambda: pyg.LSTMAggregation(WIDTH, WIDTH), {"dim_size": 2, "max_num_elements": 6}),
    "median": (pyg.MedianAggregation, {"dim_size": 2}),
    "quantiles": (lambda: pyg.QuantileAggregation([0.25, 0.75]), {"dim_size": 2}),
    "set to set": (lambda: pyg.Set2Set(WIDTH, 2), {"dim_size": 2}),
    "softmax": (lambda: pyg.SoftmaxAggregation(learn=True), {"dim_size": 2}),
    "sorted": (lambda: pyg.SortAggregation(3), {"dim_size": 2, "max_num_elements": 6}),
    "variance": (pyg.VarAggregation, {"dim_size": 2}),
    "add pool": (lambda: pyg.global_add_pool, {"size": 2}),
    "max pool": (lambda: pyg.global_max_pool, {"size": 2}),
    "memory pool": (lambda: pyg.MemPooling(WIDTH, WIDTH, 2, 2), {"batch_size": 2, "max_num_nodes": 6}),
}  # fmt: skip


class WithLoss(nn.Module):
    """A layer, and the mean square of its first result."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        out = self.layer(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        return out, poptorch.identity_loss(out.square().mean(), reduction="none")


class OverGraphs(nn.Module):
    """A linear layer, and then something that takes the nodes of each graph together."""

    def __init__(self, layer: Any, sizes: dict[str, int]) -> None:
        super().__init__()
        self.linear, self.layer, self.sizes = nn.Linear(WIDTH, WIDTH), layer, sizes

    def forward(self, x: torch.Tensor, graphs: torch.Tensor) -> Any:
        return self.layer(self.linear(x), graphs, **self.sizes)


def trains_as_on_the_cpu(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    stepper = TrainingStepper(WithLoss(layer), rtol=1e-3, atol=1e-4, enable_fp_exception=False)
    stepper.run(2, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution(name: str) -> None:
    torch.manual_seed(1)
    make, inputs = CONVOLUTIONS[name]
    trains_as_on_the_cpu(make(), inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", OVER_GRAPHS)
def test_what_takes_the_nodes_of_a_graph_together(name: str) -> None:
    torch.manual_seed(1)
    make, sizes = OVER_GRAPHS[name]
    trains_as_on_the_cpu(OverGraphs(make(), sizes), (X, GRAPHS))
