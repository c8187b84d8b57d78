"""Precompilation: an executor written to a file, and executors made from such files."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.capture.arguments import BoundCall, Signature
from poptorch.compiler.lowering import Build
from poptorch.encoding import NotEncodable, from_plain, to_plain
from poptorch.enums import ConnectionType
from poptorch.errors import Error, createPoptorchError
from poptorch.executable import file as container
from poptorch.executable.file import File
from poptorch.executable.identity import identity
from poptorch.executor.optimizer_link import OptimizerLink
from poptorch.host.store import cache
from poptorch.ops.custom import registry
from poptorch.program.program import Role
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.runtime.engine import Engine

DEFAULT_NAME = "model.poptorch"

Edit = Callable[[Any], object]


class Precompilation:
    """The part of an executor that writes itself to a file, and takes its program from one."""

    _build: Build | None
    _engine: Engine | None
    _link: OptimizerLink | None
    _options: Any
    _training: bool
    _user_model: nn.Module
    _device: Any
    _signature: Signature
    _example: BoundCall | None
    """The arguments of the compilation."""

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program to a file, which :func:`poptorch.load` and :meth:`loadExecutable` read.

        With ``export_model`` the model, its weights and the optimizer are in the file too, pickled: the class of the
        model must be found by its name, so classes made inside functions are exported without. The executor goes on
        as if nothing had happened.

        >>> import pathlib, poptorch, tempfile
        >>> path = str(pathlib.Path(tempfile.mkdtemp()) / "relu.poptorch")
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> output = model(torch.zeros(2))
        >>> model.save(path)
        >>> poptorch.load(path)(torch.tensor([-1.0, 1.0])).tolist()
        [0.0, 1.0]
        """
        build, _ = self._compiled()
        if not build.executable.needs_device:
            raise createPoptorchError(
                "Nothing to export: the model has no operation that runs on the device, its results are constants."
            )
        path = _target(filename)
        rng_state = self.rng_state
        sections = {
            "metadata": self._metadata(build, export_model),
            **_example_sections(self._example),
            "program": str(build.executable.program),
            **cache.sections_of(build.executable.code),
        }
        if save_rng_state and rng_state is not None:
            sections["rng"] = {"state": rng_state}
        if export_model:
            sections["model"] = self._pickled_model(build)
        container.write(path, sections)
        logger.info("Executable written to %s", path)

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these, then :meth:`save`. Needs no device if the options ask for an offline
        target.

        >>> import pathlib, poptorch, tempfile
        >>> path = str(pathlib.Path(tempfile.mkdtemp()) / "relu.poptorch")
        >>> options = poptorch.Options().useOfflineIpuTarget()
        >>> poptorch.inferenceModel(torch.nn.ReLU(), options).compileAndExport(path, torch.zeros(2))
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str) -> None:
        """Take the program from a file instead of compiling it.

        The model is captured again, with the arguments that the file was compiled for, and must give the same graph:
        same model, same options. Weights, optimizer and random numbers are this executor's own. Nothing in the file
        is unpickled.
        """
        if self._build is not None:
            raise createPoptorchError(
                f"Cannot load {filename}: the model is compiled already. Call destroy() first, or wrap it anew."
            )
        self._load_from(StoredExecutable(filename))

    def _load_from(self, stored: StoredExecutable, trusted: bool = False) -> None:
        stored.check_version()
        stored.check_custom_ops()
        call = stored.example(trusted)
        try:
            self._signature.bind(call.positional, call.keyword)
        except (AssertionError, Error) as error:
            raise createPoptorchError(
                f"{stored.name} was exported from another program: its example arguments do not fit this model's "
                f"forward(): {error}"
            ) from error
        with torch.inference_mode(False):
            self._compile(call, stored)

    # -- the executable cache ------------------------------------------------------------------------------------

    def _cache_directory(self) -> str | None:
        settings = self._options._Popart.options
        return settings.get("cachePath") if settings.get("enableEngineCaching") else None

    def _find_code(self, build: Build, stored: StoredExecutable | None, cached: bool) -> None:
        """Let the executable take its native code from where an earlier process left it."""
        directory = self._cache_directory() if cached else None
        if directory is not None:
            cache.prepare_directory(directory)
        build.executable.code = cache.pieces_for(build.executable, directory, None if stored is None else stored.file)
        if build.executable.native_after != 0:
            build.executable.code.finish()

    def _turn_to_compile(self) -> contextlib.AbstractContextManager[None]:
        """Of several processes with one cache, the first compiles while the others wait."""
        processes, directory = self._options.Distributed.numProcesses, self._cache_directory()
        if processes == 1:
            return contextlib.nullcontext()
        if directory is None:
            logger.warning(
                "Every one of %d processes compiles the model. Use poptorch.Options.enableExecutableCaching() to let "
                "them share the result.",
                processes,
            )
            return contextlib.nullcontext()
        return cache.one_at_a_time(directory, self._user_model, processes)

    # -- what is written -----------------------------------------------------------------------------------------

    def _metadata(self, build: Build, exported: bool) -> dict[str, Any]:
        executable = build.executable
        graphs = [executable.program.graph]
        if executable.update is not None:
            graphs.append(executable.update.graph_module.graph)
        return {
            "poptorch": __version__,
            "torch": torch.__version__,
            "training": self._training,
            "exported": exported,
            "identity": identity(executable),
            "custom_ops": registry.requirements(graphs),
            "options": {name: _shown(value) for name, value in self._options.toDict().items()},
        }

    def _pickled_model(self, build: Build) -> bytes:
        """Model, optimizer and options, with the values that the device has."""
        offline = self._is_offline()
        if self._training and not offline and self._device is not None:
            self.copyWeightsToHostIfNeeded()
        if self._link is not None and not offline:
            self._link.read_back()
        content = {
            "model": self.model,
            "optimizer": None if self._link is None else self._link.optimizer,
            "options": self._options,
            "groups": self._groups,
        }
        buffer = io.BytesIO()
        try:
            with self._unwatched(), self._buffers_of_the_device(build):
                torch.save(content, buffer)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise createPoptorchError(
                f"The model cannot be exported: {error}. What is pickled must be found by its name: define the class "
                "at the top level of a module, or use export_model=False and loadExecutable."
            ) from error
        return buffer.getvalue()

    @contextlib.contextmanager
    def _buffers_of_the_device(self, build: Build) -> Iterator[None]:
        """Inference programs may change buffers, and the host does not see it: while the model is written, it does."""
        changed = {p.name for p in build.executable.program.mutated() if p.role in (Role.BUFFER, Role.PARAMETER)}
        if self._training or not changed or self._device is None or self._engine is None:
            yield
            return
        newer = self._engine.download()
        tensors = {name: tensor for name, tensor in self._host_tensors().items() if name in changed}
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            for name, tensor in tensors.items():
                tensor.copy_(newer[name])
            try:
                yield
            finally:
                for name, tensor in tensors.items():
                    tensor.copy_(kept[name])

    # What the executor provides:

    if TYPE_CHECKING:

        @property
        def model(self) -> nn.Module: ...

        @property
        def rng_state(self) -> list[int] | None: ...

    _groups: dict[str, ReplicaGrouping]
    compile: Callable[..., None]
    copyWeightsToHostIfNeeded: Callable[[], bool]
    _compiled: Callable[[], tuple[Build, Engine]]
    _compile: Callable[..., None]
    _is_offline: Callable[[], bool]
    _unwatched: Callable[[], contextlib.AbstractContextManager[None]]
    _host_tensors: Callable[[], dict[str, torch.Tensor]]


class StoredExecutable:
    """A file that :meth:`Precompilation.save` wrote."""

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
        return BoundCall(tuple(stored["names"]), tuple(positional), dict(keyword), frozenset(stored["defaulted"]))

    def check(self, build: Build) -> None:
        """The program that was captured must be the one that was exported."""
        expected, found = self.metadata["identity"], identity(build.executable)
        different = [part for part in found if found[part] != expected.get(part)]
        if different:
            raise createPoptorchError(
                f"{self.name} was exported from another program: the {' and the '.join(different)} of this model "
                f"{'differ' if len(different) > 1 else 'differs'}. Use the model, the options and the mode (train() "
                "or eval()) of the export, or compile the model instead of loading it."
            )


def load(filename: str, edit_opts_fn: Edit | None, wrap: Callable[..., Any]) -> Any:
    """An executor from a file that contains its model; ``wrap(model, options, training, optimizer=...)`` makes it."""
    stored = StoredExecutable(filename)
    _require(stored.version_problem())
    if not stored.metadata["exported"]:
        raise AssertionError(
            f"{filename} was written with export_model=False: it contains no model. Wrap the model yourself and call "
            "loadExecutable on the result."
        )
    if "inputs" not in stored.file and "pickled inputs" not in stored.file:
        raise AssertionError(f"Invalid file {filename}: Executable inputs are missing")
    stored.check_custom_ops()
    content = _unpickled(stored.file.bytes("model"), filename)
    options = content["options"]
    _for_running(options)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    executor = wrap(content["model"], options, stored.metadata["training"], optimizer=content["optimizer"])
    executor._groups.update(content["groups"])
    executor._load_from(stored, trusted=True)
    if "rng" in stored.file:
        executor.rng_state = stored.file.json("rng")["state"]
    return executor


def _for_running(options: Any) -> None:
    """Options of an export, for use on this machine."""
    options._unfreeze()
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)


def _require(problem: str | None) -> None:
    if problem is not None:
        raise AssertionError(problem)


def _unpickled(data: bytes, name: str) -> Any:
    try:
        return torch.load(io.BytesIO(data), weights_only=False)
    except (AttributeError, ImportError, pickle.UnpicklingError) as error:
        raise createPoptorchError(
            f"The model in {name} cannot be restored: {error}. Its class must exist under the same module and name as "
            "when it was exported; otherwise wrap the model yourself and call loadExecutable on the result."
        ) from error


def _target(filename: str) -> Path:
    path = Path(filename)
    if path.is_dir():
        chosen = path / DEFAULT_NAME
        logger.warning("%s is an existing directory: the executable is saved to %s", filename, chosen)
        return chosen
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise AssertionError(f"Cannot save to {filename}: {parent} exists but is not a directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _example_sections(call: BoundCall | None) -> dict[str, Any]:
    assert call is not None
    tensors: list[torch.Tensor] = []
    names = {"names": list(call.names), "defaulted": sorted(call.defaulted)}
    try:
        plain = to_plain((call.positional, call.keyword), tensors)
        return {"inputs": {**names, "call": plain}, "input tensors": tensors}
    except NotEncodable as other:
        buffer = io.BytesIO()
        try:
            torch.save({**names, "call": (call.positional, call.keyword)}, buffer)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise createPoptorchError(
                f"The model cannot be saved: it was compiled with {other} as an argument, which cannot be pickled: "
                f"{error}"
            ) from error
        return {"pickled inputs": buffer.getvalue()}


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    return value if value is None or type(value) in (bool, int, float, str) else repr(value)


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
