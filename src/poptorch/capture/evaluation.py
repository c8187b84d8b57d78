"""Values that the model's Python asks for while it is captured: ``.item()``, ``if tensor``, ``torch.equal``.

Capture computes nothing: its tensors have shapes and types only. When Python needs a value all the same, the operations
recorded so far run beside the capture, on copies of the state and of the inputs at hand. The model itself runs once,
and sees the same kind of tensors before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from poptorch.ambient import capturing
from poptorch.capture.kernels import ordinary_execution
from poptorch.errors import createPoptorchError
from poptorch.ops import recorded
from poptorch.ops.bodies import OUTER
from poptorch.ops.printing import PRINT
from poptorch.ops.recorded import node_of

Sources = Callable[[], Sequence[torch.Tensor]]


class Evaluation:
    """The recorded operations, computed as far as they were asked for. Made inside the tracer that records them."""

    def __init__(self, sources: Sources | None) -> None:
        """``sources`` are the values of the placeholders; ``None`` if the recorded tensors have values themselves."""
        self._sources = sources
        self._model = recorded.tracer()
        self._inputs: Iterator[torch.Tensor] | None = None
        self._computed: dict[int, _Computed] = {}

    def value_of(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function whose tensors were recorded."""
        tracer = recorded.tracer()
        with ordinary_execution(), capturing(None), torch.random.fork_rng(devices=[]):
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: self._value(t, tracer), (args, kwargs))
            if _unknown((args, kwargs)):
                raise createPoptorchError(
                    "The value of a tensor is needed inside the body of a loop or condition, where it is not known: "
                    "the body runs on the device. Write it with operations on tensors."
                )
            return func(*args, **kwargs)

    @property
    def is_real(self) -> bool:
        """Whether the recorded tensors have values themselves."""
        return self._sources is None

    def _value(self, tensor: torch.Tensor, tracer: Any) -> Any:
        """The value that a tensor has for the inputs at hand."""
        if self.is_real:
            return tensor
        node = node_of(tensor, tracer)
        if node is not None:
            return self._compute(tracer)[node]
        if not isinstance(tensor, FakeTensor):
            return tensor
        return _UNKNOWN if tracer is self._model else self._value(tensor, self._model)

    def _compute(self, tracer: Any) -> dict[fx.Node, Any]:
        """Run what a tracer recorded since the last time."""
        done = self._computed.setdefault(id(tracer), _Computed(tracer))
        node = tracer.graph._root.next if done.newest is None else done.newest.next
        while node is not tracer.graph._root:
            done.values[node] = self._run(node, done)
            done.newest, node = node, node.next
        return done.values

    def _run(self, node: fx.Node, done: _Computed) -> Any:
        if node.op == "placeholder":
            return self._input(node, done.tracer)
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(done.tracer.root)
            return value.clone() if isinstance(value, torch.Tensor) else value  # the graph keeps the first value
        return computed(node, done.values)

    def _input(self, node: fx.Node, tracer: Any) -> Any:
        """The value of an input of the model, or of a body: there only what the body takes from around it is known."""
        if tracer is not self._model:
            outer = node.meta.get(OUTER)
            return _UNKNOWN if outer is None else self._value(outer, self._model)
        if self._inputs is None:
            assert self._sources is not None
            self._inputs = iter(self._sources())
        return next(self._inputs)


@dataclass
class _Computed:
    """The values of what one tracer recorded, up to its node ``newest``."""

    tracer: Any
    newest: fx.Node | None = None
    values: dict[fx.Node, Any] = field(default_factory=dict)


_UNKNOWN = object()


def _unknown(structure: Any) -> bool:
    return any(leaf is _UNKNOWN for leaf in pytree.tree_leaves(structure))


def computed(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """The value of a recorded operation on these values. It only prints when the program runs."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    if _unknown((args, kwargs)):
        return _UNKNOWN
    assert callable(node.target), node
    return args[0] if node.target is PRINT else node.target(*args, **kwargs)
