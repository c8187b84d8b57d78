"""Published measurements of single operations, small programs and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from poptorch.ipu_model.architecture import architecture
from poptorch.ipu_model.cycles.convolution import matrix_1x1, matrix_unit
from poptorch.ipu_model.cycles.scaled_add import scaled_add
from poptorch.ipu_model.estimation import estimate
from poptorch.ipu_model.result import Estimate
from poptorch.ipu_model.validation.transformers import LARGE, AnsweringBert
from poptorch.options import Options

LAUNCH = 98
"""Cycles that the measurements of a single vertex contain beside it: one more compute set, and reading the counter."""


@dataclass(frozen=True)
class Measurement:
    """One published number that is no throughput of an application."""

    group: str
    name: str
    unit: str
    published: float
    predict: Callable[[], float] = field(repr=False)


PRODUCTS: Mapping[int, int] = {
    16: 402, 32: 461, 64: 584, 128: 845, 256: 1352, 512: 2381, 1024: 4424, 1536: 6476, 2048: 8525
}  # fmt: skip
"""Tile cycles of [N, 16] x [16, 16] in float16 on a Bow IPU, by N."""

SCALED_ADDS: Mapping[int, int] = {64: 375, 128: 467, 256: 665, 512: 1043}
"""Tile cycles of ``a + s * b`` in float32, by elements."""

_MEMORY: Mapping[str, Mapping[str, float]] = {
    "24 layers on 1 IPU": {
        "vertex state": 25_460_686, "vertex code": 9_887_022, "exchange code": 27_805_164, "variables": 718_514_294
    },
    "first half": {
        "vertex state": 12_826_418, "vertex code": 9_664_672, "exchange code": 15_544_264,
        "control code": 16_535_740, "variables": 416_249_974, "largest tile": 336_670,
    },
    "second half": {
        "vertex state": 12_634_268, "vertex code": 8_081_590, "exchange code": 12_260_900,
        "control code": 16_327_096, "variables": 353_891_960, "largest tile": 291_170,
    },
}  # fmt: skip
"""Bytes of BERT-Large SQuAD inference with 128 tokens on Mk2, as the vendor's compiler reports them."""

_VARIABLES = ("weights", "constants", "buffers", "activations and temporaries")


class TwoProducts(nn.Module):
    """The program of the vendor's tutorial: a product of a product, in float32."""

    def forward(self, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
        """(900x600)(600x300)(300x200)."""
        return torch.matmul(torch.matmul(first, second), third)


def two_products() -> Estimate:
    """What the IPU Model says about them on Mk2."""
    shapes = (900, 600), (600, 300), (300, 200)
    inputs = [torch.empty(shape, device="meta") for shape in shapes]
    return estimate(TwoProducts(), Options(), *inputs, arch="mk2")


def bert_inference(half: str) -> Estimate:
    """BERT-Large for SQuAD with one sample of 128 tokens on one IPU, whole or in halves."""
    layers = 24 if "24" in half else 12
    embeds = not half.startswith("second")
    with torch.device("meta"):
        model = AnsweringBert(LARGE, (layers,), embeds, answers=not half.startswith("first")).half()
        tokens = [torch.empty(1, 128, dtype=torch.int32) for _ in range(4)]
        if not embeds:
            tokens[0] = torch.empty(1, 128, LARGE.hidden, dtype=torch.float16)
    model.eval()
    options = Options()
    options.Precision.setPartialsType(torch.float16)
    options._Popart.set("enableOutlining", False)  # so that the compiler can say what each layer needs
    return estimate(model, options, *tokens, arch="mk2")


def memory_of(found: Estimate) -> dict[str, float]:
    """Bytes of one IPU in the categories of the vendor's reports."""
    memory = found.ipus[0].memory
    kinds = {kind: memory.get(kind, 0.0) for kind in ("vertex state", "vertex code", "exchange code", "control code")}
    variables = sum(memory.get(kind, 0.0) for kind in _VARIABLES)
    return {**kinds, "variables": variables, "largest tile": found.ipus[0].peak_tile_bytes}


def _on_chip(found: Estimate) -> float:
    """Cycles of the IPU itself, without the host."""
    return sum(found.timeline.spent.on(key) for key in ("compute", "exchange", "sync"))


def _listed(found: Estimate) -> float:
    """What the report of that run lists: it has no stacks."""
    return sum(size for kind, size in found.ipus[0].memory.items() if kind not in ("gaps", "stack"))


def measurements() -> list[Measurement]:
    """All of them; models are estimated when the first of their numbers is asked for."""
    bow = architecture("bow")
    unit = matrix_unit(bow, half_inputs=True, half_partials=True)
    found = [
        Measurement("matrix vertex", f"[{n}, 16] x [16, 16], float16", "cycles", published,
                    lambda n=n: float(matrix_1x1(unit, n)))  # type: ignore[misc]
        for n, published in PRODUCTS.items()
    ]  # fmt: skip
    found += [
        Measurement("scaled add", f"{n} elements, float32", "cycles", published,
                    lambda n=n: scaled_add(n, torch.float32, torch.float32) + LAUNCH)  # type: ignore[misc]
        for n, published in SCALED_ADDS.items()
    ]  # fmt: skip
    run = "(900x600)(600x300)(300x200), Mk2"
    group = "vendor's model"
    found += [
        Measurement(group, run, "cycles", 34_655, lambda: _on_chip(two_products())),
        Measurement(group, f"{run}: variables", "bytes", 58_600_000, lambda: memory_of(two_products())["variables"]),
        Measurement(group, f"{run}: all but gaps and stacks", "bytes", 59_894_241, lambda: _listed(two_products())),
    ]
    for half, kinds in _MEMORY.items():
        cache: dict[str, float] = {}

        def bytes_of(kind: str, half: str = half, cache: dict[str, float] = cache) -> float:
            if not cache:
                cache.update(memory_of(bert_inference(half)))
            return cache[kind]

        found += [
            Measurement("memory", f"BERT-Large inference, {half}: {kind}", "bytes", published,
                        lambda kind=kind, of=bytes_of: of(kind))  # type: ignore[misc]
            for kind, published in kinds.items()
        ]  # fmt: skip
    return found


__all__ = [
    "LAUNCH",
    "PRODUCTS",
    "SCALED_ADDS",
    "Measurement",
    "bert_inference",
    "measurements",
    "memory_of",
    "two_products",
]
