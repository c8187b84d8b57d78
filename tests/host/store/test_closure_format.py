"""Code as data: what goes in comes out, and what cannot go in says so."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poptorch.host.native import code as native
from poptorch.host.native.forward_backward import InputView
from poptorch.host.store import closure_format as portable
from poptorch.host.store import kernel_files as binaries
from poptorch.host.store import registry
from poptorch.host.store.kernel_files import NotPortable
from poptorch.program.program import Role

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner),
    max_leaves=12,
)


def passed_on(value):
    """The value after a journey through text."""
    found = portable.describe(value)
    objects, root = json.loads(json.dumps([found.objects, found.root]))
    return portable.restore(portable.Description(objects, root, found.blobs))


@given(PLAIN)
def test_plain_values(value):
    assert passed_on(value) == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors(dtype, shape):
    value = torch.ones(shape).to(dtype)
    got = passed_on([value, value])
    assert got[0].dtype is dtype
    assert torch.equal(got[0], value)
    assert got[0] is got[1], "one object became two"


def test_types_operators_and_infinity():
    value = [torch.float16, torch.ops.aten.add.Tensor, Role.BUFFER, math.inf]
    assert passed_on(value) == value


def test_closures_of_the_package():
    start = native._start(native.Seed(None, (2,), torch.float32, 1))
    assert passed_on(start)(["a", "b"]) == "b"
    ones = passed_on(native._start(native.Seed(None, (2,), torch.float32, None)))
    assert ones([]).tolist() == [1, 1]


def test_views_keep_their_operations():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    view = InputView(0, (graph.call_function(torch.ops.aten.transpose.int, (x, 0, 1)),))
    assert passed_on(view).of(torch.zeros(2, 3)).shape == (3, 2)


@pytest.mark.parametrize("value", [print, object(), lambda x: x, torch.nn.ReLU(), torch.mm, native.generate_native])
def test_what_is_not_ours_is_refused(value):
    with pytest.raises(NotPortable):
        portable.describe(value)


@pytest.mark.parametrize(
    "entry",
    [
        {"function": ["os", "system"]},
        {"function": ["poptorch.host.store.kernel_files", "os.system"]},
        {"object": [["poptorch.host.store.kernel_files", "tempfile.TemporaryDirectory"], []]},
        {"enum": [["poptorch.host.store.kernel_files", "os"], "system"]},
        {"closure": ["poptorch.host.native.code", "Path.open.<locals>.f", [], [], None]},
        {"closure": ["poptorch.host.native.code", "generate_native.<locals>.f", [], [], None]},
        {"object": [["poptorch.host.native.outlining", "_Call"], [["__class__", 1]]]},
        {"method": [{"object": [["poptorch.host.native.frozen", "_Code"], []]}, "__reduce__"]},
        {"method": [{"tuple": []}, "count"]},
        {"torch": "load"},
        {"closure": ["subprocess", "run.<locals>.f", [], [], None]},
        {"object": [["os", "PathLike"], []]},
        {"restore": []},
        {"blobs": []},
    ],
)
def test_descriptions_name_nothing_but_our_own(entry):
    with pytest.raises(NotPortable):
        portable.restore(portable.Description([], entry, {}))


def test_everything_in_the_registry_exists():
    for table, resolve in (
        (registry.MAKERS, registry.maker),
        (registry.CLASSES, registry.class_of),
        (registry.ENUMERATIONS, registry.enumeration),
    ):
        for module, names in table.items():
            assert all(resolve(module, name).__module__ == module for name in names)
    for (module, kind), names in registry.METHODS.items():
        assert all(callable(getattr(registry.class_of(module, kind), name)) for name in names)


def test_functions_that_changed_are_noticed():
    found = portable.describe(native._start(native.Seed(None, (2,), torch.float32, 1)))
    (closure,) = [o for o in found.objects if "closure" in o]
    closure["closure"][2][2] = "another hash"
    with pytest.raises(NotPortable, match="has changed"):
        portable.restore(found)


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
    for gone in ("extern \"C\"", "async_compile", "random", "get_args", "import"):
        assert gone not in text
    assert binaries._free_names(compile(text, "kernel", "exec")) == {"fused", "extern_kernels"}
