"""Files with a compiled program: what is in them, and whether it fits."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.capture.arguments import ArgumentLayout, BoundCall
from poptorch.capture.state import collect_state
from poptorch.capture.structure import flatten
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.lowering import restrict
from poptorch.compiler.request import CompileRequest, loop_of, settings_of
from poptorch.encoding import NotEncodable, from_plain
from poptorch.enums import ConnectionType
from poptorch.errors import Error, FileFormatError, createPoptorchError, misuse
from poptorch.executable import portable
from poptorch.executable.file import File
from poptorch.executable.identity import identity, loop_identity
from poptorch.executable.portable import Stored
from poptorch.executor.sources import changed_sources
from poptorch.ops.custom import registry
from poptorch.optim.spec import OptimizerSpec
from poptorch.options import Options
from poptorch.program.fingerprint import digest
from poptorch.program.replica_groups import ReplicaGrouping


@dataclass(frozen=True)
class Exported:
    """A model from a file, with what it was wrapped with."""

    training: bool
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    options: Options
    groups: Mapping[str, ReplicaGrouping]


@dataclass(frozen=True)
class _Metadata:
    """What a file says about itself, checked: a file may say anything."""

    poptorch: str
    training: bool
    exported: bool
    identity: Mapping[str, Any]
    custom_ops: list[dict[str, Any]]

    @staticmethod
    def of(found: Any) -> _Metadata:
        if not isinstance(found, dict):
            raise TypeError(f"a {type(found).__name__}")
        if found.get("poptorch") != __version__:  # other releases may have other metadata: the version is the error
            return _Metadata(str(found.get("poptorch")), False, False, {}, [])
        values = {field.name: found[field.name] for field in fields(_Metadata)}
        for name, kind in (("training", bool), ("exported", bool), ("identity", dict), ("custom_ops", list)):
            if not isinstance(values[name], kind):
                raise TypeError(f"{name} is {values[name]!r}")
        for needed in values["custom_ops"]:
            kinds: dict[str, Any] = {"domain": str, "name": str, "version": int, "library": (str, type(None))}
            if any(not isinstance(needed[name], kind) for name, kind in kinds.items()):
                raise TypeError(f"a custom operator is {needed!r}")
        return _Metadata(**values)


class StoredExecutable:
    """A file that :func:`poptorch.executor.saving.save` wrote."""

    def __init__(self, filename: str) -> None:
        self.file = File(filename)
        self._trusted = False
        """Whether the model in it was unpickled, and runs: then its program belongs to that model."""

        if "metadata" not in self.file:
            raise misuse(FileFormatError, f"Invalid file {filename}: it does not contain Poptorch metadata")
        found = self.file.json("metadata")
        with self.file.reading("metadata"):
            self.metadata = _Metadata.of(found)

    @property
    def name(self) -> str:
        return self.file.path

    def check_version(self) -> None:
        problem = self.version_problem()
        if problem is not None:
            raise createPoptorchError(problem)

    def version_problem(self) -> str | None:
        written = self.metadata.poptorch
        if written == __version__:
            return None
        return (
            f"Invalid file {self.name}: PopTorch version mismatch: it was exported by {written}, and this is "
            f"{__version__}. Export the model again with this release."
        )

    def check_custom_ops(self) -> None:
        """Every operator of other libraries must be there before anything is captured."""
        missing = [needed for needed in self.metadata.custom_ops if not _is_registered(needed)]
        if missing:
            lines = "\n".join(f"  {_advice(needed)}" for needed in missing)
            raise createPoptorchError(f"{self.name} needs custom operators that are not loaded:\n{lines}")

    def example(self, trusted: bool) -> BoundCall:
        """The arguments to capture the model with."""
        if "inputs" in self.file:
            stored, tensors = self.file.json("inputs"), self.file.tensors("input tensors")
            with self.file.reading("inputs"):
                return _bound(stored, from_plain(stored["call"], tensors))
        if "pickled inputs" not in self.file:
            raise misuse(FileFormatError, f"Invalid file {self.name}: Executable inputs are missing")
        if not trusted:
            raise createPoptorchError(
                f"The arguments that {self.name} was compiled for include objects that only pickle can restore, "
                "and neither loadExecutable nor poptorch.load(..., trusted=False) runs pickled code. If you trust the "
                "file use poptorch.load, or call compile() with such arguments."
            )
        stored = self._unpickled("pickled inputs")
        with self.file.reading("pickled inputs"):
            return _bound(stored, stored["call"])

    def device_program(self, request: CompileRequest) -> DeviceProgram | None:
        """The program as it was compiled for the model of the request, which came from this file.

        ``None`` where the model has to be captured again; the log says why.
        """
        if not self._trusted:
            return None  # a program by itself may be anybody's: capture shows that it is that of this model
        try:
            if "device program" not in self.file:
                raise NotEncodable("no device program in the file")
            content, tensors = self.file.json("device program"), self.file.tensors("program tensors")
            changed = changed_sources(request.model, content["sources"])
            if changed:
                raise NotEncodable(f"other code in {', '.join(changed)}")
            return self._restored(request, portable.read(content, tensors), content)
        except (NotEncodable, AttributeError, LookupError, TypeError, ValueError) as reason:
            logger.info("The model in %s is captured again: there is %s", self.name, reason)
            return None

    def _restored(self, request: CompileRequest, parts: Stored, known: Mapping[str, Any]) -> DeviceProgram:
        loop, layout = loop_of(request.options, request.training), ArgumentLayout(request.call)
        if loop_identity(loop) != self.metadata.identity["loop"]:
            raise NotEncodable("another loop")
        optimizer = None
        if parts.update is not None:
            names = set(parts.update.names)
            used = {id(entry.tensor) for entry in collect_state(request.model) if entry.name in names}
            optimizer = restrict(request.optimizer_spec, frozenset(used))
        if optimizer_identity(optimizer) != known["optimizer"]:
            raise NotEncodable("another optimizer")
        settings = settings_of(request, parts.program, loop)
        structure = flatten(self._returned())[1]
        return parts.device_program(settings, loop, layout=layout, output_structure=structure, optimizer=optimizer)

    def _returned(self) -> Any:
        """What ``forward`` returns, with empty tensors."""
        if "outputs" not in self.file:
            return self._unpickled("pickled outputs")
        return from_plain(self.file.json("outputs")["returned"], self.file.tensors("output tensors"))

    def check(self, device: DeviceProgram) -> None:
        """The program that was captured must be the one that was exported."""
        expected, found = self.metadata.identity, identity(device)
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
        if "rng" not in self.file:
            return None
        found = self.file.json("rng")
        with self.file.reading("rng"):
            state: list[int] = found["state"]
            if not isinstance(state, list) or not state or not all(type(word) is int for word in state):
                raise TypeError(f"the state is {state!r}")
            if any(not -(1 << 63) <= word < 1 << 64 for word in state):
                raise ValueError("the state has a number of more than 64 bits")
        return state

    def exported(self) -> Exported:
        """The model in the file, unpickled, ready to be wrapped here."""
        problem = self.version_problem()
        if problem is not None:
            raise AssertionError(problem)
        if not self.metadata.exported:
            raise AssertionError(
                f"{self.name} was written with export_model=False: it contains no model. Wrap the model yourself and "
                "call loadExecutable on the result."
            )
        if "inputs" not in self.file and "pickled inputs" not in self.file:
            raise AssertionError(f"Invalid file {self.name}: Executable inputs are missing")
        self.check_custom_ops()
        self._trusted = True
        content = self._unpickled("model")
        with self.file.reading("model"):
            _for_running(content["options"])
            for name, value in content.pop("attributes").items():
                setattr(content["optimizer"], name, value)
            return Exported(training=self.metadata.training, **content)

    def _unpickled(self, section: str) -> Any:
        data = self.file.bytes(section)
        try:
            with self.file.reading(section):
                return torch.load(io.BytesIO(data), weights_only=False)
        except Error as error:
            if not isinstance(error.__cause__, (AttributeError, ImportError, pickle.UnpicklingError)):
                raise
            raise createPoptorchError(
                f"The model in {self.name} cannot be restored: {error.__cause__}. Its class must exist under the same "
                "module and name as when it was exported; otherwise wrap the model yourself and call loadExecutable on "
                "the result."
            ) from error


def optimizer_identity(optimizer: OptimizerSpec | None) -> str:
    """What of an optimizer is compiled into the update."""
    return "" if optimizer is None else digest(repr(optimizer.signature()))


def _bound(stored: Any, call: Any) -> BoundCall:
    positional, keyword = call
    for names in ("names", "defaulted", "by_name", "left_out"):
        if not isinstance(stored[names], list) or not all(isinstance(name, str) for name in stored[names]):
            raise TypeError(f"{names} is {stored[names]!r}")
    return BoundCall(
        tuple(stored["names"]),
        tuple(positional),
        dict(keyword),
        frozenset(stored["defaulted"]),
        tuple(stored["by_name"]),
        frozenset(stored["left_out"]),
    )


def _for_running(options: Options) -> None:
    """Options of an export, for use on this machine."""
    options._unfreeze()
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)


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
