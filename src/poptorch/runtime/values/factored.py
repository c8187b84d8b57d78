"""Gradients that are products of two smaller matrices, not multiplied yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from poptorch.libraries import onednn
from poptorch.libraries.choice import MKL_ALONE, Libraries


@dataclass(frozen=True)
class Product:
    """``left @ right``, not multiplied yet.

    >>> product = Product(torch.ones(3, 2), torch.ones(3, 4), (True, False))
    >>> total = torch.ones(2, 4)
    >>> product.add_to(total)
    >>> total[0]
    tensor([4., 4., 4., 4.])
    """

    left: torch.Tensor
    right: torch.Tensor
    transposed: tuple[bool, bool] = (False, False)

    @property
    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = self.left, self.right
        return left.t() if self.transposed[0] else left, right.t() if self.transposed[1] else right

    @property
    def dtype(self) -> torch.dtype:
        return self.left.dtype

    @property
    def elements(self) -> int:
        """Of both factors together."""
        return self.left.numel() + self.right.numel()

    @property
    def length(self) -> int:
        """How many products of numbers are added up for each element."""
        return self.factors[0].shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        left, right = self.factors
        return left.shape[0], right.shape[1]

    def value(self) -> torch.Tensor:
        """The matrix itself."""
        return torch.mm(*self.factors)

    def add_to(
        self, total: torch.Tensor, *, keep: float = 1.0, share: float = 1.0, libraries: Libraries = MKL_ALONE
    ) -> None:
        """``keep`` times ``total`` and ``share`` times the product, in place; ``keep=0`` looks at nothing."""
        left, right = self.factors
        if total.dtype is torch.float32 and total.is_contiguous() and libraries.takes_onednn(left, right):
            onednn.matmul_into(left, right, total, keep, share)
        else:
            total.addmm_(left, right, beta=keep, alpha=share)

    @staticmethod
    def sum(products: Sequence[Product]) -> Product:
        """Several products of the same form as a single one, of longer factors."""
        if len(products) == 1:
            return products[0]
        left_transposed, right_transposed = transposed = products[0].transposed
        left = torch.cat([p.left for p in products], 0 if left_transposed else 1)
        right = torch.cat([p.right for p in products], 1 if right_transposed else 0)
        return Product(left, right, transposed)


Gradient = torch.Tensor | Product
