"""Which IPUs a job gets: the partition it uses, and how instances find their share of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from popdist import context
from popdist.poprun.errors import PoprunError
from popdist.poprun.layout import LINKED_IPUS, Layout
from popdist.poprun.log import Log
from popdist.poprun.settings import Settings
from popdist.vipu.registry import CLUSTER, SYNC_TYPES, Partition, Registry, RegistryError, Spec

PARTITION_ID = "IPUOF_VIPU_API_PARTITION_ID"
_TARGET_OPTIONS = "POPLAR_TARGET_OPTIONS"
_RETRY_SECONDS = 1.0


@dataclass
class Placement:
    """What instances have to know about their IPUs."""

    shared: dict[str, str] = field(default_factory=dict)
    parts: bool = False
    """Whether each instance has a part (GCD) of its own."""

    parents: tuple[int, ...] = ()
    """The device of each host that its instances share, if IPUs can be grouped at will."""

    release: Callable[[], None] = lambda: None
    """To be called after the run."""

    def variables(self, instance: int, layout: Layout) -> dict[str, str]:
        """What one instance has to know."""
        own = dict(self.shared)
        if self.parts:
            own[context.GCD_ID] = str(instance)
        if self.parents:
            own[context.NODE_DEVICE_ID] = str(self.parents[instance // layout.instances_per_host])
        return own


def check_device_size(layout: Layout) -> None:
    """Refuse instances of a size for which there is no device."""
    size = layout.ipus_per_instance
    if size & (size - 1):
        raise PoprunError(
            f"An instance would need a device of {size} IPUs: {layout.replicas_per_instance} replicas of "
            f"{layout.ipus_per_replica}. Devices have 1, 2, 4, 8 ... IPUs; choose --num-replicas, --num-instances and "
            "--ipus-per-replica so that replicas per instance times IPUs per replica is one of these."
        )


def place(settings: Settings, layout: Layout, log: Log, registry: Registry | None = None) -> Placement:
    """Find or make the partition of a job. Offline, none is needed."""
    if settings.offline_mode:
        log.info("Offline mode: no partition is used, and no device")
        return Placement()
    check_device_size(layout)
    if _uses_ipu_model():
        log.info("The environment asks for an IPU Model: no partition is used, and no device")
        return Placement()
    address = f"{_server(settings)}:{settings.vipu_server_port}"
    log.debug(f"V-IPU server address: {address}; the registry of this host stands for it")
    registry = registry or Registry()
    try:
        return _place(settings, layout, log, registry)
    except RegistryError as error:
        raise PoprunError(f"No partition for the job: {error}.") from None


def _place(settings: Settings, layout: Layout, log: Log, registry: Registry) -> Placement:
    name = _chosen(settings, registry)
    if name is None:
        total = _host_ipus()
        log.info(f"There are no partitions: the job uses the {total} IPUs of this host")
        _check_fits(layout, total, "this host (POPTORCH_SYSTEM names it)")
        return Placement(_target(settings, layout, total), parents=_parents(layout, total, {}))
    known = registry.partitions()
    partition, is_new = known.get(name), False
    belongs_to_user = partition is not None
    if partition is not None and not partition.spec.reconfigurable:
        misfit = _misfit(partition.spec, layout)
        if misfit and not settings.update_partition:
            raise PoprunError(
                f"The partition {name!r} does not fit the job: {misfit}. Give --update-partition=yes to make it anew, "
                "or another --vipu-partition."
            )
        if misfit:
            log.info(f"Making the partition {name} anew, which does not fit: {misfit}")
            partition, is_new = _made_anew(partition, settings, layout, registry, log), True
    if partition is None:
        partition, is_new = _created(name, settings, layout, registry, log), True
    if partition.spec.reconfigurable:
        _check_fits(layout, partition.spec.size, f"the partition {name!r}")
    reset = not partition.spec.reconfigurable if settings.reset_partition is None else settings.reset_partition
    if reset and not is_new:
        log.info(f"Resetting the partition {name}")
        partition = registry.reset(name)
    log.info(f"Partition {name}: PS_{partition.state}, {partition.spec.size} IPUs")
    shared = {**_server_variables(settings, name), **_target(settings, layout, partition.spec.size)}
    is_ours = not belongs_to_user and settings.remove_partition
    release = _remover(name, registry, log) if is_ours else lambda: None
    if not partition.spec.reconfigurable:
        return Placement(shared, parts=True, release=release)
    return Placement(shared, parents=_parents(layout, partition.spec.size, {PARTITION_ID: name}), release=release)


def _chosen(settings: Settings, registry: Registry) -> str | None:
    """The name of the partition; ``None`` if the whole host is to be used."""
    name = settings.vipu_partition or os.environ.get(PARTITION_ID)
    if name:
        return name
    known = list(registry.partitions())
    if len(known) > 1:
        raise PoprunError(f"There are several partitions: {', '.join(known)}. Choose one with --vipu-partition.")
    return known[0] if known else None


def _created(
    name: str, settings: Settings, layout: Layout, registry: Registry, log: Log, connect: bool = False
) -> Partition:
    for pool in (settings.vipu_allocation, settings.vipu_cluster):
        if pool not in (None, CLUSTER):
            log.info(f"There is no allocation {pool!r} on this host; {CLUSTER!r} is used")
    sync = settings.sync_type
    if sync is not None and sync not in SYNC_TYPES.values():
        raise PoprunError(f"--sync-type is {sync!r}, but must be one of {', '.join(SYNC_TYPES.values())}.")
    spec = Spec(
        size=1 << (layout.ipus - 1).bit_length(),
        num_gcds=layout.instances,
        num_replicas=layout.replicas,
        sync_type=sync,
        link_domains=layout.link_domains,
    )
    log.info(f"Creating the partition {name}: {spec.size} IPUs, {spec.num_gcds} GCDs, {spec.num_replicas} replicas")
    for attempt in range(1, settings.vipu_partition_attempts + 1):
        try:
            return registry.create(name, spec, _host_ipus(), connect=connect)
        except RegistryError as error:
            if attempt == settings.vipu_partition_attempts:
                raise
            log.info(f"Attempt {attempt}: {error}")
            time.sleep(_RETRY_SECONDS)
    raise AssertionError("there is at least one attempt")


def _made_anew(old: Partition, settings: Settings, layout: Layout, registry: Registry, log: Log) -> Partition:
    """A partition of the same name that fits the job. If there can be none, the user has the old one again."""
    connect = registry.has_connection_files(old)
    registry.remove(old.name)
    try:
        return _created(old.name, settings, layout, registry, log, connect)
    except BaseException:
        registry.create(old.name, old.spec, _host_ipus(), connect=connect)
        raise


def _remover(name: str, registry: Registry, log: Log) -> Callable[[], None]:
    def remove() -> None:
        log.info(f"Removing the partition {name}")
        try:
            registry.remove(name)
        except RegistryError as error:  # someone else was faster
            log.warning(str(error))

    return remove


def _misfit(spec: Spec, layout: Layout) -> str:
    """Why a partition with fixed parts cannot be used; empty if it can."""
    for what, has, needs in (
        ("IPUs", spec.size, layout.ipus),
        ("GCDs", spec.num_gcds, layout.instances),
        ("replicas", spec.num_replicas, layout.replicas),
    ):
        if has != needs:
            return f"it has {has} {what}, and the job needs {needs}"
    return ""


def _check_fits(layout: Layout, total: int, where: str) -> None:
    if layout.ipus > total:
        raise PoprunError(
            f"The job needs {layout.ipus} IPUs: {layout.replicas} replicas of {layout.ipus_per_replica}. There are "
            f"{total} in {where}."
        )


def _parents(layout: Layout, total: int, variables: Mapping[str, str]) -> tuple[int, ...]:
    """The device of each host whose parts its instances attach to; on one host one that is free, if there is any."""
    from poptorch.devices import attachment

    count = max(1, len(layout.hosts))
    size = min(total, 1 << (layout.instances_per_host * layout.ipus_per_instance - 1).bit_length())
    first = 2 * total - 2 * total // size
    if count > 1:
        return tuple(range(first, first + count))
    with _told(variables):  # what is free is asked in the partition's own numbers
        free = attachment.suggestion(size)
    return (first if free is None else free,)


@contextmanager
def _told(variables: Mapping[str, str]) -> Iterator[None]:
    """This process with the variables of an instance, for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _server(settings: Settings) -> str:
    """The controller: what the option says, else what the ``vipu`` command is told."""
    return settings.vipu_server_host or os.environ.get("VIPU_CLI_API_HOST") or "localhost"


def _server_variables(settings: Settings, name: str) -> dict[str, str]:
    return {
        "IPUOF_VIPU_API_HOST": _server(settings),
        "IPUOF_VIPU_API_PORT": str(settings.vipu_server_port),
        PARTITION_ID: name,
        "IPUOF_VIPU_API_TIMEOUT": str(settings.vipu_server_timeout),
        "IPUOF_LOG_LEVEL": os.environ.get("IPUOF_LOG_LEVEL", "WARN"),
    }


def _target(settings: Settings, layout: Layout, size: int) -> dict[str, str]:
    """``POPLAR_TARGET_OPTIONS``: what the partition is like; what the user has set there wins."""
    options = {
        "ipuLinkDomainSize": str(min(size, LINKED_IPUS) // (layout.link_domains if settings.num_ilds else 1)),
        "ipuLinkConfiguration": "default",
        "ipuLinkTopology": "torus" if size >= LINKED_IPUS else "mesh",
        "gatewayMode": "true" if layout.link_domains > 1 else "false",
        "instanceSize": str(size // layout.instances),
    }
    given = os.environ.get(_TARGET_OPTIONS)
    if given:
        try:
            options.update({str(key): str(value) for key, value in json.loads(given).items()})
        except (ValueError, AttributeError):
            raise PoprunError(f"{_TARGET_OPTIONS} is {given!r}, which is no JSON object.") from None
    return {_TARGET_OPTIONS: json.dumps(options)}


def _uses_ipu_model() -> bool:
    from poptorch import environment

    return environment.ipu_model_request().enabled


def _host_ipus() -> int:
    from popdist.vipu.command import available_ipus

    return available_ipus()
