"""Which device an instance has to attach to."""

from __future__ import annotations

from popdist import context


def getDeviceId(ipusPerReplica: int = 0) -> int:
    """The id of the device for this instance; 0 means as many IPUs in each replica as the launcher says.

    Under a launcher it is this instance's part of the host's device; else a device with that many IPUs, a free one if
    there is any.
    """
    # Here, not above: asking for the layout of a job must not import torch.
    from poptorch.devices import attachment, groups, partition
    from poptorch.devices.groups import Group

    ipus = ipusPerReplica or context.getNumIpusPerReplica()
    total = _visible_ipus()
    if not context.isPopdistEnvSet():
        return _checked(attachment.suggestion(ipus), ipus)
    size = ipus * context.getNumLocalReplicas()
    if context.has(context.NODE_DEVICE_ID):
        parent = groups.group_of(context.read_number(context.NODE_DEVICE_ID, 0), total)
        first = parent.first + size * context.getLocalInstanceIndex()
        end = min(parent.first + parent.size, total)
    else:
        part = partition.visible()
        is_own = part is not None and not part.is_whole  # then it has this instance's IPUs and no others
        place = 0 if is_own else context.read_number(context.GCD_ID, context.getInstanceIndex())
        first, end = place * size, total
    if size & (size - 1) or first + size > end:
        raise RuntimeError(
            f"There is no device for this instance: it needs {size} IPUs from number {first} on, and has those up to "
            f"number {end - 1}. IPUs come in powers of two; POPTORCH_SYSTEM names the system."
        )
    return groups.id_of(Group(first, size), total)


def _visible_ipus() -> int:
    from poptorch import environment
    from poptorch.devices.system import system

    machine = None if environment.ipu_model_request().enabled else system()
    if machine is None:
        raise RuntimeError(
            "There is no device to choose from: the environment asks for an IPU Model (POPTORCH_IPU_MODEL) or for no "
            "system (POPTORCH_SYSTEM=none)."
        )
    return machine.ipus


def _checked(device_id: int | None, ipus: int) -> int:
    if device_id is None:
        raise RuntimeError(
            f"There is no device with {ipus} IPUs: they come in powers of two, up to all of {_visible_ipus()}."
        )
    return device_id
