"""Calling a built-in operator: finding it, reading its attributes, checking inputs, presenting results."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from poptorch import ambient
from poptorch.ambient import CaptureSettings
from poptorch.errors import Error, createPoptorchError
from poptorch.ops.builtin.definitions import (
    GRAPHCORE,
    ONNX,
    ONNX_VERSIONS,
    Definition,
    Situation,
    names_in,
    versions_of,
)
from poptorch.ops.hints import AVAILABLE_MEMORY

DEVICE_TYPES = {torch.int64: torch.int32, torch.float64: torch.float32}
"""64-bit types have 32 bits on the device."""

_MEMORY = "__available_memory"
"""The hint for the planner that :func:`poptorch.set_available_memory` gives, too."""

_OPSET = "ops.builtin.opset"
_KINDS = {
    "F": ("floating-point", lambda dtype: dtype.is_floating_point),
    "I": ("of integers", lambda dtype: not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)),
    "N": ("of numbers", lambda dtype: dtype is not torch.bool and not dtype.is_complex),
    "A": ("real", lambda dtype: not dtype.is_complex),
}


def find(domain: str, name: str, version: int) -> Definition | None:
    """The newest definition of ONNX that is not later than ``version``, or exactly that of another domain.

    ``None`` for names of other domains.
    """
    domain = domain or ONNX
    if domain not in (GRAPHCORE, ONNX):
        return None
    if domain == ONNX and version not in ONNX_VERSIONS:
        raise createPoptorchError(
            f"No class for {domain}.{name}:{version}: the versions {ONNX_VERSIONS[0]} to {ONNX_VERSIONS[-1]} of "
            f"{ONNX} are implemented. Pass one of them, for instance 10."
        )
    known = versions_of(domain, name)
    usable = [since for since in known if since == version or (domain == ONNX and since < version)]
    if usable:
        return known[max(usable)]
    raise createPoptorchError(f"No class for {domain}.{name}:{version}{_hint(domain, name, known)}")


def _hint(domain: str, name: str, known: Mapping[int, Definition]) -> str:
    if known:
        return f": {name} {'came with' if domain == ONNX else 'has the'} version {min(known)}."
    folded = {candidate.lower(): candidate for candidate in names_in(domain)}
    near = [folded[found] for found in difflib.get_close_matches(name.lower(), folded, 3, 0.6)]
    other = ONNX if domain == GRAPHCORE else GRAPHCORE
    if versions_of(other, name):
        near.insert(0, f"{name} of the domain {other}")
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f".{meant} It is not built in. If it is your own, load the library that implements it before compiling the "
        'model (ctypes.cdll.LoadLibrary("lib….so")), or register it with poptorch.registerCustomOp.'
    )


def call(
    definition: Definition,
    inputs: Sequence[torch.Tensor],
    templates: Sequence[torch.Tensor],
    attributes: Mapping[str, tuple[str, Any]],
    version: int | None = None,
) -> list[torch.Tensor]:
    """The outputs of an operator in the model under capture; attributes come with their kinds."""
    _check_opset(definition, version)
    on_device = [tensor.to(DEVICE_TYPES.get(tensor.dtype, tensor.dtype)) for tensor in inputs]
    context = ambient.current()
    situation = Situation(
        definition.key,
        tuple(templates),
        training=context is not None and context.training,
        settings=CaptureSettings() if context is None else context.settings,
        originals=tuple(inputs),
    )
    results = apply(definition, on_device, attributes, situation)
    if len(templates) > len(results):
        raise createPoptorchError(
            f"Custom op {definition.key} has {len(results)} outputs, but example_outputs has {len(templates)} "
            "templates."
        )
    presented = [_presented(*pair) for pair in zip(results, templates, strict=False)]
    proportion = attributes.get(_MEMORY, ("", 0.0))[1]
    if context is None or not isinstance(proportion, (int, float)) or not 0 < proportion <= 1:
        return presented
    return [AVAILABLE_MEMORY(r, float(proportion)) if r.is_floating_point() else r for r in presented]


def apply(
    definition: Definition,
    inputs: Sequence[torch.Tensor],
    attributes: Mapping[str, tuple[str, Any]],
    situation: Situation,
) -> list[torch.Tensor]:
    """The outputs on tensors of any type, also outside of a model."""
    _check_inputs(definition, inputs)
    given: dict[str, Any] = {}
    try:
        for name, attribute in definition.attributes.items():
            given[definition.keywords[name]] = attribute.read(name, attributes)
        if definition.wants_situation:
            given["at"] = situation
        if definition.differentiable:
            return _listed(definition.body(*inputs, **given))
        results = definition.body(*[tensor.detach() for tensor in inputs], **given)
        return [result.detach() for result in _listed(results)]
    except Error as error:
        raise createPoptorchError(f"Custom op {definition.key}: {error.message}") from error
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, NotImplementedError):
            raise
        raise createPoptorchError(f"Custom op {definition.key}: {error}") from error


def _listed(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _check_inputs(definition: Definition, inputs: Sequence[torch.Tensor]) -> None:
    least, most = definition.min_inputs, definition.max_inputs
    if not least <= len(inputs) <= most:
        wanted = str(least) if least == most else f"at least {least}" if most > 1000 else f"{least} to {most}"
        raise createPoptorchError(f"Custom op {definition.key} takes {wanted} inputs, but got {len(inputs)}.")
    for index, tensor in enumerate(inputs):
        kind = definition.types[min(index, len(definition.types) - 1)]
        words, fits = _KINDS[kind]
        if not fits(tensor.dtype):
            raise createPoptorchError(
                f"Custom op {definition.key}: the type {tensor.dtype} of input {index} is not supported; it must be "
                f"{words}."
            )


def _check_opset(definition: Definition, version: int | None) -> None:
    """In strict mode a model has one version of ``ai.onnx``, as in the original."""
    context = ambient.current()
    if context is None or version is None or definition.key.domain != ONNX:
        return
    if not context.settings.strict:
        return
    first = context.extras.setdefault(_OPSET, version)
    if first != version:
        raise createPoptorchError(
            f"Invalid opset {version} used to add an operation. Opset for domain {ONNX} already defined as {first}"
        )


def _presented(result: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
    """A result in the type that the device has, or the 64-bit integers that the user's example shows."""
    if result.dtype in DEVICE_TYPES:
        result = result.to(DEVICE_TYPES[result.dtype])
    if result.dtype is torch.int32 and template.dtype in (torch.int64, torch.uint32):
        result = result.to(template.dtype)
    return result
