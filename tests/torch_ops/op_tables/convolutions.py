"""Convolutions, unfolding, padding and resampling (parts of section 3.7)."""

from __future__ import annotations

import torch
from op_samples import between, layer, normal, op
from torch import nn
from torch.nn import functional as F

LINE = normal(2, 4, 9)
IMAGE = normal(2, 4, 7, 8)
SMALL = normal(1, 2, 4, 5)
VOLUME = normal(1, 2, 4, 5, 6)
GRID = between(-1.2, 1.2, 1, 3, 4, 2)
INPUTS = {1: LINE, 2: IMAGE, 3: normal(1, 4, 5, 6, 5)}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "padding beyond kernel": {"padding": 4},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "depthwise": {"groups": 4},
    "no bias": {"bias": False},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": 1, "padding_mode": "replicate"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "same": {"padding": "same"},
    "all": {"stride": 2, "padding": 2, "dilation": 2, "groups": 2, "bias": False},
}
TRANSPOSED_VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "stride": {"stride": 2},
    "output padding": {"stride": 2, "padding": 1, "output_padding": 1},
    "groups": {"groups": 2},
    "dilation": {"dilation": 2},
    "no bias": {"bias": False},
}
SCALES: dict[str, tuple[torch.Tensor, dict[str, object]]] = {
    "nearest 1d": (LINE, {"scale_factor": 2, "mode": "nearest"}),
    "nearest 2d": (IMAGE, {"scale_factor": 2, "mode": "nearest"}),
    "nearest 2d fraction": (IMAGE, {"scale_factor": (1.5, 0.7), "mode": "nearest"}),
    "nearest 2d size": (IMAGE, {"size": (5, 11), "mode": "nearest"}),
    "nearest 3d": (VOLUME, {"scale_factor": 2, "mode": "nearest"}),
    "nearest-exact": (IMAGE, {"scale_factor": 1.7, "mode": "nearest-exact"}),
    "linear": (LINE, {"scale_factor": 2, "mode": "linear"}),
    "bilinear": (IMAGE, {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear aligned": (IMAGE, {"size": (9, 10), "mode": "bilinear", "align_corners": True}),
    "bilinear fraction": (IMAGE, {"scale_factor": (1.5, 2.5), "mode": "bilinear"}),
    "bilinear antialias": (IMAGE, {"size": (3, 4), "mode": "bilinear", "antialias": True}),
    "bicubic": (IMAGE, {"scale_factor": 2, "mode": "bicubic"}),
    "trilinear": (VOLUME, {"scale_factor": 2, "mode": "trilinear"}),
    "area": (IMAGE, {"size": (3, 4), "mode": "area"}),
}

ROWS = [
    *(
        layer(f"Conv{d}d {name}", lambda d=d, v=v: CONV[d](4, 8, 3, **v), INPUTS[d])
        for d in (1, 2, 3)
        for name, v in VARIANTS.items()
        if not (d == 3 and name in ("dilation", "all", "padding beyond kernel"))
    ),
    *(
        layer(f"ConvTranspose{d}d {name}", lambda d=d, v=v: TRANSPOSED[d](4, 6, 3, **v), INPUTS[d])
        for d in (1, 2, 3)
        for name, v in TRANSPOSED_VARIANTS.items()
    ),
    layer("Conv2d kernel tuple", lambda: nn.Conv2d(4, 3, (1, 3), stride=(2, 1), padding=(0, 1)), IMAGE),
    layer("Conv2d unbatched", lambda: nn.Conv2d(4, 3, 3), IMAGE[0]),
    layer("Conv2d channels last", lambda: nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last), IMAGE),
    op("conv2d function", lambda x, w, b: F.conv2d(x, w, b), IMAGE, normal(3, 4, 3, 3), normal(3)),
    layer("Unfold", lambda: nn.Unfold((2, 3), dilation=1, padding=1, stride=2), IMAGE),
    layer("Fold", lambda: nn.Fold((4, 5), (2, 2)), normal(1, 8, 12)),
    layer("Fold overlapping", lambda: nn.Fold((5, 6), (3, 2), padding=1, stride=2), normal(2, 12, 12)),
    *(op(f"interpolate {n}", lambda x, s=s: F.interpolate(x, **s), x) for n, (x, s) in SCALES.items()),
    layer("Upsample nearest", lambda: nn.Upsample(scale_factor=3, mode="nearest"), IMAGE),
    layer("Upsample bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), IMAGE),
    layer("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), IMAGE),
    layer("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), IMAGE),
    *(
        op(
            f"grid_sample {m} {p}",
            lambda x, g, m=m, p=p: F.grid_sample(x, g, m, p, align_corners=False),
            SMALL,
            GRID,
        )
        for m in ("bilinear", "bicubic")
        for p in ("zeros", "border", "reflection")
    ),
    op("grid_sample nearest", lambda x, g: F.grid_sample(x, g.detach(), "nearest", align_corners=False), SMALL, GRID),
    op("affine_grid", lambda t: F.affine_grid(t, [1, 2, 3, 4], align_corners=False), normal(1, 2, 3)),
    # padding
    layer("ReflectionPad1d", lambda: nn.ReflectionPad1d((2, 1)), LINE),
    layer("ReflectionPad2d", lambda: nn.ReflectionPad2d((2, 1, 3, 0)), IMAGE),
    layer("ReflectionPad3d", lambda: nn.ReflectionPad3d(1), VOLUME),
    layer("ReplicationPad1d", lambda: nn.ReplicationPad1d((2, 1)), LINE),
    layer("ReplicationPad2d", lambda: nn.ReplicationPad2d((2, 1, 3, 0)), IMAGE),
    layer("ReplicationPad3d", lambda: nn.ReplicationPad3d((2, 1, 3, 0, 1, 1)), VOLUME),
    layer("CircularPad2d", lambda: nn.CircularPad2d(1), IMAGE),
    layer("ZeroPad2d", lambda: nn.ZeroPad2d((1, 2, 0, 3)), IMAGE),
    layer("ZeroPad2d cropping", lambda: nn.ZeroPad2d((-1, 2, 0, -3)), IMAGE),
    layer("ConstantPad1d", lambda: nn.ConstantPad1d((1, 2), 1.5), LINE),
    layer("ConstantPad2d", lambda: nn.ConstantPad2d((1, 2, 0, 3), 1.5), IMAGE),
    layer("ConstantPad3d", lambda: nn.ConstantPad3d(1, -1.0), VOLUME),
    op("pad n-d", lambda x: F.pad(x, (1, 0, 2, 1, 0, 1, 1, 1), value=0.5), SMALL),
]
