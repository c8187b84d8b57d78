"""Mistakes that users are likely to make, each as a function that makes one, with what they should read about it.

``python tests/mistakes/likely_mistakes.py`` prints all of them with the messages, for review.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import poptorch
from poptorch._logging import forget_said
from poptorch.executor import eager_loop

X, Y = torch.ones(8, 4), torch.zeros(8, 2)

MISTAKES: dict[Callable[[], object], tuple[str, ...]] = {}
"""Each mistake, and phrases of the message."""


def told(*phrases: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(function: Callable[[], object]) -> Callable[[], object]:
        MISTAKES[function] = phrases
        return function

    return add


class Net(nn.Module):
    """A layer, and with labels a loss; ``forward`` may be another one."""

    def __init__(self, function: Callable[..., Any] | None = None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layer, self.dropout, self.scale = nn.Linear(4, 2, dtype=dtype), nn.Dropout(0.5), 1.0
        self.function = function

    def forward(self, x: Any, y: Any = None) -> Any:
        if self.function is not None:
            return self.function(self, x)
        out = self.layer(x)
        return out if y is None else (out, F.mse_loss(out, y))


def inference(function: Callable[..., Any] | None = None, options: poptorch.Options | None = None) -> Any:
    return poptorch.inferenceModel(Net(function).eval(), options)


def training(optimizer: Any = None, options: poptorch.Options | None = None) -> tuple[Any, Any, Any]:
    model = Net()
    made = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer(model.parameters())
    return model, made, poptorch.trainingModel(model, options, made)


def dataset(rows: int = 8) -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.ones(rows, 4))


def message(mistake: Callable[[], object]) -> str:
    """What a user reads: warnings, log lines, and the error."""
    forget_said()
    eager_loop.forget_said()
    lines = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, redirect_stderr(lines):
        warnings.simplefilter("always")
        error = ""
        try:
            mistake()
        except Exception as problem:  # noqa: BLE001 - any error is what the user sees
            error = f"{type(problem).__name__}: {problem}\n"
    shown = [
        f"{it.category.__name__} at line {it.lineno}: {it.message}\n"
        for it in caught
        if issubclass(it.category, UserWarning)
    ]
    return "".join(shown) + lines.getvalue() + error


@told("learning rate", "0.01", "setOptimizer")
def a_changed_learning_rate() -> None:
    _, optimizer, model = training()
    model(X, Y)
    optimizer.param_groups[0]["lr"] = 0.01
    model(X, Y)


@told("learning rate", "scheduler", "setOptimizer")
def a_scheduler_that_is_not_passed_on() -> None:
    _, optimizer, model = training()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(X, Y)
    scheduler.step()
    model(X, Y)


@told("Clipping gradients after a call has no effect", "max_grad_norm")
def clipping_after_the_call() -> None:
    wrapped, _, model = training()
    model(X, Y)
    nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)


@told("optimizer.step() has no effect", "setOptimizer(optimizer)")
def step_in_the_loop() -> None:
    _, optimizer, model = training()
    for _ in range(2):
        optimizer.zero_grad()
        model(X, Y)
        optimizer.step()


@told("never run", "3 rows", "takes 8")
def a_loader_with_too_few_rows() -> None:
    list(poptorch.DataLoader(poptorch.Options().deviceIterations(4), dataset(3), batch_size=2))


@told("prints a tensor", "ipu_print_tensor")
def print_in_forward() -> None:
    inference(lambda self, x: self.layer(x) if print(x, file=io.StringIO()) is None else x)(X)


@told("Bfloat16 is not supported natively", "float16")
def a_model_in_bfloat16() -> None:
    poptorch.inferenceModel(Net(dtype=torch.bfloat16).eval())(X.bfloat16())


@told("Float64 is not supported natively", "float32")
def a_model_in_float64() -> None:
    poptorch.inferenceModel(Net(dtype=torch.float64).eval())(X.double())


@told("Bfloat16 is not supported natively", "torch.float16")
def autocast_to_bfloat16() -> None:
    def forward(self: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)

    inference(forward)(X)


@told("training mode", "drops values at random", "model.eval()")
def inference_with_dropout() -> None:
    poptorch.inferenceModel(Net(lambda self, x: self.dropout(self.layer(x))))(X)


@told("training mode", "statistics of each batch", "model.eval()")
def inference_with_batch_norm_in_training_mode() -> None:
    poptorch.inferenceModel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))(X)


@told("changes the Python value 'scale' from 1.0 to 0.5", "register_buffer()")
def a_number_that_forward_changes() -> None:
    def forward(self: Net, x: torch.Tensor) -> torch.Tensor:
        self.scale *= 0.5
        return self.layer(x) * self.scale

    inference(forward)(X)


@told("random numbers from numpy.random", "torch")
def random_numbers_of_numpy() -> None:
    inference(lambda self, x: self.layer(x) * np.random.rand())(X)


@told("hook", "runs once", "'layer'")
def a_hook_that_counts() -> None:
    model, count = Net().eval(), []
    model.layer.register_forward_hook(lambda *call: count.append(1))
    poptorch.inferenceModel(model)(X)


@told("compiled in train mode", "goes on in that mode")
def eval_after_compiling() -> None:
    _, _, model = training()
    model(X, Y)
    model.eval()
    model(X, Y)


@told("half() changes the weights on the host", "destroy()")
def half_after_compiling() -> None:
    model = inference()
    model(X)
    model.half()


@told("BeginBlock has no effect", "before the first call")
def a_block_after_compiling() -> None:
    wrapped, _, model = training()
    model(X, Y)
    poptorch.BeginBlock(wrapped.layer, ipu_id=1)


@told("GradScaler has no effect", "loss_scaling")
def a_scaler_of_gradients() -> None:
    _, optimizer, model = training()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(X, Y)[1])
    scaler.step(optimizer)


@told("backward() cannot be called on the scaled output", "loss_scaling", "PT")
def backward_of_a_scaled_loss() -> None:
    model = training()[2]
    torch.amp.GradScaler("cpu").scale(model(X, Y)[1]).backward()


@told("backward() cannot be called on the scaled output")
def backward_of_one_of_several_scaled_losses() -> None:
    model = training()[2]
    torch.amp.GradScaler("cpu").scale([model(X, Y)[1]])[0].backward()


@told("NumPy array", "torch.from_numpy")
def a_numpy_argument() -> None:
    inference()(X.numpy())


@told("list", "torch.tensor")
def a_list_argument() -> None:
    inference()([[1.0, 2.0, 3.0, 4.0]])


@told("batch dimension (8) must be a multiple of deviceIterations 3", "docs/batching.md")
def a_batch_that_does_not_divide() -> None:
    inference(options=poptorch.Options().deviceIterations(3))(X)


@told("Shape mismatch for x", "last, smaller batch", "drop_last=True")
def the_last_smaller_batch() -> None:
    model = inference()
    model(X)
    model(X[:5])


@told("Type mismatch for y", "all arguments", "labels")
def a_missing_label() -> None:
    _, _, model = training()
    model(X, Y)
    model(X)


@told("Data type mismatch for x", "expected torch.float32 but got torch.float16")
def another_type_in_a_later_call() -> None:
    model = inference()
    model(X)
    model(X.half())


@told("gradientAccumulation", "options.Training.gradientAccumulation(...)")
def an_option_without_its_group() -> None:
    poptorch.Options().gradientAccumulation(4)  # type: ignore[attr-defined]


@told("Options() takes no arguments", "poptorch.Options().deviceIterations(4)")
def an_option_as_an_argument() -> None:
    poptorch.Options(deviceIterations=4)  # type: ignore[call-arg]


@told("Did you mean 'deviceIterations'")
def a_misspelt_option() -> None:
    poptorch.Options().deviceIteration(4)  # type: ignore[attr-defined]


@told("Can't modify frozen Options", "clone()")
def options_after_wrapping() -> None:
    options = poptorch.Options()
    inference(options=options)
    options.deviceIterations(2)


@told("virtual IPUs", "leave out .cuda()")
def a_model_to_a_gpu() -> None:
    inference().cuda()


@told("virtual IPUs", "leave out .cuda()")
def a_model_to_a_gpu_by_name() -> None:
    inference().to("cuda:0")


@told("needs the options first", "poptorch.DataLoader(poptorch.Options(), dataset")
def a_loader_without_options() -> None:
    poptorch.DataLoader(dataset(), batch_size=2)  # type: ignore[call-arg, arg-type]


@told("a Tensor with 2 elements", "loss.mean().item()")
def one_loss_of_two_replicas() -> None:
    _, _, model = training(options=poptorch.Options().replicationFactor(2))
    model(X, Y)[1].item()


@told("nonzero()", "dynamic output shapes", "torch.where")
def nonzero_in_forward() -> None:
    inference(lambda self, x: x.nonzero())(X)


@told("masks", "dynamic output shapes", "torch.where")
def a_mask_as_an_index() -> None:
    inference(lambda self, x: x[x > 0])(X)


@told("Problem with momentums", "markAsVariable", "destroy()")
def another_momentum() -> None:
    model, _, wrapped = training()
    wrapped(X, Y)
    wrapped.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@told("Can not replace optimizer of type SGD with new optimizer of type Adam", "destroy()")
def another_family_of_optimizers() -> None:
    model, _, wrapped = training()
    wrapped(X, Y)
    wrapped.setOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))


@told("Only non-amsgrad", "leave out amsgrad=True")
def amsgrad() -> None:
    training(lambda parameters: torch.optim.Adam(parameters, amsgrad=True))


@told("Unsupported optimizer type", "LBFGS", "poptorch.optim")
def an_optimizer_that_does_not_exist() -> None:
    training(torch.optim.LBFGS)


@told("Expected an optimizer", "after each step of the schedule")
def a_scheduler_for_an_optimizer() -> None:
    _, optimizer, model = training()
    model.setOptimizer(torch.optim.lr_scheduler.StepLR(optimizer, 1))


@told("trains nothing of the model", "parameters()")
def an_optimizer_of_another_model() -> None:
    model = Net()
    poptorch.trainingModel(model, None, torch.optim.SGD(Net().parameters(), lr=0.1))(X, Y)


@told("Invalid type: 'options'", "optimizer=")
def an_optimizer_in_the_place_of_the_options() -> None:
    model = Net()
    poptorch.trainingModel(model, torch.optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]


@told("Nothing is trained")
def frozen_parameters() -> None:
    model, _, wrapped = training()
    model.requires_grad_(False)
    wrapped(X, Y)


@told("torch.compile() has no effect")
def a_module_from_torch_compile() -> None:
    poptorch.inferenceModel(torch.compile(nn.ReLU()))(X)  # type: ignore[arg-type]


@told("offline device", "compileAndExport()")
def running_an_offline_target() -> None:
    inference(options=poptorch.Options().useOfflineIpuTarget())(X)


@told("/no/such", "does not exist: it is made")
def saving_to_a_folder_that_does_not_exist() -> None:
    model = inference()
    model(X)
    model.save(f"{mkdtemp()}/no/such/model.poptorch")


@told("Cannot open", "No such file")
def loading_a_file_that_does_not_exist() -> None:
    poptorch.load("/no/such/model.poptorch")


@told("Couldn't find a loss", "identity_loss")
def a_loss_outside_of_the_model() -> None:
    model = nn.Linear(4, 2)
    poptorch.trainingModel(model)(X)


@told("backward() cannot be called explicitly", "automatically")
def backward_in_the_loop() -> None:
    training()[2](X, Y)[1].backward()


@told("Expected a torch.nn.Module", "IPUContext")
def a_function_instead_of_a_module() -> None:
    poptorch.inferenceModel(lambda x: x)  # type: ignore[arg-type]


@told("frozen into the program", "poptorch.cond")
def a_decision_by_value() -> None:
    inference(lambda self, x: self.layer(x) if x.sum() > 0 else x)(X)


@told("frozen into the program")
def a_number_of_a_tensor() -> None:
    inference(lambda self, x: self.layer(x) * x.sum().item())(X)


@told("NumPy array of a tensor", "poptorch.CPU")
def numpy_in_forward() -> None:
    inference(lambda self, x: torch.from_numpy(x.numpy()))(X)


@told("saves or pickles a tensor", "poptorch.CPU")
def saving_in_forward() -> None:
    inference(lambda self, x: torch.save(x, io.BytesIO()) or x)(X)


@told("Too many IPUs requested (100)", "poprun")
def more_ipus_than_there_are() -> None:
    inference(options=poptorch.Options().replicationFactor(100))(X.repeat(100, 1))


@told("greater than or equal to the number of pipeline stages (2)", "deviceIterations")
def a_pipeline_without_enough_batches() -> None:
    def forward(self: Net, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block(ipu_id=0):
            x = self.layer(x)
        with poptorch.Block(ipu_id=1):
            return x * 2

    inference(forward)(X)


@told("backward() cannot be called explicitly", "trainingModel")
def gradients_of_an_inference_model() -> None:
    inference()(X).backward()


@told("inside the forward() of another one", ".model")
def an_executor_inside_a_model() -> None:
    inner = inference()
    inference(lambda self, x: inner(x))(X)


@told("has not been compiled")
def weights_before_the_first_call() -> None:
    inference().copyWeightsToDevice()


@told("already been wrapped", "destroy()")
def wrapping_for_training_twice() -> None:
    model = Net()
    first = poptorch.trainingModel(model)
    second = poptorch.trainingModel(model)
    assert first is not second


@told("cannot be copied", ".model")
def copying_an_executor() -> None:
    import copy

    copy.deepcopy(inference())


@told("mat1 and mat2 shapes cannot be multiplied", "likely_mistakes.py")
def a_wrong_shape() -> None:
    inference()(torch.ones(8, 5))


@told("must have the same dtype", "likely_mistakes.py")
def integers_for_a_layer() -> None:
    inference()(torch.ones(8, 4, dtype=torch.long))


@told("Unknown log level", "WARN")
def a_log_level_that_does_not_exist() -> None:
    poptorch.setLogLevel("LOUD")


@told("Training.gradientAccumulation to 1", "deviceIterations")
def accumulation_for_inference() -> None:
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    inference(options=options)(X)


@told("is on the device 'meta'", "tensors of the host")
def inputs_without_values() -> None:
    inference()(torch.ones(8, 4, device="meta"))


@told("TorchScript", "torch.jit.trace")
def a_scripted_model() -> None:
    poptorch.inferenceModel(torch.jit.trace(nn.ReLU(), X))


@told("no shape yet", "before you wrap it")
def a_lazy_layer() -> None:
    poptorch.inferenceModel(nn.LazyLinear(2))


if __name__ == "__main__":
    for function in MISTAKES:
        print(f"--- {function.__name__}\n{message(function)}", file=sys.stdout)
