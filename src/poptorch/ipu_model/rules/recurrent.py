"""Rules for recurrent layers: one product for the inputs of all times, then a loop with a product and gates."""

from __future__ import annotations

import torch

from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.passes import reduce
from poptorch.ipu_model.rules.products import joined, product, repeated
from poptorch.ipu_model.steps import CostStep, OpCost

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_CELLS = {
    "lstm": "sigmoid sigmoid sigmoid tanh multiply multiply add tanh multiply",
    "gru": "sigmoid sigmoid multiply add tanh subtract multiply add",
    "rnn": "tanh",
}
_GRADIENTS = {
    "lstm": "tanh multiply multiply tanh' add sigmoid' sigmoid' sigmoid' tanh' multiply multiply multiply",
    "gru": "subtract multiply multiply tanh' sigmoid' sigmoid' multiply multiply add add",
    "rnn": "tanh'",
}
_MODES = {0: "rnn", 1: "rnn", 2: "lstm", 3: "gru"}
"""How torch numbers the kinds of recurrent layers."""


def layer(call: CostedCall, cell: str, times: int, batch: int, inputs: int, hidden: int, dtype: torch.dtype) -> OpCost:
    """One direction of one layer."""
    gates, chip = _GATES[cell], call.chip
    known = product(call, 1, times * batch, inputs, gates * hidden, dtype)
    turn = repeated(product(call, 1, batch, hidden, gates * hidden, dtype), times)
    steps: list[CostStep] = sequence(chip, f"{cell}: add", "add add", batch * gates * hidden, dtype, repeat=times)
    steps += sequence(chip, cell, _CELLS[cell], batch * hidden, dtype, repeat=times)
    return joined([known, turn], steps)


def layer_backward(
    call: CostedCall, cell: str, times: int, batch: int, inputs: int, hidden: int, dtype: torch.dtype
) -> OpCost:
    """The gradients of one direction of one layer."""
    gates, chip = _GATES[cell], call.chip
    turn = repeated(product(call, 1, batch, gates * hidden, hidden, dtype), times)
    steps: list[CostStep] = sequence(chip, f"{cell} gradient", _GRADIENTS[cell], batch * hidden, dtype, repeat=times)
    of_inputs = product(call, 1, times * batch, gates * hidden, inputs, dtype)
    of_weights = product(call, 1, gates * hidden, times * batch, inputs, dtype)
    of_recurrent = product(call, 1, gates * hidden, times * batch, hidden, dtype)
    steps += reduce(chip, f"{cell} gradient: bias", gates * hidden, times * batch, dtype, "add", False)
    return joined([turn, of_inputs, of_weights, of_recurrent], steps)


def _one_layer(call: CostedCall) -> OpCost:
    """A layer of one direction, as torch calls it on a CPU."""
    data: CostedOperand = call["input"]
    hidden, cell = int(call["hidden_size"]), _MODES[int(call["mode"])]
    inputs = data.shape[-1]
    times, batch = (data.shape[0], data.shape[1]) if len(data.shape) == 3 else (data.shape[0], 1)
    build = layer_backward if "backward" in call.name else layer
    return build(call, cell, times, batch, inputs, hidden, data.element_type)


def _stack(cell: str) -> Rule:
    """All layers and directions at once."""

    def rule(call: CostedCall) -> OpCost:
        data = call.operands[0]
        times, batch = data.shape[:2] if len(data.shape) > 2 else (data.shape[0], 1)
        if call.get("batch_first"):
            times, batch = batch, times
        directions = 2 if call.get("bidirectional") else 1
        hidden = call.result.shape[-1] // directions
        sizes = [data.shape[-1], *[hidden * directions] * (int(call.get("num_layers", 1)) - 1)]
        layers = [layer(call, cell, times, batch, size, hidden, data.element_type) for size in sizes]
        return joined(layers * directions)

    return rule


def _cell(cell: str) -> Rule:
    """One time step."""

    def rule(call: CostedCall) -> OpCost:
        data = call.operands[0]
        hidden = call.results[0].shape[-1] if call.results else data.shape[-1]
        batch = data.elements // max(1, data.shape[-1])
        return layer(call, cell, 1, batch, data.shape[-1], hidden, data.element_type)

    return rule


def _gates_only(cell: str) -> Rule:
    """A time step whose products were made elsewhere."""

    def rule(call: CostedCall) -> OpCost:
        data = call.operands[0]
        words = (_GRADIENTS if "backward" in call.name else _CELLS)[cell]
        elements = -(-data.elements // _GATES[cell])
        return OpCost(tuple(sequence(call.chip, call.name, words, elements, data.element_type)))

    return rule


RULES: Table = {
    "mkldnn_rnn_layer": _one_layer,
    "mkldnn_rnn_layer_backward": _one_layer,
    "lstm": _stack("lstm"),
    "gru": _stack("gru"),
    "rnn_tanh": _stack("rnn"),
    "rnn_relu": _stack("rnn"),
    "lstm_cell": _cell("lstm"),
    "gru_cell": _cell("gru"),
    "rnn_tanh_cell": _cell("rnn"),
    "rnn_relu_cell": _cell("rnn"),
    "_thnn_fused_lstm_cell": _gates_only("lstm"),
    "_thnn_fused_lstm_cell_backward_impl": _gates_only("lstm"),
    "_thnn_fused_gru_cell": _gates_only("gru"),
    "_thnn_fused_gru_cell_backward": _gates_only("gru"),
}

__all__ = ["RULES", "layer", "layer_backward"]
