"""Types of operations that mix float16 and float32, while a model is captured.

By default mixed operands become float16, and so do float32 weights where they meet float16 inputs. With
``HalfUpcastToFloat`` or an explicit ``Jit.traceModel(False)`` PyTorch's promotion holds; operations that PyTorch
refuses to mix (matrix products, convolutions) then take the type of their activations, and parameters are cast to it. A
model that asked for the tracing front end (``Jit.traceModel(True)``) gets the rules of that front end: a float32 that
the tracer could not tell from float16 (a constant, a created tensor, a requested cast) is *ambiguous* and takes the
type of what it meets.

Casts are made in two places. Above autograd (:class:`CastingMode`) where whole torch functions are seen: autocast
regions, casts that users write. Below it (:class:`OperandCaster`) where every operation passes, also those that torch
calls itself; autograd brings gradients back to the type of each operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from poptorch import ambient, autocasting
from poptorch._logging import logger
from poptorch.ambient import CaptureSettings
from poptorch.capture.locations import user_location
from poptorch.capture.state import StateEntry
from poptorch.enums import HalfFloatCastingBehavior
from poptorch.errors import createPoptorchError
from poptorch.ops.function_modes import hand_on, runs_functions
from poptorch.ops.recorded import is_foreign
from poptorch.ops.traits import OpKind, traits_of

HALF, FLOAT = torch.float16, torch.float32
_WIDER = (torch.float64, torch.bfloat16)
"""Types that no weight has on a device."""

_PRODUCTS = (OpKind.PRODUCT, OpKind.CONVOLUTION)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LIKE_PRODUCTS = _names("prelu _prelu_kernel _prelu_kernel_backward scaled_dot_product_attention")
"""Like matrix products and convolutions refused by PyTorch when mixed: the activations decide, parameters follow."""

_FOLLOW_FIRST = _names(
    """index_put index_add index_copy scatter scatter_add masked_scatter scatter_reduce nll_loss_forward
    nll_loss2d_forward nll_loss_backward nll_loss2d_backward"""
)
"""The result has the type of the first operand, and the others are cast to it."""

_PROMOTING = _names(
    """binary_cross_entropy binary_cross_entropy_backward lerp grid_sampler_2d grid_sampler_3d
    grid_sampler_2d_backward grid_sampler_3d_backward"""
)
"""PyTorch has no kernel for mixed operands of these: with its promotion, they are promoted like the others."""

_TOGETHER = _PROMOTING | _names(
    """rsub floor_divide cat stack cross linalg_cross dist _cdist_forward mse_loss smooth_l1_loss huber_loss normal
    slice_scatter select_scatter index_put"""
)
"""What is cast together besides products and element-wise operations, unless PyTorch's promotion holds."""


class MixedNotice:
    """Tells the user once for each model that an operation mixes types, and how to change what becomes of it."""

    def __init__(self, excludes: Sequence[str]) -> None:
        self._excludes = excludes
        self._given = False

    def __call__(self, name: str) -> None:
        """Log the line at which the function ``name`` is called, the first time."""
        if not self._given:
            self._given = True
            logger.info(
                "%s at %s has float16 and float32 operands: it computes in float16 and returns float16, as all such "
                "operations of this model. For PyTorch's promotion to float32, set poptorch.Options().Precision."
                "halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat).",
                name,
                user_location(self._excludes),
            )


@dataclass(frozen=True)
class MixedTypes:
    """What becomes of mixed operands."""

    downcast: bool = False
    """To float16, instead of PyTorch's promotion."""

    traced: bool = False
    """Whether float32 may be ambiguous."""

    notice: MixedNotice | None = None
    """Where the user chose nothing."""

    @staticmethod
    def of(settings: CaptureSettings, promotes: bool = False) -> MixedTypes:
        """What the options ask for; refuses what the original refuses.

        ``promotes`` says that PyTorch's promotion holds where the options choose nothing.
        """
        behaviour = settings.half_float_casting
        traced, dispatched = settings.traced, settings.dispatched
        if dispatched and behaviour is HalfFloatCastingBehavior.FloatDowncastToHalf:
            raise createPoptorchError(
                "FloatDowncastToHalf is deprecated and not supported in the dispatcher: remove "
                "options.Jit.traceModel(False), or use poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat"
            )
        promotes = promotes and not traced and behaviour is HalfFloatCastingBehavior.Default
        downcast = not (dispatched or promotes) and behaviour is not HalfFloatCastingBehavior.HalfUpcastToFloat
        unsaid = downcast and not traced and behaviour is HalfFloatCastingBehavior.Default
        return MixedTypes(downcast, traced, MixedNotice(settings.excludes) if unsaid else None)

    @property
    def native(self) -> bool:
        """Whether PyTorch's promotion holds, as exactly as PyTorch has one."""
        return not self.downcast and not self.traced

    def common(self, operands: Sequence[torch.Tensor], name: str) -> torch.dtype:
        """The type of mixed operands of the function ``name``, where PyTorch's promotion does not hold.

        What is ambiguous to the tracing front end has no say.
        """
        if self.notice is not None:
            self.notice(name)
        types = {t.dtype for t in operands if not (self.traced and is_ambiguous(t))} or {FLOAT}
        return HALF if HALF in types and (self.downcast or types == {HALF}) else FLOAT


class OperandCaster:
    """Casts the operands of single operations, below autograd."""

    def __init__(self, rules: MixedTypes, parameters: Sequence[torch.Tensor]) -> None:
        self._rules = rules
        self._parameters = {t.untyped_storage()._cdata for t in parameters}

    def __call__(self, func: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """``run``, which does what the operation ``func`` does, with operands of matching types."""
        if _is_product(func):
            args, kwargs = _narrowed_beside_floats((args, kwargs), torch.ops.aten._to_copy.default)
        operands = [t for t in pytree.tree_leaves((args, kwargs)) if is_float(t)]
        if _is_float_only(func) and any(t.dtype is HALF for t in operands):
            args, kwargs = cast((args, kwargs), FLOAT, torch.ops.aten._to_copy.default)
            return cast(run(*args, **kwargs), HALF, torch.ops.aten._to_copy.default)
        wanted = self._type_for(func, operands)
        if wanted is not None:
            args, kwargs = cast((args, kwargs), wanted, torch.ops.aten._to_copy.default)
        result = run(*args, **kwargs)
        if self._rules.traced and wanted is None:
            self._mark(func, operands, result)
        return result

    def _type_for(self, func: Any, operands: Sequence[torch.Tensor]) -> torch.dtype | None:
        """The common type, or ``None`` if the operands are fine as they are."""
        traits = traits_of(func)
        if len({t.dtype for t in operands}) < 2 or traits.is_in_place or not traits.is_aten:
            return None
        name, product = traits.name, _is_product(func)
        if not self._rules.native and (product or name in _TOGETHER or torch.Tag.pointwise in func.tags):
            return self._rules.common(operands, name)
        if product:
            voters = [t for t in operands if not self._is_parameter(t)] or operands
            return FLOAT if any(t.dtype is FLOAT for t in voters) else HALF
        # Float32 parameters and statistics of a float16 input stay: normalisations use them as they are.
        if name in _FOLLOW_FIRST or (traits.is_norm and operands[0].dtype is FLOAT):
            return operands[0].dtype
        return FLOAT if name in _PROMOTING else None

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._parameters

    def _mark(self, func: Any, operands: Sequence[torch.Tensor], result: Any) -> None:
        if operands and not all(is_ambiguous(t) for t in operands):
            return
        if not operands and any(isinstance(a.type, torch.TensorType) for a in func._schema.arguments):
            return  # casts of integers and the like are what they say
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.dtype is FLOAT:
                mark_ambiguous(tensor)


def _is_product(func: Any) -> bool:
    """Whether PyTorch refuses operands of different types, and parameters follow the activations."""
    traits = traits_of(func)
    return traits.kind in _PRODUCTS or traits.name in _LIKE_PRODUCTS


def _narrowed_beside_floats(structure: Any, convert: Callable[..., torch.Tensor]) -> Any:
    """The structure with float64 and bfloat16 tensors as float32, if there are tensors of narrow types beside them.

    Weights of these types are float32 here, so what the model cast to their type in Python has to follow.
    """
    leaves = pytree.tree_leaves(structure)
    if not any(isinstance(t, torch.Tensor) and t.dtype in _WIDER for t in leaves) or not any(map(is_float, leaves)):
        return structure

    def one(value: Any) -> Any:
        wide = isinstance(value, torch.Tensor) and value.dtype in _WIDER
        return convert(value, dtype=FLOAT) if wide else value

    return pytree.tree_map(one, structure)


def _is_float_only(func: Any) -> bool:
    """Decompositions and solvers, which PyTorch knows in float32 only."""
    name = traits_of(func).name.removeprefix("_")
    return name.startswith("linalg_") and name != "linalg_vector_norm"


_MARK = "_poptorch_ambiguous"


def mark_ambiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Say that this float32 might as well be float16."""
    setattr(tensor, _MARK, True)
    return tensor


def is_ambiguous(tensor: torch.Tensor) -> bool:
    """Whether the tracer could not tell this float32 from float16."""
    return tensor.dtype is FLOAT and (getattr(tensor, _MARK, False) or is_foreign(tensor))


def is_float(value: Any) -> bool:
    """Whether the value takes part in casting: a float16 or float32 tensor."""
    return isinstance(value, torch.Tensor) and value.dtype in (HALF, FLOAT)


def cast(structure: Any, dtype: torch.dtype, convert: Callable[..., torch.Tensor] = torch.Tensor.to) -> Any:
    """The structure with its float tensors in another type."""

    def one(value: Any) -> Any:
        return convert(value, dtype=dtype) if is_float(value) and value.dtype is not dtype else value

    return pytree.tree_map(one, structure)


# -- above autograd ----------------------------------------------------------------------------------------------------

_CASTS = _names("to float type type_as half double bfloat16 int long short bool char byte")
_LEFT_ALONE = _CASTS | _names(
    """__get__ __set__ __delete__ __setitem__ __bool__ __len__ __int__ __float__ item tolist numpy backward
    register_hook retain_grad size dim numel is_floating_point is_complex data_ptr stride detach requires_grad_ copy_
    result_type is_tensor can_cast get_device element_size is_contiguous contiguous _is_view untyped_storage
    storage_offset"""
)


_LAYERS = _names(
    """linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution
    _convolution"""
)
"""The first operand is the activation, and the others follow."""

_EARLY = _LAYERS | _names(
    """prelu bilinear scaled_dot_product_attention lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell"""
)
"""Functions that check the types of their operands before any operation is seen."""

_NORMS = _names("layer_norm group_norm")
"""Their kernels take a float16 input with float32 parameters as it is, but no other mixture."""


class CastingMode(TorchFunctionMode):
    """Casts around whole torch functions: autocast regions, and the casts of the tracing front end."""

    def __init__(self, rules: MixedTypes, settings: CaptureSettings) -> None:
        super().__init__()
        self._rules = rules
        self._policy = settings.autocast
        upcast = settings.half_float_casting is HalfFloatCastingBehavior.HalfUpcastToFloat
        self._unlisted = FLOAT if upcast else HALF

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if runs_functions(func):
            return hand_on(self, func, args, kwargs)
        name = plain_name(func)
        wanted = self._autocast_type(name, (args, kwargs))
        if name in _EARLY or name in _NORMS:
            args, kwargs = _narrowed_beside_floats((args, kwargs), torch.Tensor.to)
        if wanted is None and (name in _EARLY or name in _NORMS):
            wanted = self._mixed_type(name, [t for t in pytree.tree_leaves((args, kwargs)) if is_float(t)])
        if wanted is not None:
            args, kwargs = cast((args, kwargs), wanted)
            return cast(func(*args, **kwargs), wanted)
        result = func(*args, **kwargs)
        return self._as_traced(func, name, args, result) if self._rules.traced else result

    def _mixed_type(self, name: str, operands: Sequence[torch.Tensor]) -> torch.dtype | None:
        """For functions that refuse mixed operands before any operation is seen."""
        if len({t.dtype for t in operands}) < 2:
            return None
        if not self._rules.native:
            common = self._rules.common(operands, name)
            return None if name in _NORMS and operands[0].dtype is common else common
        if name in _NORMS:
            return None
        if name in _LAYERS:
            return operands[0].dtype
        voters = [t for t in operands if not isinstance(t, nn.Parameter)] or operands
        return FLOAT if any(t.dtype is FLOAT for t in voters) else HALF

    def _autocast_type(self, name: str, operands: Any) -> torch.dtype | None:
        if self._policy is None or not autocasting.region_is_active() or _is_exempt(name):
            return None
        types = {t.dtype for t in pytree.tree_leaves(operands) if is_float(t)}
        if not types:
            return None
        if name in self._policy["promote"]:
            return FLOAT if FLOAT in types else HALF
        if name in self._policy["demote"]:
            return HALF if HALF in types else FLOAT
        if name in self._policy["fp16"]:
            return HALF
        return FLOAT if name in self._policy["fp32"] else self._unlisted

    @staticmethod
    def _as_traced(func: Any, name: str, args: Any, result: Any) -> Any:
        """The tracer saw float16 as float32: types read so, and a cast to float32 decides nothing."""
        if name == "__get__" and func == torch.Tensor.dtype.__get__:  # type: ignore[attr-defined]
            return FLOAT if result is HALF else result
        if name in _CASTS and is_float(result) and result.dtype is FLOAT and args and is_float(args[0]):
            return mark_ambiguous(result.view_as(result) if result is args[0] else result)
        return result


def _is_exempt(name: str) -> bool:
    """Questions, casts and writes in place: they are what they are."""
    return name in _LEFT_ALONE or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


_OPERATORS = {"matmul": "matmul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "pow": "pow"}


def plain_name(func: Any) -> str:
    """``mul`` for ``torch.mul``, ``Tensor.mul`` and ``Tensor.__rmul__``.

    >>> plain_name(torch.Tensor.__rmul__), plain_name(torch.bmm)
    ('mul', 'bmm')
    """
    name = str(getattr(func, "__name__", ""))
    bare = name.strip("_")
    if not (name.startswith("__") and name.endswith("__")) or bare in ("get", "set") or bare.startswith(("i", "set")):
        return name
    bare = bare.removeprefix("r") if bare in _REFLECTED else bare
    return _OPERATORS.get(bare, bare if bare in ("add", "sub", "mul") else name)


_REFLECTED = _names("radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul")


@contextmanager
def module_types(rules: MixedTypes) -> Iterator[None]:
    """Regions opened by ``module.autocast()``, and recurrent layers whose weights and input differ in type.

    Recurrent layers check the types of their input in Python, so their weights are cast before that.
    """
    context = ambient.current()
    kept: list[tuple[bool, list[Any] | None]] = []

    def enter(module: nn.Module, args: Any) -> Any:
        if ambient.current() is not context:
            return None
        opened = autocasting.enter_module(module)
        weights = None
        if isinstance(module, nn.RNNBase):
            args, _ = _narrowed_beside_floats((args, list(module._flat_weights)), torch.Tensor.to)
        if isinstance(module, nn.RNNBase) and args and is_float(args[0]):
            weights = list(module._flat_weights)
            with torch._C.DisableTorchFunction():  # types as they are, not as they were traced
                wanted = _recurrent_type(module, args[0], weights, rules)
                module._flat_weights = cast(weights, wanted)
                args = cast(args, wanted)
            module.__dict__["_weights_have_changed"] = lambda: False  # they have, and shall stay so for this call
        kept.append((opened, weights))
        return args

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if ambient.current() is context and kept:
            opened, weights = kept.pop()
            if opened:
                autocasting.leave_module()
            if weights is not None:
                module.__dict__["_flat_weights"] = weights
                module.__dict__.pop("_weights_have_changed", None)

    handles = [
        torch_module.register_module_forward_pre_hook(enter),
        torch_module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _recurrent_type(
    module: nn.Module, activation: torch.Tensor, weights: Sequence[Any], rules: MixedTypes
) -> torch.dtype:
    operands = [activation, *(w for w in weights if w is not None)]
    if rules.downcast and len({t.dtype for t in operands}) > 1:
        return rules.common(operands, type(module).__name__)
    return activation.dtype


_STATISTICS = ("running_mean", "running_var")


def is_float_statistic(entry: StateEntry, settings: CaptureSettings) -> bool:
    """Whether a float16 buffer is kept in float32 on the device: running statistics, unless told otherwise."""
    return (
        settings.float_statistics
        and entry.tensor.dtype is HALF
        and all(
            isinstance(module, nn.modules.batchnorm._NormBase) and attribute in _STATISTICS
            for module, attribute, _ in entry.slots
        )
    )
