"""``custom_op``: calling a registered operator from a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops import builtin
from poptorch.ops._library import define, separate
from poptorch.ops.builtin.calling import DEVICE_TYPES
from poptorch.ops.collectives import next_site
from poptorch.ops.custom import attributes as attribute_types
from poptorch.ops.custom import registry
from poptorch.ops.custom.native import LibraryScanner
from poptorch.ops.custom.registry import Operator, OperatorKey

registry.add_scanner(LibraryScanner())


def _computed(operator: Operator, key: OperatorKey, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    declared = operator.infer(inputs)
    outputs = operator.compute([tensor.detach() for tensor in inputs])
    actual = [(list(tensor.shape), tensor.dtype) for tensor in outputs]
    if actual != declared:
        raise createPoptorchError(f"Custom op {key} computed {actual}, but its shape inference promised {declared}.")
    return separate(outputs, inputs)


def _run(inputs: Sequence[torch.Tensor], domain: str, name: str, version: int, attributes: str) -> list[torch.Tensor]:
    return _computed(registry.instance(domain, name, version, attributes), OperatorKey(domain, name, version), inputs)


def _shapes(
    inputs: Sequence[torch.Tensor], domain: str, name: str, version: int, attributes: str
) -> list[torch.Tensor]:
    declared = registry.instance(domain, name, version, attributes).infer(inputs)
    return [torch.empty(shape, dtype=dtype) for shape, dtype in declared]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, *ctx.identity = inputs
    ctx.counts = len(tensors), len(output)
    ctx.floating = [tensor.is_floating_point() for tensor in tensors]
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, gradients: Sequence[torch.Tensor]) -> Any:
    inputs, outputs = ctx.counts
    tensors = ctx.saved_tensors
    available = {"in": tensors[:inputs], "out": tensors[inputs:], "grad_out": gradients}
    operator = registry.instance(*ctx.identity)
    found: list[torch.Tensor | None] = [None] * inputs
    for index, description in enumerate(operator.gradients(inputs, outputs)):
        values = [available[kind][position] for kind, position in description.sources]
        results = CUSTOM_OP_GRADIENT(values, *ctx.identity, index, inputs, outputs)
        for output, target in description.targets:
            if ctx.floating[target]:
                earlier = found[target]
                found[target] = results[output] if earlier is None else earlier + results[output]
    return found, None, None, None, None


CUSTOM_OP = define(
    "custom_op(Tensor[] inputs, str domain, str name, int version, str attributes) -> Tensor[]",
    _run,
    _shapes,
    backward=_backward,
    setup_context=_save,
)


def _run_gradient(
    inputs: Sequence[torch.Tensor],
    domain: str,
    name: str,
    version: int,
    attributes: str,
    index: int,
    forward_inputs: int,
    forward_outputs: int,
) -> list[torch.Tensor]:
    forward = registry.instance(domain, name, version, attributes)
    operator = forward.gradient(index, forward_inputs, forward_outputs)
    return _computed(operator, OperatorKey(domain, name, version), inputs)


def _gradient_shapes(
    inputs: Sequence[torch.Tensor],
    domain: str,
    name: str,
    version: int,
    attributes: str,
    index: int,
    forward_inputs: int,
    forward_outputs: int,
) -> list[torch.Tensor]:
    forward = registry.instance(domain, name, version, attributes)
    declared = forward.gradient(index, forward_inputs, forward_outputs).infer(inputs)
    return [torch.empty(shape, dtype=dtype) for shape, dtype in declared]


CUSTOM_OP_GRADIENT = define(
    "custom_op_gradient(Tensor[] inputs, str domain, str name, int version, str attributes, int index, "
    "int forward_inputs, int forward_outputs) -> Tensor[]",
    _run_gradient,
    _gradient_shapes,
)


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Iterable[torch.Tensor],
    attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Call an operator written in C++, registered from Python, or built in, and return its outputs.

    Load a library first, with ``ctypes.cdll.LoadLibrary``; the operators of the domains ``ai.graphcore`` and
    ``ai.onnx`` are built in. Of all versions the highest that does not exceed ``domain_version`` is used.
    ``example_outputs`` are templates, one per output: their number must be right, their values do not matter.
    Attributes may be floats, ints, strings, or lists of one of these; ``1`` and ``1.0`` differ. Outside of a PopTorch
    model the result is zeros like the templates.

    >>> x = torch.tensor([2.0])
    >>> custom_op([x, x], "Cube", "com.acme", 1, example_outputs=[x, x])
    [tensor([0.]), tensor([0.])]
    """
    tensors = _checked_tensors(inputs, "inputs", name)
    templates = _checked_tensors(example_outputs, "example_outputs", name)
    attribute_types.check(attributes)
    if ambient.current() is None:
        return [torch.zeros_like(t).requires_grad_(t.requires_grad and t.is_floating_point()) for t in templates]
    attribute_types.attributes_lists.append(None if attributes is None else dict(attributes))
    if not registry.is_known(domain, name):
        known = builtin.find(domain, name, domain_version)
        if known is not None:
            typed = attribute_types.typed_from_text(attribute_types.to_text(attributes))
            return builtin.call(known, tensors, templates, typed, domain_version)
    definition = registry.find(domain, name, domain_version)
    _check_counts(definition, len(tensors), len(templates))
    on_device = [tensor.to(DEVICE_TYPES.get(tensor.dtype, tensor.dtype)) for tensor in tensors]
    if definition.communicates:
        context = ambient.current()
        count = 1 if context is None else context.settings.replicas
        attributes = {**(attributes or {}), attribute_types.REPLICAS: count, attribute_types.SITE: next_site(context)}
    key, text = definition.key, attribute_types.to_text(attributes)
    operator = registry.instance(key.domain, key.name, key.version, text)
    expected = len(operator.infer(on_device))
    if expected != len(templates):
        raise createPoptorchError(
            f"Custom op {key} has {expected} outputs, but example_outputs has {len(templates)} templates."
        )
    return _with_gradient_check(operator, key, on_device, text, expected)


def _with_gradient_check(
    operator: Operator, key: OperatorKey, tensors: list[torch.Tensor], attributes: str, outputs: int
) -> list[torch.Tensor]:
    """Call the operator; one without gradient ends the gradient's way, and says so if somebody expects it."""
    wants_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if wants_gradient and not operator.gradients(len(tensors), outputs):
        results = CUSTOM_OP([tensor.detach() for tensor in tensors], *key, attributes)
        return [_NoGradient.apply(str(key), result, *tensors) for result in results]
    return list(CUSTOM_OP(tensors, *key, attributes))


class _NoGradient(torch.autograd.Function):
    """Connects a result with its inputs only to report, when backward comes by, that none exists."""

    @staticmethod
    def forward(ctx: Any, label: str, result: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.label = label
        ctx.set_materialize_grads(False)
        if not result.is_floating_point():
            ctx.mark_non_differentiable(result)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise createPoptorchError(
            f"The gradient of custom op {ctx.label} is needed, but the operator has none: implement "
            "getGradOps() in C++ or pass gradient= to poptorch.registerCustomOp, or detach() its inputs."
        )


def _checked_tensors(values: Any, what: str, name: str) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor) or not isinstance(values, Iterable):
        raise createPoptorchError(
            f"custom_op {name!r}: {what} of type {type(values).__name__} is not supported; pass a list of tensors."
        )
    tensors = list(values)
    for index, value in enumerate(tensors):
        if not isinstance(value, torch.Tensor):
            raise createPoptorchError(
                f"custom_op {name!r}: {what}[{index}] of type {type(value).__name__} is not supported; pass tensors."
            )
    return tensors


def _check_counts(definition: registry.CustomDefinition, inputs: int, outputs: int) -> None:
    if not definition.min_inputs <= inputs <= definition.max_inputs:
        least, most = definition.min_inputs, definition.max_inputs
        wanted = str(least) if least == most else f"{least} to {most}"
        raise createPoptorchError(f"Custom op {definition.key} takes {wanted} inputs, but got {inputs}.")
    if definition.outputs is not None and definition.outputs != outputs:
        raise createPoptorchError(
            f"Custom op {definition.key} has {definition.outputs} outputs, but example_outputs has {outputs} templates."
        )
