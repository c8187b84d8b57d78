"""Pooling (section 3.7)."""

from __future__ import annotations

from op_samples import distinct, layer, normal
from torch import nn

# Far from ties, so that the position of a maximum does not depend on rounding.
INPUTS = {1: distinct(2, 3, 9), 2: distinct(2, 3, 7, 8), 3: distinct(1, 2, 5, 6, 4)}
MAX = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
ADAPTIVE = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
ADAPTIVE_MAX = {1: nn.AdaptiveMaxPool1d, 2: nn.AdaptiveMaxPool2d, 3: nn.AdaptiveMaxPool3d}
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "stride": {"stride": 1},
    "padding": {"padding": 1},
    "ceil_mode": {"ceil_mode": True, "stride": 2},
}

ROWS = [
    *(
        layer(f"{kind[d].__name__} {name}", lambda d=d, v=v, kind=kind: kind[d](3, **v), INPUTS[d])
        for kind in (MAX, AVERAGE)
        for d in (1, 2, 3)
        for name, v in VARIANTS.items()
    ),
    *(
        layer(
            f"{AVERAGE[d].__name__} pad not counted",
            lambda d=d: AVERAGE[d](3, padding=1, count_include_pad=False),
            INPUTS[d],
        )
        for d in (1, 2, 3)
    ),
    layer("MaxPool2d dilation", lambda: nn.MaxPool2d(2, dilation=2), INPUTS[2]),
    layer("MaxPool2d rectangle", lambda: nn.MaxPool2d((1, 3), stride=(2, 1)), INPUTS[2]),
    layer("MaxPool2d indices", lambda: nn.MaxPool2d(2, return_indices=True), INPUTS[2]),
    layer("MaxPool2d unbatched", lambda: nn.MaxPool2d(2), INPUTS[2][0]),
    layer("AvgPool2d divisor", lambda: nn.AvgPool2d(2, divisor_override=3), INPUTS[2]),
    *(layer(f"{ADAPTIVE[d].__name__} to one", lambda d=d: ADAPTIVE[d](1), INPUTS[d]) for d in (1, 2, 3)),
    *(layer(f"{ADAPTIVE[d].__name__} uneven", lambda d=d: ADAPTIVE[d](3), INPUTS[d]) for d in (1, 2, 3)),
    layer("AdaptiveAvgPool2d multiple", lambda: nn.AdaptiveAvgPool2d((2, 4)), normal(1, 2, 6, 8)),
    layer("AdaptiveAvgPool2d one side", lambda: nn.AdaptiveAvgPool2d((None, 4)), normal(1, 2, 6, 8)),
    *(layer(f"{ADAPTIVE_MAX[d].__name__}", lambda d=d: ADAPTIVE_MAX[d](2), INPUTS[d]) for d in (1, 2, 3)),
    layer("LPPool2d", lambda: nn.LPPool2d(2, 3), normal(1, 2, 6, 8)),
]
