"""The weights of a wrapped model on the host: whether the device has newer ones, and when they are copied."""

from __future__ import annotations

import contextlib
import enum
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from poptorch._logging import backend, logger
from poptorch.capture.state import collect_state
from poptorch.enums import CommGroupType, ConnectionType, VariableRetrievalMode
from poptorch.errors import createPoptorchError
from poptorch.executor import instrumentation
from poptorch.executor.changes import changes
from poptorch.executor.outputs import ParameterView
from poptorch.executor.replacements import KnownState, Replacement
from poptorch.executor.sharing import Sharer, sharers
from poptorch.executor.turns import Turns
from poptorch.options import Options
from poptorch.program.pairs import as_on_host
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.runtime.weight_overlay import WeightOverlay, end_overlays


class Newest(enum.Enum):
    """Where the newest weights are.

    What a user writes into the host's tensors is not noticed. It reaches the device with the next upload.
    """

    HOST = "on the host; the device has the same ones, or older ones, or none"
    DEVICE = "on the device, which has trained since the last copy"


class Copier(Protocol):
    """The executor, as far as downloads are concerned that the user did not ask for.

    They go through its public method, which a subclass or an instance may replace.
    """

    def copyWeightsToHost(self) -> None:
        """Overwrite the host's parameters and buffers with the device's."""


class WeightsOnDevice(Protocol):
    """The engine, as far as copies of weights are concerned."""

    def upload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy host parameters and buffers to the device."""

    def written(self) -> frozenset[str]:
        """The names of the parameters and buffers that the program changes."""

    def upload_some(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the host parameters and buffers of these names to the device."""

    def upload_buffers(self, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        """Copy some host buffers to the device."""

    def download(self) -> dict[str, torch.Tensor]:
        """Device parameters and buffers by name, not copied."""

    def fetch(self) -> dict[str, torch.Tensor]:
        """As ``download``, with what other processes have that share the replicas of this one."""

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Device parameters by name, not copied."""


class _Unwatched:
    """The time in which uses of the tensors are our own. Every call enters it, so it is no generator."""

    __slots__ = ("_previous", "_weights")

    def __init__(self, weights: HostWeights) -> None:
        self._weights = weights

    def __enter__(self) -> None:
        self._previous = self._weights.watch(False)

    def __exit__(self, *error: object) -> None:
        self._weights.watch(self._previous)


class HostWeights:
    """Parameters and buffers of one wrapped model on the host.

    It lives as long as the executor. While there is a compiled program, from :meth:`open` to :meth:`close`, copies go
    from and to the memory of its engine.
    """

    def __init__(
        self,
        model: nn.Module,
        user_model: nn.Module,
        options: Options,
        copier: Copier,
        turns: Turns,
        *,
        training: bool,
    ) -> None:
        self._model = model
        self._user_model = user_model
        self._options = options
        self.turns = turns
        self._copier = weakref.ref(copier)
        self._newest = Newest.HOST
        self._complete = True
        self._followed = sharers.number()
        """Up to which change of the host's weights by training executors the device has followed."""

        self._ids: tuple[int, frozenset[int]] | None = None
        self._trains = training
        if training:
            sharers.all.add(self)
        self._watched = True
        self._groups: dict[str, ReplicaGrouping] = {}
        self._overlay: WeightOverlay | None = None
        self._known: KnownState | None = None
        """The tensors that the program was compiled with; ``None`` as long as there is none."""

        self.seen = 0
        """The number of changes to models after which :attr:`_known` was compared with this one."""

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Newest:
        """Where the newest weights are."""
        return self._newest

    def open(self, *, overlay: bool) -> None:
        """A program was compiled; ``overlay`` says whether its weights may lie in the host's memory."""
        self._overlay = WeightOverlay(overlay, self.turns.take)
        with self.unwatched():
            self._known, self.seen = KnownState(self._model), changes.count
            if self._trains:  # what others have is that of an earlier training, if any
                sharers.change(self.tensors().values())

    def close(self) -> None:
        """The program is gone."""
        self._overlay = self._known = self._ids = None

    def trains(self) -> None:
        """The device is about to update its weights."""
        if self._newest is Newest.HOST:
            self._newest = Newest.DEVICE
            sharers.runs_ahead(self)

    def end_overlay(self) -> None:
        """The device's weights get other places in memory: the host has its own memory, with its own values, again."""
        if self._overlay is not None:
            self._overlay.end(keep=False)

    # -- tensors -------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        """The model's parameters and buffers by name."""
        return {entry.name: entry.tensor for entry in collect_state(self._model)}

    def tensor_ids(self) -> frozenset[int]:
        """The ``id`` of every parameter and buffer."""
        if self._known is None:  # nobody notices if the user puts others in their places
            return ids_of(self._model)
        if self._ids is None or self._ids[0] != changes.count:
            self._ids = changes.count, ids_of(self._model)
        return self._ids[1]

    @property
    def have_values(self) -> bool:
        """Whether no tensor of the model is on the meta device."""
        with self.unwatched(), torch._C.DisableTorchFunctionSubclass():
            return not any(tensor.is_meta for tensor in self.tensors().values())

    def names(self) -> dict[int, str]:
        """The names of parameters and buffers by the identity of the tensor."""
        return {id(entry.tensor): entry.name for entry in collect_state(self._model)}

    @property
    def groups(self) -> Mapping[str, ReplicaGrouping]:
        """Parameters whose value differs between groups of replicas."""
        return self._groups

    def restore_groups(self, groups: Mapping[str, ReplicaGrouping]) -> None:
        """Take over the groups of an exported model."""
        self._groups.update(groups)

    def group_replicas(self, parameter: torch.Tensor, kind: Any, size: int, retrieval: Any) -> None:
        """What ``executor.<parameter>.replicaGrouping(...)`` does; to be called before compilation."""
        kind, retrieval = CommGroupType(kind), VariableRetrievalMode(retrieval)
        name = self.names()[id(parameter)]
        if self._overlay is not None:
            raise createPoptorchError(
                f"Replica grouping of {name!r} after compilation: the program exists already. Call it before compile() "
                "and before the first run, or destroy() the model first."
            )
        if parameter.dim() == 0:
            raise createPoptorchError(
                f"Scalars cannot be passed to replicaGrouping: {name!r} needs a first dimension that counts the groups."
            )
        if kind is CommGroupType.All:
            self._groups.pop(name, None)
            return
        replicas = self._options.replication_factor * self._options.Distributed.numDataParts
        grouping = ReplicaGrouping(kind, size, replicas, retrieval)
        grouping.check(name, tuple(parameter.shape))
        self._groups[name] = grouping

    def shown(self, parameter: nn.Parameter) -> ParameterView:
        """A parameter as an inference executor shows it."""
        return ParameterView.of(
            parameter, lambda kind, size, retrieval: self.group_replicas(parameter, kind, size, retrieval)
        )

    # -- tensors that were replaced ------------------------------------------------------------------------------

    def replaced(self) -> dict[str, Replacement]:
        """The tensors that the user has put into the places of others since :meth:`open`, by name."""
        if self._known is None:
            return {}
        with self.unwatched():
            return self._known.replaced(self._groups, training=self._trains_here())

    def _trains_here(self) -> bool:
        return instrumentation.watcher_of(self._user_model) is self

    def take(self, replaced: Mapping[str, Replacement], memory: WeightsOnDevice, count: int) -> None:
        """Copy the values of new tensors to the device, and watch them instead of the old ones.

        ``count`` is the number of changes at which these were all.
        """
        with self.unwatched(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            if replaced:
                self.end_overlay()
                end_overlays(replacement.new for replacement in replaced.values())
                values = {name: replacement.new for name, replacement in replaced.items()}
                memory.upload_some(
                    {
                        name: self._groups[name].to_device(value) if name in self._groups else value
                        for name, value in values.items()
                    }
                )
                logger.info("Took over the values of %s, which are new tensors", ", ".join(replaced))
                if self._trains_here():
                    instrumentation.exchange(self._user_model, self, [r.old for r in replaced.values()])
            if self._known is not None:
                self._known.accept()
        self.seen = count

    # -- watching ------------------------------------------------------------------------------------------------

    def looked_at(self) -> None:
        """A watched tensor or model is used: the user must see what the device has learned."""
        if self._newest is Newest.DEVICE:
            self.look()
            return
        for other in sharers.ahead_of(self.tensor_ids, self):
            other.look()

    def look(self) -> None:
        """A tensor that the device may have newer values of is used."""
        self.turns.take(self._look)

    def _look(self) -> None:
        if self._watched:
            self.download_if_needed()

    def unwatched(self) -> _Unwatched:
        """In here, uses of the tensors are our own and need no fresh values."""
        return _Unwatched(self)

    def watch(self, watched: bool) -> bool:
        """Whether uses of the tensors may need fresh values from now on; returns what held before."""
        previous, self._watched = self._watched, watched
        return previous

    # -- copies --------------------------------------------------------------------------------------------------

    def upload(self, memory: WeightsOnDevice) -> None:
        """Overwrite the device's parameters and buffers; training that was not downloaded is lost."""
        own = self.tensor_ids()
        self._upload_beside([s for s in sharers.all if s is not self and not own.isdisjoint(s.tensor_ids())], memory)

    def _upload_beside(self, trainers: Sequence[Sharer], memory: WeightsOnDevice) -> None:
        """Upload while none of the executors runs whose calls change the values that are read here."""
        if trainers:
            trainers[0].turns.take(self._upload_beside, trainers[1:], memory)
        else:
            self._upload(memory)

    def _upload(self, memory: WeightsOnDevice) -> None:
        if self._options.connection_type != ConnectionType.Never:
            backend.debug("Writing weights from host to IPU memory.")
        self._complete = False
        with self.unwatched():
            self._fetch_from_others()
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                self.replaced()  # the program must still fit the model
                tensors = self.tensors()
                self.end_overlay()
                end_overlays(tensors.values())
                self._is_level()
                for name, grouping in self._groups.items():
                    tensors[name] = grouping.to_device(tensors[name])
                memory.upload(tensors)
        self._followed = sharers.number()
        self._complete = True

    def _is_level(self) -> None:
        self._newest = Newest.HOST
        sharers.is_level(self)

    @property
    def is_complete(self) -> bool:
        """Whether the latest upload came to its end: one that was interrupted has to be done again."""
        return self._complete

    def upload_buffers(self, memory: WeightsOnDevice) -> None:
        """Refresh the buffers that the options declare updatable, and nothing else."""
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise createPoptorchError(
                "No named buffers marked as updatable: list them with poptorch.Options().updatableNamedBuffers([...])"
            )
        with self.unwatched(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            memory.upload_buffers(self.tensors(), list(names))

    def check_updatable_buffers(self) -> None:
        """The buffers that the options declare updatable must exist."""
        known = {name for name, _ in self._model.named_buffers()}
        for name in self._options._Popart.options.get("updatableNamedBuffers", ()):
            if name not in known:
                raise createPoptorchError(
                    f"Buffer {name}, marked as updatable, does not exist: the model has {sorted(known)}"
                )

    def download(self, memory: WeightsOnDevice) -> None:
        """Overwrite the host's parameters and buffers."""
        backend.debug("Writing weights from IPU to host.")
        if self._trains and self.fetch_newer():
            self.follow(memory)  # or the host would lose what others trained
        # Weights may be looked at, or an executor be dropped, while another model is being captured.
        with self.unwatched(), _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            host = self.tensors()
            if self._overlay is not None:
                self._overlay.end(keep=True)
            end_overlays(host.values())
            values = memory.fetch()
            for name, tensor in host.items():
                if self._known is not None and not self._known.is_known(name, tensor):
                    continue  # new since the last call: the device does not have its value, but will get it
                if name not in values:  # another process has it, or no stage uses it
                    continue
                if torch._debug_has_internal_overlap(tensor) == 1:
                    continue  # an expanded one: nothing can be written to it, here or there
                value = as_on_host(values[name], tensor)
                if name in self._groups:
                    value = self._groups[name].to_host(value)
                    if tensor.shape != value.shape:  # one row for each group becomes one for each replica
                        tensor.data = tensor.new_empty(value.shape)
                tensor.copy_(value)
        if self._trains:
            written = memory.written()
            self._followed = sharers.change(tensor for name, tensor in host.items() if name in written)
        # Last: until then others wait for their turn, and a copy that was interrupted is done again.
        self._is_level()

    def download_if_needed(self) -> bool:
        """Fetch weights if the device trained since the last time; tells whether it did."""
        copier = self._copier()
        if self._newest is Newest.HOST or copier is None:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        copier.copyWeightsToHost()
        return True

    @contextlib.contextmanager
    def with_values_of(self, memory: WeightsOnDevice, names: set[str]) -> Iterator[None]:
        """In here, the named tensors have the device's values."""
        newer = memory.download()
        tensors = {name: tensor for name, tensor in self.tensors().items() if name in names and name in newer}
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            for name, tensor in tensors.items():
                tensor.copy_(as_on_host(newer[name], tensor))
            try:
                yield
            finally:
                for name, tensor in tensors.items():
                    tensor.copy_(kept[name])

    def load_state_dict(self, model: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> Any:
        """Load into ``model``, which has these tensors, and leave it to the caller to upload them."""
        self.download_if_needed()  # what the dictionary does not mention must not be lost
        with self.unwatched():
            result = model.load_state_dict(state_dict, strict)
            sharers.change(self.tensors().values())
            return result

    def overlay_if_unused(self, memory: WeightsOnDevice) -> None:
        """To be called before a training call: after some calls without a look, the device uses the host's memory."""
        if self._newest is Newest.HOST or self._overlay is None or not self._overlay.called():
            return
        with self.unwatched(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            host = {n: t for n, t in self.tensors().items() if instrumentation.is_watched_by(t, self)}
            self._overlay.begin((host[name], own) for name, own in memory.parameters().items() if name in host)

    # -- executors that share tensors ----------------------------------------------------------------------------

    def fetch_newer(self) -> bool:
        """Bring to the host what training executors of the same tensors learned.

        Tells whether the host has newer values of some of them than the device.
        """
        self._fetch_from_others()
        return sharers.latest > self._followed and bool(self._outdated())

    def follow(self, memory: WeightsOnDevice) -> None:
        """Copy to the device what the host has newer values of."""
        with self.unwatched(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            outdated = self._outdated()
            end_overlays(outdated.values())
            memory.upload_some(
                {
                    name: self._groups[name].to_device(tensor) if name in self._groups else tensor
                    for name, tensor in outdated.items()
                }
            )
        self._followed = sharers.number()

    def _fetch_from_others(self) -> None:
        for other in sharers.ahead_of(self.tensor_ids, self):
            other.turns.take(other.download_if_needed)

    def _outdated(self) -> dict[str, torch.Tensor]:
        """The tensors of which the host got newer values than the device has."""
        found = {n: t for n, t in self.tensors().items() if sharers.changed_since(t, self._followed)}
        if not found:
            self._followed = sharers.number()
        return found


def ids_of(model: nn.Module) -> frozenset[int]:
    """The ``id`` of every parameter and buffer of a model."""
    return frozenset(id(entry.tensor) for entry in collect_state(model))
