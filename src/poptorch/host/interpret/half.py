"""float16 on a CPU: which operations compute in float32, and how operands get there and results come back.

CPUs multiply float16 matrices 20 to 70 times slower than float32 ones, and some operations have no float16 kernel at
all. The Program keeps saying float16; here such an operation is given float32 copies of its operands, and its results
are rounded to the types that the Program promises. Partial sums are then float32, as on the device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import Sweep, info_of

HALF = torch.float16


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRODUCTS = _names(
    """mm addmm bmm baddbmm addbmm mv addmv dot vdot addr convolution convolution_backward _convolution
    convolution_overrideable _trilinear linear mkldnn_rnn_layer mkldnn_rnn_layer_backward linalg_matrix_exp
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable"""
)
"""Matrix products and convolutions."""

_SLOW = _names(
    """tanh mean linalg_vector_norm norm _foreach_norm pow native_group_norm native_group_norm_backward cumsum
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d logcumsumexp cumprod index_add prod
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm_backward
    _native_batch_norm_legit_no_training batch_norm_backward _batch_norm_with_update
    _batch_norm_with_update_functional var var_mean std std_mean _ctc_loss _ctc_loss_backward"""
)
"""Slower, less exact or pickier about mixed operands in float16 than in float32 with two conversions."""

WIDENED = PRODUCTS | _SLOW

_NATIVE = _names(
    """add sub rsub mul div neg abs relu gelu gelu_backward silu silu_backward sigmoid sigmoid_backward tanh_backward
    exp log sqrt rsqrt reciprocal sin cos erf clamp clamp_min clamp_max maximum minimum where masked_fill sum amax amin
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data native_layer_norm native_dropout
    native_layer_norm_backward native_dropout_backward threshold_backward embedding embedding_dense_backward
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward _to_copy copy_ clone cat stack
    eq ne lt le gt ge full full_like ones ones_like zeros zeros_like empty empty_like new_zeros new_full
    constant_pad_nd index index_put gather scatter scatter_add slice_scatter select_scatter select_backward
    slice_backward max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward
    mse_loss mse_loss_backward bernoulli expand_copy repeat _foreach_add_ _foreach_mul_ _foreach_copy_ _foreach_add
    _foreach_mul _foreach_sqrt _foreach_addcmul_ _foreach_addcdiv_ _foreach_div_"""
)
"""Common operations whose float16 kernel is known to exist: they need no safety net."""

_SAME_ELEMENTS = _names("t transpose permute view _unsafe_view unsqueeze squeeze expand alias detach")
"""Views without loss of elements: the float32 copy of the whole serves them, too."""


def base_name(node: fx.Node) -> str:
    """``mm`` for ``aten.mm.default``; empty for anything that is no ATen operation."""
    target: Any = node.target
    if node.op == "call_function" and isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target._schema.name.removeprefix("aten::"))
    return ""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The described tensors in a node's argument or value."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def is_half(value: Any) -> bool:
    """Whether there is a float16 tensor in a node's argument or value."""
    return any(tensor.dtype is HALF for tensor in tensors_in(value))


def touches_half(node: fx.Node) -> bool:
    """Whether an operand or a result is float16."""
    return is_half(node) or any(is_half(operand) for operand in node.all_input_nodes)


class HalfPlan:
    """Which nodes of a graph compute in float32, and how long the copies of their operands are needed."""

    def __init__(self, graph: fx.Graph, numerics: Numerics, parameters: Mapping[fx.Node, int] | None = None) -> None:
        self._numerics = numerics
        self.parameters = dict(parameters or {})
        self._taken = {n for n in graph.nodes if self._decide(n)}
        # Checks look at the operands that the Program names.
        self._spared = set() if numerics.exceptions else self._views_of_copies_only(graph)
        self._last_use: dict[tuple[fx.Node, Sweep], fx.Node] = {}
        for node in graph.nodes:
            if node in self._taken:
                for operand in node.all_input_nodes:
                    if is_half(operand):
                        self._last_use[self.root(operand), info_of(node).sweep] = node

    def _decide(self, node: fx.Node) -> bool:
        name = base_name(node)
        if not name or not touches_half(node) or is_in_place(node):
            return False
        if name in WIDENED:
            return True
        return self._numerics.stochastic_rounding and is_half(node) and is_arithmetic(node)

    def _views_of_copies_only(self, graph: fx.Graph) -> set[fx.Node]:
        spared: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            if self.root(node) is not node and all(u in self._taken or u in spared for u in node.users):
                spared.add(node)
        return spared

    def spares(self, node: fx.Node) -> bool:
        """Whether nobody needs the node's float16 value: all users take a view of the float32 copy instead."""
        return node in self._spared

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """The values that the generated code reads for this node."""
        if node in self._spared:
            return []
        operands = node.all_input_nodes
        if node not in self._taken:
            return operands
        roots = [self.root(o) if is_half(o) else o for o in operands]
        return [*roots, *operands] if self._numerics.exceptions else roots

    def takes(self, node: fx.Node) -> bool:
        """Whether the node computes in float32."""
        return node in self._taken

    def root(self, node: fx.Node) -> fx.Node:
        """The value whose float32 copy serves ``node``: itself, or what it is a mere view of."""
        while base_name(node) in _SAME_ELEMENTS and isinstance(node.args[0], fx.Node) and is_half(node.args[0]):
            node = node.args[0]
        return node

    def dead_after(self, node: fx.Node) -> list[fx.Node]:
        """Roots whose float32 copies are of no more use after ``node`` in its part of the step.

        Copies of activations do not wait for the backward pass: that would cost three times the memory that the
        float16 value takes, and a conversion is cheap.
        """
        sweep = info_of(node).sweep
        roots = dict.fromkeys(self.root(o) for o in node.all_input_nodes if is_half(o))
        if is_in_place(node):
            return list(roots)  # the copies are not of the new values
        return [r for r in roots if self._last_use.get((r, sweep)) is node and r not in self.parameters]


def is_in_place(node: fx.Node) -> bool:
    """Whether the operation writes to one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def is_arithmetic(node: fx.Node) -> bool:
    """Whether the operation computes new numbers, instead of moving, choosing or making up values."""
    name = base_name(node)
    if not name or node.target is operator.getitem:
        return False
    schema = node.target._schema  # type: ignore[union-attr]
    if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
        return False
    if name == "_to_copy":
        return _narrows(node)
    return name not in _MOVING and not name.startswith(("new_", "index", "scatter", "empty", "zeros", "ones", "full"))


_MOVING = _names(
    """clone copy copy_ lift_fresh_copy cat stack index_select gather slice_scatter select_scatter diagonal_scatter
    where masked_fill masked_scatter constant_pad_nd embedding repeat roll flip fill arange eye tril triu scalar_tensor
    _foreach_copy_ _foreach_zero_ fill_ zero_ max_pool2d_with_indices max_pool3d_with_indices relu threshold neg abs
    sign maximum minimum amax amin max min sort topk argmax argmin clamp clamp_min clamp_max expand_copy isnan isinf
    isfinite logical_not logical_and logical_or rand randn rand_like randn_like randint normal uniform bernoulli
    select_backward slice_backward threshold_backward reflection_pad1d reflection_pad2d replication_pad1d
    replication_pad2d upsample_nearest2d upsample_nearest1d nan_to_num"""
)


def _narrows(node: fx.Node) -> bool:
    source = next(tensors_in(node.args[0]), None)
    return is_half(node) and source is not None and source.dtype in (torch.float32, torch.float64)


def wide_constant(value: Any) -> Any:
    """An argument of an operation that computes in float32 instead: a requested float16 becomes float32."""
    return torch.float32 if value is HALF else value


def result_types(node: fx.Node) -> Any:
    """The element types that the Program promises for the node's results; ``None`` where there is no tensor."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        return tuple(v.dtype if isinstance(v, torch.Tensor) else None for v in value)
    return value.dtype if isinstance(value, torch.Tensor) else None


def rounding(node: fx.Node) -> Callable[[Any], Any]:
    """A function that gives the node's results their promised types."""
    types = result_types(node)
    if not isinstance(types, tuple):
        return lambda result: result.to(types)

    def each(results: Any) -> list[Any]:
        return [r if t is None or r is None else r.to(t) for r, t in zip(results, types, strict=True)]

    return each


class SafetyNet:
    """A float16 operation that is done in float32 from the moment its kernel turns out not to exist."""

    def __init__(self, node: fx.Node, function: Callable[..., Any]) -> None:
        self._function = function
        self._round = rounding(node)
        self._missing = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._missing:
            try:
                return self._function(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                if "Half" not in str(error):
                    raise
                self._missing = True
        return self._round(self._function(*_wide(args), **_wide(kwargs)))


def needs_safety_net(node: fx.Node) -> bool:
    """Whether the node is a float16 operation that might lack a kernel."""
    name = base_name(node)
    if not name or name in _NATIVE or not touches_half(node) or is_in_place(node):
        return False
    returns = node.target._schema.returns  # type: ignore[union-attr]
    return not any(r.alias_info is not None for r in returns)


def _wide(value: Any) -> Any:
    """The value with every float16 in it as float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype is HALF else value
    if isinstance(value, (list, tuple)):
        return type(value)(_wide(v) for v in value)
    if isinstance(value, dict):
        return {k: _wide(v) for k, v in value.items()}
    return wide_constant(value)
