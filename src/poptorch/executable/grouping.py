"""Weights that differ between groups of replicas."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Replicas of a group hold equal values, so both modes read the same: one row for each group."""

    @property
    def members(self) -> int:
        """Replicas in a group."""
        return 1 if self.kind is CommGroupType.NoGrouping else self.size

    @property
    def count(self) -> int:
        """Number of groups, and of rows of the host's tensor."""
        return self.replicas // self.members

    def group_of(self, replica: int) -> int:
        """The group of a replica."""
        return replica % self.count if self.kind is CommGroupType.Orthogonal else replica // self.members

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a parameter that does not have one row for each group."""
        if self.members < 1 or self.replicas % self.members:
            raise createPoptorchError(
                f"Replica grouping of {name!r}: groups of {self.size} do not divide the replicationFactor "
                f"({self.replicas})."
            )
        if shape[0] != self.count:
            raise createPoptorchError(
                f"Replica grouping of {name!r}: its first dimension is {shape[0]}, but there are {self.count} groups "
                f"of {self.members} of the {self.replicas} replicas, and each needs a row of its own."
            )
