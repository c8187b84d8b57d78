"""How a job is divided: replicas between instances, instances between hosts, IPUs between replicas."""

from __future__ import annotations

from dataclasses import dataclass

from popdist import context
from popdist.poprun import hosts
from popdist.poprun.errors import PoprunError
from popdist.poprun.settings import Settings

LINKED_IPUS = 64
"""The largest number of IPUs that direct links join."""


MOST_INSTANCES = 10_000
"""Of one job."""


@dataclass(frozen=True)
class Layout:
    """The sizes of a job. They divide without remainder."""

    replicas: int
    instances: int
    ipus_per_replica: int
    hosts: tuple[str, ...] = ()
    """The hosts that were given; none means this one."""

    link_domains: int = 1

    @property
    def replicas_per_instance(self) -> int:
        """Replicas of each instance."""
        return self.replicas // self.instances

    @property
    def ipus_per_instance(self) -> int:
        """IPUs of each instance: the size of the device it attaches to."""
        return self.replicas_per_instance * self.ipus_per_replica

    @property
    def ipus(self) -> int:
        """IPUs of the whole job."""
        return self.replicas * self.ipus_per_replica

    @property
    def instances_per_host(self) -> int:
        """Instances on each host."""
        return self.instances // max(1, len(self.hosts))

    @property
    def shown_hosts(self) -> tuple[str, ...]:
        """The hosts, by name."""
        return self.hosts or ("localhost",)

    def host_of(self, instance: int) -> str | None:
        """The host of an instance, if hosts were given."""
        return self.hosts[instance // self.instances_per_host] if self.hosts else None

    def variables(self, instance: int) -> dict[str, str]:
        """What an instance has to know about the job.

        >>> made = Layout(replicas=8, instances=4, ipus_per_replica=2).variables(3)
        >>> made["POPDIST_REPLICA_INDEX_OFFSET"], made["POPDIST_LOCAL_INSTANCE_INDEX"]
        ('6', '3')
        """
        return {
            context.NUM_TOTAL_REPLICAS: str(self.replicas),
            context.NUM_IPUS_PER_REPLICA: str(self.ipus_per_replica),
            context.NUM_LOCAL_REPLICAS: str(self.replicas_per_instance),
            context.UNIFORM_REPLICAS: "1",
            context.REPLICA_INDEX_OFFSET: str(instance * self.replicas_per_instance),
            context.LOCAL_INSTANCE_INDEX: str(instance % self.instances_per_host),
        }


def layout_of(settings: Settings) -> Layout:
    """The layout that was asked for, checked.

    >>> layout_of(Settings(num_replicas=5, num_instances=2))
    Traceback (most recent call last):
    ...
    popdist.poprun.errors.PoprunError: 5 replicas (--num-replicas) cannot be divided evenly between 2 instances ...
    """
    replicas, instances, names = settings.num_replicas, settings.num_instances, hosts.of(settings)
    if replicas % instances:
        raise PoprunError(
            f"{replicas} replicas (--num-replicas) cannot be divided evenly between {instances} instances "
            "(--num-instances). Make the first a multiple of the second."
        )
    if instances > MOST_INSTANCES:
        raise PoprunError(
            f"{instances} instances (--num-instances) are more than PopRun can start, which is {MOST_INSTANCES}."
        )
    if names and instances % len(names):
        raise PoprunError(
            f"{instances} instances (--num-instances) cannot be divided evenly between {len(names)} hosts "
            f"({_listed(names)}). Make the first a multiple of the second."
        )
    shown = settings.only_output_from_instance
    if shown is not None and shown >= instances:
        raise PoprunError(
            f"--only-output-from-instance is {shown}, but the instances are numbered from 0 to {instances - 1}."
        )
    for number, _ in settings.instance_mpi_local_args:
        if number >= instances:
            raise PoprunError(
                f"--instance-mpi-local-args names instance {number}, but the instances are numbered from 0 to "
                f"{instances - 1}."
            )
    made = Layout(replicas, instances, settings.ipus_per_replica, names, _link_domains(settings))
    if made.ipus_per_instance > LINKED_IPUS:
        raise PoprunError(
            f"An instance would need {made.ipus_per_instance} IPUs: {made.replicas_per_instance} replicas of "
            f"{made.ipus_per_replica}. More than {LINKED_IPUS} are not possible; use more instances (--num-instances)."
        )
    return made


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join([*names[:8], *(["..."] if len(names) > 8 else [])])


def _link_domains(settings: Settings) -> int:
    given = settings.num_ilds
    if given is None:
        wanted = -(-settings.num_replicas * settings.ipus_per_replica // LINKED_IPUS)
        return wanted if settings.num_replicas % wanted == 0 else 1
    if settings.num_replicas % given:
        raise PoprunError(
            f"{settings.num_replicas} replicas (--num-replicas) cannot be divided evenly between {given} IPU-Link "
            "domains (--num-ilds)."
        )
    return given
