"""Files with a compiled program: what is in them, and whether it fits."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from poptorch._version import __version__
from poptorch.capture.arguments import BoundCall
from poptorch.compiler.device_program import DeviceProgram
from poptorch.encoding import from_plain
from poptorch.enums import ConnectionType
from poptorch.errors import Error, createPoptorchError
from poptorch.executable.file import File
from poptorch.executable.identity import identity
from poptorch.ops.custom import registry
from poptorch.options import Options
from poptorch.program.replica_groups import ReplicaGrouping


@dataclass(frozen=True)
class Exported:
    """A model from a file, with what it was wrapped with."""

    training: bool
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    options: Options
    groups: Mapping[str, ReplicaGrouping]


class StoredExecutable:
    """A file that :func:`poptorch.executor.saving.save` wrote."""

    def __init__(self, filename: str) -> None:
        self.file = File(filename)
        if "metadata" not in self.file:
            raise createPoptorchError(f"Invalid file {filename}: it does not contain Poptorch metadata")
        self.metadata: dict[str, Any] = self.file.json("metadata")

    @property
    def name(self) -> str:
        return self.file.path

    def check_version(self) -> None:
        problem = self.version_problem()
        if problem is not None:
            raise createPoptorchError(problem)

    def version_problem(self) -> str | None:
        written = self.metadata.get("poptorch")
        if written == __version__:
            return None
        return (
            f"Invalid file {self.name}: PopTorch version mismatch: it was exported by {written}, and this is "
            f"{__version__}. Export the model again with this release."
        )

    def check_custom_ops(self) -> None:
        """Every operator of other libraries must be there before anything is captured."""
        missing = [needed for needed in self.metadata["custom_ops"] if not _is_registered(needed)]
        if missing:
            lines = "\n".join(f"  {_advice(needed)}" for needed in missing)
            raise createPoptorchError(f"{self.name} needs custom operators that are not loaded:\n{lines}")

    def example(self, trusted: bool) -> BoundCall:
        """The arguments to capture the model with."""
        if "inputs" in self.file:
            stored = self.file.json("inputs")
            positional, keyword = from_plain(stored["call"], self.file.tensors("input tensors"))
        elif "pickled inputs" in self.file:
            if not trusted:
                raise createPoptorchError(
                    f"The arguments that {self.name} was compiled for include objects that only pickle can restore, "
                    "and loadExecutable runs no pickled code. If you trust the file use poptorch.load, or call "
                    "compile() with such arguments."
                )
            stored = _unpickled(self.file.bytes("pickled inputs"), self.name)
            positional, keyword = stored["call"]
        else:
            raise createPoptorchError(f"Invalid file {self.name}: Executable inputs are missing")
        return BoundCall(
            tuple(stored["names"]),
            tuple(positional),
            dict(keyword),
            frozenset(stored["defaulted"]),
            tuple(stored["by_name"]),
            frozenset(stored["left_out"]),
        )

    def check(self, device: DeviceProgram) -> None:
        """The program that was captured must be the one that was exported."""
        expected, found = self.metadata["identity"], identity(device)
        different = [part for part in found if found[part] != expected.get(part)]
        if different:
            raise createPoptorchError(
                f"{self.name} was exported from another program: the {' and the '.join(different)} of this model "
                f"{'differ' if len(different) > 1 else 'differs'}. Use the model, the options and the mode (train() "
                "or eval()) of the export, or compile the model instead of loading it."
            )

    @property
    def rng_state(self) -> list[int] | None:
        """The random state in the file, if there is one."""
        state: list[int] | None = self.file.json("rng")["state"] if "rng" in self.file else None
        return state

    def exported(self) -> Exported:
        """The model in the file, unpickled, ready to be wrapped here."""
        problem = self.version_problem()
        if problem is not None:
            raise AssertionError(problem)
        if not self.metadata["exported"]:
            raise AssertionError(
                f"{self.name} was written with export_model=False: it contains no model. Wrap the model yourself and "
                "call loadExecutable on the result."
            )
        if "inputs" not in self.file and "pickled inputs" not in self.file:
            raise AssertionError(f"Invalid file {self.name}: Executable inputs are missing")
        self.check_custom_ops()
        content = _unpickled(self.file.bytes("model"), self.name)
        _for_running(content["options"])
        for name, value in content.pop("attributes").items():
            setattr(content["optimizer"], name, value)
        return Exported(training=self.metadata["training"], **content)


def _for_running(options: Options) -> None:
    """Options of an export, for use on this machine."""
    options._unfreeze()
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)


def _unpickled(data: bytes, name: str) -> Any:
    try:
        return torch.load(io.BytesIO(data), weights_only=False)
    except (AttributeError, ImportError, pickle.UnpicklingError) as error:
        raise createPoptorchError(
            f"The model in {name} cannot be restored: {error}. Its class must exist under the same module and name as "
            "when it was exported; otherwise wrap the model yourself and call loadExecutable on the result."
        ) from error


def _is_registered(needed: dict[str, Any]) -> bool:
    try:
        found = registry.find(needed["domain"], needed["name"], needed["version"])
    except Error:
        return False
    return bool(found.key.version == needed["version"])


def _advice(needed: dict[str, Any]) -> str:
    text = f"{needed['domain']}.{needed['name']}, version {needed['version']}"
    if needed["library"] is None:
        return f"{text}: register it with poptorch.registerCustomOp first, as in the program that exported the model."
    return (
        f"{text}, from {needed['library']}: load that library first, "
        f'for instance with ctypes.cdll.LoadLibrary("{needed["library"]}").'
    )
