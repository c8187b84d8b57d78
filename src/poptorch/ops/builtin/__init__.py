"""The operators that the backend brings: reached by ``poptorch.custom_op``, without any registration.

:mod:`poptorch.ops.builtin.definitions` says what one is; the other modules describe them, family by family.
"""

from poptorch.ops.builtin import (
    collectives,
    convolutions,
    creation,
    elementwise,
    gathering,
    images,
    losses,
    norms,
    onnx_math,
    onnx_shapes,
    recurrent,
    resizing,
    slicing,
)
from poptorch.ops.builtin.calling import apply, call, find
from poptorch.ops.builtin.definitions import Definition, Situation, definitions, names_in

__all__ = ["Definition", "Situation", "apply", "call", "definitions", "find", "names_in"]
