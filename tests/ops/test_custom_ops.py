"""Custom operators in C++ and Python: selection, kernels, gradients, failures."""

from __future__ import annotations

import ctypes
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch
import preloaded
from closeness import assert_close_sums
from poptorch.ops.custom import registry, requirements
from poptorch.ops.custom.call import CUSTOM_OP


def _call(
    name: str,
    *inputs: torch.Tensor,
    outputs: int = 1,
    domain: str = "test.poptorch",
    version: int = 1,
    **attributes: Any,
):
    def forward(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return poptorch.custom_op(list(tensors), name, domain, version, [tensors[0]] * outputs, attributes or None)

    return forward, inputs


def _run(capture: Any, name: str, *inputs: torch.Tensor, **settings: Any) -> list[torch.Tensor]:
    forward, inputs = _call(name, *inputs, **settings)
    return capture(forward, *inputs)(*inputs)


X = torch.tensor([3.0, 4.0, 5.0])


# ---- the conformance operators -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("libraries")
class TestConformance:
    def test_cube(self, capture) -> None:
        sum_, power = _run(
            capture, "Cube", torch.full((1, 8), 2.0), torch.full((1, 8), 4.0), outputs=2, domain="com.acme"
        )
        assert torch.equal(sum_, torch.full((1, 8), 12.0))
        assert torch.equal(power, torch.full((1, 8), 8.0))

    @pytest.mark.parametrize(("attributes", "alpha"), [({"alpha": 0.02}, 0.02), ({}, 0.01)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_leaky_relu(self, capture, attributes: dict, alpha: float, dtype: torch.dtype) -> None:
        x = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=dtype)
        (y,) = _run(capture, "LeakyRelu", x, domain="com.acme", **attributes)
        assert_close_sums(y, torch.nn.functional.leaky_relu(x, alpha), terms=1)

    def test_scalars_and_vectors(self, capture) -> None:
        assert _run(capture, "AddScalarFloat", X, scalar=3.0)[0].tolist() == [6.0, 7.0, 8.0]
        (integers,) = _run(capture, "AddScalarInt", torch.tensor([3, 4, 5]), scalar=2)
        assert (integers.dtype, integers.tolist()) == (torch.int32, [5, 6, 7])
        assert _run(capture, "AddScalarVecFloat", X, vec=[1.0, 2.0, 3.0])[0].tolist() == [4.0, 6.0, 8.0]
        assert _run(capture, "AddScalarVecInt", X.int(), vec=(1, 2, 3))[0].tolist() == [4, 6, 8]
        (scaled,) = _run(capture, "AddVecScalarMulFloat", X, vec=[1.0, 2.0, 3.0], scalar=2.0)
        assert scaled.tolist() == [8.0, 12.0, 16.0]

    def test_reductions_have_their_own_shapes(self, capture) -> None:
        (total,) = _run(capture, "ReduceOp", X, reduction="sum")
        assert (total.shape, total.item()) == (torch.Size([]), 12.0)
        results = _run(capture, "ThreeReduceOp", X, X * 2, X * 3, outputs=3, reductions=["sum", "mean", "sum"])
        assert [result.item() for result in results] == [12.0, 8.0, 36.0]

    def test_every_type_of_attribute_in_any_order(self, capture) -> None:
        values = {
            "float_one": 1.0,
            "float_minus_two": -2.0,
            "int_zero": 0,
            "int_minus_five": -5,
            "floats_one_two_three": [1.0, 2.0, 3.0],
            "floats_minus_one_two_three": (-1.0, -2.0, -3.0),
            "ints_one_two_three": [1, 2, 3],
            "ints_minus_one_two_three": (-1, -2, -3),
            "a_string": "string with quotes and slash \" ' \\ end",
            "another_string": "another",
            "strs": ["abc", "def", "ghi"],
            "more_strs": ("tab\t", "newline\n"),
        }
        assert _run(capture, "ManyAttributeOp", X, **values)[0].tolist() == [4.0, 5.0, 6.0]
        assert _run(capture, "ManyAttributeOp", X, **dict(reversed(values.items())))[0].tolist() == [4.0, 5.0, 6.0]
        assert _run(capture, "ManyAttributeOp", X, **values | {"int_zero": 1})[0].tolist() == X.tolist()

    def test_the_highest_version_that_is_not_above(self, capture) -> None:
        added = {v: _run(capture, "AddVersion", X, version=v)[0][0].item() - 3 for v in (1, 2, 3, 9)}
        assert added == {1: 1.0, 2: 1.0, 3: 3.0, 9: 3.0}
        with pytest.raises(poptorch.Error, match=r"No class for test.poptorch.AddVersion"):
            _run(capture, "AddVersion", X, version=0)

    def test_results_feed_other_operators(self, capture) -> None:
        def forward(x: torch.Tensor) -> list[torch.Tensor]:
            first = poptorch.custom_op([x, x], "Cube", "com.acme", 1, [x, x])
            second = poptorch.custom_op(first, "Cube", "com.acme", 1, [x, x])
            return poptorch.custom_op(second[:1], "AddScalarFloat", "test.poptorch", 1, [x], {"scalar": -1.0})

        (y,) = capture(forward, torch.ones(1))(torch.full((1,), 2.0))
        assert y.item() == (8 + 2) ** 3 + 8 - 1

    def test_strided_inputs(self, capture) -> None:
        x = torch.arange(6.0).view(2, 3)
        forward, _ = _call("AddScalarFloat", x, scalar=1.0)
        graph = capture(lambda v: forward(v.t()), x)
        assert torch.equal(graph(x)[0], x.t() + 1)


# ---- gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("libraries")
class TestGradients:
    def test_of_inputs(self, capture) -> None:
        def step(x: torch.Tensor, b: torch.Tensor) -> Any:
            x, b = x.requires_grad_(), b.requires_grad_()
            sum_, power = poptorch.custom_op([x * 2, b], "Cube", "com.acme", 1, [x, x])
            (y,) = poptorch.custom_op([sum_ - 50], "LeakyRelu", "com.acme", 1, [x], {"alpha": 0.5})
            return torch.autograd.grad((y + 3 * power).sum(), [x, b])

        x, b = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.5])
        slope = torch.where((2 * x) ** 3 + b < 50, 0.5, 1.0)
        for_x, for_b = capture(step, x.clone(), b.clone())(x, b)
        assert_close_sums(for_x, (slope + 3) * 3 * (2 * x) ** 2 * 2, terms=4)
        assert_close_sums(for_b, slope, terms=1)

    def test_of_outputs_from_two_gradient_operators(self, capture) -> None:
        def step(x: torch.Tensor) -> Any:
            x = x.requires_grad_()
            (y,) = poptorch.custom_op([x], "Sqrt", "test.poptorch", 1, [x])
            return torch.autograd.grad(y.sum(), x)[0]

        x = torch.tensor([1.0, 4.0])
        assert_close_sums(capture(step, x.clone())(x), 0.5 / x.sqrt(), terms=2)

    def test_an_operator_without_gradient_says_so_when_asked(self, capture) -> None:
        def step(x: torch.Tensor, use: bool) -> Any:
            x = x.requires_grad_()
            (y,) = poptorch.custom_op([x], "AddScalarFloat", "test.poptorch", 1, [x], {"scalar": 1.0})
            return torch.autograd.grad(((y if use else y.detach()) * x).sum(), x)[0]

        with pytest.raises(poptorch.Error, match=r"test.poptorch.AddScalarFloat:1.*getGradOps"):
            capture(lambda x: step(x, True), torch.ones(2))
        assert capture(lambda x: step(x, False), torch.ones(2))(torch.ones(2)).tolist() == [2.0, 2.0]

    def test_in_a_loop(self, capture) -> None:
        def step(x: torch.Tensor) -> Any:
            x = x.requires_grad_()

            def body(v: torch.Tensor) -> torch.Tensor:
                return poptorch.custom_op([v, v], "Cube", "com.acme", 1, [v, v])[1]

            (y,) = poptorch.for_loop(2, body, [x])
            return y, torch.autograd.grad(y.sum(), x)[0]

        y, gradient = capture(step, torch.ones(1))(torch.full((1,), 2.0))
        assert (y.item(), gradient.item()) == (512.0, 9 * 2.0**8)


# ---- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("libraries")
class TestFailures:
    def test_no_class(self, capture) -> None:
        with pytest.raises(poptorch.Error, match=r"No class for my.domain.Missing:7.*ctypes.cdll.LoadLibrary"):
            _run(capture, "Missing", X, domain="my.domain", version=7)

    @pytest.mark.parametrize(
        ("when", "phrase"), [("constructor", "the constructor gave up"), ("setup", "the shapes gave up")]
    )
    def test_exceptions_at_compilation(self, capture, when: str, phrase: str) -> None:
        with pytest.raises(poptorch.Error, match=rf"test.poptorch.Fail:1 failed: {phrase}"):
            _run(capture, "Fail", X, when=when)

    @pytest.mark.parametrize(("when", "phrase"), [("compute", "the kernel gave up"), ("odd", "not a std::exception")])
    def test_exceptions_in_the_kernel(self, capture, when: str, phrase: str) -> None:
        forward, _ = _call("Fail", X, when=when)
        graph = capture(forward, X)
        with pytest.raises(poptorch.Error, match=phrase):
            graph(X)

    def test_attributes(self, capture) -> None:
        with pytest.raises(poptorch.Error, match="no attribute key scalar"):
            _run(capture, "AddScalarFloat", X)
        with pytest.raises(poptorch.Error, match="attribute scalar is of type Int, but the operator reads it as Float"):
            _run(capture, "AddScalarFloat", X, scalar=1)
        with pytest.raises(poptorch.Error, match="empty list"):
            _run(capture, "AddScalarVecFloat", X, vec=[])
        with pytest.raises(poptorch.Error, match="unknown reduction max"):
            _run(capture, "ReduceOp", X, reduction="max")

    def test_wrong_numbers_of_tensors(self, capture) -> None:
        with pytest.raises(poptorch.Error, match="Cube:1 takes 2 inputs, but got 1"):
            _run(capture, "Cube", X, outputs=2, domain="com.acme")
        with pytest.raises(poptorch.Error, match="has 2 outputs, but example_outputs has 1"):
            _run(capture, "Cube", X, X, domain="com.acme")

    def test_wrong_types(self, capture) -> None:
        with pytest.raises(poptorch.Error, match="must have the same shape and type"):
            _run(capture, "Cube", X, X[:2], outputs=2, domain="com.acme")
        forward, _ = _call("LeakyRelu", X.int(), domain="com.acme")
        graph = capture(forward, X.int())
        with pytest.raises(poptorch.Error, match="expected a floating point tensor, not int32"):
            graph(X.int())
        with pytest.raises(poptorch.Error, match="complex64 is not supported"):
            _run(capture, "AddScalarFloat", X.to(torch.complex64), scalar=1.0)
        with pytest.raises(poptorch.Error, match="inputs of type Tensor is not supported"):
            poptorch.custom_op(X, "Cube", "com.acme", 1, [X])
        with pytest.raises(poptorch.Error, match=r"example_outputs\[0\] of type int is not supported"):
            poptorch.custom_op([X], "Cube", "com.acme", 1, [1])


def test_outside_of_a_model_the_result_is_zeros() -> None:
    template = torch.ones(2, dtype=torch.float16, requires_grad=True)
    (result,) = poptorch.custom_op([X], "Never", "heard.of", 1, [template])
    assert (result.shape, result.dtype, result.requires_grad) == ((2,), torch.float16, True)
    assert not result.detach().any()


def test_libraries_and_cycles_are_known(capture, libraries: dict[str, str]) -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        (y,) = poptorch.for_loop(2, lambda v: poptorch.custom_op([v, v], "Cube", "com.acme", 1, [v, v])[0], [x])
        return poptorch.custom_op([y], "AddScalarFloat", "test.poptorch", 5, [x], {"scalar": 1.0})

    needed = requirements([capture(forward, X).graph])
    assert needed == [
        {"domain": "com.acme", "name": "Cube", "version": 1, "library": libraries["custom_cube_op"]},
        {
            "domain": "test.poptorch",
            "name": "AddScalarFloat",
            "version": 1,
            "library": libraries["custom_conformance_ops"],
        },
    ]
    cube = registry.instance("com.acme", "Cube", 1, "{}")
    assert cube.cycles([torch.ones(2944), torch.ones(2944)]) == 4.0
    assert registry.instance("test.poptorch", "Sqrt", 1, "{}").cycles([X]) is None


def test_loading_with_ctypes_is_all_it_takes(libraries: dict[str, str]) -> None:
    program = f"""
        import ctypes, poptorch, torch
        from poptorch.ops.custom import registry
        ctypes.cdll.LoadLibrary({libraries["custom_cube_op"]!r})
        torch.ops.load_library({libraries["custom_leaky_relu_op"]!r})
        for name in ("Cube", "LeakyRelu"):
            print(registry.find("com.acme", name, 1).key)
    """
    done = preloaded.run(["-c", textwrap.dedent(program)], check=True)
    assert done.stdout.split() == ["com.acme.Cube:1", "com.acme.LeakyRelu:1"]


def test_kernels_run_on_several_threads(capture, libraries: dict[str, str]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    forward, _ = _call("AddScalarFloat", X, scalar=1.0)
    graph = capture(forward, torch.zeros(100))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: graph(torch.full((100,), float(i)))[0][99].item(), range(50)))
    assert results == [i + 1.0 for i in range(50)]


# ---- half precision in the header --------------------------------------------------------------------------------


def test_halves_round_like_torch(capture, libraries: dict[str, str]) -> None:
    bits = torch.arange(0, 2**16, 7, dtype=torch.int32).to(torch.int16).view(torch.float16)
    x = bits[~bits.isnan()]
    (y,) = _run(capture, "LeakyRelu", x, domain="com.acme", alpha=0.3)
    alpha = torch.tensor(0.3)  # the attribute is a float32
    expected = torch.where(x < 0, x.float() * alpha, x.float()).half()
    assert torch.equal(y, expected)


# ---- operators in Python -----------------------------------------------------------------------------------------


def test_a_python_operator(capture) -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor, *, factor: float = 1.0):
        return x * y * factor, x.sum()

    def gradient(gradients, inputs, outputs, *, factor: float = 1.0):
        _, y = inputs
        return [gradients[0] * y * factor + gradients[1], None]

    poptorch.registerCustomOp(
        "Scaled", "tests", 2, scaled, gradient, attributes={"factor": "Float"}, cycles=lambda x, y, **_: x.numel()
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x.requires_grad_()
        product, total = poptorch.custom_op([x, y], "Scaled", "tests", 4, [x, x], {"factor": 2.0})
        return product, total, torch.autograd.grad(product.sum() + total, x)[0]

    graph = capture(step, X.clone(), X.clone())
    product, total, gradient_of_x = graph(X, X + 1)
    assert_close_sums(product, X * (X + 1) * 2, terms=2)
    assert total.item() == 12.0
    assert_close_sums(gradient_of_x, (X + 1) * 2 + 1, terms=3)
    assert registry.instance("tests", "Scaled", 2, "{}").cycles([X, X]) == 3.0
    for attributes, phrase in (
        ({"other": 1.0}, "no attribute 'other'; it knows: factor"),
        ({"factor": 1}, "must be Float, not Int"),
    ):
        with pytest.raises(poptorch.Error, match=phrase):
            capture(lambda x, a=attributes: poptorch.custom_op([x, x], "Scaled", "tests", 2, [x, x], a), X)
    with pytest.raises(poptorch.Error, match="has 2 outputs, but example_outputs has 1"):
        capture(lambda x: poptorch.custom_op([x, x], "Scaled", "tests", 2, [x]), X)
    with pytest.raises(poptorch.Error, match="takes 2 inputs, but got 1"):
        capture(lambda x: poptorch.custom_op([x], "Scaled", "tests", 2, [x, x]), X)


def test_python_shape_inference_that_lies_is_reported(capture) -> None:
    poptorch.registerCustomOp("Liar", "tests", 1, lambda x: x[:1], infer=lambda x: x)
    graph = capture(lambda x: poptorch.custom_op([x], "Liar", "tests", 1, [x]), X)
    with pytest.raises(poptorch.Error, match="its shape inference promised"):
        graph(X)


def test_wrong_registrations() -> None:
    with pytest.raises(poptorch.Error, match="cannot be called"):
        poptorch.registerCustomOp("Bad", "tests", 1, 3)
    with pytest.raises(poptorch.Error, match="unknown type 'Graph'"):
        poptorch.registerCustomOp("Bad", "tests", 1, lambda x: x, attributes={"g": "Graph"})


def test_fast_gather_last_dim(capture) -> None:
    data, index = torch.randn(2, 3, 5), torch.randint(5, (2, 3, 4), dtype=torch.int32)

    def step(d: torch.Tensor, i: torch.Tensor) -> Any:
        d = d.requires_grad_()
        (y,) = poptorch.custom_op([d, i], "FastGatherLastDim", "poptorch.custom_ops", 1, [i.float()])
        return y, torch.autograd.grad(y.square().sum(), d)[0]

    y, gradient = capture(step, data.clone(), index)(data, index)
    assert torch.equal(y, data.gather(-1, index.long()))
    expected = torch.zeros_like(data).scatter_add(-1, index.long(), 2 * y)
    assert_close_sums(gradient, expected, terms=4)
    for bad in (index[:, :2], index[0], torch.zeros(2, 3, 6, dtype=torch.int32), index.to(torch.int8)):
        with pytest.raises(poptorch.Error, match="FastGatherLastDim"):
            capture(lambda d, i: step(d, i), data.clone(), bad)


def test_the_operator_needs_the_exact_version_at_run_time() -> None:
    poptorch.registerCustomOp("Old", "tests", 1, lambda x: x)
    with pytest.raises(poptorch.Error, match="exactly version 2"):
        CUSTOM_OP([X], "tests", "Old", 2, "{}")


# ---- building ----------------------------------------------------------------------------------------------------


def test_build_failures_show_the_compiler_output(tmp_path: Path) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("this is not C++\n")
    with pytest.raises(poptorch.Error, match=r"broken.cpp:1"):
        poptorch.buildCustomOp("broken", broken)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.cpp"]
    with pytest.raises(poptorch.Error, match="does not exist"):
        poptorch.buildCustomOp("missing", tmp_path / "missing.cpp")
    with pytest.raises(poptorch.Error, match="no sources"):
        poptorch.buildCustomOp("nothing", [])
    with pytest.raises(poptorch.Error, match="does not start"):
        poptorch.buildCustomOp("broken", broken, compiler="no-such-compiler")


def test_without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "any.cpp"
    source.write_text("\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(poptorch.Error, match="no C\\+\\+ compiler found"):
        poptorch.buildCustomOp("any", source)


def _compiler_that_notes(tmp_path: Path, status: int = 0) -> tuple[Path, Path]:
    """A compiler that writes its arguments to a file, and then compiles or fails."""
    noted, script = tmp_path / "noted.txt", tmp_path / "my-c++"
    end = f"echo to stdout; echo to stderr >&2; exit {status}" if status else 'exec c++ "${@:2}"'
    script.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >> {noted}\n{end}\n')
    script.chmod(0o755)
    return script, noted


def test_compiler_and_flags_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, noted = _compiler_that_notes(tmp_path)
    source = tmp_path / "environment.cpp"
    source.write_text("#if VALUE != 3\n#error VALUE\n#endif\nint one() { return 1; }\n")
    monkeypatch.setenv("CXX", f"{compiler} --wrapped")
    monkeypatch.setenv("CXXFLAGS", "-DVALUE=2 -DTEXT='a b' -O0")
    poptorch.buildCustomOp("environment", source, flags=["-UVALUE", "-DVALUE=3"])  # those of the call win
    words = noted.read_text().splitlines()
    assert words[0] == "--wrapped"
    assert "-DTEXT=a b" in words
    assert words.index("-O2") < words.index("-O0") < words.index("-UVALUE")
    # The same again is not built; other flags, and another compiler, are.
    poptorch.buildCustomOp("environment", source, flags=["-UVALUE", "-DVALUE=3"])
    assert noted.read_text().splitlines() == words
    monkeypatch.setenv("CXXFLAGS", "-O1")
    poptorch.buildCustomOp("environment", source, flags=["-DVALUE=3"], load=False)
    assert len(noted.read_text().splitlines()) > len(words)
    before = noted.read_text()
    poptorch.buildCustomOp("environment", source, flags=["-DVALUE=3"], compiler="c++", load=False)
    assert noted.read_text() == before


def test_failures_of_the_compiler_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, _ = _compiler_that_notes(tmp_path, status=3)
    source = tmp_path / "fails.cpp"
    source.write_text("\n")
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(poptorch.Error, match=r"my-c\+\+ .*fails\.cpp.* failed:\nto stdout\nto stderr"):
        poptorch.buildCustomOp("fails", source)
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(poptorch.Error, match=r"'no-such-compiler', named by the environment variable CXX"):
        poptorch.buildCustomOp("fails", source)
    monkeypatch.setenv("CXX", "c++ 'unbalanced")
    with pytest.raises(poptorch.Error, match=r"environment variable CXX is .*No closing quotation"):
        poptorch.buildCustomOp("fails", source)
    assert not list(tmp_path.glob("*.so"))


def test_builds_are_reused_and_never_mixed_up(tmp_path: Path) -> None:
    source = tmp_path / "tiny.cpp"
    source.write_text("int one() { return 1; }\n")
    path = Path(poptorch.buildCustomOp("tiny", source))
    made = path.stat().st_mtime_ns
    assert Path(poptorch.buildCustomOp("tiny", [source])).stat().st_mtime_ns == made
    ctypes.cdll.LoadLibrary(str(path))
    source.write_text("int two() { return 2; }\n")
    with pytest.raises(poptorch.Error, match="Start a new process"):
        poptorch.buildCustomOp("tiny", source)
