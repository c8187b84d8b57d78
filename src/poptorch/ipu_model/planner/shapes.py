"""What is to be planned: convolutions in all their passes and products, in one common form."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass

import numpy as np

from poptorch.errors import createPoptorchError
from poptorch.ipu_model.cycles.convolution import Array, ceil_div


class ProductPass(enum.Enum):
    """Which of the three convolutions of a training step is meant."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


@dataclass(frozen=True)
class ConvolutionShape:
    """The sizes of a convolution over one, two or three spatial dimensions.

    ``input`` is always the input of the forward pass, and the channels are those of the forward pass, whatever pass is
    planned.

    >>> ConvolutionShape(2, 3, 64, (224, 224), (7, 7), stride=(2, 2), padding=(3, 3)).output
    (112, 112)
    >>> ConvolutionShape(2, 64, 3, (4,), (2,), stride=(2,), transposed=True).output
    (8,)
    """

    batch: int
    in_channels: int
    out_channels: int
    input: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    kind: ProductPass = ProductPass.FORWARD

    def __post_init__(self) -> None:
        dimensions = len(self.input)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
            given = getattr(self, name)
            if len(given) < 2 <= dimensions or not given:
                object.__setattr__(self, name, (tuple(given) or (default,)) * dimensions)
        wrong = [n for n in ("kernel", "stride", "padding", "dilation") if len(getattr(self, n)) != dimensions]
        if wrong or not dimensions:
            raise createPoptorchError(f"A convolution over {dimensions} dimensions cannot have this {wrong}: {self}.")
        if min(self.batch, self.in_channels, self.out_channels, self.groups, *self.kernel, *self.stride) < 1:
            raise createPoptorchError(f"The sizes of a convolution must be positive: {self}.")

    @property
    def output(self) -> tuple[int, ...]:
        """Spatial sizes of the result of the forward pass."""
        dims = zip(self.input, self.kernel, self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        if self.transposed:
            return tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 + o for n, k, s, p, d, o in dims)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in dims)

    @property
    def direct(self) -> ConvolutionShape:
        """The same work as a pass of a convolution that is not transposed."""
        if not self.transposed:
            return self
        turned = {ProductPass.FORWARD: ProductPass.INPUT_GRADIENT, ProductPass.INPUT_GRADIENT: ProductPass.FORWARD}
        return dataclasses.replace(
            self,
            in_channels=self.out_channels,
            out_channels=self.in_channels,
            input=self.output,
            transposed=False,
            output_padding=(),
            kind=turned.get(self.kind, self.kind),
        )

    @property
    def multiplications(self) -> int:
        """Of one pass; all three have the same number."""
        work = self.direct
        per_output = work.in_channels // work.groups * math.prod(work.kernel)
        return work.batch * work.out_channels * math.prod(work.output) * per_output


@dataclass(frozen=True, eq=False)
class Positions:
    """Ways to split the positions of a product or convolution: one entry for each way."""

    splits: Array
    """Into how many parts."""

    rows: Array
    """Of output positions on a tile that one kernel position touches."""

    width: Array
    """Positions in such a row."""

    outputs: Array
    """Positions of the result on a tile."""

    inputs: Array
    """Input positions of one channel that a tile needs."""

    @property
    def count(self) -> int:
        """How many ways there are."""
        return len(self.splits)


@dataclass(frozen=True, eq=False)
class ProductWork:
    """A product or a convolution, ready for the search."""

    groups: int
    inputs: int
    """Input channels of a group: what is summed over."""

    outputs: int
    """Output channels of a group."""

    kernel_rows: int
    kernel_columns: int
    positions: Positions
    stride: int = 1
    transposes: bool = False
    """Whether tiles must turn their inputs around before they can multiply."""


def split_sizes(size: int, even: bool = False, most: int = 4096) -> list[int]:
    """Splits that differ in the size of the largest part; with ``even``, also the next even number of parts.

    >>> split_sizes(6), split_sizes(5, even=True)
    ([1, 2, 3, 6], [1, 2, 3, 4, 5, 6])
    """
    root = math.isqrt(size)
    parts = {-(-size // s) for s in range(1, root + 1)} | set(range(1, root + 1))
    splits = {-(-size // part) for part in parts}
    if even:
        splits |= {s + 1 for s in splits if s % 2 and s > 1}
    return sorted(s for s in splits if s <= most)


def product_work(groups: int, rows: int, inner: int, columns: int, tiles: int) -> ProductWork:
    """A product of matrices as a convolution: rows are positions, columns are output channels."""
    splits = np.array(split_sizes(rows, most=tiles), np.float64)
    part = ceil_div(rows, splits)
    return ProductWork(groups, inner, columns, 1, 1, Positions(splits, np.ones_like(part), part, part, part))


def _few(size: int, most: int) -> list[int]:
    """Powers of two and the whole, as splits."""
    return sorted(
        {*(2**i for i in range(size.bit_length()) if 2**i <= min(size, most)), *([size] if size <= 8 else [])}
    )


def _spans(outputs: Array, kernel: int, stride: int, dilation: int, whole: int) -> Array:
    """Inputs under a range of outputs; a kernel that is smaller than its stride skips some."""
    return np.minimum(np.minimum((outputs - 1) * stride + dilation * (kernel - 1) + 1, outputs * kernel), whole)


def convolution_work(shape: ConvolutionShape, tiles: int) -> ProductWork:
    """One pass of a convolution in the common form."""
    shape = shape.direct
    g = shape.groups
    inputs, outputs = shape.in_channels // g, shape.out_channels // g
    height, columns = math.prod(shape.kernel[:-1]), shape.kernel[-1]
    stride = max(shape.stride)
    if shape.kind is ProductPass.WEIGHT_GRADIENT:
        return _weight_gradient(shape, inputs, outputs, height * columns, tiles)
    forward = shape.kind is ProductPass.FORWARD
    field = shape.output if forward else shape.input
    under = shape.input if forward else shape.output
    rows, width = math.prod(field[:-1]), field[-1]
    batches, ys, xs = np.meshgrid(
        split_sizes(shape.batch, most=tiles), split_sizes(rows, most=tiles), _few(width, tiles), indexing="ij"
    )
    keep = batches * ys * xs <= tiles
    splits = [it[keep].astype(np.float64) for it in (batches, ys, xs)]
    b, y, x = (ceil_div(size, split) for size, split in zip((shape.batch, rows, width), splits, strict=True))
    high_stride = max(shape.stride[:-1], default=1)
    if forward:
        high = _spans(y, height, high_stride, max(shape.dilation[:-1], default=1), math.prod(under[:-1]))
        wide = _spans(x, columns, shape.stride[-1], shape.dilation[-1], under[-1])
        touched_rows, touched = y, x
    else:
        touched_rows, touched = np.ceil(y / high_stride), np.ceil(x / shape.stride[-1])
        high = np.minimum(touched_rows + (height - 1) // high_stride, math.prod(under[:-1]))
        wide = np.minimum(touched + (columns - 1) // shape.stride[-1], under[-1])
        inputs, outputs = outputs, inputs
    positions = Positions(splits[0] * splits[1] * splits[2], b * touched_rows, touched, b * y * x, b * high * wide)
    return ProductWork(g, inputs, outputs, height, columns, positions, stride)


def _weight_gradient(shape: ConvolutionShape, inputs: int, outputs: int, taps: int, tiles: int) -> ProductWork:
    """Positions are weights of one output channel; the sum goes over all positions of all samples."""
    channel, tap = np.meshgrid(split_sizes(inputs, most=tiles), split_sizes(taps, most=tiles), indexing="ij")
    keep = channel * tap <= tiles
    channels, kernels = channel[keep].astype(np.float64), tap[keep].astype(np.float64)
    c, k = ceil_div(inputs, channels), ceil_div(taps, kernels)
    field = shape.batch * math.prod(shape.output)
    under = shape.batch * math.prod(n + 2 * p for n, p in zip(shape.input, shape.padding, strict=True))
    reads = c * np.minimum(k, max(1.0, under / field))
    return ProductWork(
        shape.groups, field, outputs, 1, 1, Positions(channels * kernels, np.ones_like(c), c * k, c * k, reads),
        transposes=True,
    )  # fmt: skip


__all__ = [
    "ConvolutionShape",
    "ProductPass",
    "Positions",
    "ProductWork",
    "convolution_work",
    "product_work",
    "split_sizes",
]
