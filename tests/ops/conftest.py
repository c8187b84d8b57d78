"""Capturing functions without an executor, and libraries of custom operators built once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch
from poptorch import ambient

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "custom_op"

Capture = Callable[..., fx.GraphModule]


def captured(function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake", **context: Any) -> fx.GraphModule:
    """The graph of ``function`` as a model's capture would record it."""

    def run(*tensors: torch.Tensor) -> Any:
        with ambient.capturing(ambient.CaptureContext(**context)):
            return function(*tensors)

    return make_fx(run, tracing_mode=mode)(*inputs)


@pytest.fixture
def capture() -> Capture:
    return captured


@pytest.fixture(scope="session")
def libraries(request: pytest.FixtureRequest) -> dict[str, str]:
    """The example operators and those of the conformance tests, compiled once and loaded."""
    folder = request.config.cache.mkdir("custom_ops")
    sources = {
        "custom_cube_op": EXAMPLES / "cube_op.cpp",
        "custom_leaky_relu_op": EXAMPLES / "leaky_relu_op.cpp",
        "custom_conformance_ops": HERE / "conformance_ops.cpp",
    }
    return {name: poptorch.buildCustomOp(name, path, folder) for name, path in sources.items()}
