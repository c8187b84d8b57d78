"""Complex weights are trained as torch trains them."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import poptorch

CHANNELS, MODES, SIZE = 3, 3, 8


class FourierOperator(nn.Module):
    """One layer of a Fourier neural operator, with a loss."""

    def __init__(self):
        super().__init__()
        self.lift, self.drop = nn.Linear(1, CHANNELS), nn.Linear(CHANNELS, 1)
        shape = (CHANNELS, CHANNELS, MODES, MODES)
        self.low = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / CHANNELS)
        self.high = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / CHANNELS)

    def forward(self, x):
        y = self.operate(x)
        return y, poptorch.identity_loss((y - x.roll(1, -1)).pow(2).mean(), "none")

    def operate(self, x):
        h = self.lift(x.unsqueeze(-1)).permute(0, 3, 1, 2)
        f = torch.fft.rfft2(h)
        out = torch.zeros(x.shape[0], CHANNELS, SIZE, SIZE // 2 + 1, dtype=f.dtype)
        mixed = functools.partial(torch.einsum, "bixy,ioxy->boxy")
        out[:, :, :MODES, :MODES] = mixed(f[:, :, :MODES, :MODES], self.low)
        out[:, :, -MODES:, :MODES] = mixed(f[:, :, -MODES:, :MODES], self.high.conj())
        h = nn.functional.gelu(h + torch.fft.irfft2(out, s=(SIZE, SIZE)))
        return self.drop(h.permute(0, 2, 3, 1)).squeeze(-1)


def combined(parameters):
    return poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9, loss_scaling=8.0, use_combined_accum=True)


def separate(parameters):
    return poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9, loss_scaling=8.0, use_combined_accum=False)


def with_momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def with_decay(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


def centered(parameters):
    return torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True)


OPTIMIZERS = {
    "SGD": (functools.partial(torch.optim.SGD, lr=0.1),) * 2,
    "SGD with momentum and decay": (with_decay, with_decay),
    "SGD, combined": (combined, with_momentum),
    "SGD, separate": (separate, with_momentum),
    "Adam": (functools.partial(torch.optim.Adam, lr=0.01),) * 2,
    "AdamW": (
        functools.partial(poptorch.optim.AdamW, lr=0.01, weight_decay=0.1),
        functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    ),
    "RMSprop": (centered, centered),
    "RMSprop of ours": (
        functools.partial(poptorch.optim.RMSprop, lr=0.01, eps=1e-3),
        functools.partial(torch.optim.RMSprop, lr=0.01, eps=1e-3),
    ),
}


def sharded(options):
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(location.minElementsForReplicatedTensorSharding(2))


HOW = {"plain": (1, 1), "accumulation": (2, 1), "replicas": (1, 2), "sharded": (2, 2)}


def options_of(how):
    accumulation, replicas = HOW[how]
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    if how == "sharded":
        sharded(options)
    return options


def batches(count, parts=1):
    return [torch.randn(2 * parts, SIZE, SIZE) for _ in range(count)]


def in_float64(model):
    """The model in double precision: ``double()`` leaves complex weights alone."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight.is_complex():
                setattr(module, name, nn.Parameter(weight.detach().to(torch.complex128), weight.requires_grad))
    return model


def train_by_torch(model, optimizer, given, parts=1):
    for batch in given:
        optimizer.zero_grad()
        for part in batch.double().chunk(parts):
            (model(part)[1] / parts).backward()
        optimizer.step()


def assert_same_weights(model, reference, **bounds):
    bounds = {"rtol": 1e-4, "atol": 2e-5} | bounds
    for (name, own), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(
            own.detach().to(theirs.dtype), theirs.detach(), msg=lambda m, n=name: f"{n}: {m}", **bounds
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("how", HOW)
def test_a_fourier_operator_trains_as_by_torch(optimizer, how):
    torch.manual_seed(0)
    ours, theirs = OPTIMIZERS[optimizer]
    model = FourierOperator()
    reference, start = in_float64(model), copy.deepcopy(model)
    parts = HOW[how][0] * HOW[how][1]
    given = batches(4, parts)
    executor = poptorch.trainingModel(model, options_of(how), ours(model.parameters()))
    for batch in given:
        executor(batch)
    train_by_torch(reference, theirs(reference.parameters()), given, parts)
    assert_same_weights(model, reference)
    assert (model.low - start.low).imag.abs().max() > 1e-4


def test_native_code(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    torch.manual_seed(0)
    model = FourierOperator()
    reference, given = in_float64(model), batches(2)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    for batch in given:
        executor(batch)
    train_by_torch(reference, torch.optim.Adam(reference.parameters(), lr=0.01), given)
    assert_same_weights(model, reference)


def test_lamb_measures_the_whole_weight():
    """Its trust ratio is a quotient of norms: those of a complex weight are those of its parts together."""
    torch.manual_seed(0)
    given = batches(3)
    found = []
    for as_complex in (True, False):
        torch.manual_seed(1)
        model = FourierOperator() if as_complex else Parts(FourierOperator())
        executor = poptorch.trainingModel(model, optimizer=poptorch.optim.LAMB(model.parameters(), lr=0.05))
        for batch in given:
            executor(batch)
        found.append(model.low.detach() if as_complex else torch.view_as_complex(model.low.detach()))
    torch.testing.assert_close(found[0], found[1])


class Parts(nn.Module):
    """The same model with real weights: pairs, of which it makes complex numbers itself."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator
        self.low = nn.Parameter(torch.view_as_real(operator.low.detach()).clone())
        self.high = nn.Parameter(torch.view_as_real(operator.high.detach()).clone())
        self.operator.low.requires_grad_(False)
        self.operator.high.requires_grad_(False)

    def forward(self, x):
        weights = {"low": torch.view_as_complex(self.low), "high": torch.view_as_complex(self.high)}
        return torch.func.functional_call(self.operator, weights, (x,))


def test_state_goes_to_another_executor(tmp_path):
    """Two halves of a training with a file between them end where one ends that was not interrupted."""
    torch.manual_seed(0)
    whole = FourierOperator()
    halves, given = copy.deepcopy(whole), batches(6)
    make = functools.partial(poptorch.optim.AdamW, lr=0.01)
    executor = poptorch.trainingModel(whole, optimizer=make(whole.parameters()))
    for batch in given:
        executor(batch)
    optimizer = make(halves.parameters())
    executor = poptorch.trainingModel(halves, optimizer=optimizer)
    for batch in given[:3]:
        executor(batch)
    torch.save((halves.state_dict(), optimizer.state_dict()), tmp_path / "half.pt")
    again = FourierOperator()
    weights, state = torch.load(tmp_path / "half.pt")
    again.load_state_dict(weights)
    optimizer = make(again.parameters())
    optimizer.load_state_dict(state)
    executor = poptorch.trainingModel(again, optimizer=optimizer)
    for batch in given[3:]:
        executor(batch)
    assert_same_weights(again, whole, rtol=0, atol=0)


def test_copies_both_ways():
    model = FourierOperator()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    validation = poptorch.inferenceModel(model)
    x = batches(1)[0]
    validation(x)
    executor(x)
    torch.testing.assert_close(validation(x)[0], copy.deepcopy(model)(x)[0])
    executor.detachFromDevice()
    executor.attachToDevice()
    with torch.no_grad():
        model.low.fill_(1 + 2j)
    executor.copyWeightsToDevice()
    executor.copyWeightsToHost()
    assert torch.equal(model.low, torch.full_like(model.low, 1 + 2j))


class Odd(nn.Module):
    """Complex weights used twice, hooked, written, frozen, tied, wide and without use."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, dtype=torch.complex128))
        self.tied = self.w
        self.frozen = nn.Parameter(torch.randn(4, dtype=torch.cfloat), requires_grad=False)
        self.drift = nn.Parameter(torch.randn(4, dtype=torch.cfloat))
        self.unused = nn.Parameter(torch.randn(4, dtype=torch.cfloat))
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("total", torch.zeros(4, dtype=torch.cfloat))
        self.w.register_hook(lambda g: g * (1 + 1j))

    def forward(self, x):
        z = x * self.w * self.frozen + self.tied.conj() ** 2 + self.drift
        with torch.no_grad():
            self.total += z.detach().sum(0)
            self.drift.mul_(0.5j)
        return (z.abs() * self.scale).sum(), poptorch.identity_loss(z.abs().pow(2).mean() * self.scale, "none")


def test_every_use_of_a_complex_weight():
    torch.manual_seed(0)
    model = Odd()
    reference = copy.deepcopy(model)
    reference.w.register_hook(lambda g: g * (1 + 1j))
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(3, 4)
        optimizer.zero_grad()
        z = x * reference.w * reference.frozen + reference.w.conj() ** 2 + reference.drift
        (z.abs().pow(2).mean() * reference.scale).backward()
        reference.total += z.detach().sum(0)
        executor(x)
        with torch.no_grad():
            reference.drift.mul_(0.5j)
        optimizer.step()
    for name, own in model.state_dict().items():
        torch.testing.assert_close(own, reference.state_dict()[name], rtol=1e-5, atol=1e-5)
        assert own.dtype == reference.state_dict()[name].dtype


class OnTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = FourierOperator(), FourierOperator()

    def forward(self, x):
        with poptorch.Block(ipu_id=0):
            y = self.first.operate(x)
        with poptorch.Block(ipu_id=1):
            y = self.second.operate(y) * self.first.low.abs().mean()
            return y, poptorch.identity_loss((y - x).pow(2).mean(), "none")


def test_pipelines_and_an_executable_in_a_file(tmp_path):
    torch.manual_seed(0)
    model = OnTwo()
    reference, given = in_float64(model), batches(2, 4)
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(model, options, torch.optim.Adam(model.parameters(), lr=0.01))
    executor.compileAndExport(str(tmp_path / "two.poptorch"), given[0])
    executor.destroy()
    executor = poptorch.trainingModel(model, options, torch.optim.Adam(model.parameters(), lr=0.01))
    executor.loadExecutable(str(tmp_path / "two.poptorch"))
    for batch in given:
        executor(batch)
    train_by_torch(reference, torch.optim.Adam(reference.parameters(), lr=0.01), given, 4)
    assert_same_weights(model, reference)


class Resolved(nn.Module):
    def forward(self, x):
        z = torch.view_as_complex(x)
        inside = poptorch.for_loop(2, lambda y: torch.view_as_real(torch.view_as_complex(y).conj().clone()) * 2, [x])[0]
        return torch.view_as_real(z.conj().clone()), torch.view_as_real(z.conj().resolve_conj()), inside


def test_a_copy_computes_what_a_view_promised():
    x = torch.randn(3, 2)
    conjugate = x * torch.tensor([1.0, -1.0])
    cloned, resolved, inside = poptorch.inferenceModel(Resolved())(x)
    assert torch.equal(cloned, conjugate)
    assert torch.equal(resolved, conjugate)
    assert torch.equal(inside, x * 4)


class Controlled(nn.Module):
    """Complex values in a loop and in a branch."""

    def __init__(self):
        super().__init__()
        self.w, self.v = (nn.Parameter(torch.randn(4, dtype=torch.cfloat)) for _ in range(2))

    def turn(self, z):
        return z * self.w.conj() * 0.5 + self.v

    def forward(self, x):
        z = torch.complex(x, x.flip(-1))
        if poptorch.isRunningOnIpu():
            (z,) = poptorch.for_loop(3, self.turn, [z])
            (z,) = poptorch.cond(x.sum() > 0, lambda y: y * self.v, [z], lambda y: y.conj() * self.w, [z])
        else:
            for _ in range(3):
                z = self.turn(z)
            z = z * self.v if x.sum() > 0 else z.conj() * self.w
        return z.abs(), poptorch.identity_loss(z.abs().pow(2).mean(), "none")


def test_gradients_of_complex_values_pass_loops_and_branches():
    torch.manual_seed(0)
    model = Controlled()
    reference = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    for sign in (1, -1, 1):
        x = torch.randn(3, 4).abs() * sign
        optimizer.zero_grad()
        reference(x)[1].backward()
        executor(x)
        optimizer.step()
    assert_same_weights(model, reference)
