"""Products by oneDNN in compiled graphs: two operators, and what Inductor writes for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx

from poptorch.libraries import onednn
from poptorch.libraries.choice import Libraries

aten = torch.ops.aten

SHIM = f"""
#ifndef POPTORCH_ONEDNN_MATMUL
#define POPTORCH_ONEDNN_MATMUL
extern "C" void {onednn.SYMBOL}(const void*, const void*, const void*, float, float);
static inline AOTITorchError aoti_torch_onednn_matmul(
    AtenTensorHandle out, AtenTensorHandle left, AtenTensorHandle right) {{
    try {{
        {onednn.SYMBOL}(left, right, out, 0.0f, 1.0f);
        return AOTI_TORCH_SUCCESS;
    }} catch (...) {{
        return AOTI_TORCH_FAILURE;
    }}
}}
#endif
"""
"""A handle of Inductor's C interface points to a tensor, as a reference in C++ does."""


def multiply_by_onednn(graph: fx.Graph, libraries: Libraries) -> None:
    """Give the products for which oneDNN is the faster library to it."""
    for target in (aten.mm.default, aten.bmm.default):
        for node in graph.find_nodes(op="call_function", target=target):
            left, right = (operand.meta["val"] for operand in node.args)
            if not node.kwargs and libraries.takes_onednn(left, right):
                node.target = matmul_operator()


@cache
def matmul_operator() -> Any:
    """``poptorch_libraries::matmul``, known to PyTorch and to Inductor."""
    from torch._inductor import lowering
    from torch._inductor.ir import ExternKernelOut, TensorBox
    from torch._inductor.kernel.mm_common import mm_args
    from torch._inductor.select_algorithm import extern_kernels

    library = torch.library.Library("poptorch_libraries", "FRAGMENT")
    library.define("matmul(Tensor left, Tensor right) -> Tensor")
    library.impl("matmul", onednn.matmul, "CPU")
    library.impl("matmul", lambda left, right: left.new_empty(*left.shape[:-1], right.shape[-1]), "Meta")
    _libraries.append(library)
    overload = torch.ops.poptorch_libraries.matmul.default

    extern_kernels.poptorch_matmul = onednn.matmul_out  # type: ignore[attr-defined]  # what code with Python between its kernels calls

    class Matmul(ExternKernelOut):
        def codegen(self, wrapper: Any) -> None:
            included = getattr(wrapper, "_included_extra_headers", None)
            if included is not None and SHIM not in included:
                included.add(SHIM)
                wrapper.header.splice(SHIM)
            super().codegen(wrapper)

    @lowering.register_lowering(overload, type_promotion_kind=None)
    def lower(left: Any, right: Any) -> Any:
        *_, layout, left, right = mm_args(left, right)
        return TensorBox.create(
            Matmul(
                layout, [left, right], python_kernel_name="extern_kernels.poptorch_matmul",
                cpp_kernel_name="aoti_torch_onednn_matmul",
            )
        )  # fmt: skip

    lowering.add_needs_realized_inputs([overload])
    return overload


@cache
def packed_operator() -> Any:
    """``poptorch_libraries::linear``: a weight that oneDNN has packed, known to PyTorch and to Inductor."""
    from torch._inductor import lowering
    from torch._inductor.ir import FixedLayout, TensorBox
    from torch._inductor.mkldnn_ir import LinearUnary

    library = torch.library.Library("poptorch_libraries", "FRAGMENT")
    library.define("linear(Tensor x, Tensor packed) -> Tensor")
    pointwise = torch.ops.mkldnn._linear_pointwise.default
    for key in ("CPU", "MkldnnCPU"):  # packed weights are of the second kind
        library.impl("linear", lambda x, packed: pointwise(x, packed, None, "none", [], ""), key)
    library.impl("linear", lambda x, packed: x.new_empty(*x.shape[:-1], packed.shape[0]), "Meta")
    _libraries.append(library)
    overload = torch.ops.poptorch_libraries.linear.default

    class PackedLinear(LinearUnary):
        @classmethod
        def make(cls, x: Any, packed: Any) -> PackedLinear:
            x = cls.require_contiguous(cls.realize_input(x))
            size = [*x.get_size()[:-1], packed.get_size()[0]]
            layout = FixedLayout(x.get_device(), x.get_dtype(), size)
            return cls(layout=layout, inputs=[x, packed], constant_args=[None, "none", [-1], ""])

    @lowering.register_lowering(overload, type_promotion_kind=None)
    def lower(x: Any, packed: Any) -> Any:
        return TensorBox.create(PackedLinear.make(x, packed))

    lowering.add_needs_realized_inputs([overload])
    return overload


_libraries: list[Any] = []  # they live as long as the process

__all__ = ["matmul_operator", "multiply_by_onednn", "packed_operator"]
