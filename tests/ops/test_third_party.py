"""Compositions that stand for compiled operators of other packages, against loops over the elements."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch
from closeness import assert_close_sums
from poptorch.capture.third_party import ThirdPartyOps

# The packages' operators, as far as a capture sees them: a schema, and a kernel that must never be reached.
_SCATTER = "(Tensor src, Tensor index, int dim, Tensor? out, int? dim_size) -> "
_DEFINED = [
    ("torch_scatter", "scatter_mul" + _SCATTER + "Tensor"),
    ("torch_scatter", "scatter_max" + _SCATTER + "(Tensor, Tensor)"),
    ("torch_scatter", "scatter_min" + _SCATTER + "(Tensor, Tensor)"),
    ("torch_spline_conv", "spline_basis(Tensor pseudo, Tensor size, Tensor open, int degree) -> (Tensor, Tensor)"),
    ("torch_spline_conv", "spline_weighting(Tensor x, Tensor weight, Tensor basis, Tensor index) -> Tensor"),
]


@pytest.fixture(scope="module", autouse=True)
def _packages() -> Any:
    libraries = []
    for namespace, schema in _DEFINED:
        if hasattr(getattr(torch.ops, namespace), schema.split("(")[0]):
            continue  # the real package is loaded
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(schema)
        libraries.append(library)
    yield
    for library in libraries:
        library._destroy()


def _run(capture: Any, function: Any, *inputs: torch.Tensor) -> Any:
    def forward(*tensors: torch.Tensor) -> Any:
        with ThirdPartyOps():
            return function(*tensors)

    return capture(forward, *inputs)(*inputs)


SRC = torch.tensor([[3.0, 1.0, 3.0, -2.0, 5.0], [0.5, 2.0, -1.0, 2.0, 4.0]])
INDEX = torch.tensor([0, 2, 0, 2, 3])


@pytest.mark.parametrize("name", ["scatter_max", "scatter_min"])
@pytest.mark.parametrize("with_out", [True, False])
def test_extremes(capture, name: str, with_out: bool) -> None:
    start = torch.full((2, 5), 2.5)
    arguments = (start.clone(), None) if with_out else (None, 5)

    def function(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> Any:
        return getattr(torch.ops.torch_scatter, name)(src, index, -1, out if with_out else None, arguments[1])

    values, winners = _run(capture, function, SRC, INDEX, start.clone())
    better = (lambda a, b: a > b) if name == "scatter_max" else (lambda a, b: a < b)
    for row, place in itertools.product(range(2), range(5)):
        best, winner = (2.5 if with_out else None), 5
        for position in range(5):
            value = SRC[row, position].item()
            if INDEX[position] == place and (best is None or better(value, best)):
                best, winner = value, position
        assert values[row, place].item() == (0.0 if best is None else best)
        assert winners[row, place].item() == winner


def test_the_gradient_goes_to_the_winner(capture) -> None:
    def function(src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        src = src.requires_grad_()
        values, _ = torch.ops.torch_scatter.scatter_max(src, index, -1, None, 4)
        return torch.autograd.grad(values.sum(), src)[0]

    assert _run(capture, function, SRC[0].clone(), INDEX).tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_products_and_in_place_results(capture) -> None:
    def product(src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.ops.torch_scatter.scatter_mul(src, index, 1, None, 4)

    assert _run(capture, product, SRC, INDEX).tolist() == [[9.0, 1.0, -2.0, 5.0], [-0.5, 1.0, 4.0, 4.0]]

    def into(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> Any:
        return torch.ops.torch_scatter.scatter_mul.default(src, index, 1, out, None), out

    result, out = _run(capture, into, SRC, INDEX, torch.full((2, 4), 2.0))
    assert torch.equal(result, out)
    assert result[0].tolist() == [18.0, 2.0, -4.0, 10.0]


def test_the_size_must_be_constant(capture) -> None:
    with pytest.raises(poptorch.Error, match="dim_size must be given as a constant"):
        _run(capture, lambda s, i: torch.ops.torch_scatter.scatter_mul(s, i, 1, None, None), SRC, INDEX)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_splines(capture, degree: int) -> None:
    torch.manual_seed(degree)
    pseudo, size = torch.rand(4, 2), torch.tensor([5, 6])
    is_open = torch.tensor([1, 0], dtype=torch.uint8)
    x, weight = torch.randn(4, 3), torch.randn(30, 3, 2)

    def function(pseudo, size, is_open, x, weight):
        basis, index = torch.ops.torch_spline_conv.spline_basis(pseudo, size, is_open, degree)
        return basis, index, torch.ops.torch_spline_conv.spline_weighting(x, weight, basis, index)

    basis, index, result = _run(capture, function, pseudo, size, is_open, x, weight)
    # B-splines are a partition of unity, and a linear function is reproduced by their knots.
    assert_close_sums(basis.sum(1), torch.ones(4), terms=basis.shape[1], steps=degree)
    assert basis.shape == index.shape == (4, (degree + 1) ** 2)
    assert index.min() >= 0
    assert index.max() < 30
    for edge in range(4):
        expected = sum(basis[edge, s] * (x[edge] @ weight[index[edge, s]]) for s in range(basis.shape[1]))
        assert_close_sums(result[edge], expected, terms=3 * basis.shape[1])
    first_knot = int(pseudo[0, 0] * (5 - degree))
    assert sorted(set((index[0] % 5).tolist())) == sorted((first_knot + k) % 5 for k in range(degree + 1))


def test_indices_of_32_bits(capture) -> None:
    x, weight, basis = torch.ones(2, 3), torch.arange(12.0).reshape(2, 3, 2), torch.tensor([[0.5, 2.0], [1.0, 0.0]])
    for dtype in (torch.int32, torch.int64):
        index = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
        result = _run(capture, torch.ops.torch_spline_conv.spline_weighting, x, weight, basis, index)
        assert torch.equal(result, torch.tensor([[51.0, 58.5], [24.0, 27.0]]))


def test_wrong_degree(capture) -> None:
    with pytest.raises(poptorch.Error, match="degree 4 are not supported"):
        _run(
            capture,
            lambda p: torch.ops.torch_spline_conv.spline_basis(p, torch.tensor([3]), torch.tensor([1]), 4),
            torch.rand(2, 1),
        )


def test_torchscript_functions_of_the_packages_are_seen_into(
    capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_scatter_scripted.py").write_text(
        "import torch\n"
        "from typing import Optional\n"
        "@torch.jit.script\n"
        "def scatter_mul(src: torch.Tensor, index: torch.Tensor, dim: int, out: Optional[torch.Tensor], size: int):\n"
        "    return torch.ops.torch_scatter.scatter_mul(src, index, dim, out, size)\n"
        "@torch.jit.script\n"
        "def twice(src: torch.Tensor, index: torch.Tensor):\n"
        "    return scatter_mul(src, index, -1, None, 5) * 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    scripted = importlib.import_module("torch_scatter_scripted")
    monkeypatch.setitem(sys.modules, "torch_scatter", scripted)
    found = _run(capture, scripted.twice, SRC, INDEX)
    expected = torch.ones(2, 5).scatter_reduce(1, INDEX.expand(2, 5), SRC, "prod") * 2
    assert_close_sums(found, expected, terms=SRC.numel())


def test_the_gradient_of_products_that_are_written_into_out(capture) -> None:
    def step(src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        src = src.requires_grad_()
        out = torch.full((2, 5), 0.5)
        torch.ops.torch_scatter.scatter_mul(src, index, -1, out, None)
        return torch.autograd.grad(out.sum(), src)[0]

    src = SRC.clone().requires_grad_()
    torch.full((2, 5), 0.5).scatter_reduce(1, INDEX.expand(2, 5), src, "prod").sum().backward()
    assert_close_sums(_run(capture, step, SRC.clone(), INDEX), src.grad, terms=SRC.numel())
