"""Dividing a model over IPUs so that they take equal time, by the cycles of its operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from poptorch.compiler.request import splitting_settings
from poptorch.ipu_model.architecture import Architecture, architecture
from poptorch.ipu_model.costing import cost_of
from poptorch.ipu_model.settings import CostSettings
from poptorch.options import Options
from poptorch.placement.auto import Price, Split, divide


def autoPipeline(
    model: nn.Module,
    num_ipus: int,
    example_inputs: Any,
    options: Options | None = None,
    *,
    verbose: bool = True,
    arch: str | None = None,
) -> Split:
    """Annotate ``model`` with one :func:`poptorch.BeginBlock` per IPU, so that the stages take equal time.

    ``example_inputs`` are the arguments of one micro-batch: a tensor, a tuple of arguments, or a dictionary of keyword
    arguments. The cost of every module is the cycles that the IPU Model counts for its operations, on shapes alone;
    nothing is computed. The split is printed and returned; :func:`poptorch.removeBlocks` takes it back.

    >>> layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    >>> print(autoPipeline(layers, 2, torch.ones(8, 64), verbose=False))
    IPU  starts with    time     weights
      0  the model     50.0%    32.5 KiB
      1  2             50.0%    32.5 KiB
    balance 100%
    """
    _, strategy = splitting_settings(options)
    return divide(model, num_ipus, example_inputs, strategy, cycle_price(options, architecture(arch)), verbose=verbose)


def cycle_price(options: Options | None, chip: Architecture) -> Price:
    """What operations cost, in cycles."""
    backend, _ = splitting_settings(options)
    return _Cycles(chip, CostSettings.of(backend))


class _Cycles:
    """The cycles of operations that are called, not recorded."""

    def __init__(self, chip: Architecture, settings: CostSettings) -> None:
        self._chip = chip
        self._settings = settings

    def __call__(self, operator: Any, args: Any, kwargs: Any, result: Any) -> float:
        if not any(isinstance(value, torch.Tensor) for value in pytree.tree_leaves(result)):
            return 0.0  # a question about a tensor
        graph = fx.Graph()

        def operand(tensor: torch.Tensor) -> fx.Node:
            node = graph.placeholder("operand")
            node.meta["val"] = tensor
            return node

        args, kwargs = pytree.tree_map_only(torch.Tensor, operand, (args, kwargs))
        node = graph.call_function(operator, args, kwargs)
        node.meta["val"] = result
        return cost_of(node, self._chip, self._settings).cycles(self._chip)


__all__ = ["autoPipeline", "cycle_price"]
