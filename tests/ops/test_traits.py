"""What is known about operations: from schemas, tags and the one table."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch
from poptorch.ops import hints
from poptorch.ops.host import HOST_CALL
from poptorch.ops.traits import HalfSupport, OpKind, bytes_of, flops_of, traits_of
from poptorch.ops.traits_table import KNOWN_AS, ROWS, WEIGHTS

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("overload", "kind"),
    [
        (aten.mm.default, OpKind.PRODUCT),
        (aten.convolution_backward.default, OpKind.CONVOLUTION),
        (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, OpKind.ATTENTION),
        (aten.mkldnn_rnn_layer.default, OpKind.RECURRENT),
        (aten._linalg_eigh.default, OpKind.LINALG),
        (aten._fft_r2c.default, OpKind.FFT),
        (aten.add_.Tensor, OpKind.ELEMENTWISE),
        (aten._foreach_addcdiv_.Scalar, OpKind.ELEMENTWISE),
        (aten.special_erfcx.default, OpKind.ELEMENTWISE),
        (aten.celu.default, OpKind.ACTIVATION),
        (aten.mish_backward.default, OpKind.ACTIVATION),
        (aten.var_mean.correction, OpKind.REDUCTION),
        (aten.cumsum.default, OpKind.SCAN),
        (aten.topk.default, OpKind.SORT),
        (aten._native_batch_norm_legit.default, OpKind.NORMALISATION),
        (aten._fused_rms_norm.default, OpKind.NORMALISATION),
        (aten._log_softmax_backward_data.default, OpKind.SOFTMAX),
        (aten.index.Tensor, OpKind.GATHER),
        (aten.index_put_.default, OpKind.SCATTER),
        (aten.adaptive_max_pool3d_backward.default, OpKind.POOLING),
        (aten.upsample_bicubic2d_backward.default, OpKind.RESAMPLING),
        (aten.huber_loss_backward.default, OpKind.LOSS),
        (aten.bernoulli.p, OpKind.RANDOM),
        (aten.cat.default, OpKind.COPY),
        (aten.slice.Tensor, OpKind.VIEW),
        (aten.new_empty_strided.default, OpKind.CREATION),
        (aten._fused_adam_.tensor_lr, OpKind.OPTIMIZER),
        (hints.NOP, OpKind.HINT),
        (HOST_CALL, OpKind.HOST),
        (torch.ops.poptorch.for_loop.default, OpKind.CONTROL),
        (torch.ops.poptorch.custom_op.default, OpKind.CUSTOM),
        (operator.getitem, OpKind.STRUCTURE),
    ],
    ids=str,
)
def test_kinds(overload, kind):
    assert traits_of(overload).kind is kind


def test_every_operator_of_the_package_has_a_kind():
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("poptorch::")]
    assert len(names) > 20
    overloads = [getattr(torch.ops.poptorch, name.removeprefix("poptorch::")).default for name in names]
    kinds = {str(overload): traits_of(overload).kind for overload in overloads}
    assert OpKind.OTHER not in kinds.values(), kinds


def test_every_hint_is_one():
    assert {traits_of(hint).kind for hint in (hints.NOP, *hints.HINTS)} == {OpKind.HINT}


def test_schemas_and_tags():
    assert traits_of(aten.add_.Tensor).is_in_place
    assert not traits_of(aten.add.Tensor).is_in_place
    assert traits_of(aten.transpose.int).is_view
    assert not traits_of(aten.add_.Tensor).is_view
    assert traits_of(aten.reshape.default).may_be_view
    assert traits_of(aten.rand.default).is_random
    assert traits_of(aten.exp.default).is_pointwise
    assert traits_of(aten.native_layer_norm_backward.default).is_norm
    assert traits_of(aten.native_layer_norm_backward.default).is_backward
    assert traits_of(aten.mm.default).half is HalfSupport.WIDE
    assert traits_of(aten.mm.default).known_as == "MatMul"
    assert traits_of(aten.log_sigmoid_forward.default).known_as == "LogSigmoidForward"


def test_flags_hold_for_torch_alone():
    library = torch.library.Library("traits_test", "DEF")
    library.define("relu(Tensor x) -> Tensor")
    traits = traits_of(torch.ops.traits_test.relu.default)
    assert (traits.name, traits.namespace, traits.kind) == ("relu", "traits_test", OpKind.CUSTOM)
    assert not traits.moves_only
    assert not traits.repeats_after_norm


def test_no_name_is_listed_twice():
    names = [name for _, _, listed in ROWS for name in listed.split()]
    assert len(names) == len(set(names))
    assert {*WEIGHTS, *KNOWN_AS} <= set(names)


def test_listed_names_exist():
    known = {n.split("::")[1].split(".")[0] for n in torch._C._dispatch_get_all_op_names()}
    missing = {name for _, _, listed in ROWS for name in listed.split()} - known
    assert not missing, "a name that does not exist says nothing"


def nodes_of(function, *inputs) -> dict[str, fx.Node]:
    graph = make_fx(function)(*inputs).graph
    for node in graph.nodes:
        node.meta.setdefault("val", node.meta.get("tensor_meta"))
    return {traits_of(n).name or n.op: n for n in graph.nodes}


def test_bytes_and_flops_of_nodes():
    found = nodes_of(lambda a, b: (a @ b).relu(), torch.ones(2, 3), torch.ones(3, 4))
    assert flops_of(found["mm"]) == 2 * 2 * 3 * 4
    assert bytes_of(found["mm"]) == 4 * (2 * 3 + 3 * 4 + 2 * 4)
    assert flops_of(found["relu"]) == 0
    assert bytes_of(found["relu"]) == 4 * 2 * 2 * 4


def test_several_results_are_counted_where_they_are_taken():
    graph = make_fx(lambda x: torch.ops.aten.var_mean.correction(x, [0]), tracing_mode="fake")(torch.ones(3, 4)).graph
    (call,) = graph.find_nodes(op="call_function", target=aten.var_mean.correction)
    assert bytes_of(call) == 4 * 3 * 4
    assert [bytes_of(n) for n in graph.find_nodes(op="call_function", target=operator.getitem)] == [16, 16]


def test_labels_of_values_use_the_table():
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2))
    assert "Gemm:0" in model.getTensorNames()
