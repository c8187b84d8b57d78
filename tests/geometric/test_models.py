"""Models of graphs: arguments and results, searches, layers, and training beside the CPU."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.experimental
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, TemporalData
from torch_geometric.nn import knn as imported_knn
from torch_geometric.nn import knn_graph as imported_knn_graph
from torch_geometric.nn import radius_graph as imported_radius_graph

import poptorch
from poptorch_geometric import (
    FixedSizeDataLoader,
    PyGArgsParser,
    TrainingStepper,
    call_once,
    ops,
    set_aggregation_dim_size,
)
from poptorch_geometric.override import _TorchGeometricOpsSubstitutionManager
from pyg_graphs import dataset, graph, hetero


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def on_ipu(function: Callable[..., Any], *tensors: Any) -> Any:
    return poptorch.inferenceModel(Calls(function))(*tensors)


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [graph(3, 4), hetero(), Batch.from_data_list(dataset(3)), Batch.from_data_list([hetero(), hetero()])]
)
def test_graphs_come_back_as_they_were(data: Any) -> None:
    parser = PyGArgsParser()
    made = parser.reconstruct(data, iter(list(parser.yieldTensors(data))))
    assert type(made) is type(data)
    for store, other in zip(made.stores, data.stores, strict=True):
        assert list(store.keys()) == list(other.keys())
        assert all(torch.equal(a, b) for a, b in zip(store.values(), other.values(), strict=True) if a is not b)
    assert getattr(made, "num_graphs", 1) == getattr(data, "num_graphs", 1)


def test_what_a_parser_refuses() -> None:
    with pytest.raises(ValueError, match="Unsupported data type: TemporalData"):
        list(PyGArgsParser().yieldTensors(TemporalData()))
    sparse = Data(x=torch.ones(2, 1), adj_t=torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match="'adj_t' of the graph is sparse"):
        list(PyGArgsParser().yieldTensors(sparse))


def test_models_take_and_return_graphs() -> None:
    class Named(Data):
        pass

    class Model(nn.Module):
        def forward(self, data: Data) -> Data:
            data.h = data.x * 2
            return data

    data = Named(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), name="n")
    result = poptorch.inferenceModel(Model())(data)
    assert type(result) is Named
    assert torch.equal(result.h, torch.full((2, 3), 2.0))
    assert result.name == "n"
    assert "h" not in data
    assert result.edge_index.dtype is torch.int32


def test_functions_that_run_once() -> None:
    seen: list[int] = []
    once = call_once(seen.append)
    assert not once.has_run
    assert (once(1), once(2)) == (None, None)
    assert once.has_run
    assert seen == [1]


# -- searches ----------------------------------------------------------------------------------------------------------

torch.manual_seed(0)
X, Y = torch.rand(10, 3), torch.rand(4, 3)
BATCH_X, BATCH_Y = torch.tensor([0] * 5 + [1] * 2 + [3] * 3), torch.tensor([0, 1, 2, 3])


def pairs_by_hand(x: torch.Tensor, y: torch.Tensor, bx: torch.Tensor, by: torch.Tensor, k: int, r: float) -> set[Any]:
    found = set()
    for i in range(len(y)):
        near = sorted((float((x[j] - y[i]).norm()), j) for j in range(len(x)) if bx[j] == by[i])
        found |= {(i, j) for distance, j in near[:k] if distance < r}
    return found


def as_set(pairs: torch.Tensor) -> set[Any]:
    return {(int(a), int(b)) for a, b in pairs.t() if a >= 0}


@pytest.mark.parametrize("k", [1, 3, 12])
def test_nearest_neighbours(k: int) -> None:
    expected = pairs_by_hand(X, Y, BATCH_X, BATCH_Y, k, float("inf"))
    pairs = ops.knn(X, Y, k, BATCH_X, BATCH_Y)
    assert pairs.shape == (2, 4 * k)
    assert as_set(pairs) == expected
    assert (pairs[0] < 0).equal(pairs[1] < 0)
    captured = on_ipu(lambda *a: ops.knn(a[0], a[1], k, a[2], a[3]), X, Y, BATCH_X, BATCH_Y)
    assert torch.equal(captured.long(), pairs)
    assert as_set(imported_knn(X, Y, k, BATCH_X, BATCH_Y)) == expected
    assert (imported_knn(X, Y, k, BATCH_X, BATCH_Y) >= 0).all()
    again = on_ipu(lambda *a: imported_knn(a[0], a[1], k, a[2], a[3]), X, Y, BATCH_X, BATCH_Y)
    assert torch.equal(again.long(), pairs)


def test_functions_that_are_named_like_their_modules() -> None:
    for name in ("knn", "knn_graph", "knn_interpolate", "radius"):
        module = importlib.import_module(f"poptorch_geometric.ops.{name}")
        assert getattr(ops, name) is getattr(module, name)


def test_neighbours_in_one_dimension_do_not_cross_batches() -> None:
    same = torch.ones(4)
    pairs = ops.knn(same, same, 2, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1]))
    assert all((a < 2) == (b < 2) for a, b in as_set(pairs))
    directions = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    assert ops.knn(directions, torch.tensor([[0.5, 1.0]]), 1, cosine=True).tolist() == [[0], [1]]


def test_neighbours_within_a_radius() -> None:
    for limit in (2, 32):
        expected = pairs_by_hand(X, Y, BATCH_X, BATCH_Y, limit, 0.7)
        pairs = ops.radius(X, Y, 0.7, BATCH_X, BATCH_Y, limit)
        assert pairs.shape == (2, 4 * min(10, limit))
        assert as_set(pairs) == expected
        assert as_set(pyg.radius(X, Y, 0.7, BATCH_X, BATCH_Y, limit)) == expected


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("loop", [True, False])
def test_graphs_of_neighbours(flow: str, loop: bool) -> None:
    def functions(of: Any) -> list[Any]:
        return [lambda x, b: of[0](x, 2, b, loop, flow), lambda x, b: of[1](x, 0.6, b, loop, 32, flow)]

    ours, imported = (
        functions((ops.knn_graph, ops.radius_graph)),
        functions((imported_knn_graph, imported_radius_graph)),
    )
    for own, other in zip(ours, imported, strict=True):
        eager, static = own(X, BATCH_X), on_ipu(own, X, BATCH_X)
        assert as_set(static) == as_set(eager) == as_set(other(X, BATCH_X))
        assert torch.equal(static, on_ipu(other, X, BATCH_X))
        assert loop or all(a != b for a, b in as_set(eager))
    assert on_ipu(ours[0], X, BATCH_X).shape == (2, 20)
    with pytest.raises(AssertionError, match="unknown flow"):
        ops.knn_graph(X, 2, flow="both")


def test_interpolation() -> None:
    features = torch.rand(10, 2)
    expected = pyg.knn_interpolate(features, X, Y[:2], BATCH_X, BATCH_Y[:2], k=3)
    for function in (ops.knn_interpolate, pyg.knn_interpolate):
        result = on_ipu(lambda *a, f=function: f(*a, k=3), features, X, Y[:2], BATCH_X, BATCH_Y[:2])
        torch.testing.assert_close(result, expected)


# -- layers ------------------------------------------------------------------------------------------------------------

EDGES = torch.randint(0, 10, (2, 30), generator=torch.Generator().manual_seed(1))
WITH_LOOPS = torch.cat([EDGES[:, EDGES[0] != EDGES[1]], torch.arange(10).repeat(2, 1)], 1)


class Trained(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *arguments: Any) -> Any:
        out = self.layer(*arguments)
        loss = poptorch.identity_loss(out.square().mean(), reduction="none")
        return (out, loss) if self.training else out


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "ClusterGCN": (lambda: pyg.ClusterGCNConv(3, 4, diag_lambda=0.5), (X, EDGES)),
    "ClusterGCN without loops": (lambda: pyg.ClusterGCNConv(3, 4, add_self_loops=False), (X, WITH_LOOPS)),
    "MF": (lambda: pyg.MFConv(3, 4, max_degree=2), (X, EDGES)),
    "GCN": (lambda: pyg.GCNConv(3, 4), (X, EDGES)),
    "GCN without loops": (lambda: pyg.GCNConv(3, 4, add_self_loops=False), (X, EDGES)),
    "GCN with weights": (lambda: pyg.GCNConv(3, 4), (X, WITH_LOOPS, torch.rand(WITH_LOOPS.shape[1]))),
    "SAGE": (lambda: pyg.SAGEConv(3, 4), (X, EDGES)),
    "GAT": (lambda: pyg.GATConv(3, 4, add_self_loops=False), (X, EDGES)),
    "GIN": (lambda: pyg.GINConv(nn.Linear(3, 4)), (X, EDGES)),
    "transformer": (lambda: pyg.TransformerConv(3, 4), (X, EDGES)),
    "hetero linear": (lambda: pyg.HeteroLinear(3, 4, 3), (X, EDGES[0, :10] % 3)),
    "dynamic edges": (lambda: pyg.DynamicEdgeConv(nn.Linear(6, 4), 2), (X, torch.tensor([0] * 6 + [1] * 4))),
    "GravNet": (lambda: pyg.GravNetConv(3, 4, 2, 2, 2), (X, torch.tensor([0] * 6 + [1] * 4))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_as_on_the_cpu(name: str) -> None:
    torch.manual_seed(1)
    make, arguments = LAYERS[name]
    stepper = TrainingStepper(Trained(make()), rtol=1e-4, atol=1e-5)
    stepper.run(4, arguments)
    stepper.run_inference(arguments)


def test_instance_norm_keeps_its_statistics() -> None:
    norm = pyg.InstanceNorm(3, affine=True, track_running_stats=True)
    batch = torch.tensor([0] * 6 + [1] * 4)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: torch.Tensor, batch: torch.Tensor) -> Any:
            out = self.norm(x, batch, 2)
            return out, poptorch.identity_loss(out.square().mean(), reduction="none")

    stepper = TrainingStepper(Model(), rtol=1e-4, atol=1e-5)
    stepper.run(3, (X, batch))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(stepper.ipu_model.norm, name), getattr(stepper.cpu_model.norm, name))
    with pytest.raises(ValueError, match=r"Dynamic shapes disabled. Argument 'batch_size' needs to be set"):
        on_ipu(lambda x, b: norm(x, b), X, batch)


def test_sizes_that_must_be_given() -> None:
    with pytest.raises(ValueError, match=r"Dynamic shapes disabled. Argument 'dim_size' needs to be set"):
        on_ipu(lambda x, b: pyg.SumAggregation()(x, b), X, BATCH_X)
    torch.testing.assert_close(
        on_ipu(lambda x, b: pyg.SumAggregation()(x, b, dim_size=4), X, BATCH_X), pyg.SumAggregation()(X, BATCH_X)
    )
    layer = pyg.GraphConv(3, 4)
    expected = layer(X, EDGES)
    set_aggregation_dim_size(layer, 10)
    torch.testing.assert_close(poptorch.inferenceModel(layer)(X, EDGES), expected)
    set_aggregation_dim_size(layer, 12)
    with pytest.raises(RuntimeError, match="12"):
        poptorch.inferenceModel(layer)(X, EDGES)


def test_everything_is_restored() -> None:
    flags = torch_geometric.experimental.__experimental_flag__
    before = [
        pyg.ClusterGCNConv.forward, pyg.MFConv.forward, pyg.HeteroLinear.forward, pyg.InstanceNorm.forward,
        pyg.aggr.base.Aggregation.assert_sorted_index, pyg.pool.knn_graph.__code__, pyg.knn_interpolate.__code__,
        pyg.knn_interpolate.__defaults__, dict(flags),
    ]  # fmt: skip

    def now() -> list[Any]:
        return [
            pyg.ClusterGCNConv.forward, pyg.MFConv.forward, pyg.HeteroLinear.forward, pyg.InstanceNorm.forward,
            pyg.aggr.base.Aggregation.assert_sorted_index, pyg.pool.knn_graph.__code__, pyg.knn_interpolate.__code__,
            pyg.knn_interpolate.__defaults__, dict(flags),
        ]  # fmt: skip

    seen: list[Any] = []

    def fails(x: torch.Tensor) -> None:
        seen.append(now())
        raise LookupError

    with pytest.raises(LookupError):
        on_ipu(fails, X)
    assert all(during != then for during, then in zip(seen[0], before, strict=True))
    assert now() == before
    manager = _TorchGeometricOpsSubstitutionManager()
    manager.replace()
    try:  # a capture of another thread: here, everything works as PyG wrote it
        pairs = pyg.pool.knn_graph(X, 2, BATCH_X)
        assert pairs.shape[1] < 20
        layer = pyg.MFConv(3, 4)
        assert layer(X, EDGES).shape == (10, 4)
    finally:
        manager.restore()
    assert torch.equal(pairs, pyg.pool.knn_graph(X, 2, BATCH_X))


# -- the stepper -------------------------------------------------------------------------------------------------------


def test_the_stepper_finds_differences() -> None:
    stepper = TrainingStepper(Trained(pyg.GraphConv(3, 4)), rtol=1e-4, atol=1e-5)
    assert set(stepper.benchmark(1, (X, EDGES), ("ipu", "cpu"))) == {"ipu_time", "cpu_time"}
    with pytest.raises(NotImplementedError, match="gpu"):
        stepper.benchmark(1, (X, EDGES), "gpu")
    with pytest.raises(TypeError, match="one or two batches"):
        stepper.run(1)
    with torch.no_grad():
        stepper.cpu_model.layer.lin_rel.weight.add_(1)
    with pytest.raises(AssertionError, match=r"Output was not equal"):
        stepper.run(1, (X, EDGES))
    with pytest.raises(AssertionError, match="Training model was not created"):
        TrainingStepper(Trained(pyg.SimpleConv())).run(1, (X, EDGES))


def test_a_small_network_learns_from_a_loader() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.GCNConv(3, 16)
            self.head = nn.Linear(16, 1)

        def forward(self, data: Data) -> Any:
            h = self.conv(data.x, data.edge_index).relu()
            out = self.head(pyg.global_mean_pool(h, data.batch, size=4)).flatten()
            error = torch.where(data.graphs_mask, out - data.target, 0.0)
            return out, poptorch.identity_loss(error.square().sum() / 3, reduction="none")

    graphs = dataset(24)
    for one in graphs:
        one.target = one.x.mean().reshape(1) * 4 - 5
    torch.manual_seed(0)
    model = Network()
    options = poptorch.Options().deviceIterations(2)
    options.outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.02))
    eager = copy.deepcopy(model)
    optimizer = torch.optim.Adam(eager.parameters(), lr=0.02)
    losses = []
    for _ in range(10):
        for batch in FixedSizeDataLoader(graphs, 4, options=options):
            losses.append(training(batch)[1].mean().item())
        for batch in FixedSizeDataLoader(graphs, 4):
            optimizer.zero_grad()
            eager(batch)[1].backward()
            optimizer.step()
    assert losses[-1] < losses[0] / 2
    training.copyWeightsToHost()
    for given, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-4)
