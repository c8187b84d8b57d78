"""Layers of PyG whose shapes would depend on values, in a form where they do not. Interface and numbers are PyG's."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric import nn as pyg
from torch_geometric.nn.aggr.base import Aggregation as _Aggregation
from torch_geometric.utils import degree, scatter

from poptorch_geometric.types import plain


class Aggregation(_Aggregation):
    """Does not look whether an index is sorted: that is a question about values."""

    def assert_sorted_index(self, index: Any) -> None:
        """Nothing."""


class ClusterGCNConv(pyg.ClusterGCNConv):
    """Self-loops are weighted by a mask instead of being taken out."""

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        """The layer."""
        nodes: int = x.shape[self.node_dim]
        row, col = plain(edge_index)
        is_loop = row == col
        counts = torch.where(is_loop, 0.0, 1.0).to(x.dtype) if self.add_self_loops else x.new_ones(row.shape)
        weight_of_loop = x.new_full((), 1 + self.diag_lambda)
        weights = counts if self.add_self_loops else torch.where(is_loop, weight_of_loop, x.new_ones(()))
        degrees = scatter(counts, col, 0, nodes, reduce="sum")
        if self.add_self_loops:
            loops = torch.arange(nodes)
            edge_index = torch.stack([torch.cat([row, loops]), torch.cat([col, loops])])
            weights = torch.cat([weights, weight_of_loop.expand(nodes)])
            degrees = degrees + 1
        weights = weights * (1.0 / degrees.clamp(min=1))[edge_index[1]]
        out = self.propagate(edge_index, x=x, edge_weight=weights)
        return self.lin_out(out) + self.lin_root(x)


def weighted_self_loops(
    edge_index: Any, edge_attr: torch.Tensor | None = None, fill_value: Any = 1.0, num_nodes: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loop at each node, as ``add_remaining_self_loops`` adds them, where edges have weights.

    Loops that are there already stay in their places with the weight zero, and give their weights to the new ones.
    """
    row, col = plain(edge_index)
    if num_nodes is None:
        raise ValueError("Dynamic shapes disabled. Argument 'num_nodes' needs to be set")
    if edge_attr is None:
        edge_attr = torch.ones(row.shape)
    is_loop = row == col
    old = edge_attr.new_full((num_nodes + 1,), fill_value)
    # What is no loop writes behind the end.
    loops = old.scatter(0, torch.where(is_loop, row, num_nodes), edge_attr)[:num_nodes]
    nodes = torch.arange(num_nodes)
    index = torch.stack([torch.cat([row, nodes]), torch.cat([col, nodes])])
    return index, torch.cat([torch.where(is_loop, 0.0, edge_attr), loops])


class HeteroLinear(pyg.HeteroLinear):
    """Computes all types for all rows, and selects."""

    def forward(self, x: torch.Tensor, type_vec: torch.Tensor) -> torch.Tensor:
        """The layer."""
        out = x.new_zeros(x.shape[0], self.out_channels)
        for number in range(self.num_types):
            rows = x @ self.weight[number]
            if self.bias is not None:
                rows = rows + self.bias[number]
            out = torch.where((type_vec == number)[:, None], rows, out)
        return out


class InstanceNorm(pyg.InstanceNorm):
    """Updates its running statistics in place."""

    def forward(
        self, x: torch.Tensor, batch: torch.Tensor | None = None, batch_size: int | None = None
    ) -> torch.Tensor:
        """The layer."""
        if batch is None:
            batch, batch_size = x.new_zeros(x.shape[0], dtype=torch.int64), 1
        if batch_size is None:
            if torch_geometric_is_static():
                raise ValueError("Dynamic shapes disabled. Argument 'batch_size' needs to be set")
            batch_size = int(batch.max()) + 1
        if self.training or not self.track_running_stats:
            count = degree(batch, batch_size, dtype=x.dtype).clamp(min=1).view(-1, 1)
            mean = scatter(x, batch, 0, batch_size, reduce="sum") / count
            x = x - mean.index_select(0, batch)
            squares = scatter(x * x, batch, 0, batch_size, reduce="sum")
            variance = squares / count
            follow(self, self.running_mean, mean)
            follow(self, self.running_var, squares / (count - 1).clamp(min=1))
        else:
            x = x - self.running_mean.view(1, -1)
            variance = self.running_var.view(1, -1).expand(batch_size, -1)
        out = x / (variance + self.eps).sqrt().index_select(0, batch)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight.view(1, -1) + self.bias.view(1, -1)
        return out


def follow(norm: Any, running: torch.Tensor | None, now: torch.Tensor) -> None:
    """Move a running statistic towards the mean over graphs."""
    if running is not None:
        running.copy_((1 - norm.momentum) * running + norm.momentum * now.detach().mean(0))


def torch_geometric_is_static() -> bool:
    """Whether PyG runs with its flag against shapes that depend on values."""
    from torch_geometric.experimental import is_experimental_mode_enabled

    return bool(is_experimental_mode_enabled("disable_dynamic_shapes"))


class MFConv(pyg.MFConv):
    """Computes the layers of all degrees for all nodes, and selects."""

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> torch.Tensor:
        """The layer."""
        pair = (x, x) if isinstance(x, torch.Tensor) else x
        own = pair[1]
        nodes = pair[0].size(self.node_dim)
        if size is not None:
            nodes = size[1]
        if own is not None:
            nodes = own.size(self.node_dim)
        target = plain(edge_index)[1 if self.flow == "source_to_target" else 0]
        degrees = degree(target, nodes, dtype=torch.long).clamp(max=self.max_degree)
        h = self.propagate(edge_index, x=pair, size=size)
        out = h.new_zeros([*h.shape[:-1], self.out_channels])
        for number, (left, right) in enumerate(zip(self.lins_l, self.lins_r, strict=True)):
            rows = left(h) if own is None else left(h) + right(own)
            out = torch.where((degrees == number)[:, None], rows, out)
        return out
