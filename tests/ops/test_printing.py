"""``ipu_print_tensor``: layouts, titles, gradients."""

from __future__ import annotations

import pytest
import torch

import poptorch
from poptorch.ops.layout import Layout
from poptorch.ops.printing import PRINT

PINNED = torch.tensor([[1.4962566, 1.7682219], [1.0884774, 1.1320305]])


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (
            {"float_format": "auto", "separator": " ", "open_bracket": "{", "close_bracket": "}", "max_line_width": 75},
            ["title: {", " {1.4962566 1.7682219}", " {1.0884774 1.1320305}", "}"],
        ),
        (
            {
                "float_format": "scientific",
                "separator": ",",
                "open_bracket": "[",
                "close_bracket": "]",
                "max_line_width": 15,
            },
            ["title: [", " [1.4962566e+00,", "   1.7682219e+00]", " [1.0884774e+00,", "   1.1320305e+00]", "]"],
        ),
        (
            {
                "float_format": "fixed",
                "separator": ";",
                "open_bracket": "(",
                "close_bracket": ")",
                "max_line_width": 125,
            },
            ["title: (", " (1.4962566;1.7682219)", " (1.0884774;1.1320305)", ")"],
        ),
    ],
)
def test_pinned_layouts(settings: dict, lines: list[str]) -> None:
    assert Layout(digits=8, **settings).render("title", PINNED).split("\n") == lines


SQUARE = {"separator": " ", "open_bracket": "[", "close_bracket": "]"}


def test_rows_are_aligned_to_the_right() -> None:
    assert Layout(**SQUARE).render("name", torch.tensor([5, 7, 9])) == "name: [5 7 9]"
    assert Layout(**SQUARE).render("name", torch.tensor([6, 9, 12])) == "name: [ 6  9 12]"
    assert Layout(digits=0, **SQUARE).render("name", torch.tensor([6, 9, 12])) == "name: [6 9 12]"
    assert Layout(digits=3, **SQUARE).render("x", torch.tensor([-1.5, 10.25])) == "x: [-1.5 10.2]"


def test_scalars_booleans_empty_and_special_values() -> None:
    assert Layout().render("x", torch.tensor(2.5)) == "x: 2.500"
    assert Layout().render("x", torch.tensor([True, False])) == "x: (1,0)"
    assert Layout().render("x", torch.zeros(0)) == "x: ()"
    text = Layout().render("x", torch.tensor([float("nan"), float("inf"), 1.0]))
    assert text == "x: (  nan,  inf,1.000)"
    assert Layout(float_format="none").render("x", torch.tensor([0.5, 100.0])) == "x: (0.5,100)"
    assert Layout().render("x", torch.tensor([1e-9, 1.0])) == "x: (1.000e-09,1.000e+00)"


def test_three_dimensions() -> None:
    assert Layout(**SQUARE).render("x", torch.arange(8).view(2, 2, 2)).split("\n") == [
        "x: [", " [", "  [0 1]", "  [2 3]", " ]", " [", "  [4 5]", "  [6 7]", " ]", "]",
    ]  # fmt: skip


def test_long_tensors_show_their_edges() -> None:
    layout = Layout(summarise_threshold=10, edge_items=2, **SQUARE)
    assert layout.render("x", torch.arange(11)) == "x: [ 0  1 ...  9 10]"
    assert layout.render("x", torch.arange(10)) == "x: [0 1 2 3 4 5 6 7 8 9]"
    assert "..." not in Layout(summarise_threshold=0, max_line_width=0).render("x", torch.arange(2000))
    rows = layout.render("x", torch.arange(25).view(5, 5)).split("\n")
    assert rows == ["x: [", " [ 0  1 ...  3  4]", " [ 5  6 ...  8  9]", " ...", " [15 16 ... 18 19]",
                    " [20 21 ... 23 24]", "]"]  # fmt: skip


def test_nothing_is_printed_outside_of_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert poptorch.ipu_print_tensor(PINNED, "title") is PINNED
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("print_gradient", [True, False])
def test_value_and_gradient_are_printed_to_stderr(capture, capfd, print_gradient: bool) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.requires_grad_()
        y = poptorch.ipu_print_tensor(x + 1, "act", print_gradient=print_gradient)
        return y, torch.autograd.grad((3 * y).sum(), x)[0]

    graph = capture(step, torch.zeros(2))
    capfd.readouterr()
    value, gradient = graph(torch.tensor([1.0, 2.0]))
    assert torch.equal(value, torch.tensor([2.0, 3.0]))
    assert torch.equal(gradient, torch.tensor([3.0, 3.0]))
    printed = capfd.readouterr()
    assert printed.out == ""
    expected = "act: (2.000,3.000)\n"
    assert printed.err == expected + ("act_gradient: (3.000,3.000)\n" if print_gradient else "")


def test_untitled_tensors_have_names_of_their_own(capture) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with poptorch.NameScope("encoder"):
            x = poptorch.ipu_print_tensor(x)
        return poptorch.ipu_print_tensor(x)

    nodes = [node for node in capture(forward, PINNED).graph.nodes if node.target is PRINT]
    assert [node.args[1] for node in nodes] == ["encoder/PrintTensor:0", "PrintTensor:1"]
    assert nodes[1].args[2] == "Gradient___PrintTensor:1"


def test_float16_keeps_its_type(capture) -> None:
    graph = capture(lambda x: poptorch.ipu_print_tensor(x, "h"), PINNED.half())
    assert torch.equal(graph(PINNED.half()), PINNED.half())


def test_wrong_arguments() -> None:
    with pytest.raises(KeyError, match="hex"):
        poptorch.ipu_print_tensor(PINNED, float_format="hex")
    with pytest.raises(poptorch.Error, match=r"ipu_print_tensor.*is not supported"):
        poptorch.ipu_print_tensor("text")
    with pytest.raises(ValueError, match="separator"):
        poptorch.ipu_print_tensor(PINNED, separator="")
