"""Weights that differ between groups of replicas."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from poptorch.enums import CommGroupType, VariableRetrievalMode
from poptorch.errors import createPoptorchError


@dataclass(frozen=True)
class ReplicaGrouping:
    """How replicas share the values of one parameter: one row of the host's tensor for each group.

    >>> grouping = ReplicaGrouping(CommGroupType.Orthogonal, 2, replicas=4)
    >>> grouping.count, [grouping.group_of(replica) for replica in range(4)]
    (2, [0, 1, 0, 1])
    """

    kind: CommGroupType
    size: int
    """Replicas in a group, as the user gave it."""

    replicas: int
    retrieval: VariableRetrievalMode = VariableRetrievalMode.OnePerGroup
    """What reading returns: one row for each group, or one for each replica."""

    @property
    def members(self) -> int:
        """Replicas in a group."""
        return 1 if self.kind is CommGroupType.NoGrouping else self.size

    @property
    def count(self) -> int:
        """Number of groups, and of rows on the device."""
        return self.replicas // self.members

    def group_of(self, replica: int) -> int:
        """The group of a replica."""
        return replica % self.count if self.kind is CommGroupType.Orthogonal else replica // self.members

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """The replicas of each group."""
        return tuple(tuple(r for r in range(self.replicas) if self.group_of(r) == group) for group in range(self.count))

    def to_device(self, value: torch.Tensor) -> torch.Tensor:
        """One row for each group, from a host tensor that has that, or (as it was read) one for each replica."""
        if value.shape[0] == self.count:
            return value
        return value[[replicas[0] for replicas in self.holders]]

    def to_host(self, value: torch.Tensor) -> torch.Tensor:
        """What reading returns of a device tensor with one row for each group."""
        if self.retrieval is VariableRetrievalMode.OnePerGroup:
            return value
        return value[[self.group_of(replica) for replica in range(self.replicas)]]

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a parameter that does not have one row for each group."""
        if self.members < 1 or self.replicas % self.members:
            raise createPoptorchError(
                f"Replica grouping of {name!r}: groups of {self.size} do not divide the replicationFactor "
                f"({self.replicas})."
            )
        as_read = self.replicas if self.retrieval is VariableRetrievalMode.AllReplicas else self.count
        if shape[0] not in (self.count, as_read):
            raise createPoptorchError(
                f"Replica grouping of {name!r}: its first dimension is {shape[0]}, but there are {self.count} groups "
                f"of {self.members} of the {self.replicas} replicas, and each needs a row of its own."
            )
