"""Values that ``forward`` asks for in Python: computed beside the capture, frozen into the program."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
FROZEN = "frozen into the program"


def run(forward, *inputs, wrapper=poptorch.inferenceModel):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, *args):
            return forward(self, *args)

    return wrapper(Model())(*inputs)


def test_forward_runs_once():
    calls = []

    def forward(self, x):
        calls.append(type(x))
        return x * 2 if x.sum() > 0 else x

    with pytest.warns(UserWarning, match=FROZEN):
        assert torch.equal(run(forward, X), X * 2)
    assert len(calls) == 1


def test_libraries_see_a_capture_before_and_after():
    """``transformers`` looks at masks only outside of captures: values in one place may not change another."""
    seen = []

    def forward(self, x):
        seen.append(type(x).__name__)
        y = x + 1 if x.sum() > 0 else x
        seen.append(type(y).__name__)
        return y

    with pytest.warns(UserWarning, match=FROZEN):
        run(forward, X)
    assert seen == ["FakeTensor", "FakeTensor"]


def test_changes_in_place_count():
    def forward(self, x):
        self.count += 1
        y = x.clone()
        y[0].zero_()
        y[1].add_(self.count)
        return x * y.sum().item()

    with pytest.warns(UserWarning, match=FROZEN):
        assert torch.equal(run(forward, X), X * 9)


def test_one_value_after_the_other():
    def forward(self, x):
        first = x[0, 0].item()
        second = (x * first).sum().item()
        return x + (x * second).max().item()

    with pytest.warns(UserWarning, match=FROZEN) as found:
        assert torch.equal(run(forward, X), X + 24)
    assert len({str(w.message) for w in found}) == 3


def test_lists_warn_once():
    def forward(self, x):
        rows = x.tolist()
        return x + rows[1][1]

    with pytest.warns(UserWarning, match=FROZEN) as found:
        assert torch.equal(run(forward, X), X + 4)
    assert len(found) == 1
    assert "test_evaluation.py:" in str(found[0].message)


def test_known_values_are_no_surprise():
    def forward(self, x):
        return x * torch.tensor(3.0).item()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(forward, X), X * 3)


def test_equal():
    def forward(self, x):
        return x + 1 if torch.equal(x, x.clone()) else x

    with pytest.warns(UserWarning, match=FROZEN):
        assert torch.equal(run(forward, X), X + 1)


def test_in_the_backward_pass():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (2 if gradient.sum().item() > 0 else 3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return poptorch.identity_loss((Scaled.apply(self.weight) * x).sum(), reduction="none")

    model = Model()
    with pytest.warns(UserWarning, match=FROZEN):
        poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))(torch.ones(2))
    assert model.weight.tolist() == [0, 0]


def test_training_with_norms_over_transposed_values():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x, target):
            y = self.norm(self.fc(x).transpose(0, 1)).transpose(0, 1)
            return F.mse_loss(y * (1 if y.sum().item() > -1e9 else 2), target)

    torch.manual_seed(0)
    model, reference = Model(), Model()
    reference.load_state_dict(model.state_dict())
    x, target = torch.randn(4, 4), torch.randn(4, 4)
    with pytest.warns(UserWarning, match=FROZEN):
        loss = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(x, target)
    expected = reference(x, target)
    expected.backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    assert_close_sums(loss, expected.detach(), terms=16, steps=3)
    assert_close_sums(dict(model.state_dict()), dict(reference.state_dict()), terms=16, steps=3)


def test_random_values_do_not_disturb_the_streams():
    def noisy(look):
        def forward(self, x):
            noise = torch.rand_like(x)
            if look and noise.sum().item() < 0:
                return x
            return noise + torch.rand_like(x)

        options = poptorch.Options().randomSeed(3)
        return run(forward, X, wrapper=lambda model: poptorch.inferenceModel(model, options))

    plain = noisy(False)
    with pytest.warns(UserWarning, match=FROZEN):
        assert torch.equal(noisy(True), plain)


def test_prints_wait_for_the_program(capfd):
    def forward(self, x):
        y = poptorch.ipu_print_tensor(x, "seen")
        return y * 2 if y.sum() > 0 else y

    class Model(nn.Module):
        def forward(self, x):
            return forward(self, x)

    executor = poptorch.inferenceModel(Model())
    with pytest.warns(UserWarning, match=FROZEN):
        executor.compile(X)
    captured = capfd.readouterr()
    assert "seen" not in captured.out + captured.err
    executor(X)
    captured = capfd.readouterr()
    assert "seen" in captured.out + captured.err


@pytest.mark.filterwarnings(f"ignore:.*{FROZEN}")
def test_dynamic_shapes_are_refused_after_a_value_as_before():
    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return torch.masked_select(x, x > 0)

    with pytest.raises(poptorch.Error, match="dynamic output shapes"):
        run(forward, X)


def test_the_body_of_a_loop_has_no_values():
    def forward(self, x):
        return poptorch.for_loop(3, lambda v: v * v.sum().item(), [x])[0]

    with pytest.raises(poptorch.Error, match="inside the body"):
        run(forward, X)


def test_values_need_values():
    with pytest.raises(poptorch.Error, match=r"needs the value .*test_evaluation\.py:\d+, but \*args\[0\] has none"):
        run(lambda self, x: x * x.sum().item(), X.to("meta"), wrapper=lambda m: poptorch.inferenceModel(m).compile)
