"""Mistakes in ``forward``: what cannot be compiled is refused with the line that is wrong."""

from __future__ import annotations

import gc
import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from refused import Refused, Rows, check, check_devices_are_free
from torch import nn
from torch.nn import functional as F

import poptorch
from poptorch.errors import IndexOutOfRange

X, LABELS, NUMBER = torch.ones(4, 3), torch.tensor([0, 1, 0, 1]), torch.tensor(1)
DYNAMIC = "it would produce dynamic output shapes"
UNSUPPORTED = "Unsupported ops found in compiled model"
SIZE = "The size of the sliced tensor must be a constant"

rows = Rows()
"""Each is the forward method of a model with a layer, a buffer and the arguments of its row, X by default."""


@rows(DYNAMIC)
def nonzero(self, x):
    return torch.nonzero(x)  # here


@rows(DYNAMIC)
def mask_as_index(self, x):
    return x[x > 0].sum()  # here


@rows(DYNAMIC)
def masked_select(self, x):
    return torch.masked_select(x, x > 0)  # here


@rows(DYNAMIC)
def where_with_one_argument(self, x):
    return torch.where(x > 0)[0]  # here


@rows(UNSUPPORTED)
def unique(self, x):
    return torch.unique(x)  # here


@rows(UNSUPPORTED, args=(X, torch.tensor([1, 2, 1, 1])))
def repeat_interleave(self, x, counts):
    return torch.repeat_interleave(x, counts, 0)  # here


@rows(UNSUPPORTED, args=(torch.ones(4, 3, 2), torch.tensor([3, 2, 2, 1])))
def packed_sequence(self, x, lengths):
    return nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True).data  # here


@rows("Bincount `minlength` must be specified", args=(LABELS,))
def bincount(self, x):
    return torch.bincount(x)  # here


@rows("OneHot num classes must be specified", args=(LABELS,))
def one_hot(self, x):
    return F.one_hot(x)  # here


@rows(SIZE, args=(X, NUMBER))
def slice_to_a_tensor(self, x, n):
    return x[:n]  # here


@rows(SIZE, args=(X, NUMBER, NUMBER + 1))
def slice_between_tensors(self, x, i, j):
    return x[i:j]  # here


@rows("makes a NumPy array of a tensor")
def numpy_array(self, x):
    return torch.from_numpy(x.numpy() * 2)  # here


@rows("makes a NumPy array of a tensor")
def numpy_function(self, x):
    return x * float(np.asarray(x).mean())  # here


@rows("saves or pickles a tensor")
def saved_tensor(self, x):
    torch.save(x, io.BytesIO())  # here
    return x


@rows("names the device 'cuda'")
def moved_to_cuda(self, x):
    return x.cuda()  # here


@rows("names the device 'cuda:1'")
def moved_to_a_named_device(self, x):
    return x.to("cuda:1")  # here


@rows("names the device 'cuda'")
def made_on_cuda(self, x):
    return x + torch.zeros(3, device="cuda")  # here


@rows("names the device 'mps'")
def made_on_another_device(self, x):
    return x + torch.zeros(3, device=torch.device("mps"))  # here


@rows("The model returns a builtins.set (output)")
def returns_a_set(self, x):
    return {x, x + 1}


@rows("The model returns a builtins.generator (output[0])")
def returns_a_generator(self, x):
    return [y for _ in range(1) for y in [(z for z in [x + 1])]]


@rows("layout torch.sparse_coo")
def returns_a_sparse_tensor(self, x):
    return x.to_sparse()


@rows("Returning a torch.complex64 is not supported")
def returns_complex_numbers(self, x):
    return torch.fft.fft(x)  # here


@rows("nothing to compute")
def returns_nothing(self, x):
    (x + 1).sum()


@rows("Parameter fc.weight is reassigned")
def assigns_a_parameter(self, x):
    self.fc.weight = nn.Parameter(self.fc.weight * 2)
    return self.fc(x)


@rows("Buffer buffer is reassigned")
def assigns_a_buffer(self, x):
    self.buffer = self.buffer + 1
    return x + self.buffer


@rows("Buffer buffer is removed from the model")
def removes_a_buffer(self, x):
    del self.buffer
    return x + 1


@rows("The data of parameter fc.weight is replaced")
def exchanges_data(self, x):
    self.fc.weight.data = torch.ones(2, 3)
    return self.fc(x)


@rows("Parameter late is added to the model")
def creates_a_parameter(self, x):
    if not hasattr(self, "late"):
        self.late = nn.Parameter(torch.ones(2))
    return self.fc(x) * self.late


@rows("Module late is added to the model")
def creates_a_layer(self, x):
    self.late = nn.Linear(3, 2)
    return self.late(x)


@rows("A wrapped model was called inside the forward()")
def calls_an_executor(self, x):
    return poptorch.inferenceModel(nn.ReLU())(x)  # here


@rows("Couldn't find a loss in graph", training=True)
def has_no_loss(self, x):
    return self.fc(x)


@rows("Couldn't find a loss in graph", training=True)
def has_a_metric_only(self, x):
    with torch.no_grad():
        return F.mse_loss(self.fc(x), torch.zeros(4, 2))


@rows("Multiple independent losses found in graph", training=True)
def has_two_losses(self, x):
    y = self.fc(x)
    return F.mse_loss(y, torch.zeros(4, 2)), F.l1_loss(y, torch.zeros(4, 2))  # here


@rows("an argument of type float is not supported", training=True)
def marks_a_number(self, x):
    return poptorch.identity_loss(3.0, "sum")  # here


@rows("Unsupported reduction type!", AssertionError, training=True)
def reduces_in_an_unknown_way(self, x):
    return poptorch.identity_loss(self.fc(x), "average")  # here


@rows("sparse=False", training=True, args=(LABELS,))
def has_sparse_gradients(self, x):
    rows_ = F.embedding(x, self.fc.weight, sparse=True)
    return poptorch.identity_loss(rows_.sum(), "none")


@rows("needs the values of a tensor", args=(torch.ones(5, 2), torch.tensor([3, 2])))
def recurrent_layer_of_packed_rows(self, x, sizes):
    return self.lstm(nn.utils.rnn.PackedSequence(x, sizes))[0].data  # here


@rows("the body takes 1 tensors but returns 2")
def loop_returns_more(self, x):
    return poptorch.for_loop(2, lambda y: (y * 2, y), [x])[0]  # here


@rows("shapes and types must stay the same")
def loop_changes_the_shape(self, x):
    return poptorch.for_loop(2, lambda y: (y.sum(),), [x])[0]  # here


@rows("the body must return a tensor")
def loop_returns_nothing(self, x):
    return poptorch.for_loop(2, lambda y: None, [x])[0]  # here


@rows("The value of a tensor is needed inside the body of a loop")
def loop_reads_a_value(self, x):
    return poptorch.for_loop(2, lambda y: (y * y.sum().item(),), [x])[0]  # here


@rows("(Object is not list)", ValueError)
def loop_over_a_tensor(self, x):
    return poptorch.for_loop(2, lambda y: (y,), x)  # here


@rows("both bodies must return the same number of tensors")
def branches_of_two_shapes(self, x):
    return poptorch.cond(x.sum() > 0, lambda y: y, [x], lambda y: y.sum(), [x])[0]  # here


@rows("the condition must be a bool tensor with one element")
def condition_in_python(self, x):
    return poptorch.cond(True, lambda y: y, [x], lambda y: y + 1, [x])[0]  # here


@rows("No class for com.acme.NoSuch:1")
def unknown_custom_op(self, x):
    return poptorch.custom_op([x], "NoSuch", "com.acme", 1, [x])[0]  # here


@rows("pass a list of tensors")
def custom_op_of_a_tensor(self, x):
    return poptorch.custom_op(x, "Cube", "com.acme", 1, [x])[0]  # here


@rows("Incorrect shape for first input to CTC beam search decoder")
def beam_search_of_a_matrix(self, x):
    return poptorch.ctc_beam_search_decoder(x, LABELS)  # here


@rows("Invalid serialisation factor 7")
def serialisation_that_does_not_divide(self, x):
    mode = poptorch.MatMulSerializationMode.InputChannels
    return poptorch.serializedMatMul(x, torch.ones(3, 2), mode, 7)  # here


@rows("availableMemoryProportion must be in (0,1]")
def too_much_memory(self, x):
    return poptorch.set_available_memory(self.fc(x), 5.0)  # here


@rows("mode 'a' is not supported")
def unknown_overlap(self, x):
    return poptorch.set_overlap_for_input(x, "a") + 1  # here


@rows("the poptorch.MultiConv scope has no convolution")
def empty_multi_conv(self, x):
    with poptorch.MultiConv():  # here
        return x + 1


@rows("asks for ipu_id=-1")
def negative_ipu(self, x):
    poptorch.Block.start("a", ipu_id=-1)  # here
    return self.fc(x)


@rows("no IPU was specified for block a", AssertionError)
def block_without_ipu(self, x):
    poptorch.Block.start("a")  # here
    return self.fc(x)


@rows("Unknown Block 'a'", AssertionError, options=lambda o: o.setExecutionStrategy(poptorch.PipelinedExecution("b")))
def block_outside_of_the_strategy(self, x):
    poptorch.Block.start("a", ipu_id=0)  # here
    return self.fc(x)


@rows("must be greater than or equal to the number of pipeline stages (2)")
def too_few_iterations_for_a_pipeline(self, x):
    poptorch.Block.start("a", ipu_id=0)
    y = self.fc(x)
    poptorch.Block.start("b", ipu_id=1)
    return y + 1


@rows("the stages of a pipeline must not decrease", options=lambda o: o.deviceIterations(4))
def pipeline_that_goes_back(self, x):
    poptorch.Block.start("a", ipu_id=0)
    y = self.fc(x)
    poptorch.Block.start("b", ipu_id=1)
    y = y + 1
    poptorch.Block.start("c", ipu_id=0)
    return y + 1


# What eager mode refuses reads as in eager mode, with the line.


@rows("mat1 and mat2 shapes cannot be multiplied (3x4 and 3x2)", RuntimeError)
def shapes_that_do_not_fit(self, x):
    return self.fc(x.t())  # here


@rows("must have the same dtype", RuntimeError, args=(X.long(),))
def types_that_do_not_fit(self, x):
    return self.fc(x)  # here


@rows("no attribute 'fc2'", AttributeError)
def layer_that_does_not_exist(self, x):
    return self.fc2(x)  # here, as everywhere: use a name that exists


@rows("modified by an inplace operation", RuntimeError, training=True)
def writes_what_backward_needs(self, x):
    y = torch.exp(self.fc(x))
    loss = y.sum()
    y.add_(1)
    return poptorch.identity_loss(loss, "none")


class Model(nn.Module):
    """Runs the forward method of a row as long as it is told to."""

    def __init__(self, row: Refused) -> None:
        super().__init__()
        self.fc, self.lstm = nn.Linear(3, 2), nn.LSTM(2, 2)
        self.register_buffer("buffer", torch.zeros(3))
        self.switch = {"wrong": True}
        self.row = row

    def forward(self, *args: torch.Tensor) -> Any:
        if self.switch["wrong"]:
            return self.row.program(self, *args)
        with poptorch.Block("0", ipu_id=0):
            x = args[0].float()
            return poptorch.identity_loss((x * self.buffer.sum() + self.fc.weight.sum()).sum(), "none")


EAGER = (RuntimeError, AttributeError)


@pytest.mark.parametrize("row", rows.all, ids=str)
def test_mistakes_in_forward(row: Refused) -> None:
    settings = row.settings or {}
    gc.collect()  # executors of earlier tests
    model, options = Model(row), poptorch.Options()
    settings.get("options", lambda o: o)(options)
    args = settings.get("args", (X,))
    if options.device_iterations > 1:
        args = tuple(torch.cat([a] * options.device_iterations) for a in args)
    state = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    wrap = poptorch.trainingModel if settings.get("training") else poptorch.inferenceModel
    executor = wrap(model, options)
    with pytest.raises(row.kind) as caught:
        executor(*args)
    if row.kind in EAGER:
        assert row.phrase in str(caught.value)
        assert __file__ in "".join(str(entry.path) for entry in caught.traceback) or __file__ in str(caught.value)
    else:
        check(row, caught.value)
        if isinstance(caught.value, poptorch.Error) and "pipeline" not in str(row):
            assert __file__ in str(caught.value)
    assert not executor.isCompiled()
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert torch.equal(tensor.detach(), state[name][1].detach())
    check_devices_are_free()
    if row.program is block_outside_of_the_strategy:
        return
    model.switch["wrong"] = False
    executor(*args)
    executor.destroy()


@pytest.mark.parametrize("level", ["interpret", "native"])
def test_values_out_of_range(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(3, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.words(ids)

    executor = poptorch.inferenceModel(Lookup())
    executor(torch.tensor([0, 2]))
    line = Lookup.forward.__code__.co_firstlineno + 1
    with pytest.raises(IndexOutOfRange, match=rf"_forwards\.py:{line}\. The values of indices.* from 0 to 2"):
        executor(torch.tensor([0, 3]))
    executor(torch.tensor([0, 2]))


def test_values_in_texts_and_lists_are_frozen_with_a_warning() -> None:
    class Telling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            text = f"{x.sum():.1f}"
            return x * len(text) + torch.tensor([x.sum(), [x[0], x[1]][0]])

    executor = poptorch.inferenceModel(Telling())
    with pytest.warns(UserWarning, match="frozen into the program"):
        assert executor(torch.tensor([1.0, 2.0])).tolist() == [3 + 3, 6 + 1]


@pytest.mark.parametrize("how", ["model", "layer", "function"])
def test_what_torch_compile_was_given_is_captured(how: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            if how == "layer":
                self.fc = torch.compile(self.fc)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            double = torch.compile(lambda y: y * 2) if how == "function" else lambda y: y * 2
            return double(self.fc(x))

    model = Model()
    wanted = 2 * F.linear(X, *model.fc.parameters())
    wrapped = torch.compile(model) if how == "model" else model
    torch.testing.assert_close(poptorch.inferenceModel(wrapped)(X), wanted.detach())


def test_containers_do_not_keep_tensors_of_the_capture() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = [random.random()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(x)
            return x + 1

    model = Remembering()
    before = list(model.seen)
    with pytest.warns(UserWarning, match="puts tensors into the attribute seen of the model"):
        poptorch.inferenceModel(model)(X)
    assert model.seen == before


def test_buffers_that_forward_makes() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.mask is None:
                self.mask = torch.ones(3) * 2
                self.register_buffer("other", torch.ones(3))
            return x * self.mask + self.other

    model = Lazy()
    executor = poptorch.inferenceModel(model)
    assert torch.equal(executor(X), X * 3)
    assert model.mask is None
    assert not hasattr(model, "other")
    assert torch.equal(model(X), X * 3)
