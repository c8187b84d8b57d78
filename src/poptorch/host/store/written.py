"""Host programs as data: what a process compiled, written down so that another one need not compile it.

Steps are written as they are, by the package's own encoder. Of a kernel the Python text is written, with its libraries
and tensors beside it; of one that goes through a graph, the graph. Reading it back names steps, operators of torch and
nothing else. It runs the text and loads the libraries, so it may be done to signed programs only (``signing.py``).

What cannot be written raises :class:`NotPortable`: such programs are compiled by every process.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from poptorch.encoding import Decoder, Encoder, tensor_bytes, tensor_from_bytes
from poptorch.executable.host_program import (
    Argument,
    Constant,
    Factors,
    HandOver,
    HostProgram,
    Kernel,
    KernelCall,
    Prepared,
    RandomKey,
)
from poptorch.host.native.inductor import graph_kernel
from poptorch.host.store import kernel_files
from poptorch.host.store.kernel_files import NotPortable

FORMAT = 1
"""Of what is written here. Raise it with every change of steps or of their meaning."""

_PARTS: dict[str, Any] = {
    kind.__name__: kind for kind in (Argument, Constant, Factors, HandOver, KernelCall, Prepared, RandomKey)
}
"""Everything that a stored program may be made of."""


def written(program: HostProgram) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A program as JSON, and the tensors and libraries beside it by hash."""
    writer = _StepWriter()
    content = {
        "format": FORMAT,
        "name": program.name,
        "about": program.about,
        "arguments": [writer.encode(argument) for argument in program.arguments],
        "steps": [writer.encode(step) for step in program.steps],
        "results": list(program.results),
        "names": list(program.names),
        "kernels": [writer.kernel(kernel) for kernel in program.kernels.values()],
    }
    if program.functions:
        raise NotPortable("a program of single operations")
    return content, writer.blobs


def read(content: Mapping[str, Any], blobs: Mapping[str, bytes]) -> HostProgram:
    """The program that was written, ready to run."""
    if content["format"] != FORMAT:
        raise NotPortable(f"a program of format {content['format']!r}")
    reader = _StepReader(blobs)
    kernels = [reader.kernel(kernel) for kernel in content["kernels"]]
    return HostProgram(
        str(content["name"]),
        tuple(reader.part(argument, Argument) for argument in content["arguments"]),
        tuple(reader.part(step, *_STEPS) for step in content["steps"]),
        tuple(content["results"]),
        tuple(content["names"]),
        {kernel.name: kernel for kernel in kernels},
        about=str(content["about"]),
    )


_STEPS = tuple(kind for kind in _PARTS.values() if kind is not Argument)


class _StepWriter(Encoder):
    error = NotPortable

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if _PARTS.get(type(value).__name__) is type(value):
            fields = dataclasses.fields(_PARTS[type(value).__name__])
            return {type(value).__name__: {field.name: self.encode(getattr(value, field.name)) for field in fields}}
        return super().encode_object(value)

    def kernel(self, kernel: Kernel) -> dict[str, Any]:
        """A kernel with its code."""
        about = {"name": kernel.name, "about": kernel.about}
        if kernel.graph is not None:
            return {**about, "graph": self.encode_graph(kernel.graph)}
        if not kernel_files.is_kernel(kernel.run):
            raise NotPortable(f"the kernel {kernel.name}, which the compiler did not make")
        return {**about, "code": kernel_files.describe(kernel.run, self._blob)}

    def _blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.blobs[name] = data
        return name

    def _tensor(self, value: torch.Tensor) -> list[Any]:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            raise NotPortable(f"a tensor of class {type(value).__name__} and layout {value.layout}")
        return [self.encode(value.dtype), list(value.shape), self._blob(tensor_bytes(value))]


class _StepReader(Decoder):
    error = NotPortable

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        super().__init__()
        self._blobs = blobs
        self.readers["tensor"] = self._tensor
        for name, kind in _PARTS.items():
            self.readers[name] = self._reader(kind)

    def _reader(self, kind: type) -> Callable[[Any], Any]:
        return lambda fields: kind(**{name: self.decode(value) for name, value in fields.items()})

    def part(self, entry: Any, *kinds: type) -> Any:
        """Something of one of these classes."""
        found = self.decode(entry)
        if not isinstance(found, kinds):
            raise NotPortable(f"a {type(found).__name__} in place of a {kinds[0].__name__}")
        return found

    def kernel(self, entry: Mapping[str, Any]) -> Kernel:
        """A kernel, ready to run."""
        name, about = str(entry["name"]), str(entry["about"])
        if "graph" in entry:
            graph: fx.Graph = self.decode_graph(entry["graph"])
            return dataclasses.replace(graph_kernel(name, graph), about=about)
        return Kernel(name, kernel_files.restore(entry["code"], self._blobs), about=about)

    def _tensor(self, content: list[Any]) -> torch.Tensor:
        dtype, shape, blob = content
        return tensor_from_bytes(self._blobs[blob], self.decode(dtype), shape)
