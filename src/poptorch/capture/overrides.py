"""Torch functions that a static program needs in another form, or refuses in its own words.

PyTorch writes through masks and slices at run-time positions with the help of values; a program has to do without. So
these calls are replaced while a model is captured, before autograd sees them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from poptorch import ambient
from poptorch.capture import higher_order, strict
from poptorch.capture.dynamic_slices import read_item
from poptorch.capture.locations import user_location
from poptorch.capture.selected import Selected, selected
from poptorch.errors import HostValueError, createPoptorchError, misuse
from poptorch.frames import warn_user
from poptorch.ops.function_modes import in_force, runs_functions
from poptorch.ops.matmul import remember_operands

_SCATTER_REDUCTIONS = ("sum", "mean", "amin", "amax", "prod")


class Overrides(TorchFunctionMode):
    """Calls the replacement of a torch function where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._compiler = higher_order.CompilerAside()
        higher_order.prepare()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._compiler.end()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        context, kwargs = ambient.current(), kwargs or {}
        if runs_functions(func):
            with in_force(self):
                return higher_order.call(func, args, kwargs, self._compiler)
        replacement = _REPLACEMENTS.get(func)
        if context is None or not context.settings.strict:
            return func(*args, **kwargs) if replacement is None else replacement(func, *args, **kwargs)
        strict.refuse(func, args, kwargs)
        with strict.torch_function(context):
            return func(*args, **kwargs) if replacement is None else replacement(func, *args, **kwargs)


def _write_item(func: Callable[..., None], target: Tensor, key: Any, value: Any) -> None:
    """``target[key] = value``; a value that does not depend on the number of marked elements becomes a ``where``."""
    items = [_as_mask(item) for item in (key if isinstance(key, tuple) else (key,))]
    first = _position_of_only_mask(items)
    if first is None:
        func(target, key, value)
        return
    mask = items[first]
    rest = target.ndim - mask.ndim - first
    if isinstance(value, Tensor) and value.ndim == rest + 1 and value.shape[0] == 1:
        value = value.squeeze(0)
    fits = mask.shape == target.shape[first : first + mask.ndim]
    if fits and not (isinstance(value, Tensor) and value.ndim > rest):
        value = value.to(target.dtype) if isinstance(value, Tensor) else target.new_tensor(value)
        whole = mask.reshape((1,) * first + mask.shape + (1,) * rest)
        target.copy_(torch.where(whole, value, target))
    else:
        func(target, tuple(items), value)


def _read_item(func: Callable[..., Tensor], tensor: Tensor, key: Any) -> Any:
    mask = _as_mask(key)
    if isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.shape == tensor.shape and mask.ndim:
        return selected(func, tensor, mask)
    return read_item(func, tensor, key)


def _masked_select(func: Callable[..., Tensor], input: Tensor, mask: Tensor, **settings: Any) -> Any:
    return func(input, mask, **settings) if settings else selected(func, input, mask)


def _as_mask(item: Any) -> Any:
    """Tensors of bytes are masks; shape inference knows boolean ones only."""
    return item.to(torch.bool) if isinstance(item, Tensor) and item.dtype is torch.uint8 else item


def _position_of_only_mask(items: list[Any]) -> int | None:
    """Where the mask is in a key like ``[mask]`` or ``[:, mask]``; ``None`` for any other key."""
    *before, last = items
    is_mask = isinstance(last, Tensor) and last.ndim > 0 and last.dtype is torch.bool
    return len(before) if is_mask and all(isinstance(b, slice) and b == slice(None) for b in before) else None


def _one_hot(func: Callable[..., Tensor], tensor: Tensor, num_classes: int = -1) -> Tensor:
    if not isinstance(num_classes, int) or num_classes < 0:
        raise createPoptorchError(
            "OneHot num classes must be specified and must be constant. Call one_hot(tensor, num_classes=n): the "
            "largest value of a tensor is not known when the model is compiled."
        )
    return func(tensor, num_classes)


def _gelu(func: Callable[..., Tensor], input: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate not in ("none", "tanh"):
        raise createPoptorchError(f"Unknown GELU approximate: {approximate!r}. It must be 'none' or 'tanh'.")
    return func(input, approximate=approximate)


def _scatter_reduce(
    func: Callable[..., Tensor], input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, **settings: Any
) -> Tensor:
    if reduce not in _SCATTER_REDUCTIONS:
        raise createPoptorchError(
            f"Unsupported reduction type for scatter_reduce: {reduce!r}. It must be one of "
            f"{', '.join(_SCATTER_REDUCTIONS)}."
        )
    return func(input, dim, index, src, reduce, **settings)


def _bitwise(func: Callable[..., Tensor], *operands: Any, **settings: Any) -> Tensor:
    for operand in operands:
        if isinstance(operand, float) or (isinstance(operand, Tensor) and operand.dtype.is_floating_point):
            name = func.__name__.strip("_")
            raise createPoptorchError(f"{name} supports only bool and integer types, not {_type_of(operand)}.")
    return func(*operands, **settings)


def _type_of(operand: Any) -> str:
    return str(operand.dtype if isinstance(operand, Tensor) else type(operand).__name__)


def _combinations(func: Callable[..., Tensor], input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """PyTorch selects by a mask, although the result depends on the size of the input only."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    return input[torch.tensor(list(choose(range(input.shape[0]), r)))]


def _roll(func: Callable[..., Tensor], input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    dims = () if dims is None else dims
    counts = [1 if isinstance(v, int) else len(v) for v in (shifts, dims)]
    if counts[1] and counts[0] != counts[1]:
        # PyTorch's own words: those of its shape inference differ by a space.
        raise RuntimeError(f"shifts and dimensions must align. shifts: {counts[0]}, dims:{counts[1]}")
    return func(input, shifts, dims)


def _product(func: Callable[..., Tensor], *operands: Tensor, **settings: Any) -> Tensor:
    """A matrix product; older programs ask afterwards that it be computed in parts."""
    result = func(*operands, **settings)
    if len(operands) == 2:
        remember_operands(result, *operands)
    return result


def _ctc_loss(
    func: Callable[..., Tensor],
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    *rest: Any,
    **settings: Any,
) -> Tensor:
    """Lengths may be lists: as tensors they take the one form whose intermediate results have static sizes.

    Targets may be chosen by a mask, one sequence after the other: a program needs them padded.
    """
    lengths = [v if isinstance(v, Tensor) else torch.tensor(v) for v in (input_lengths, target_lengths)]
    if isinstance(targets, Selected):
        targets = targets.rows(lengths[1])
    return func(log_probs, targets, *lengths, *rest, **settings)


def _norm(func: Callable[..., Tensor], *args: Any, **settings: Any) -> Tensor:
    """What a normalisation writes are its running statistics."""
    with ambient.normalising():
        return func(*args, **settings)


def _numpy(func: Callable[..., Any], tensor: Tensor, *types: Any, **settings: Any) -> Any:
    """NumPy computes now and on the host: what it gives could not follow the inputs of later calls."""
    if not isinstance(tensor, FakeTensor):
        return func(tensor, *types, **settings)
    raise misuse(
        HostValueError,
        f"forward() makes a NumPy array of a tensor at {user_location()}. Its values are not known when the model is "
        "compiled. Use operations of torch, or run the function on the host with poptorch.CPU.",
    )


def _format(func: Callable[..., str], tensor: Tensor, specification: str) -> str:
    """A number in a text, as ``f"{loss:.3f}"`` in eager mode: the value of the first inputs, with the usual warning."""
    if isinstance(tensor, FakeTensor) and tensor.dim() == 0:
        return format(tensor.item(), specification)
    return func(tensor, specification)


def _printed(func: Callable[..., str], tensor: Tensor, *settings: Any, **more: Any) -> str:
    """What ``print`` shows in forward: a shape and a type, and where to find values."""
    if not isinstance(tensor, FakeTensor):
        return func(tensor, *settings, **more)
    warn_user(
        "forward() prints a tensor. Its values are known when the program runs, not while the model is compiled: print "
        "them in each call with x = poptorch.ipu_print_tensor(x), or return the tensor."
    )
    return f"Tensor(shape={tuple(tensor.shape)}, dtype={tensor.dtype}, no values while the model is compiled)"


def _pickled(func: Callable[..., Any], tensor: Tensor, protocol: Any) -> Any:
    if not isinstance(tensor, FakeTensor):
        return func(tensor, protocol)
    raise misuse(
        HostValueError,
        f"forward() saves or pickles a tensor at {user_location()}. Its values are not known when the model is "
        "compiled. Return the tensor and save the result, or run the function on the host with poptorch.CPU.",
    )


def _from_data(func: Callable[..., Tensor], *args: Any, **settings: Any) -> Tensor:
    """A tensor made of a list with tensors in it takes their values, which are frozen with the usual warning."""
    return func(*(_with_numbers(a) for a in args), **{k: _with_numbers(v) for k, v in settings.items()})


def _with_numbers(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_number(item) for item in data]
    return data


def _number(item: Any) -> Any:
    if isinstance(item, FakeTensor):
        return item.tolist()
    return _with_numbers(item)


def _assert_async(func: Callable[..., None], condition: Tensor, *message: str) -> None:
    """The form with a message: code generators of torch drop the other one, because it has no result."""
    func(condition, *(message or ("Expected Tensor with single nonzero value, but got zero",)))


_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
_PRODUCTS = ("matmul", "mm", "bmm")
_BIT_OPERATORS = ("and", "or", "xor", "rand", "ror", "rxor", "iand", "ior", "ixor", "invert")

_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    Tensor.numpy: _numpy,
    Tensor.__array__: _numpy,
    Tensor.__format__: _format,
    Tensor.__repr__: _printed,
    torch._assert_async: _assert_async,
    Tensor.__reduce_ex__: _pickled,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    Tensor.new_tensor: _from_data,
    **{getattr(home, name): _bitwise for home in (torch, Tensor) for name in _BITWISE},
    **{getattr(Tensor, f"__{name}__"): _bitwise for name in _BIT_OPERATORS},
    **{getattr(home, name): _product for home in (torch, Tensor) for name in _PRODUCTS},
    Tensor.__matmul__: _product,
    Tensor.__getitem__: _read_item,
    torch.masked_select: _masked_select,
    Tensor.masked_select: _masked_select,
    Tensor.__setitem__: _write_item,
    F.one_hot: _one_hot,
    F.ctc_loss: _ctc_loss,
    torch.ctc_loss: _ctc_loss,
    F.gelu: _gelu,
    **dict.fromkeys((F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm), _norm),
    torch.combinations: _combinations,
    torch.roll: _roll,
    Tensor.roll: _roll,
    torch.scatter_reduce: _scatter_reduce,
    Tensor.scatter_reduce: _scatter_reduce,
    Tensor.scatter_reduce_: _scatter_reduce,
}
