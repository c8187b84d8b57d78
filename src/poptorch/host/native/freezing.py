"""Inductor's rewritings for weights that stay the same over many calls, run on weights that are not known yet.

Inductor folds batch norms into convolutions and packs weights into a library's layout when the weights are constants,
and evaluates these at once. Here they are attributes without values: after each rewriting, whatever depends on them
alone moves into a :class:`~poptorch.host.native.preparation.Preparation`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch.host.native.preparation import Preparation
from poptorch.host.native.products import packed_operator
from poptorch.libraries.choice import Libraries, Library, MatrixProduct

aten = torch.ops.aten

_ROUNDS = 8
"""Batch norm is four binary operations after a convolution, each folded in one round."""


def freeze(
    graph_module: fx.GraphModule,
    mode: FakeTensorMode,
    weights: Mapping[fx.Node, torch.Tensor],
    libraries: Libraries,
) -> Preparation:
    """Fold, hoist and pack all that depends on ``weights`` (placeholders, with their descriptions).

    ``libraries`` says for which of them weights are packed.
    The graph loses these inputs and gains, after all others, what the preparation computes.
    """
    from torch._inductor import config
    from torch._inductor.freezing import enforce_output_layout
    from torch._inductor.fx_passes import freezing_patterns
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch._inductor.pattern_matcher import stable_topological_sort

    freezing_patterns.lazy_init()
    enforce_output_layout(graph_module)  # packed convolutions have an order of their own, the user sees the old one
    view_to_reshape(graph_module)
    preparation = Preparation(graph_module, mode, weights)
    preparation.hoist()
    graph = graph_module.graph
    with config.patch({"enable_linear_binary_folding": True}), _transposed_aside(graph):
        for _ in range(_ROUNDS):
            if not freezing_patterns.binary_folding_pass.apply(graph):
                break
            preparation.hoist()
    for pattern in freezing_patterns.pass_patterns:
        pattern.apply(graph)
    _packed_for_onednn(graph, libraries)
    _own_linear(graph)
    stable_topological_sort(graph)
    preparation.hoist()
    preparation.finish()
    graph.lint()
    return preparation


@contextlib.contextmanager
def _transposed_aside(graph: fx.Graph) -> Iterator[None]:
    """Hide transposed convolutions: folding takes the first axis of their weights for the output channels."""
    hidden = [n for n in graph.find_nodes(op="call_function", target=aten.convolution.default) if n.args[6]]
    for node in hidden:
        node.target = aten.convolution_overrideable.default
    try:
        yield
    finally:
        for node in graph.find_nodes(op="call_function", target=aten.convolution_overrideable.default):
            node.target = aten.convolution.default


def _packed_for_onednn(graph: fx.Graph, libraries: Libraries) -> None:
    """Layers that oneDNN multiplies faster have their weights packed for it; Inductor packs all of them for MKL."""
    if not torch._C.has_mkl:
        return
    for node in graph.find_nodes(op="call_function", target=torch.ops.mkl._mkl_linear):
        x, _, transposed, bias, rows = node.args
        weight = transposed.args[0].meta["val"]  # the pattern transposed it
        if weight.dtype is not torch.float32:
            continue
        product = MatrixProduct(rows, weight.shape[0], weight.shape[1], (False, True), packed=True)
        if libraries.choose(product) is Library.ONEDNN:
            with graph.inserting_before(node):
                packed = graph.call_function(torch.ops.mkldnn._reorder_linear_weight, (transposed, rows))
                total = graph.call_function(packed_operator(), (x, packed))
                if bias is not None:
                    total = graph.call_function(aten.add.Tensor, (total, bias))
            node.replace_all_uses_with(total)
            total.meta.update({k: v for k, v in node.meta.items() if k != "val"})
            graph.erase_node(node)


def _own_linear(graph: fx.Graph) -> None:
    """Inductor's packed linear layer wants weights that are constants: ours takes any.

    Of the weight as it was before packing only the size is looked at, so one row repeated stands for it, and a folded
    weight need not be kept.
    """
    for node in graph.nodes:
        if torch._C.has_mkl and node.target is torch.ops.mkl._mkl_linear:
            x, packed, weight, *rest = node.args
            outputs, inputs = reversed(weight.args[0].meta["val"].shape)  # the pattern transposed it
            with graph.inserting_before(node):
                row = graph.call_function(aten.new_empty.default, (weight, [1, inputs]))
                size = graph.call_function(aten.expand.default, (row, [outputs, inputs]))
            node.target = _packed_linear()
            node.args = (x, packed, size, *rest)


@cache
def linear_operator() -> Any:
    """``poptorch_frozen::linear``, known to PyTorch."""
    library = torch.library.Library("poptorch_frozen", "DEF")
    library.define("linear(Tensor x, Tensor packed, Tensor weight, Tensor? bias, SymInt rows) -> Tensor")
    for key in ("CPU", "MkldnnCPU"):  # packed weights are of the second kind
        library.impl("linear", lambda *args: torch.ops.mkl._mkl_linear(*args), key)
    library.impl("linear", lambda x, packed, weight, *_: x.new_empty(*x.shape[:-1], weight.shape[0]), "Meta")
    overload = torch.ops.poptorch_frozen.linear.default
    _libraries.append(library)
    return overload


@cache
def _packed_linear() -> Any:
    """The operator, known to Inductor as well."""
    from torch._inductor import lowering
    from torch._inductor.ir import TensorBox
    from torch._inductor.mkldnn_ir import MKLPackedLinear

    overload = linear_operator()

    @lowering.register_lowering(overload, type_promotion_kind=None)
    def lower(x: Any, packed: Any, weight: Any, bias: Any, rows: int) -> Any:
        product = TensorBox.create(MKLPackedLinear.create(x, packed, weight, None, rows))
        # Apart from the product, because it melts into the operations that follow.
        return product if bias is None else lowering.add(product, bias)

    lowering.add_needs_realized_inputs([overload])
    return overload


_libraries: list[Any] = []  # they live as long as the process
