"""Host programs as data: what goes in comes out, and what cannot go in says so."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import torch
from torch import fx, nn

import poptorch
from poptorch.encoding import NotEncodable
from poptorch.executable.host_program import (
    Apply,
    Argument,
    Constant,
    Factors,
    HandOver,
    HostProgram,
    Kernel,
    KernelCall,
    Operation,
    Prepared,
    RandomKey,
)
from poptorch.host.native.inductor import graph_kernel
from poptorch.host.running.rendering import code_of
from poptorch.host.store import cache, code_store
from poptorch.host.store import kernel_files as binaries
from poptorch.host.store.kernel_files import NotPortable
from poptorch.host.store.written import FORMAT, read, written


def passed_on(program: HostProgram) -> HostProgram:
    """The program after a journey through text."""
    content, blobs = written(program)
    return read(json.loads(json.dumps(content)), blobs)


def doubling() -> Kernel:
    """A kernel that goes through a graph."""
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (graph.placeholder("x"), 2)),))
    return graph_kernel("double", graph)


def every_step(value: Any = None) -> HostProgram:
    steps = (
        Constant(2, torch.ones(2) if value is None else value),
        RandomKey(3),
        Prepared("double", (0,), (4,)),
        KernelCall("double", (1,), (5,), reuses=(1,), frees=(1,)),
        Factors(6, 4, 5, (True, False), frees=(5,)),
        HandOver(0, (6,)),
    )
    arguments = (
        Argument("parameters", (0,)), Argument("inputs", (1,), given_away=True), Argument("random"), Argument("hand"),
    )  # fmt: skip
    names = tuple(f"v{i}" for i in range(7))
    return HostProgram("micro_batch", arguments, steps, (2, None, 3), names, {"double": doubling()}, about="all of it")


def test_a_program_is_the_same_after_a_journey() -> None:
    program = every_step()
    found = passed_on(program)
    assert found == program
    assert str(found) == str(program)
    assert found.kernels["double"].run is not None
    assert found.kernels["double"].run([torch.ones(1)])[0].item() == 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_constants(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    program = every_step(torch.ones(shape).to(dtype))
    assert passed_on(program) == program


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layers(x)
        return (y, poptorch.identity_loss(y.square().mean(), reduction="none")) if self.training else y


def programs_of(executor: Any) -> list[HostProgram]:
    code = executor.executable.code
    found = [code.step, *(stage.code for stage in code.stages), code.update]
    return [c.program for c in found if c is not None and c.program.kernels]


@pytest.mark.timeout(600)  # a C++ compiler at work
@pytest.mark.parametrize("kind", ["joined", "accumulated", "inference"])
def test_what_was_compiled_is_the_same_after_a_journey(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.setattr(cache, "local_folder", lambda: None)  # what came from a file is not written a second time
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(4, 8)
    options = poptorch.Options().randomSeed(3)
    if kind == "inference":
        executor: Any = poptorch.inferenceModel(model.eval(), options)
    else:
        options.Training.gradientAccumulation(2 if kind == "accumulated" else 1)
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    expected = executor(x)
    programs = programs_of(executor)
    assert programs, "nothing is native"
    for program in programs:
        found = passed_on(program)
        assert found == program
        assert str(found) == str(program)
    replace_code(executor, {id(p): code_of(passed_on(p)) for p in programs})
    executor.rng_state = [3, 0]
    torch.testing.assert_close(executor(x), expected, rtol=0, atol=0)


def replace_code(executor: Any, by_program: dict[int, Any]) -> None:
    code = executor.executable.code
    stages = tuple(dataclasses.replace(s, code=by_program.get(id(s.code.program), s.code)) for s in code.stages)
    changed = {
        name: by_program.get(id(found.program), found)
        for name in ("step", "update")
        if (found := getattr(code, name)) is not None
    }
    executor.session.install(dataclasses.replace(code, stages=stages, **changed))


def test_what_no_compiler_made_is_refused() -> None:
    with pytest.raises(NotPortable, match="which the compiler did not make"):
        written(dataclasses.replace(every_step(), kernels={"double": Kernel("double", print)}))
    single = dataclasses.replace(every_step(), functions={"f": print})
    with pytest.raises(NotPortable, match="single operations"):
        written(single)
    with pytest.raises(NotPortable):
        written(dataclasses.replace(every_step(), steps=(Operation(2, Apply("f", ())),)))
    with pytest.raises(NotPortable):
        written(every_step(object()))


@pytest.mark.parametrize(
    "entry",
    [
        {"Operation": {"output": 1, "call": None}},
        {"Kernel": {"name": "k"}},
        {"HostProgram": {}},
        {"object": [["os", "PathLike"], []]},
        {"closure": ["subprocess", "run.<locals>.f", [], [], None]},
        {"operator": "os.system"},
        {"builtin": "attrgetter"},
        {"Argument": {"name": "inputs", "values": {"tuple": []}}},
        7,
    ],
)
def test_programs_are_made_of_steps_and_nothing_else(entry: Any) -> None:
    content, blobs = written(every_step())
    content["steps"].append(entry)
    with pytest.raises((NotPortable, NotEncodable, TypeError, AttributeError)):
        read(content, blobs)


def test_another_format_is_refused() -> None:
    content, blobs = written(every_step())
    with pytest.raises(NotPortable, match="format 99"):
        read({**content, "format": 99}, blobs)


def test_a_broken_program_does_not_become_code() -> None:
    content, blobs = written(every_step())
    content["results"] = [6]
    with pytest.raises(AssertionError, match="handed over"):
        code_of(read(content, blobs))


WRAPPER = '''
import torch
import random
from torch._inductor.select_algorithm import extern_kernels
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
fused = async_compile.cpp_pybinding(["float*"], r"""
extern "C" void kernel(float* x) {}
""")
async_compile.wait(globals())
del async_compile

def call(args):
    fused(args[0])
    return extern_kernels.mm(args[0], args[0])

def get_args():
    return []
'''


def test_the_text_without_sources():
    text, kernels = binaries._without_sources(WRAPPER)
    assert kernels == ["fused"]
    for gone in ('extern "C"', "async_compile", "random", "get_args", "import"):
        assert gone not in text
    assert binaries._free_names(compile(text, "kernel", "exec")) == {"fused", "extern_kernels"}


def test_the_key_knows_the_passes_and_no_other_text(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = pathlib.Path.read_bytes

    def noted(self: pathlib.Path) -> bytes:
        read.append(self.parent.name)
        return original(self)

    monkeypatch.setattr(pathlib.Path, "read_bytes", noted)
    code_store._passes.cache_clear()
    assert code_store.surroundings()["poptorch"][1] == FORMAT
    assert set(read) == {"native"}
