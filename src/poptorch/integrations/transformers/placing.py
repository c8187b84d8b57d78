"""Layers of a model on IPUs: found in the model, and put into blocks while it is compiled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from poptorch._logging import logger
from poptorch.enums import MatMulSerializationMode
from poptorch.errors import createPoptorchError
from poptorch.integrations.transformers.config import IPUConfig
from poptorch.ops import recomputationCheckpoint, serializedMatMul
from poptorch.placement.blocks import BeginBlock, without_blocks


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model in the order in which they run: its longest lists of modules, an encoder's before a
    decoder's.

    >>> layers_of(nn.Sequential(nn.ModuleList([nn.ReLU(), nn.Tanh()])))
    [ReLU(), Tanh()]
    """
    lists = {
        name: list(module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and module
    }
    outer = {name: each for name, each in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    halves = [
        max((each for name, each in outer.items() if half in name.split(".")), key=len, default=[])
        for half in ("encoder", "decoder")
    ]
    if all(halves):
        return [*halves[0], *halves[1]]
    return max(outer.values(), key=len, default=[])


@contextlib.contextmanager
def placed(model: nn.Module, config: IPUConfig, training: bool) -> Iterator[None]:
    """Begin a block at the first layer of each IPU but the first, as long as a model is compiled."""
    wanted = config.layers_for(training)
    with contextlib.ExitStack() as undo:
        if len(wanted) > 1:
            layers = layers_of(model)
            undo.enter_context(without_blocks(model))
            _begin_blocks(model, layers, config.layers_of_each_ipu(len(layers), training))
        if training and config.recompute_checkpoint_every_layer:
            for layer in layers_of(model):
                undo.callback(layer.register_forward_hook(_keep_output).remove)
        if (pieces := config.pieces_of_head(training)) > 1 and (head := _head_of(model, pieces)) is not None:
            undo.callback(head.register_forward_hook(functools.partial(_in_pieces, pieces)).remove)
        yield


def _head_of(model: nn.Module, pieces: int) -> nn.Linear | None:
    """The layer of a language model that has a column for each word; other heads are small."""
    ask = getattr(model, "get_output_embeddings", None)
    head = None if ask is None else ask()
    if not isinstance(head, nn.Linear):
        logger.info("%s has no head with words: it is not computed in %d pieces.", type(model).__name__, pieces)
        return None
    if head.out_features % pieces:
        raise createPoptorchError(
            f"projection_serialization_factor={pieces} does not divide the {head.out_features} words of "
            f"{type(model).__name__}. Choose another one, or call model.resize_token_embeddings()."
        )
    return head


def _in_pieces(pieces: int, head: nn.Linear, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """The same product in pieces; nobody needs ``output`` any more, so it leaves the program."""
    product = serializedMatMul(inputs[0], head.weight.T, MatMulSerializationMode.OutputChannels, pieces)
    return product if head.bias is None else product + head.bias


def _begin_blocks(model: nn.Module, layers: list[nn.Module], counts: list[int]) -> None:
    if counts[0] == 0 and sum(counts) == 0:
        raise createPoptorchError(f"{type(model).__name__} has no list of layers to spread over IPUs.")
    begin = 0
    BeginBlock(model, "ipu0", ipu_id=0)  # what comes before the first layer
    for ipu, count in enumerate(counts):
        if ipu and count:
            BeginBlock(layers[begin], f"ipu{ipu}", ipu_id=ipu)
        begin += count


def _keep_output(module: nn.Module, inputs: Any, output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return recomputationCheckpoint(output)
    if isinstance(output, tuple) and output and isinstance(output[0], torch.Tensor):
        return (recomputationCheckpoint(output[0]), *output[1:])
    return output
