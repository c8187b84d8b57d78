"""Precompilation: a compiled model written to a file."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.capture.arguments import BoundCall
from poptorch.capture.structure import Structure, TensorLeaf, unflatten, walk
from poptorch.compiler.request import is_offline
from poptorch.encoding import NotEncodable, to_plain
from poptorch.errors import FileAccessError, createPoptorchError, misuse
from poptorch.executable import file as container
from poptorch.executable import portable
from poptorch.executable.identity import identity
from poptorch.executor.session import Session, Wrapped
from poptorch.executor.sources import sources_of
from poptorch.executor.stored import optimizer_identity
from poptorch.host.store import cache
from poptorch.ops.custom import registry
from poptorch.optim.reading import own_attributes
from poptorch.program.replica_groups import ReplicaGrouping

DEFAULT_NAME = "model.poptorch"


def save(session: Session, model: nn.Module, filename: str, *, export_model: bool, save_rng_state: bool) -> None:
    """Write the program to a file, and with ``export_model`` the model, its weights and the optimizer."""
    executable = session.executable
    if not executable.device.needs_device:
        raise createPoptorchError(
            "Nothing to export: the model has no operation that runs on the device, its results are constants."
        )
    with _explained(filename):
        path = _target(filename)
        rng_state = session.rng_state
        sections = {
            "metadata": _metadata(session, export_model),
            **_example_sections(session.example),
            "program": str(executable.program),
            **cache.sections_of(session.store),
        }
        if save_rng_state and rng_state is not None:
            sections["rng"] = {"state": rng_state}
        if export_model:
            sections["model"] = _pickled_model(session, model)
            sections |= _program_sections(session, model)
        container.write(path, sections)
    logger.info("Executable written to %s", path)


@contextlib.contextmanager
def _explained(filename: str) -> Iterator[None]:
    """Errors of the system while a file is written: which file, what is left, what to do."""
    kept = "A file of that name, if there was one, is as it was"
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise misuse(
            FileAccessError, f"Cannot save to {filename}: {what}. {kept}. Choose another place, or make room there."
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        raise misuse(
            FileAccessError,
            f"Cannot save to {filename}: there is not enough memory for a copy of what is saved. {kept}. Use "
            "export_model=False and save state_dict() by itself, or destroy models that are not needed.",
        ) from error
    except ValueError as error:
        if "null" not in str(error) and not isinstance(error, UnicodeError):
            raise
        raise misuse(FileAccessError, f"Cannot save to {filename!r}: this is no name of a file ({error}).") from error


def _metadata(session: Session, exported: bool) -> dict[str, Any]:
    executable = session.executable
    graphs = [executable.program.graph]
    if executable.update is not None:
        graphs.append(executable.update.graph_module.graph)
    return {
        "poptorch": __version__,
        "torch": torch.__version__,
        "training": session.wrapped.link is not None,
        "exported": exported,
        "identity": identity(executable.device),
        "custom_ops": registry.requirements(graphs),
        "options": {name: _shown(value) for name, value in session.wrapped.options.toDict().items()},
    }


def _pickled_model(session: Session, model: nn.Module) -> bytes:
    """Model, optimizer and options, with the values that the device has."""
    try:
        return _pickled(session.wrapped, session, {"model": model})
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise createPoptorchError(
            f"The model cannot be exported: {error}. What is pickled must be found by its name: define the class "
            "at the top level of a module, or use export_model=False and loadExecutable."
        ) from error
    except RuntimeError as error:
        names = [name or type(model).__name__ for name, part in model.named_modules() if is_parametrized(part)]
        if not names:
            raise
        raise createPoptorchError(
            f"The model cannot be exported: {names[0]} has parametrizations (weight_norm, spectral_norm, orthogonal or "
            "torch.nn.utils.parametrize), and torch cannot pickle these. Use export_model=False, build the model "
            "again in the other program, load its state_dict() and call loadExecutable; or make the parametrizations "
            "permanent with torch.nn.utils.parametrize.remove_parametrizations first."
        ) from error


def _pickled(wrapped: Wrapped, session: Session | None, content: dict[str, Any]) -> bytes:
    """``content``, with all that a model was wrapped with, and the values that the device has."""
    options, weights, link = wrapped.options, wrapped.weights, wrapped.link
    attached = session is not None and session.is_attached
    if not is_offline(options):
        if attached:
            weights.download_if_needed()
        if link is not None:
            link.read_back()
    content = {
        **content,
        "optimizer": None if link is None else link.optimizer,
        "attributes": {} if link is None else own_attributes(link.optimizer),
        "options": options,
        "groups": dict(weights.groups),
    }
    buffer = io.BytesIO()
    written = contextlib.nullcontext() if session is None else session.written_values_on_host()
    with weights.unwatched(), written:
        torch.save(content, buffer)
    return buffer.getvalue()


# -- executors among other things that are pickled ---------------------------------------------------------------------


def pickled(wrapped: Wrapped, session: Session | None, model: nn.Module, user_model: nn.Module | None) -> bytes:
    """What an executor is made of, without its program; ``user_model`` is shown in the place of ``model``, if any."""
    content = {"model": model, "user_model": user_model, "training": wrapped.link is not None}
    return _pickled(wrapped, session, content)


def unpickled(data: bytes) -> tuple[dict[str, Any], Mapping[str, ReplicaGrouping]]:
    """The arguments of an executor's constructor, and groups of replicas, from what :func:`pickled` returned."""
    content: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=False)
    content["options"]._unfreeze()
    for name, value in content.pop("attributes").items():
        setattr(content["optimizer"], name, value)
    groups = content.pop("groups")
    return content, groups


def _target(filename: str) -> Path:
    path = Path(filename)
    if path.is_dir():
        chosen = path / DEFAULT_NAME
        logger.warning("%s is an existing directory: the executable is saved to %s", filename, chosen)
        return chosen
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise AssertionError(f"Cannot save to {filename}: {parent} exists but is not a directory")
    if not path.parent.exists():
        logger.warning("The directory %s does not exist: it is made for %s", path.parent, path.name)
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _example_sections(call: BoundCall) -> dict[str, Any]:
    tensors: list[torch.Tensor] = []
    names = {
        "names": list(call.names),
        "defaulted": sorted(call.defaulted),
        "by_name": list(call.by_name),
        "left_out": sorted(call.left_out),
    }
    try:
        plain = to_plain((call.positional, call.keyword), tensors)
        return {"inputs": {**names, "call": plain}, "input tensors": tensors}
    except NotEncodable as other:
        buffer = io.BytesIO()
        try:
            torch.save({**names, "call": (call.positional, call.keyword)}, buffer)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise createPoptorchError(
                f"The model cannot be saved: it was compiled with an argument of type {other} that cannot be pickled: "
                f"{error}"
            ) from error
        return {"pickled inputs": buffer.getvalue()}


def _program_sections(session: Session, model: nn.Module) -> dict[str, Any]:
    """What spares a process that loads the model from capturing it; nothing where it cannot be written."""
    device = session.executable.device
    structure = device.interface.output_structure
    try:
        content, tensors = portable.written(device)
        results: list[torch.Tensor] = []
        try:
            returned = to_plain(_skeleton(structure), results)
            outputs: dict[str, Any] = {"outputs": {"returned": returned}, "output tensors": results}
        except NotEncodable:
            buffer = io.BytesIO()
            torch.save(_skeleton(structure), buffer)
            outputs = {"pickled outputs": buffer.getvalue()}
    except (NotEncodable, pickle.PicklingError, AttributeError, TypeError) as reason:
        logger.info("The file holds no device program: there is %s. Who loads it captures the model again", reason)
        return {}
    content |= {"sources": sources_of(model, device.program), "optimizer": optimizer_identity(session.optimizer)}
    return {"device program": content, "program tensors": tensors, **outputs}


def _skeleton(structure: Structure) -> Any:
    """What ``forward`` returns, with empty tensors."""
    count = sum(isinstance(leaf, TensorLeaf) for _, leaf in walk(structure))
    return unflatten(structure, [torch.empty(0) for _ in range(count)])


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    return value if value is None or type(value) in (bool, int, float, str) else repr(value)
