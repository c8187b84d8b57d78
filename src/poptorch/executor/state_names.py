"""How the entries of an optimizer's state are called and shaped on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poptorch.compiler.passes.anchors import TRACED
from poptorch.optim.spec import OptimizerSpec, state_name
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.program.update import State


@dataclass(frozen=True)
class StateNames:
    """The names of the parameters of one compiled update.

    A traced training graph has a prefix before the names of its parameters. Dictionaries with and without it can be
    loaded. Every entry of a parameter with one value for each group of replicas has that many rows on the host, also
    where the device needs one number for all groups.
    """

    names: Mapping[torch.nn.Parameter, str]
    """As the program has them."""

    groups: Mapping[str, ReplicaGrouping]
    traced: bool

    @property
    def shown(self) -> dict[torch.nn.Parameter, str]:
        """The names in state dictionaries."""
        return self._spelled(prefixed=self.traced)

    def _spelled(self, *, prefixed: bool) -> dict[torch.nn.Parameter, str]:
        return {parameter: TRACED * prefixed + name for parameter, name in self.names.items()}

    def to_host(self, state: Mapping[str, Tensor], spec: OptimizerSpec, own: Sequence[State]) -> dict[str, Tensor]:
        """Copies of the device's entries, those of grouped parameters with one row for each group."""
        rows = self._scalars_in_rows(spec, own)
        plain = torch.contiguous_format  # whatever native code prefers
        return {
            name: tensor.expand(rows[name]).clone() if name in rows else tensor.clone(memory_format=plain)
            for name, tensor in state.items()
        }

    def to_device(
        self, pending: Mapping[str, Mapping[str, Any]], spec: OptimizerSpec, own: Sequence[State]
    ) -> dict[str, dict[str, Any]]:
        """A loaded dictionary with the names, and the shapes, that the device has."""
        other = self._spelled(prefixed=not self.traced)
        spellings = dict(zip(spec.named_state(other, own), spec.named_state(self.shown, own), strict=True))
        state = _respelled(pending["ipu_state"], spellings)
        for name, rows in self._scalars_in_rows(spec, own).items():
            value = state.get(name)
            if isinstance(value, Tensor) and value.shape == (rows,):
                state[name] = value[0]
        spellings = dict(zip(spec.named_params(other), spec.named_params(self.shown), strict=True))
        return {"ipu_state": state, "ipu_param": _respelled(pending["ipu_param"], spellings)}

    def _scalars_in_rows(self, spec: OptimizerSpec, own: Sequence[State]) -> dict[str, int]:
        """The scalar entries of grouped parameters, and the number of groups."""
        shown = self.shown
        return {
            state_name(key, shown[parameter]): self.groups[self.names[parameter]].count
            for group, state in zip(spec.groups, own, strict=True)
            for key, tensors in state.items()
            for parameter, tensor in zip(group.parameters, tensors, strict=True)
            if self.names[parameter] in self.groups and tensor.dim() == 0
        }


def _respelled(loaded: Mapping[str, Any], spellings: Mapping[str, str]) -> dict[str, Any]:
    """The entries with the names that ``spellings`` says; an entry that has its right name already wins."""
    return {**{spellings[name]: value for name, value in loaded.items() if name in spellings}, **loaded}
