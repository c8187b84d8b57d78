"""Operators written in Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from poptorch import replicas as replica_state
from poptorch.errors import createPoptorchError
from poptorch.ops.custom.attributes import REPLICAS, SITE, from_text, typed_from_text
from poptorch.ops.custom.registry import CustomDefinition, GradientOp, Operator, OperatorKey, add

_TYPE_NAMES = ("Float", "Int", "String", "Floats", "Ints", "Strings")


def registerCustomOp(
    name: str,
    domain: str,
    version: int,
    forward: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
    infer: Callable[..., Any] | None = None,
    attributes: Mapping[str, str] | None = None,
    cycles: Callable[..., float] | None = None,
    replicas: bool = False,
) -> None:
    """Make a Python function available to :func:`poptorch.custom_op`.

    ``forward(*inputs, **attributes)`` returns one tensor or a sequence. ``gradient(gradients, inputs,
    outputs, **attributes)`` returns one gradient (or ``None``) per input. ``infer`` has the arguments of
    ``forward`` with tensors that have shapes but no values, and returns such tensors; without it ``forward``
    itself is asked, which is right unless it looks at values. ``attributes`` declares names and types, for
    instance ``{"alpha": "Float"}``: others are then refused. ``cycles(*inputs, **attributes)`` estimates the
    cost on one IPU.

    With ``replicas=True`` the operator communicates: ``forward``, ``gradient`` and ``infer`` get one more keyword,
    ``replicas``, with the ``number`` of the replica that computes, the ``count`` of all (those of other processes
    included), and ``all_gather(tensor)``, which returns the tensors of all in their order and waits for them.

    >>> registerCustomOp("Square", "docs.example", 1, lambda x: x * x, lambda gs, xs, ys: [2 * xs[0] * gs[0]])
    """
    if not callable(forward):
        raise createPoptorchError(f"registerCustomOp: forward of {domain}.{name} cannot be called.")
    for attribute, kind in (attributes or {}).items():
        if kind not in _TYPE_NAMES:
            raise createPoptorchError(
                f"registerCustomOp: attribute {attribute!r} of {domain}.{name} has the unknown type "
                f"{kind!r}; use one of {', '.join(_TYPE_NAMES)}."
            )
    key = OperatorKey(domain, name, version)
    least, most = _input_counts(forward)

    def make(text: str) -> Operator:
        _check_declared(key, attributes, text)
        given = from_text(text)
        count, site = given.pop(REPLICAS, 1), given.pop(SITE, 0)
        others = (Replicas(count, site), Replicas(count, site + 1)) if replicas else None
        return _PythonOperator(key, forward, gradient, infer, cycles, given, others)

    add(CustomDefinition(key, make, least, most, None, None, communicates=replicas))


@dataclass(frozen=True)
class Replicas:
    """The replicas of a model, as an operator that communicates sees them."""

    count: int
    """How many there are, those of other processes included."""

    _site: int

    @property
    def number(self) -> int:
        """The number of the replica that computes now."""
        present = replica_state.current()
        return 0 if present is None else present.number

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all replicas, in their order. Each of them must ask, for a tensor of one shape and type."""
        if self.count == 1 or isinstance(tensor, FakeTensor):  # without values, while shapes are inferred
            return [tensor.clone() for _ in range(self.count)]
        present = replica_state.required(self.count)
        everybody = range(self.count)
        return list(present.exchange(tensor.detach(), everybody, self._site, torch.stack).unbind())


@dataclass(frozen=True)
class _PythonOperator(Operator):
    key: OperatorKey
    forward: Callable[..., Any]
    gradient_function: Callable[..., Any] | None
    shapes: Callable[..., Any] | None
    cycle_estimate: Callable[..., float] | None
    attributes: dict[str, Any]
    replicas: tuple[Replicas, Replicas] | None = None
    """For the forward pass and for the gradient, where the operator communicates."""

    @property
    def keywords(self) -> dict[str, Any]:
        """The attributes, and the other replicas."""
        return self.attributes if self.replicas is None else {**self.attributes, "replicas": self.replicas[0]}

    @property
    def gradient_keywords(self) -> dict[str, Any]:
        """The same for the gradient."""
        return self.attributes if self.replicas is None else {**self.attributes, "replicas": self.replicas[1]}

    def infer(self, inputs: Sequence[torch.Tensor]) -> list[tuple[list[int], torch.dtype]]:
        with _disable_current_modes(), FakeTensorMode():
            fakes = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in inputs]
            results = _listed((self.shapes or self.forward)(*fakes, **self.keywords))
        return [(list(result.shape), result.dtype) for result in results]

    def compute(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return _listed(self.forward(*inputs, **self.keywords))

    def gradients(self, inputs: int, outputs: int) -> Sequence[GradientOp]:
        if self.gradient_function is None:
            return []
        sources = [("grad_out", i) for i in range(outputs)]
        sources += [("in", i) for i in range(inputs)] + [("out", i) for i in range(outputs)]
        return [GradientOp(tuple(sources), tuple((i, i) for i in range(inputs)))]

    def gradient(self, index: int, inputs: int, outputs: int) -> Operator:
        return _PythonGradient(self, inputs, outputs)

    def cycles(self, inputs: Sequence[torch.Tensor]) -> float | None:
        return None if self.cycle_estimate is None else float(self.cycle_estimate(*inputs, **self.attributes))


@dataclass(frozen=True)
class _PythonGradient(Operator):
    """Inputs: the gradients of the outputs, the inputs, the outputs. Outputs: one gradient per input."""

    forward: _PythonOperator
    inputs: int
    outputs: int

    def infer(self, inputs: Sequence[torch.Tensor]) -> list[tuple[list[int], torch.dtype]]:
        return [(list(t.shape), t.dtype) for t in inputs[self.outputs : self.outputs + self.inputs]]

    def compute(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gradients, rest = list(inputs[: self.outputs]), inputs[self.outputs :]
        given, outputs = list(rest[: self.inputs]), list(rest[self.inputs :])
        assert self.forward.gradient_function is not None
        found = _listed(self.forward.gradient_function(gradients, given, outputs, **self.forward.gradient_keywords))
        if len(found) != self.inputs:
            raise createPoptorchError(
                f"Custom op {self.forward.key}: the gradient function returned {len(found)} gradients for "
                f"{self.inputs} inputs."
            )
        return [torch.zeros_like(x) if g is None else g for x, g in zip(given, found, strict=True)]

    def gradients(self, inputs: int, outputs: int) -> Sequence[GradientOp]:
        return []

    def gradient(self, index: int, inputs: int, outputs: int) -> Operator:
        raise createPoptorchError(f"Custom op {self.forward.key} has no second derivative.")


def _listed(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _input_counts(forward: Callable[..., Any]) -> tuple[int, int]:
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return 0, 1 << 20
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    unlimited = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return len(required), (1 << 20) if unlimited else len(positional)


def _check_declared(key: OperatorKey, declared: Mapping[str, str] | None, text: str) -> None:
    if declared is None:
        return
    for name, (kind, _) in typed_from_text(text).items():
        if name in (REPLICAS, SITE):
            continue
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise createPoptorchError(f"Custom op {key} has no attribute {name!r}; it knows: {known}.")
        if declared[name] != kind:
            raise createPoptorchError(f"Attribute {name!r} of custom op {key} must be {declared[name]}, not {kind}.")


def _gathered(data: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    if data.dim() != index.dim() or data.shape[:-1] != index.shape[:-1] or index.shape[-1] > data.shape[-1]:
        raise createPoptorchError(
            "FastGatherLastDim: the index must have the shape of the data, except for a last dimension that "
            f"may be smaller; got data {list(data.shape)} and index {list(index.shape)}."
        )
    if data.dtype not in (torch.float16, torch.float32) or index.dtype not in (torch.int16, torch.int32):
        raise createPoptorchError(
            f"FastGatherLastDim takes float16 or float32 data with an int16 or int32 index, not {data.dtype} "
            f"with {index.dtype}."
        )
    return torch.gather(data, -1, index.long())


def _scattered(gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], outputs: Any) -> Any:
    data, index = inputs
    return [torch.zeros_like(data).scatter_add(-1, index.long(), gradients[0]), None]


registerCustomOp("FastGatherLastDim", "poptorch.custom_ops", 1, _gathered, _scattered)
