"""What is known about each operation: its kind, and how it treats its operands.

Schemas and tags of torch answer most questions (does it write, draw random numbers, look at the memory of its operand);
one table by name (:mod:`poptorch.ops.traits_table`) answers the rest. Passes, code generators and cost models ask here
instead of keeping lists of their own.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from poptorch import work
from poptorch.ops.traits_table import KNOWN_AS, ROWS, WEIGHTS


class OpKind(enum.Enum):
    """What an operation does, as far as planners and cost models care. Gradients are of the kind of their operation."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    LINALG = "linalg"
    """Decompositions, solvers and determinants."""

    FFT = "fft"
    ELEMENTWISE = "elementwise"
    ACTIVATION = "activation"
    REDUCTION = "reduction"
    SCAN = "scan"
    """Cumulative sums and the like."""

    SORT = "sort"
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    GATHER = "gather"
    SCATTER = "scatter"
    POOLING = "pooling"
    RESAMPLING = "resampling"
    LOSS = "loss"
    RANDOM = "random"
    COPY = "copy"
    """Moves elements: concatenation, padding, conversion of types."""

    VIEW = "view"
    CREATION = "creation"
    OPTIMIZER = "optimizer"
    HOST = "host"
    """Calls of user functions, prints, and questions that Python asks."""

    CONTROL = "control"
    """Loops and branches."""

    HINT = "hint"
    """Identities that tell the compiler something."""

    COLLECTIVE = "collective"
    """Exchanges values between replicas."""

    CUSTOM = "custom"
    """Operators that users registered."""

    STRUCTURE = "structure"
    """No operator: takes one result of several."""

    OTHER = "other"


class HalfSupport(enum.Enum):
    """How a CPU computes an operation on float16."""

    WIDE = "wide"
    """In float32: float16 is slower, less exact or pickier about mixed operands."""

    NATIVE = "half"
    """By a float16 kernel that is known to exist."""

    UNKNOWN = ""


@dataclass(frozen=True)
class Traits:
    """What is known about one operator."""

    name: str
    """``mm`` for ``aten.mm.default``; empty for what is no operator."""

    namespace: str
    kind: OpKind
    is_view: bool = False
    """Whether a result shares memory with an operand, as the schema says."""

    may_be_view: bool = False
    """Whether a result may share memory with the first operand, whatever the schema says."""

    is_in_place: bool = False
    """Whether it writes to an operand."""

    is_random: bool = False
    is_pointwise: bool = False
    """Whether each element of the result depends on the elements at the same place only."""

    is_norm: bool = False
    is_backward: bool = False
    """Whether it computes gradients."""

    moves_only: bool = False
    """Whether it moves, chooses or makes up values instead of computing new ones."""

    keeps_elements: bool = False
    """A view of all elements of its operand."""

    is_fresh: bool = False
    """Whether its result is known to lie in memory of its own."""

    compares_order: bool = False
    divides: bool = False
    repeats_after_norm: bool = False
    """An activation function that is cheap enough to be computed again together with a normalisation."""

    half: HalfSupport = HalfSupport.UNKNOWN
    weight: int | None = None
    """Which argument is the weight, where it stands at a fixed place."""

    known_as: str = ""
    """The name that people know: ``MatMul`` for ``mm``."""

    @property
    def is_aten(self) -> bool:
        """Whether it is one of torch's own operators."""
        return self.namespace == "aten"

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices, convolutions included: it has partial sums."""
        return self.is_aten and self.kind in _PRODUCTS


_PRODUCTS = {OpKind.PRODUCT, OpKind.CONVOLUTION, OpKind.ATTENTION, OpKind.RECURRENT}
_STRUCTURE = Traits("", "", OpKind.STRUCTURE)


def traits_of(operation: Any) -> Traits:
    """The traits of a node, or of an operator overload.

    >>> traits_of(torch.ops.aten.mm.default).kind
    <OpKind.PRODUCT: 'product'>
    >>> traits_of(torch.ops.aten.add_.Tensor).is_in_place
    True
    """
    target = operation.target if isinstance(operation, fx.Node) else operation
    return _traits(target) if isinstance(target, torch._ops.OpOverload) else _STRUCTURE


@cache
def _traits(overload: torch._ops.OpOverload) -> Traits:
    schema, tags = overload._schema, overload.tags
    namespace, _, name = schema.name.rpartition("::")
    kind, flags = _TABLE.get(name, (None, frozenset()))
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    is_random = torch.Tag.nondeterministic_seeded in tags
    pointwise = torch.Tag.pointwise in tags
    if namespace != "aten":
        kind, flags = (kind if namespace in ("poptorch", "prims") else _foreign_kind(namespace, name)), frozenset()
    if kind is None:
        kind = _derived_kind(name, is_view, is_random, pointwise, torch.Tag.reduction in tags)
    return Traits(
        name,
        namespace,
        kind,
        is_view=is_view,
        may_be_view=is_view or "maybe view" in flags,
        is_in_place=schema.is_mutable,
        is_random=is_random,
        is_pointwise=pointwise,
        is_norm=_is_norm(name),
        is_backward="backward" in name,
        moves_only="moves" in flags or (namespace == "aten" and name.startswith(_MOVING)),
        keeps_elements="same" in flags,
        is_fresh="fresh" in flags,
        compares_order="order" in flags,
        divides="divides" in flags,
        repeats_after_norm="again" in flags,
        half=next((h for h in HalfSupport if h.value in flags), HalfSupport.UNKNOWN),
        weight=WEIGHTS.get(name) if namespace == "aten" else None,
        known_as=KNOWN_AS.get(name) or "".join(word.capitalize() for word in name.split("_")),
    )


_MOVING = ("new_", "index", "scatter", "empty", "zeros", "ones", "full")
_TABLE = {
    name: (OpKind(kind), frozenset(filter(None, flags.split(", "))))
    for kind, flags, names in ROWS
    for name in names.split()
}


def _is_norm(name: str) -> bool:
    return any(word in name for word in ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"))


def _foreign_kind(namespace: str, name: str) -> OpKind:
    """The kind of an operator of another library: its name may say it, and otherwise it is the user's own."""
    if namespace in ("mkldnn", "mkl", "quantized", "torchvision"):
        return _derived_kind(name, False, False, False, False)
    return OpKind.CUSTOM


def _derived_kind(name: str, view: bool, random: bool, pointwise: bool, reduction: bool) -> OpKind:
    """The kind of an operator that is not in the table under its own name."""
    if view:
        return OpKind.VIEW
    if name.startswith("_fused_") and not _is_norm(name):
        return OpKind.OPTIMIZER
    for stem in _stems(name):
        if stem in _TABLE:
            return _TABLE[stem][0]
    if random:
        return OpKind.RANDOM
    if _is_norm(name):
        return OpKind.NORMALISATION
    for words, kind in _WORDS:
        if any(word in name for word in words):
            return kind
    if pointwise:
        return OpKind.ELEMENTWISE
    return OpKind.REDUCTION if reduction else OpKind.OTHER


def _stems(name: str) -> Iterator[str]:
    """Names of operations that this one is a form of.

    >>> list(_stems("_foreach_add_"))
    ['foreach_add', '_foreach_add', 'add', '_add']
    """
    for prefix in ("_", "_foreach_"):
        bare = name.removeprefix(prefix)
        for suffix in ("_backward_data", "_double_backward", "_backward", "_forward", "_copy", "_jvp"):
            bare = bare.removesuffix(suffix)
        bare = bare.rstrip("_")
        yield from (bare, f"_{bare}")


_WORDS: tuple[tuple[tuple[str, ...], OpKind], ...] = (
    (("attention",), OpKind.ATTENTION),
    (("rnn", "lstm", "gru"), OpKind.RECURRENT),
    (("conv",), OpKind.CONVOLUTION),
    (("softmax",), OpKind.SOFTMAX),
    (("pool",), OpKind.POOLING),
    (("loss",), OpKind.LOSS),
    (("upsample", "grid_sampl"), OpKind.RESAMPLING),
    (("fft",), OpKind.FFT),
    (("linalg_", "cholesky", "triangular_solve", "lstsq"), OpKind.LINALG),
    (("scatter", "index_put", "index_add", "index_copy", "index_fill", "index_reduce"), OpKind.SCATTER),
    (("index", "gather", "embedding", "select", "take"), OpKind.GATHER),
    (("empty", "zeros", "ones", "full", "arange", "linspace", "window"), OpKind.CREATION),
    (("pad",), OpKind.COPY),
    (("matmul", "_mm", "linear"), OpKind.PRODUCT),
    (("special_",), OpKind.ELEMENTWISE),
    (("cum",), OpKind.SCAN),
)


# -- of nodes ----------------------------------------------------------------------------------------------------------


def bytes_of(node: fx.Node) -> int:
    """Bytes that an operation reads and writes: its operands and its result.

    An operation with several results has these counted where they are taken apart, so that a sum over a program counts
    each once. Views count what they show: who thinks that looking is free asks :attr:`Traits.is_view`.
    """
    return work.num_bytes(n.meta.get("val") for n in (node, *node.all_input_nodes))


def flops_of(node: fx.Node) -> float:
    """Floating-point operations, for what torch has a formula."""
    target = node.target
    if not work.has_formula(target):
        return 0.0
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return work.flops(target, args, kwargs, node.meta["val"])


__all__ = ["HalfSupport", "OpKind", "Traits", "bytes_of", "flops_of", "traits_of"]
