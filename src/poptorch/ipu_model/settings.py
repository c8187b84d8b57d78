"""What options say about the cost of operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from poptorch.compiler.settings import BackendSettings
from poptorch.errors import createPoptorchError

PARTIALS = MappingProxyType({"half": torch.float16, "float": torch.float32})
"""Types of partial sums, by the names that options have for them."""

DEFAULT_PROPORTION = 0.6
"""The share of tile memory that a product, convolution or table lookup may use temporarily."""


@dataclass(frozen=True)
class CostSettings:
    """Defaults for operations that say nothing themselves.

    >>> CostSettings.of(BackendSettings("half")).product_partials
    torch.float16
    """

    product_partials: torch.dtype = torch.float32
    convolution_partials: torch.dtype = torch.float32
    product_proportion: float = DEFAULT_PROPORTION
    convolution_proportion: float = DEFAULT_PROPORTION
    lookup_proportion: float = DEFAULT_PROPORTION
    """Of embeddings, gathers and scatters."""

    ipu_proportions: tuple[tuple[int, float], ...] = field(default=())
    """What options say about all operations of one IPU, by its number: it wins over the three above."""

    def __post_init__(self) -> None:
        shares = (self.product_proportion, self.convolution_proportion, self.lookup_proportion)
        for share in (*shares, *(share for _, share in self.ipu_proportions)):
            if not 0.0 <= share <= 1.0:
                raise createPoptorchError(f"An available-memory proportion must be between 0 and 1, not {share!r}.")

    @classmethod
    def of(cls, backend: BackendSettings, ipu_proportions: Mapping[int, float] | None = None) -> CostSettings:
        """The settings in options for the backend, and in ``setAvailableMemoryProportion``."""

        def share(chosen: float | None) -> float:
            return DEFAULT_PROPORTION if chosen is None else chosen

        return cls(
            product_partials=partials_type(backend.product_partials),
            convolution_partials=partials_type(backend.convolution_partials),
            product_proportion=share(backend.product_proportion),
            convolution_proportion=share(backend.convolution_proportion),
            ipu_proportions=tuple(sorted((ipu_proportions or {}).items())),
        )

    def proportion_on(self, ipu: int | None, otherwise: float) -> float:
        """The share for an operation on one IPU."""
        return dict(self.ipu_proportions).get(ipu, otherwise) if ipu is not None else otherwise


def partials_type(name: Any) -> torch.dtype:
    """The element type of a name; float32 where nothing is said.

    >>> partials_type("half"), partials_type(None)
    (torch.float16, torch.float32)
    """
    if name is None:
        return torch.float32
    known = PARTIALS.get(str(name).lower())
    if known is None:
        raise createPoptorchError(f"{name!r} is no type of partial sums: there are 'half' and 'float'.")
    return known


__all__ = ["DEFAULT_PROPORTION", "PARTIALS", "CostSettings", "partials_type"]
