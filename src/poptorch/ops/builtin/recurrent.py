"""Recurrent layers of both domains, one step after the other where torch has no layer of the kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Int, String, Strings, TypedAttribute, refused
from poptorch.ops.builtin.definitions import graphcore, onnx
from poptorch.ops.builtin.values import absent

Activation = Callable[[torch.Tensor], torch.Tensor]
Step = Callable[[torch.Tensor, "list[torch.Tensor]"], "list[torch.Tensor]"]
"""From the input of one moment and the state to the next state; its first part is the output."""

_ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softsign": torch.nn.functional.softsign,
    "softplus": torch.nn.functional.softplus,
}


def _activations(names: Sequence[str] | None, defaults: Sequence[str]) -> list[Activation]:
    """The functions with these names."""
    chosen = list(defaults) if not names else [name.lower() for name in names]
    if len(chosen) != len(defaults):
        raise createPoptorchError(f"The attribute 'activations' must name {len(defaults)} functions, not {chosen}.")
    for name in chosen:
        if name not in _ACTIVATIONS:
            raise createPoptorchError(
                f"The activation function {name!r} is not supported; use one of {', '.join(_ACTIVATIONS)}."
            )
    return [_ACTIVATIONS[name] for name in chosen]


def _run(
    x: torch.Tensor, state: list[torch.Tensor], step: Step, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The outputs of all steps, and the last state. Past its length a sequence has zeros, and keeps its state."""
    outputs = []
    for moment in range(x.shape[0]):
        following = step(x[moment], state)
        if lengths is None:
            state = following
            outputs.append(state[0])
        else:
            going = (moment < lengths).unsqueeze(-1)
            outputs.append(torch.where(going, following[0], torch.zeros_like(following[0])))
            state = [torch.where(going, new, old) for new, old in zip(following, state, strict=True)]
    return torch.stack(outputs), state


def _lstm_step(
    weights: Sequence[torch.Tensor],
    recurrent: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    functions: Sequence[Activation],
) -> Step:
    """With matrices [inputs, hidden] and [hidden, hidden] for the input, forget, candidate and output gates."""
    f, g, h = functions
    inner, outer, bias = torch.cat(list(weights), 1), torch.cat(list(recurrent), 1), torch.cat(list(biases))

    def step(x: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        hidden, cell = state
        gates = torch.chunk(x @ inner + hidden @ outer + bias, 4, 1)
        cell = f(gates[1]) * cell + f(gates[0]) * g(gates[2])
        return [f(gates[3]) * h(cell), cell]

    return step


@graphcore("LSTM", types=("F", "F", "F", "F", "I"), outputs=2, output_full_sequence=Int(1))
def _lstm(
    x: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
    initial: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    *,
    output_full_sequence: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() != 3:
        raise createPoptorchError(f"Bad input shape {list(x.shape)}: it must be [steps, batch, inputs].")
    _, batch, inputs = x.shape
    if weights.dim() != 3 or weights.shape[0] != 4 or weights.shape[1] != inputs + weights.shape[2]:
        raise createPoptorchError(
            f"Bad weights shape {list(weights.shape)}: it must be [4, {inputs} + hidden, hidden]."
        )
    hidden = weights.shape[2]
    if absent(bias) or bias is None:
        bias = weights.new_zeros(4, hidden)
    if list(bias.shape) != [4, hidden]:
        raise createPoptorchError(f"Bad bias shape {list(bias.shape)}: it must be [4, {hidden}].")
    if absent(initial) or initial is None:
        initial = x.new_zeros(2, batch, hidden)
    if list(initial.shape) != [2, batch, hidden]:
        raise createPoptorchError(f"Bad initial state shape {list(initial.shape)}: it must be [2, {batch}, {hidden}].")
    order = (1, 0, 2, 3)  # the gates are forget, input, candidate, output
    inner, outer = [weights[i, :inputs] for i in order], [weights[i, inputs:] for i in order]
    biases = [bias[i] for i in order]
    state = [initial[0], initial[1]]
    if absent(lengths):
        outputs, state = _torch_lstm(x, state, inner, outer, biases)
    else:
        outputs, state = _run(x, state, _lstm_step(inner, outer, biases, _activations(None, _LSTM)), lengths)
    return (outputs if output_full_sequence else state[0]), state[1]


_LSTM = ("sigmoid", "tanh", "tanh")


def _torch_lstm(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    inner: Sequence[torch.Tensor],
    outer: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The layer that torch has; gates come as for :func:`_lstm_step`."""
    bias = torch.cat(list(biases))
    weights = [torch.cat([w.t() for w in inner]), torch.cat([w.t() for w in outer]), bias, torch.zeros_like(bias)]
    start = [part.unsqueeze(0).contiguous() for part in state]
    y, h, c = torch.lstm(x, start, weights, True, 1, 0.0, False, False, False)
    return y, [h[0], c[0]]


# -- ONNX --------------------------------------------------------------------------------------------------------------

_COMMON: dict[str, TypedAttribute] = {
    "activation_alpha": refused("activation_alpha"),
    "activation_beta": refused("activation_beta"),
    "clip": refused("clip"),
    "direction": String("forward"),
    "hidden_size": Int(None),
}


class _Layer:
    """The inputs that the recurrent layers of ONNX have in common."""

    def __init__(
        self,
        gates: int,
        x: torch.Tensor,
        w: torch.Tensor,
        r: torch.Tensor,
        b: torch.Tensor | None,
        lengths: torch.Tensor | None,
        initial: Sequence[torch.Tensor | None],
        hidden_size: int | None,
        directions: int,
    ) -> None:
        self.gates, self.directions, self.x = gates, directions, x
        if x.dim() != 3:
            raise createPoptorchError(f"Bad input shape {list(x.shape)}: it must be [steps, batch, inputs].")
        self.hidden = r.shape[-1]
        if hidden_size not in (None, self.hidden):
            raise createPoptorchError(f"hidden_size is {hidden_size}, but the weights are for {self.hidden}.")
        rows = gates * self.hidden
        if list(w.shape) != [directions, rows, x.shape[2]] or list(r.shape) != [directions, rows, self.hidden]:
            raise createPoptorchError(
                f"Bad weights shape {list(w.shape)} and {list(r.shape)}: they must be "
                f"[{directions}, {rows}, {x.shape[2]}] and [{directions}, {rows}, {self.hidden}]."
            )
        if absent(b) or b is None:
            b = w.new_zeros(directions, 2 * rows)
        if list(b.shape) != [directions, 2 * rows]:
            raise createPoptorchError(f"Bad bias shape {list(b.shape)}: it must be [{directions}, {2 * rows}].")
        self._w, self._r, self._b, self._rows = w, r, b, rows
        self.lengths = None if absent(lengths) else lengths
        shape = [directions, x.shape[1], self.hidden]
        self._initial = [x.new_zeros(shape) if absent(i) or i is None else i for i in initial]
        for part in self._initial:
            if list(part.shape) != shape:
                raise createPoptorchError(f"Bad initial state shape {list(part.shape)}: it must be {shape}.")

    def state(self, direction: int) -> list[torch.Tensor]:
        """What a direction starts with."""
        return [part[direction] for part in self._initial]

    def inner(self, direction: int) -> list[torch.Tensor]:
        """The matrices [inputs, hidden] of the gates."""
        return [m.t() for m in self._w[direction].chunk(self.gates)]

    def outer(self, direction: int) -> list[torch.Tensor]:
        """The matrices [hidden, hidden] of the gates."""
        return [m.t() for m in self._r[direction].chunk(self.gates)]

    def biases(self, direction: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Those of the inputs and those of the hidden state."""
        inner, outer = self._b[direction][: self._rows], self._b[direction][self._rows :]
        return list(inner.chunk(self.gates)), list(outer.chunk(self.gates))


def _forward_only(direction: str) -> None:
    if direction != "forward":
        raise createPoptorchError(f"The attribute 'direction' is not supported with the value {direction!r}.")


@onnx(
    "LSTM",
    types=("F", "F", "F", "F", "A", "F"),
    outputs=3,
    attributes=_COMMON,
    activations=Strings(None),
    input_forget=refused("input_forget"),
)
@onnx(
    "LSTM",
    7,
    types=("F", "F", "F", "F", "A", "F"),
    outputs=3,
    attributes=_COMMON,
    activations=Strings(None),
    input_forget=refused("input_forget"),
)
def _onnx_lstm(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    initial_h: torch.Tensor | None = None,
    initial_c: torch.Tensor | None = None,
    peepholes: torch.Tensor | None = None,
    *,
    direction: str,
    hidden_size: int | None,
    activations: list[str] | None,
    **refused_attributes: None,
) -> list[torch.Tensor]:
    _forward_only(direction)
    if not absent(peepholes):
        raise createPoptorchError("The input of peepholes is not supported.")
    layer = _Layer(4, x, w, r, b, lengths, [initial_h, initial_c], hidden_size, 1)
    order = (0, 2, 3, 1)  # the gates are input, output, forget, candidate
    inner, outer = [layer.inner(0)[i] for i in order], [layer.outer(0)[i] for i in order]
    biases = [layer.biases(0)[0][i] + layer.biases(0)[1][i] for i in order]
    functions = _activations(activations, _LSTM)
    plain = functions == _activations(None, _LSTM)
    if plain and layer.lengths is None:
        y, state = _torch_lstm(x, layer.state(0), inner, outer, biases)
    else:
        y, state = _run(x, layer.state(0), _lstm_step(inner, outer, biases, functions), layer.lengths)
    return [y.unsqueeze(1), *(part.unsqueeze(0) for part in state)]


@onnx("RNN", types=("F", "F", "F", "F", "A", "F"), outputs=2, attributes=_COMMON, activations=Strings(None))
@onnx("RNN", 7, types=("F", "F", "F", "F", "A", "F"), outputs=2, attributes=_COMMON, activations=Strings(None))
def _onnx_rnn(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    initial_h: torch.Tensor | None = None,
    *,
    direction: str,
    hidden_size: int | None,
    activations: list[str] | None,
    **refused_attributes: None,
) -> list[torch.Tensor]:
    _forward_only(direction)
    layer = _Layer(1, x, w, r, b, lengths, [initial_h], hidden_size, 1)
    (function,) = _activations(activations, ["tanh"])
    (inner,), (outer,), (input_biases, hidden_biases) = layer.inner(0), layer.outer(0), layer.biases(0)
    bias = input_biases[0] + hidden_biases[0]

    def step(moment: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        return [function(moment @ inner + state[0] @ outer + bias)]

    y, state = _run(x, layer.state(0), step, layer.lengths)
    return [y.unsqueeze(1), state[0].unsqueeze(0)]


_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_GRU: dict[str, TypedAttribute] = {
    **_COMMON,
    "activations": refused("activations"),
    "input_forget": refused("input_forget"),
    "linear_before_reset": Int(0),
}


@onnx("GRU", types=("F", "F", "F", "F", "A", "F"), outputs=2, attributes=_GRU)
@onnx("GRU", 7, types=("F", "F", "F", "F", "A", "F"), outputs=2, attributes=_GRU)
def _onnx_gru(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    initial_h: torch.Tensor | None = None,
    *,
    direction: str,
    hidden_size: int | None,
    linear_before_reset: int,
    **refused_attributes: None,
) -> list[torch.Tensor]:
    if direction not in _DIRECTIONS:
        raise createPoptorchError(f"The attribute 'direction' must be one of {', '.join(_DIRECTIONS)}.")
    ways = _DIRECTIONS[direction]
    layer = _Layer(3, x, w, r, b, lengths, [initial_h], hidden_size, len(ways))
    outputs, states = [], []
    for number, backwards in enumerate(ways):
        given = _reversed(x, layer.lengths) if backwards else x
        step = _gru_step(layer.inner(number), layer.outer(number), layer.biases(number), bool(linear_before_reset))
        y, state = _run(given, layer.state(number), step, layer.lengths)
        outputs.append(_reversed(y, layer.lengths) if backwards else y)
        states.append(state[0])
    return [torch.stack(outputs, 1), torch.stack(states)]


def _reversed(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Each sequence from its end to its begin; what follows it stays."""
    if lengths is None:
        return x.flip(0)
    moments = torch.arange(x.shape[0]).unsqueeze(1)
    mirrored = lengths.long().unsqueeze(0) - 1 - moments
    places = torch.where(mirrored >= 0, mirrored, moments)
    return x.gather(0, places.unsqueeze(-1).expand(x.shape))


def _gru_step(
    inner: Sequence[torch.Tensor],
    outer: Sequence[torch.Tensor],
    biases: tuple[list[torch.Tensor], list[torch.Tensor]],
    linear_before_reset: bool,
) -> Step:
    """The gates are update, reset, candidate."""
    (wz, wr, wh), (rz, rr, rh), ((wbz, wbr, wbh), (rbz, rbr, rbh)) = inner, outer, biases

    def step(x: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        h = state[0]
        update = torch.sigmoid(x @ wz + h @ rz + wbz + rbz)
        reset = torch.sigmoid(x @ wr + h @ rr + wbr + rbr)
        if linear_before_reset:
            candidate = torch.tanh(x @ wh + wbh + reset * (h @ rh + rbh))
        else:
            candidate = torch.tanh(x @ wh + wbh + (reset * h) @ rh + rbh)
        return [(1 - update) * candidate + update * h]

    return step
