"""The library of each product, decided from its shape and what was measured of the machine."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from poptorch import environment
from poptorch.libraries import onednn
from poptorch.libraries.calibration import KINDS, Calibration, ProductKind, calibration

LEAST_WORK = 1 << 19
"""Multiplications in a product below which nobody asks: calling another library takes longer than it could gain."""

LEAST_GAIN = math.log2(1.15)
"""How much faster oneDNN must have been, as a logarithm: products nearby are not exactly like those measured."""


class Library(enum.Enum):
    """What multiplies."""

    MKL = "mkl"
    """Whatever torch's own operators call."""

    ONEDNN = "onednn"


@dataclass(frozen=True)
class MatrixProduct:
    """A product of float32 matrices, or of batches of them, as it lies in memory.

    >>> MatrixProduct.of(torch.empty(4, 8), torch.empty(16, 8).t())
    MatrixProduct(rows=4, terms=8, columns=16, transposed=(False, True), batch=0, packed=False)
    >>> MatrixProduct.of(torch.empty(4, 8, dtype=torch.float64), torch.empty(8, 4, dtype=torch.float64))
    """

    rows: int
    terms: int
    columns: int
    transposed: tuple[bool, bool] = (False, False)
    batch: int = 0
    packed: bool = False

    @staticmethod
    def of(left: torch.Tensor, right: torch.Tensor) -> MatrixProduct | None:
        """The product of two tensors; ``None`` where there is no choice, as for other types than float32."""
        if left.dtype is not torch.float32 or right.dtype is not torch.float32 or left.ndim != right.ndim:
            return None
        if left.ndim not in (2, 3) or left.device.type not in ("cpu", "meta") or left.layout is not torch.strided:
            return None
        *batch, rows, terms = left.shape
        layouts = _is_transposed(left), _is_transposed(right)
        return MatrixProduct(rows, terms, right.shape[-1], layouts, batch[0] if batch else 0)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """What a calibration knows products by."""
        return self.rows, self.terms, self.columns

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch else ""
        return f"{batch}{self.rows} x {self.terms} x {self.columns}, {self.kind.name}"

    @property
    def work(self) -> int:
        """How many numbers are multiplied."""
        return self.rows * self.terms * self.columns * max(self.batch, 1)

    @property
    def kind(self) -> ProductKind:
        """The kind of calibrated products that it is like."""
        transposed = (True, False) if all(self.transposed) else self.transposed
        form = transposed, self.batch > 1, self.packed
        return next(kind for kind in KINDS if form == (kind.transposed, kind.batch > 1, kind.packed))


EXAMPLES = (
    MatrixProduct(16, 64, 64, (False, True)),
    MatrixProduct(64, 256, 256, (False, True)),
    MatrixProduct(512, 256, 1024, (False, True)),
    MatrixProduct(512, 1024, 256),
    MatrixProduct(1024, 512, 256, (True, False)),
    MatrixProduct(512, 1024, 1024, (False, True), packed=True),
    MatrixProduct(128, 64, 128, (False, True), 16),
)
"""What is told of a machine: a layer of three sizes, its gradients, a layer that is not trained, attention."""


def _is_transposed(matrix: torch.Tensor) -> bool:
    rows, columns = matrix.stride()[-2:]
    return rows == 1 and columns != 1


@dataclass(frozen=True)
class Libraries:
    """The choice for all products of a program: either one library, or what a calibration says.

    >>> Libraries(Library.ONEDNN).choose(MatrixProduct(512, 512, 512))
    <Library.ONEDNN: 'onednn'>
    >>> Libraries().choose(MatrixProduct(512, 512, 512))
    <Library.MKL: 'mkl'>
    """

    forced: Library = Library.MKL
    calibration: Calibration | None = None
    threads: int = 1
    """How many share a product."""

    def choose(self, product: MatrixProduct | None) -> Library:
        """The library of one product."""
        if product is None or not product.work:
            return Library.MKL
        if self.calibration is None:
            return self.forced
        if product.work < LEAST_WORK:
            return Library.MKL
        gain = self.calibration.gain(product.kind, product.sizes, self.threads)
        return Library.ONEDNN if gain > LEAST_GAIN else Library.MKL

    def takes_onednn(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Whether oneDNN multiplies two tensors."""
        if self == MKL_ALONE:
            return False
        return self.choose(MatrixProduct.of(left, right)) is Library.ONEDNN

    @property
    def identity(self) -> str:
        """What code depends on."""
        return self.forced.value if self.calibration is None else f"{self.calibration.identity} for {self.threads}"

    def summary(self, products: Iterable[MatrixProduct]) -> str:
        """How many products go where, for people."""
        counts = Counter(self.choose(product).value for product in products)
        return ", ".join(f"{count} by {name}" for name, count in sorted(counts.items())) or "none"


MKL_ALONE = Libraries()


def requested() -> str:
    """What ``POPTORCH_PRODUCTS`` asks for."""
    return environment.PRODUCTS.read()


def libraries_for(products: Iterable[MatrixProduct], threads: int) -> Libraries:
    """The choice for a program with these products, where each may use so many threads.

    The machine is looked at only for programs with products that are large enough to care. Where torch was told not to
    use oneDNN, or to be less exact than float32, its own operators know best.
    """
    wanted = requested()
    usable = torch.backends.mkldnn.enabled and torch.get_float32_matmul_precision() == "highest"
    if wanted == Library.MKL.value or not usable:
        return MKL_ALONE
    if wanted == Library.ONEDNN.value:
        return Libraries(Library.ONEDNN) if onednn.is_there() else MKL_ALONE
    if all(product.work < LEAST_WORK for product in products):
        return MKL_ALONE
    measured = calibration()
    return MKL_ALONE if measured is None else Libraries(Library.MKL, measured, threads)
