"""What modules do besides calling layers: hooks, own gradients, checkpoints, tied and parametrised weights."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from against_eager import assert_equal_outputs, check_inference, check_training
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo_architecture import WithLoss
from zoo_language import LENGTH, WORDS, bert_classifier, gpt2_generator

import poptorch
from closeness import assert_close_sums

TERMS = 2 * LENGTH * WORDS
"""Of the largest sums in a language model: the gradient of a word's row, over two texts and all words."""


def regression(network: nn.Module) -> WithLoss:
    """Train ``network`` on rows of four numbers."""
    return WithLoss(network, F.mse_loss, 1)


def batches(count: int = 3, width: int = 4, out: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(5, width), torch.randn(5, out)) for _ in range(count)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# -- outputs of the transformers library ---------------------------------------------------------------------------


def test_a_model_output_keeps_its_type_fields_and_nesting() -> None:
    words = torch.randint(WORDS, (2, LENGTH))
    model = bert_classifier().eval()
    out = check_inference(model, words, output_hidden_states=True, output_attentions=False)
    assert type(out).__name__ == "SequenceClassifierOutput"
    assert list(out.keys()) == ["logits", "hidden_states"]
    assert out["logits"] is out.logits
    assert isinstance(out.hidden_states, tuple)
    assert out.attentions is None


def test_a_library_model_is_trained_with_the_loss_it_computes_itself() -> None:
    model = gpt2_generator()
    twin = copy.deepcopy(model)
    wrapped = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    eager = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        words = torch.randint(WORDS, (2, LENGTH))
        expected = twin(words, labels=words)
        eager.zero_grad()
        expected.loss.backward()
        eager.step()
        given = wrapped(words, labels=words)
        assert type(given) is type(expected)
        assert_equal_outputs((given.loss, given.logits), (expected.loss, expected.logits), TERMS, steps=3)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert_close_sums(dict(model.state_dict()), dict(twin.state_dict()), terms=TERMS, steps=3)


# -- hooks ---------------------------------------------------------------------------------------------------------


def test_forward_hooks_may_change_inputs_and_outputs() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    network[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    network[1].register_forward_hook(lambda module, args, output: output + 1)
    network[2].register_forward_pre_hook(lambda module, args, named: (args, named), with_kwargs=True)
    check_inference(network, torch.randn(5, 4))
    check_training(regression(network), batches())


def test_backward_hooks_may_change_gradients() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    network[1].register_full_backward_hook(lambda module, into, out: (into[0] * 0.5,))

    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.network(x)
            if y.requires_grad:
                y.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
            return y

    check_training(regression(Clipped()), batches())


def test_a_hook_on_a_parameter_changes_its_gradient() -> None:
    network = nn.Linear(4, 3)
    network.weight.register_hook(lambda gradient: gradient * 3)
    twin = nn.Linear(4, 3)
    twin.load_state_dict(network.state_dict())
    twin.weight.register_hook(lambda gradient: gradient * 3)
    (x, target), *_ = batches()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    F.mse_loss(twin(x), target).backward()
    optimizer.step()
    wrapped = poptorch.trainingModel(regression(network), optimizer=torch.optim.SGD(network.parameters(), lr=0.1))
    wrapped(x, target)
    assert_close_sums(dict(network.state_dict()), dict(twin.state_dict()), terms=x.numel())


# -- gradients written by hand -------------------------------------------------------------------------------------


class StraightThrough(torch.autograd.Function):
    """Rounds; the gradient pretends it did not."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class ScaledProduct(torch.autograd.Function):
    """Saves tensors and a number, gives one input no gradient, and uses another factor on the way back."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x @ weight * factor

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        x, weight = ctx.saved_tensors
        into_x = gradient @ weight.t() if ctx.needs_input_grad[0] else None
        return into_x, x.t() @ gradient * (2 * ctx.factor), None


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ScaledProduct.apply(StraightThrough.apply(self.before(x) * 3), self.weight, 0.5)


def test_autograd_functions_use_their_own_backward() -> None:
    check_inference(ByHand(), torch.randn(5, 4))
    check_training(regression(ByHand()), batches())


# -- checkpoints ---------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Sequential(nn.Linear(6, 6), nn.Dropout(dropout), nn.Tanh())
        self.third = nn.Linear(6, 3)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for _ in range(2):
            y = checkpoint(self.second, y, use_reentrant=self.reentrant)
        return self.third(y)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_train_like_any_others(reentrant: bool) -> None:
    check_inference(Checkpointed(reentrant).eval(), torch.randn(5, 4))
    check_training(regression(Checkpointed(reentrant)), batches())


class MaskedWeights(nn.Module):
    """Every weight has one column; dropout masks of the two parts are visible in the output."""

    def __init__(self, recompute: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.early = nn.Parameter(torch.ones(64))
        self.late = nn.Parameter(torch.ones(64))
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        early = self.recompute(lambda y: F.dropout(y, 0.5) * 1.0, x * self.early)
        late = self.recompute(lambda y: F.dropout(y, 0.5) * 1.0, x * self.late)
        return early, late, poptorch.identity_loss(early + late, reduction="sum")


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_dropout_repeats_its_mask(reentrant: bool) -> None:
    model = MaskedWeights(lambda f, y: checkpoint(f, y, use_reentrant=reentrant))
    wrapped = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    expected = {"early": torch.ones(64), "late": torch.ones(64)}
    for call in range(3):
        early, late, _ = wrapped(torch.ones(1, 64))
        masks = {"early": (early != 0).float()[0] * 2, "late": (late != 0).float()[0] * 2}
        assert not torch.equal(masks["early"], masks["late"]), f"call {call}"
        for name, mask in masks.items():
            expected[name] = expected[name] - mask  # the gradient of a sum is the mask itself
            assert torch.equal(getattr(model, name), expected[name])


def test_recomputation_that_draws_afresh_is_the_users_choice() -> None:
    def recompute(f: Callable[..., torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        return checkpoint(f, y, use_reentrant=True, preserve_rng_state=False)

    model = MaskedWeights(recompute)
    wrapped = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    early, _, _ = wrapped(torch.ones(1, 64))
    assert not torch.equal(1 - model.early.detach(), (early != 0).float()[0] * 2)


# -- weights that are more than parameters -------------------------------------------------------------------------


class TiedAutoencoder(nn.Module):
    """Two names for one matrix, and a third use of it transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3, bias=False)
        self.again = nn.Linear(4, 3, bias=False)
        self.again.weight = self.encoder.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.encoder(x).tanh() @ self.encoder.weight + x) @ self.again.weight.t()


def test_tied_weights_stay_one_weight() -> None:
    model = regression(TiedAutoencoder())
    check_training(model, batches())
    assert model.network.again.weight is model.network.encoder.weight
    check_inference(TiedAutoencoder(), torch.randn(5, 4))


parametrizations = nn.utils.parametrizations
PARAMETRIZED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal, matrix_exp": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="matrix_exp"),
    "orthogonal, cayley": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"),
    "orthogonal, householder": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="householder"),
}


@pytest.mark.parametrize("name", PARAMETRIZED)
def test_parametrized_weights_are_computed_and_trained(name: str) -> None:
    check_inference(PARAMETRIZED[name](nn.Linear(4, 3)).eval(), torch.randn(5, 4))
    check_training(regression(PARAMETRIZED[name](nn.Linear(4, 3))), batches())


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, nn.utils.spectral_norm], ids=lambda f: f.__name__)
def test_the_older_weight_and_spectral_norm_work_too(wrap: Callable[[nn.Module], nn.Module]) -> None:
    network = nn.Sequential(wrap(nn.Linear(4, 3)))
    twin = nn.Sequential(wrap(nn.Linear(4, 3)))
    twin.load_state_dict(network.state_dict())
    model = regression(network)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(model, optimizer=torch.optim.SGD(network.parameters(), lr=0.1))
    for x, target in batches():
        wrapped(x, target)
        optimizer.zero_grad()
        F.mse_loss(twin(x), target).backward()
        optimizer.step()
    wrapped.destroy()
    terms, steps = x.numel(), len(batches())
    assert_close_sums(dict(network.state_dict()), dict(twin.state_dict()), terms=terms, steps=steps)
    x, _ = batches()[0]
    assert_close_sums(network.eval()(x), twin.eval()(x), terms=terms, steps=steps)


def test_frozen_weights_and_detached_branches_do_not_move() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(4, 5)
            self.detached = nn.Linear(4, 5)
            self.trained = nn.Linear(5, 3)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                scale = self.detached(x).norm()
            return self.trained(self.frozen(x) + self.detached(x).detach()) / scale

    model = regression(Partly())
    before = copy.deepcopy(model.state_dict())
    check_training(model, batches())
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"network.trained.weight", "network.trained.bias"}


def test_a_parameter_that_is_not_used_keeps_its_value() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    check_training(regression(Spare()), batches())


def test_layers_used_several_times_add_up_their_gradients() -> None:
    shared = nn.Linear(4, 4)
    check_training(regression(nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, 3))), batches())


def test_parameters_in_lists_and_dictionaries_are_found() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList(nn.Parameter(torch.rand(4)) for _ in range(3))
            self.layers = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
            self.mixed = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(3))})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for scale in self.scales:
                x = x * scale + torch.sin(x)
            return sum(layer(x) for layer in self.layers.values()) + self.mixed["bias"]

    check_inference(Many(), torch.randn(5, 4))
    check_training(regression(Many()), batches())
