"""torch's own control flow, and attention with functions of the scores, against the same model in eager mode."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.func import hessian, vmap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import one_hot

import poptorch

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


# What torch's functions compute, in plain Python: torch itself compiles them for the host, and not all of them train.


def plain_cond(condition, then, other, operands):
    return (then if condition else other)(*operands)


def plain_while_loop(condition, body, values):
    while condition(*values):
        values = body(*values)
    return values


def plain_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    rows = []
    for position in torch.cartesian_prod(*(torch.arange(n) for n in scores.shape)):
        score = scores[tuple(position)]
        score = score if score_mod is None else score_mod(score, *position)
        seen = block_mask is None or bool(block_mask(*position))
        rows.append(score if seen else torch.tensor(-torch.inf))
    scores = torch.stack(rows).view(scores.shape)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return (weights @ value, scores.logsumexp(-1)) if return_lse else weights @ value


TORCH = SimpleNamespace(
    cond=torch.cond,
    while_loop=while_loop,
    attention=flex_attention,
    mask=lambda seen: create_block_mask(seen, None, None, 4, 4, device="cpu"),
)
PLAIN = SimpleNamespace(cond=plain_cond, while_loop=plain_while_loop, attention=plain_attention, mask=lambda seen: seen)


class Model(nn.Module):
    """Calls a function with two layers, and with torch's functions or their meaning."""

    def __init__(self, function, ops=TORCH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(2, 9))
        self.function, self.ops = function, ops

    def forward(self, *inputs):
        return self.function(self, *inputs)


class WithLoss(nn.Module):
    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        result = self.model(*inputs)
        return result, poptorch.identity_loss(result.pow(2).sum(), "sum")


def infer(function, *inputs, options=None):
    executor = poptorch.inferenceModel(Model(function), options or poptorch.Options())
    result = executor(*inputs)
    executor.destroy()
    return result


def in_eager(function, *inputs):
    return Model(function, PLAIN)(*inputs).detach()


def assert_trains_alike(function, *calls):
    """Steps on the device, and the same on the host."""
    model = Model(function)
    expected = Model(function, PLAIN)
    executor = poptorch.trainingModel(WithLoss(model), poptorch.Options(), torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for inputs in calls:
        result, _ = executor(*inputs)
        optimizer.zero_grad()
        wanted = expected(*inputs)
        wanted.pow(2).sum().backward()
        optimizer.step()
        torch.testing.assert_close(result, wanted.detach(), rtol=1e-4, atol=1e-5)
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, rtol=1e-4, atol=1e-5)
    executor.destroy()


# -- branches ----------------------------------------------------------------------------------------------------------


def branch(model, x):
    return model.ops.cond(x.sum() > 0, lambda x: model.first(x).tanh(), lambda x: model.second(x) * 2, (x,))


def nested(model, x):
    def positive(x):
        return model.ops.cond(x[0, 0] > 1, lambda x: model.first(x), lambda x: model.second(x).sin(), (x,))

    return model.ops.cond(x.sum() > 0, positive, lambda x: x - model.second(x), (x,))


def structured(model, x):
    def then(x, y):
        return {"a": x + 1, "b": (y,)}

    def other(x, y):
        return {"a": y, "b": (x * model.first.bias,)}

    found = model.ops.cond((x > 0).all(), then, other, [x, model.second(x)])
    return found["a"] + found["b"][0]


def with_calls_of_other_forms(model, x):
    """Functions that capture replaces: they must be seen inside the branches, too."""

    def then(x):
        x = x.clone()
        x[x < 0] = 0.5
        return x

    def other(x):
        return model.first(x) + one_hot(torch.arange(2, device=x.device), 4).float()

    return model.ops.cond(x.sum() > 0, then, other, (x,))


ROWS = (torch.tensor([[2.0, -1, 0.5, 1], [1, 1, -0.5, 1]]), torch.tensor([[0.5, -1, 0.5, 1], [1, 1, -0.5, 1]]))
CALLS = [(rows,) for rows in (*ROWS, -ROWS[0])]


@pytest.mark.parametrize("function", [branch, nested, structured, with_calls_of_other_forms])
def test_branches_are_decided_at_run_time(function):
    executor = poptorch.inferenceModel(Model(function))
    for inputs in CALLS:
        torch.testing.assert_close(executor(*inputs), in_eager(function, *inputs))
    executor.destroy()


@pytest.mark.parametrize("function", [branch, nested, structured])
def test_branches_train(function):
    assert_trains_alike(function, *CALLS)


def test_branches_in_native_code(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    assert_trains_alike(branch, *CALLS)


def test_a_condition_of_python_is_decided_once():
    function = lambda model, x: model.ops.cond(x.dim() == 2, model.first, model.second, (x,))  # noqa: E731
    torch.testing.assert_close(infer(function, ROWS[0]), in_eager(function, ROWS[0]))


# -- loops -------------------------------------------------------------------------------------------------------------


def collatz(model, x):
    steps, value = model.ops.while_loop(
        lambda steps, value: value.sum() > 1,
        lambda steps, value: (steps + 1, torch.where(value % 2 == 0, value // 2, 3 * value + 1)),
        (torch.zeros((), dtype=torch.int32), x),
    )
    return steps + value


def halved(model, x):
    return model.ops.while_loop(lambda x: x.norm() > 0.1, lambda x: (x * torch.sigmoid(model.first(x)) / 2,), (x,))[0]


@pytest.mark.parametrize("level", ["interpret", "native"])
def test_a_loop_runs_as_often_as_its_values_say(level, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    executor = poptorch.inferenceModel(Model(collatz))
    found = [executor(torch.tensor([n], dtype=torch.int32)).item() for n in (1, 6, 27)]
    assert found == [1, 9, 112]
    executor.destroy()


def test_a_loop_uses_layers_from_around_it():
    wanted = [in_eager(halved, x) for x in ROWS]
    options = poptorch.Options().deviceIterations(2)
    found = infer(halved, torch.cat(ROWS), options=options)
    torch.testing.assert_close(found, torch.cat(wanted))


def test_a_loop_that_must_be_differentiated_is_refused():
    with pytest.raises(poptorch.Error, match=r"while_loop has no backward pass.*poptorch\.for_loop") as error:
        assert_trains_alike(halved, (ROWS[0],))
    assert "test_torch_control_flow.py" in str(error.value)


def test_a_loop_without_gradients_trains():
    def function(model, x):
        with torch.no_grad():
            scale = halved(model, x)
        return model.second(x) * scale

    assert_trains_alike(function, (ROWS[0],), (ROWS[1],))


@pytest.mark.parametrize(
    ("condition", "body", "phrase"),
    [
        (lambda x: x > 0, lambda x: (x + 1,), "the condition must return one boolean tensor"),
        (lambda x: x.sum(), lambda x: (x + 1,), "the condition must return one boolean tensor"),
        (lambda x: x.sum() > 0, lambda x: (x[0],), "must stay the same"),
    ],
)
def test_loops_that_do_not_fit_are_refused(condition, body, phrase):
    with pytest.raises(poptorch.Error, match=phrase):
        infer(lambda model, x: while_loop(condition, body, (x,))[0], ROWS[0])


def test_other_functions_of_torch_name_the_equivalents():
    function = lambda model, x: scan(lambda carry, row: (carry + row, carry * row), x[0], x)[1]  # noqa: E731
    with pytest.raises(poptorch.Error, match=r"torch's scan at .*test_torch_control_flow.*poptorch\.for_loop"):
        infer(function, ROWS[0])


# -- attention ---------------------------------------------------------------------------------------------------------


def heads(x):
    return x.view(1, 4, 2, 4).transpose(1, 2)


def relative(model, x):
    """A learned bias by head and distance; every other head looks back only."""

    def of_score(score, row, head, query, key):
        score = score + model.table[head, query - key + 4]
        return torch.where((head == 0) | (key <= query), score, -torch.inf)

    return model.ops.attention(heads(model.first(x)), heads(model.second(x)), heads(x), score_mod=of_score)


def chained(model, x):
    def of_score(score, row, head, query, key):
        return score * torch.tanh(model.table[head][query - key + 4])

    return model.ops.attention(heads(model.first(x)), heads(model.second(x)), heads(x), score_mod=of_score)


def causal(model, x):
    mask = model.ops.mask(lambda row, head, query, key: key < query)
    return model.ops.attention(heads(model.first(x)), heads(x), heads(model.second(x)), block_mask=mask, scale=0.7)


def grouped(model, x):
    query = model.first(x).view(1, 4, 4, 2).transpose(1, 2)
    key = model.second(x).view(1, 4, 4, 2).transpose(1, 2)[:, :2]
    return model.ops.attention(query, key, key * 2, enable_gqa=True)


def with_sums(model, x):
    result, total = model.ops.attention(heads(model.first(x)), heads(x), heads(x), return_lse=True)
    return result + total.unsqueeze(-1)


@pytest.mark.filterwarnings("ignore:return_lse is deprecated")
@pytest.mark.parametrize("function", [relative, chained, causal, grouped, with_sums])
def test_attention_with_functions_of_the_scores(function):
    torch.manual_seed(1)
    x = torch.randn(8, 4)
    torch.testing.assert_close(infer(function, x), in_eager(function, x), rtol=1e-4, atol=1e-5)
    assert_trains_alike(function, (x,), (-x,))


def test_compiled_attention_is_inlined():
    compiled = torch.compile(flex_attention)
    function = lambda model, x: compiled(heads(model.first(x)), heads(x), heads(x))  # noqa: E731
    plain = lambda model, x: plain_attention(heads(model.first(x)), heads(x), heads(x))  # noqa: E731
    x = torch.randn(8, 4)
    torch.testing.assert_close(infer(function, x), in_eager(plain, x), rtol=1e-4, atol=1e-5)


def test_torch_compiles_again_afterwards():
    infer(branch, ROWS[0])
    counter = []

    def backend(module, examples):
        counter.append(module)
        return module.forward

    assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)).tolist() == [2, 2]
    assert counter


def test_branches_and_loops_run_in_eager_mode_afterwards():
    for function in (branch, nested):
        infer(function, ROWS[0])
        fresh = Model(function)
        torch.testing.assert_close(fresh(ROWS[0]), in_eager(function, ROWS[0]))


# -- functions of functions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_row", [lambda v: (v**3).sum(), lambda v: v.sin().prod()])
def test_second_derivatives_of_every_row(of_row):
    function = lambda model, x: vmap(hessian(of_row))(x)  # noqa: E731
    torch.testing.assert_close(infer(function, ROWS[0]), function(None, ROWS[0]))
