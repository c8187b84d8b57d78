"""Misuse: the type and phrase of each error, the user's own errors untouched, everything usable afterwards
(spec: executor §18)."""

from __future__ import annotations

import copy
import re
import traceback

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


class Weighted(nn.Module):
    """A parameter, a buffer and a function of both."""

    def __init__(self, function):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("y", torch.zeros(2))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def offline():
    return poptorch.inferenceModel(nn.ReLU(), poptorch.Options().useOfflineIpuTarget())


def compiled():
    executor = poptorch.inferenceModel(nn.ReLU())
    executor(torch.ones(1))
    return executor


def detached():
    executor = compiled()
    executor.detachFromDevice()
    return executor


def trained(model, optimizer=None, options=None):
    return poptorch.trainingModel(model, options, optimizer)


def busy():
    options = poptorch.Options().useIpuId(63)
    holder = poptorch.inferenceModel(nn.ReLU(), options)
    holder(torch.ones(1))
    try:
        poptorch.inferenceModel(nn.ReLU(), options.clone())(torch.ones(1))
    finally:
        holder.destroy()


def frozen():
    options = poptorch.Options()
    poptorch.inferenceModel(nn.ReLU(), options)
    options.deviceIterations(2)


def wrapped_twice():
    model = nn.Linear(1, 1)
    keep = poptorch.trainingModel(model)
    poptorch.trainingModel(keep.model)


def accumulating():
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    poptorch.inferenceModel(nn.ReLU(), options)


def odd_buffer():
    model = nn.Linear(1, 1)
    model.register_buffer("b", nn.Parameter(torch.ones(1)))
    poptorch.trainingModel(model)


def unwrapped_behind_our_back():
    model = Weighted(lambda m, x: poptorch.identity_loss((m.w * x).sum(), reduction="none"))
    executor = poptorch.trainingModel(model)
    executor(torch.ones(2))
    model.__class__ = Weighted
    executor.destroy()


def after_destroy():
    executor = compiled()
    executor.destroy()
    executor.copyWeightsToHost()


def remove_buffer(model, x):
    del model.y
    return x


def rebind_buffer(model, x):
    model.y = x + 1
    return x


def rebind_parameter(model, x):
    model.w = nn.Parameter(x + 1)
    return x


def write_buffer(model, x):
    model.y += x
    return x * 1


def with_traced():
    options = poptorch.Options()
    options.Jit.traceModel(True)
    return options


def run(function, *args, options=None):
    return poptorch.inferenceModel(Function(function), options)(*args)


def one(*shape):
    return torch.ones(*(shape or (1,)))


def change_optimizer():
    model = Weighted(lambda m, x: poptorch.identity_loss((m.w * x).sum(), reduction="none"))
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.Adam(model.parameters()))
    executor(torch.ones(2))
    executor.setOptimizer(poptorch.optim.Adam(model.parameters(), accum_type=torch.float16))


CATALOGUE = {
    "already wrapped": (wrapped_twice, RuntimeError, "Model has already been wrapped in 'poptorch.trainingModel'"),
    "options": (lambda: poptorch.inferenceModel(nn.ReLU(), 3), poptorch.Error, "Invalid type: 'options' is of type"),
    "accumulation": (accumulating, poptorch.Error, "poptorch.Options().Training.gradientAccumulation to 1"),
    "buffer type": (odd_buffer, poptorch.Error, "All buffers must be an instance"),
    "never wrapped": (unwrapped_behind_our_back, poptorch.Error, "model was never wrapped"),
    "frozen": (frozen, AttributeError, "Can't modify frozen Options"),
    "not compiled": (
        lambda: poptorch.inferenceModel(nn.ReLU()).detachFromDevice(),
        poptorch.Error,
        "Model has not been compiled or has been destroyed",
    ),
    "destroyed": (after_destroy, poptorch.Error, "Model has not been compiled or has been destroyed"),
    "detached": (lambda: detached().detachFromDevice(), poptorch.Error, "Device is not attached"),
    "attached": (lambda: compiled().attachToDevice(), poptorch.Error, "Device is already attached"),
    "offline run": (lambda: offline()(one()), AssertionError, "Trying to run a model on an offline device"),
    "offline attach": (lambda: offline().attachToDevice(), AssertionError, "Trying to attach to an offline device"),
    "batch": (
        lambda: run(lambda x: x, one(3), options=poptorch.Options().deviceIterations(2)),
        AssertionError,
        "Invalid batch dimension",
    ),
    "too many": (lambda: run(lambda x: x, one(), one()), AssertionError, "Too many arguments provided"),
    "unknown": (
        lambda: poptorch.inferenceModel(Function(lambda x, y=None: x))(one(), z=one()),
        AssertionError,
        "is not a valid parameter",
    ),
    "twice": (
        lambda: poptorch.inferenceModel(Function(lambda x, y=None: x))(one(), x=one()),
        AssertionError,
        "was passed more than once",
    ),
    "missing": (lambda: run(lambda a, b: a, one()), poptorch.Error, "Mandatory parameter b missing"),
    "None": (
        lambda: run(lambda a, b: a, None, one(), options=with_traced()),
        poptorch.Error,
        "'None' may not be passed",
    ),
    "dict": (
        lambda: run(lambda a: a, {}, options=with_traced()),
        TypeError,
        "Dictionaries are not supported as input arguments",
    ),
    "scalars": (
        lambda: run(lambda a, b: a, one(), 1.0, options=with_traced()),
        TypeError,
        "All forward function arguments used to compile and run the model must be Tensors",
    ),
    "shape": (lambda: compiled()(one(2)), poptorch.Error, "Shape mismatch for input"),
    "type": (lambda: compiled()(one().half()), poptorch.Error, "Data type mismatch for input"),
    "empty": (
        lambda: run(lambda x: x, one(0, 2)),
        poptorch.Error,
        "Zero-sized tensors are unsupported (Got shape [0, 2])",
    ),
    "removed": (
        lambda: poptorch.inferenceModel(Weighted(remove_buffer))(one(2)),
        poptorch.Error,
        "Buffer y is removed from the model when calling the forward method.",
    ),
    "reassigned": (
        lambda: poptorch.inferenceModel(Weighted(rebind_buffer))(one(2)),
        poptorch.Error,
        "Consider using self.y.copy_(src)",
    ),
    "parameter": (
        lambda: poptorch.inferenceModel(Weighted(rebind_parameter))(one(2)),
        poptorch.Error,
        "Parameter w is reassigned within the model when calling the forward method",
    ),
    "broadcast": (
        lambda: poptorch.inferenceModel(Weighted(write_buffer), poptorch.Options().replicationFactor(2))(one(4)),
        poptorch.Error,
        "PopTorch does not support broadcasting buffers",
    ),
    "no loss": (
        lambda: trained(Weighted(lambda m, x: (m.w * x).sum()))(one(2)),
        poptorch.Error,
        "Couldn't find a loss in graph",
    ),
    "two losses": (
        lambda: trained(Weighted(lambda m, x: (nn.functional.mse_loss(m.w, x), nn.functional.l1_loss(m.w, x))))(one(2)),
        poptorch.Error,
        "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
        "poptorch.identity_loss.",
    ),
    "backward": (lambda: compiled()(one()).backward(), poptorch.Error, "backward() cannot be called explicitly"),
    "cycles": (lambda: compiled().cycleCount(), poptorch.Error, "Cycle count logging is disabled"),
    "no run": (
        lambda: poptorch.inferenceModel(nn.ReLU(), poptorch.Options().logCycleCount(True)).cycleCount(),
        poptorch.Error,
        "Please run the model at least once",
    ),
    "cycles of a model": (
        lambda: run(lambda x: x, one(), options=poptorch.Options().logCycleCount(True).useIpuModel(True)),
        poptorch.Error,
        "Cycle count logging is only supported on actual IPU hardware",
    ),
    "busy": (busy, poptorch.Error, "Failed to acquire device Id 63"),
    "too many IPUs": (
        lambda: run(lambda x: x + 1, one(128), options=poptorch.Options().replicationFactor(128)),
        poptorch.Error,
        "Too many IPUs requested (128)",
    ),
    "anchor": (lambda: compiled().getAnchoredTensor("x"), AssertionError, "No tensor with name x found"),
    "names": (
        lambda: poptorch.inferenceModel(nn.ReLU()).getTensorNames(),
        AssertionError,
        "Model must be compiled before calling getTensorNames",
    ),
    "optimizer": (change_optimizer, ValueError, "is already compiled"),
}


def good_model_works():
    model = Weighted(lambda m, x: poptorch.identity_loss((m.w * x).sum(), reduction="none"))
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    executor(torch.ones(2))
    assert model.w.tolist() == [0.5, 0.5]
    executor.destroy()
    assert not poptorch.isRunningOnIpu()


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue(name):
    action, exception, phrase = CATALOGUE[name]
    with pytest.raises(exception, match=re.escape(phrase)) as error:
        action()
    # The commonest errors have classes of their own, below the one that is promised.
    assert type(error.value) is exception or exception is poptorch.Error


def test_the_library_works_after_all_of_them():
    for action, exception, _ in CATALOGUE.values():
        with pytest.raises(exception):
            action()
    good_model_works()


class TestErrorsOfTheUser:
    """What ``forward`` raises comes through as it is, and nothing of the model changes."""

    class Mine(Exception):
        pass

    def model(self, action):
        def forward(module, x):
            module.y += 1
            module.w.data.mul_(2)
            action()
            return poptorch.identity_loss((module.w * x).sum(), reduction="none")

        return Weighted(forward)

    @pytest.mark.parametrize("wrapper", [poptorch.trainingModel, poptorch.inferenceModel])
    @pytest.mark.parametrize("exception", [Mine, ValueError, AssertionError, KeyError, RuntimeError, KeyboardInterrupt])
    def test_unwrapped_with_its_traceback(self, wrapper, exception):
        fail = [True]

        def action():
            if fail[0]:
                raise exception("mine alone")

        model = self.model(action)
        before = copy.deepcopy(model.state_dict())
        seed = torch.random.get_rng_state()
        executor = wrapper(model)
        with pytest.raises(exception, match="mine alone") as error:
            executor(torch.ones(2))
        assert type(error.value) is exception or exception is poptorch.Error
        assert any(frame.name == "action" for frame in traceback.extract_tb(error.value.__traceback__))
        assert not poptorch.isRunningOnIpu()
        assert torch.equal(torch.random.get_rng_state(), seed)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])
        assert not executor.isCompiled()
        fail[0] = False
        executor(torch.ones(2))
        executor.destroy()

    def test_errors_of_torch_functions(self, capfd):
        executor = poptorch.inferenceModel(Function(lambda x: x @ torch.ones(7, 7)))
        with pytest.raises(RuntimeError, match=r"must have same reduction dim|cannot be multiplied"):
            executor(torch.ones(2, 3))
        assert "Traceback" not in capfd.readouterr().err
        good_model_works()

    def test_hooks_and_name_scopes_do_not_survive_a_failure(self):
        class Inner(nn.Module):
            def forward(self, x):
                raise ValueError("inner")

        model = nn.Sequential(nn.Linear(1, 1), Inner())
        executor = poptorch.inferenceModel(model)
        for _ in range(2):
            with pytest.raises(ValueError, match="inner"):
                executor(torch.ones(1, 1))
        model[1] = nn.Identity()
        executor(torch.ones(1, 1))
        assert all(not name.startswith("1/") for name in executor.getTensorNames())
        good_model_works()


class TestFrozenControlFlow:
    def test_a_decision_on_values_names_the_users_line(self):
        def forward(x):
            if x.sum() > 0:  # decided by the first inputs
                return x + 1
            return x - 1

        line = forward.__code__.co_firstlineno + 1
        executor = poptorch.inferenceModel(Function(forward))
        with pytest.warns(UserWarning, match=rf"test_errors\.py:{line}"):
            assert executor(torch.ones(1)).item() == 2
        assert executor(-torch.ones(1)).item() == 0


def test_unsupported_shapes_and_types_of_results():
    with pytest.raises(poptorch.Error, match=r"Returning a torch\.complex64 is not supported"):
        run(lambda x: torch.complex(x, x), one())
    with pytest.raises(poptorch.Error, match="dynamic output shapes"):
        run(lambda x: x[x > 0], one())
    good_model_works()


def test_the_same_executor_recovers_from_bad_calls():
    executor = poptorch.inferenceModel(Function(lambda x, y=None: x + 1))
    for args in [(), (one(0),), (torch.ones(1, dtype=torch.complex64),), (one(), one(), one())]:
        with pytest.raises((poptorch.Error, AssertionError)):
            executor(*args)
        assert not executor.isCompiled()
    assert executor(one()).item() == 2
    for args in [(), (one(2),), (one(), one(), one()), (None,)]:
        with pytest.raises((poptorch.Error, AssertionError)):
            executor(*args)
        assert executor(one()).item() == 2


@pytest.mark.parametrize("compiled_before", [False, True])
def test_a_wrapped_model_inside_another(compiled_before):
    inner = poptorch.inferenceModel(nn.Linear(1, 1))
    if compiled_before:
        inner(torch.ones(1, 1))
    outer = poptorch.inferenceModel(Function(lambda x: inner(x) + 1))
    with pytest.raises(poptorch.Error, match="inside the forward"):
        outer(torch.ones(1, 1))
    expected = inner.model(torch.ones(1, 1)).detach()
    assert_close_sums(inner(torch.ones(1, 1)), expected, terms=2)
    plain = poptorch.inferenceModel(Function(lambda x: inner.model(x) + 1))
    assert_close_sums(plain(torch.ones(1, 1)), expected + 1, terms=2)
