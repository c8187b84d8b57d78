"""Training for quantised inference: torch's observers and imitations of quantisation, in forms that can be captured.

Their own forms ask in Python whether there are statistics already and whether they are switched on. Capture would
freeze the answers: statistics that are never averaged, switches without effect. The forms below choose between tensors.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from poptorch import ambient
from poptorch.errors import createPoptorchError

_OBSERVERS, _IMITATIONS = "torch.ao.quantization.observer", "torch.ao.quantization.fake_quantize"


@contextmanager
def capturable_observers(model: nn.Module) -> Iterator[None]:
    """Give such layers of ``model`` a forward that can be captured, where it is not the user's own."""
    forwards = _forwards()
    layers = [m for m in model.modules() if type(m).forward in forwards and "forward" not in m.__dict__]
    for layer in layers:
        layer.__dict__["forward"] = functools.partial(forwards[type(layer).forward], layer)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _forwards() -> dict[Any, Callable[..., Tensor]]:
    """The forms by torch's own; none where nobody has imported those."""
    observers: Any = sys.modules.get(_OBSERVERS)
    imitations: Any = sys.modules.get(_IMITATIONS)
    if observers is None or imitations is None:
        return {}
    return {
        observers.MovingAverageMinMaxObserver.forward: _averaging,
        observers.PerChannelMinMaxObserver.forward: _by_channel,
        observers.MovingAveragePerChannelMinMaxObserver.forward: _by_channel,
        observers.HistogramObserver.forward: _histogram,
        imitations.FakeQuantize.forward: _imitating,
    }


def _averaging(observer: Any, x: Tensor) -> Tensor:
    """The first extremes as they are, and a moving average from then on."""
    low, high = torch.aminmax(x.detach().to(observer.min_val.dtype))
    first = (observer.min_val == torch.inf) & (observer.max_val == -torch.inf)
    with torch.no_grad(), ambient.normalising():
        for held, now in ((observer.min_val, low), (observer.max_val, high)):
            held.copy_(torch.where(first, now, held + observer.averaging_constant * (now - held)))
    return x


def _by_channel(observer: Any, x: Tensor) -> Tensor:
    if observer.min_val.numel() == 0:
        raise createPoptorchError(
            f"{type(observer).__name__} takes its size from the first batch, and a compiled program cannot change the "
            "size of a buffer. Call the model once on the host, with any batch, before it is wrapped."
        )
    with ambient.normalising():
        return type(observer).forward(observer, x)


def _histogram(observer: Any, x: Tensor) -> Tensor:
    raise createPoptorchError(
        "HistogramObserver decides in Python, from the values of each batch, how to merge its histograms: that cannot "
        "be compiled. Use MovingAverageMinMaxObserver or MinMaxObserver, or observe on the host and call "
        "model.apply(torch.ao.quantization.disable_observer) before the model is wrapped."
    )


def _imitating(layer: Any, x: Tensor) -> Tensor:
    """Observe and round, each if it is switched on when the program runs."""
    observer, observes = layer.activation_post_process, layer.observer_enabled[0] == 1
    if type(observer).forward is sys.modules[_OBSERVERS].HistogramObserver.forward and not observes:
        return _rounded(layer, x, layer.scale, layer.zero_point, observer.quant_min, observer.quant_max)
    held = [observer.get_buffer(name) for name in ("min_val", "max_val") if hasattr(observer, name)]
    before = [tensor.clone() for tensor in held]
    observer(x.detach())
    scale, zero_point = _scale_of(observer)
    if layer.scale.shape != scale.shape:
        raise createPoptorchError(
            f"FakeQuantize has a scale of shape {list(layer.scale.shape)}, and its {type(observer).__name__} gives one "
            f"of shape {list(scale.shape)}: a compiled program cannot change the size of a buffer. Call the model once "
            "on the host, with any batch, before it is wrapped."
        )
    with torch.no_grad(), ambient.normalising():
        for tensor, old in zip(held, before, strict=True):
            tensor.copy_(torch.where(observes, tensor, old))
        layer.scale.copy_(torch.where(observes, scale, layer.scale))
        layer.zero_point.copy_(torch.where(observes, zero_point.to(layer.zero_point.dtype), layer.zero_point))
    return _rounded(layer, x, layer.scale, layer.zero_point, observer.quant_min, observer.quant_max)


def _rounded(layer: Any, x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int) -> Tensor:
    if layer.is_per_channel:
        rounded = torch.fake_quantize_per_channel_affine(x, scale, zero_point, layer.ch_axis, low, high)
    else:
        rounded = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)
    return torch.where(layer.fake_quant_enabled[0] == 1, rounded, x)


def _scale_of(observer: Any) -> tuple[Tensor, Tensor]:
    """Scale and zero point that an observer's extremes call for, which it has after a batch."""
    base = sys.modules[_OBSERVERS].UniformQuantizationObserverBase
    usual = hasattr(observer, "min_val") and type(observer)._calculate_qparams is base._calculate_qparams
    if not usual or observer.qscheme is torch.per_channel_affine_float_qparams:
        return observer.calculate_qparams()
    low, high = observer.min_val.clamp(max=0), observer.max_val.clamp(min=0)
    steps = float(observer.quant_max - observer.quant_min)
    if observer.qscheme in (torch.per_tensor_symmetric, torch.per_channel_symmetric):
        scale = torch.maximum(torch.maximum(-low, high) / (steps / 2), observer.eps)
        return scale, torch.full_like(scale, _middle(observer), dtype=torch.int32)
    scale = torch.maximum((high - low) / steps, observer.eps)
    zero_point = observer.quant_min - torch.round(low / scale).to(torch.int32)
    return scale, zero_point.clamp(observer.quant_min, observer.quant_max)


def _middle(observer: Any) -> int:
    """The zero point of a symmetric range."""
    if observer.dtype in (torch.quint8, torch.uint8):
        return (observer.quant_min + observer.quant_max) // 2 if observer.has_customized_qrange else 128
    return 2**15 if observer.dtype is torch.uint16 else 0
