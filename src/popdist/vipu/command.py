"""The commands ``vipu``, ``vipu-cli`` and ``vipu-admin``: a verb, an object, a name, and flags anywhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from popdist.vipu import output
from popdist.vipu.registry import CLUSTER, ROUTINGS, SYNC_TYPES, Partition, Registry, RegistryError, Spec

_LONGEST_MESSAGE = 1000

_DESCRIPTION = """Partitions of the virtual IPUs of this host.

  create partition NAME --size N     make a partition
  list partitions                    all partitions
  get partition NAME                 one partition; --gcd G --ipuof-configs prints how to connect to a part of it
  reset partition NAME               back to its initial state
  remove partition NAME              remove it (also: delete)
  list allocations | clusters        the pool that partitions come from
  list ipu-attrs                     the IPUs
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RegistryError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    name = Path(sys.argv[0]).name
    program = name if arguments is None and name.startswith("vipu") else "vipu"
    try:
        print(run(sys.argv[1:] if arguments is None else arguments, admin=program == "vipu-admin"), end="")
    except (RegistryError, OSError) as error:
        print(f"{program}: {str(error)[:_LONGEST_MESSAGE]}", file=sys.stderr)
        return 1
    return 0


def run(arguments: Sequence[str], registry: Registry | None = None, admin: bool = False) -> str:
    """What a command prints."""
    shared = _global_parser()
    known, rest = shared.parse_known_args(list(arguments))
    if not (rest or known.version or known.server_version):
        return _DESCRIPTION + "\n" + shared.format_help()
    if known.version:
        return f"vipu {version()}\n"
    if known.server_version:
        return f"version: {version()}\nhost: {known.api_host or 'localhost'}:{known.api_port}\n"
    words = [rest.pop(0) for _ in range(min(2, len(rest)))]
    if known.help and not words:
        return _DESCRIPTION + "\n" + shared.format_help()
    if known.help and len(words) == 1 and (shown := _help_of_verb(words[0])):
        return shown
    command = _COMMANDS.get(" ".join([words[0], words[-1].removesuffix("s")])) if len(words) == 2 else None
    if command is None:
        raise RegistryError(f"there is no command {' '.join(words)!r}; --help lists the commands")
    if known.help:
        return _help_of(words, command)
    return command(_Call(registry or Registry(), rest, bool(known.showjson), admin))


def _help_of_verb(verb: str) -> str:
    """What a verb does to which objects; empty for a word that is no verb."""
    lines = [
        f"  vipu {words}: {(command.__doc__ or '').splitlines()[0]}"
        for words, command in _COMMANDS.items()
        if words.split()[0] == verb
    ]
    return (
        "\n".join([f"usage: vipu {verb} OBJECT [NAME] [flags]", "", *lines, "", "Add --help to see flags.", ""])
        if lines
        else ""
    )


def _help_of(words: list[str], command: Callable[[_Call], str]) -> str:
    """The name and the flags of one command."""
    parser = argparse.ArgumentParser(
        prog=f"vipu {' '.join(words)}", description=command.__doc__, add_help=False, allow_abbrev=False
    )
    takes_name, flags = _FLAGS.get(command, (False, None))
    if takes_name:
        parser.add_argument("name", help="the name of the partition")
    if flags is not None:
        flags(parser)
    return parser.format_help() + "\nvipu --help lists the flags of all commands.\n"


def version() -> str:
    """The version of this package."""
    # Here, not above: it imports torch, and most commands do without.
    from poptorch import __version__

    return str(__version__)


class _Call:
    """One command: what it works on, and how to answer."""

    def __init__(self, registry: Registry, rest: list[str], as_json: bool, admin: bool) -> None:
        self.registry, self.rest, self.as_json, self.admin = registry, rest, as_json, admin

    def parse(self, add: Callable[[argparse.ArgumentParser], object] | None = None) -> argparse.Namespace:
        """The name and the flags of the command."""
        parser = _Parser(add_help=False, allow_abbrev=False)
        parser.add_argument("name")
        if add is not None:
            add(parser)
        return parser.parse_args(self.rest)

    def nothing_else(self) -> None:
        """Refuse further words."""
        if self.rest:
            raise RegistryError(f"unexpected: {' '.join(self.rest)}")

    def done(self, command: str, name: str) -> str:
        """The answer of a command that changes something."""
        return output.as_json({"command": command, "id": name, "success": True}) if self.as_json else (
            f"{command} ({name}): success.\n"
        )  # fmt: skip


def _global_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vipu", usage="vipu VERB OBJECT [NAME] [flags]", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true", help="print this text")
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--server-version", action="store_true", help="print version and address of the controller")
    parser.add_argument("--showjson", action="store_true", help="answer in JSON")
    parser.add_argument("-a", action="store_true", help="accepted: 2020's tool showed all objects with it")
    for name, text in (
        ("config", "accepted: there is nothing to configure"),
        ("api-user-id", "accepted: there is no authentication"),
        ("api-access-key", "accepted: there is no authentication"),
    ):
        parser.add_argument(f"--{name}", metavar="TEXT", help=text)
    host, port = (os.environ.get(f"VIPU_CLI_API_{what}") for what in ("HOST", "PORT"))
    parser.add_argument("-H", "--api-host", metavar="HOST", default=host, help="accepted: this host answers")
    parser.add_argument("--api-port", metavar="PORT", default=port or "8090", help="accepted, like the host")
    return parser


def _creation_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--size", type=int, required=True, help="how many IPUs")
    add("--reconfigurable", action="store_true", help="programs choose among its IPUs")
    add("--num-gcds", "--gcds", type=int, default=1, help="how many processes share it; 1 by default")
    add("--gcd-sync-replicas", "--total-num-replicas", dest="replicas", type=int, help="replicas of all processes")
    add("--allocation", help=f"the pool that it is taken from: {CLUSTER}")
    add("--cluster", help="the same, as earlier releases call it")
    add("--routing", choices=sorted(ROUTINGS), help="how its IPUs are linked")
    add("--sync-type", choices=sorted(SYNC_TYPES), help="how its IPUs wait for each other")
    add("--num-ilds", "--segments", dest="domains", type=int, default=1, help="how many link domains")
    add("--gw-routing", choices=["ring", "swring"], help="accepted: there are no gateways")
    add("--index", type=int, help="its place in the pool")
    add("--no-auto-reset", action="store_true", help="accepted: virtual IPUs need no reset")
    add("--relocatable", action="store_true", help="accepted: it never moves")


def _reset_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--relocatable", action="store_true", help="accepted: it never moves")


def _removal_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", "-f", action="store_true", help="a partition that is not there is no error")


def _reading_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gcd", type=int, default=0, help="the part of the partition; 0 by default")
    parser.add_argument("--ipuof-configs", action="store_true", help="print the connection file of that part")


def _create(call: _Call) -> str:
    """Make a partition."""
    given = call.parse(_creation_flags)
    for pool in (given.allocation, given.cluster):
        if pool not in (None, CLUSTER):
            raise RegistryError(f"there is no allocation {pool!r}; there is: {CLUSTER}")
    spec = Spec(
        size=given.size,
        num_gcds=given.num_gcds,
        num_replicas=given.replicas,
        reconfigurable=given.reconfigurable,
        routing=ROUTINGS[given.routing or "dnc"],
        sync_type=SYNC_TYPES[given.sync_type] if given.sync_type else None,
        link_domains=given.domains,
        index=given.index,
    )
    call.registry.create(given.name, spec, available_ipus())
    return call.done("create partition", given.name)


def _reset(call: _Call) -> str:
    """Bring a partition back to its initial state."""
    name = call.parse(_reset_flags).name
    call.registry.reset(name)
    return call.done("reset partition", name)


def _remove(call: _Call) -> str:
    """Remove a partition."""
    given = call.parse(_removal_flags)
    try:
        call.registry.remove(given.name)
    except RegistryError:
        if not given.force:
            raise
    return call.done("remove partition", given.name)


def _get(call: _Call) -> str:
    """Show one partition, or how to connect to a part of it."""
    given = call.parse(_reading_flags)
    partition = call.registry.get(given.name)
    if given.gcd not in range(partition.spec.num_gcds):
        raise RegistryError(f"the partition {given.name!r} has {partition.spec.num_gcds} GCDs, and none is {given.gcd}")
    if given.ipuof_configs:
        return output.as_json(partition.connection(given.gcd))
    if call.as_json:
        return output.as_json(_described(partition))
    return output.pairs(
        {
            "Partition": partition.name,
            "Allocation": CLUSTER,
            "Size": partition.spec.size,
            "IPUs": f"{partition.first}-{partition.first + partition.spec.size - 1}",
            "GCDs": partition.spec.num_gcds,
            "Replicas": partition.spec.num_replicas,
            "Reconfigurable": "yes" if partition.spec.reconfigurable else "no",
            "ILDs": partition.spec.link_domains,
            "ILD Routing": partition.spec.routing,
            "Sync Type": partition.spec.sync_type,
            "State": partition.state,
        }
    )


def _list_partitions(call: _Call) -> str:
    """List all partitions."""
    call.nothing_else()
    found, problems = call.registry.look()
    partitions = found.values()
    for problem in problems.values():
        print(f"vipu: {problem}", file=sys.stderr)
    if call.as_json:
        return output.as_json([_described(partition) for partition in partitions])
    titles = ["Partition", "Cluster", "ILDs", "GW Routing", "ILD Routing", "Size", "GCDs", "State"]
    rows = [
        [it.name, CLUSTER, it.spec.link_domains, "UNDEFINED", it.spec.routing, it.spec.size, it.spec.num_gcds, it.state]
        for it in partitions
    ]
    if call.admin:  # administrators see the pool first
        titles[:2] = ["Cluster", "Partition"]
        rows = [[row[1], row[0], *row[2:]] for row in rows]
    return output.table(titles, rows)


def _list_clusters(call: _Call) -> str:
    """List the clusters."""
    call.nothing_else()
    total = available_ipus()
    if call.as_json:
        domains = [
            {"ipus": [{"id": ipu} for ipu in range(first, min(first + 64, total))]} for first in range(0, total, 64)
        ]
        return output.as_json([{"id": CLUSTER, "spec": {"ipu_link_domains": domains}}])
    return output.table(["Cluster", "Agents", "IPUs"], [[CLUSTER, "this-host", total]])


def _list_allocations(call: _Call) -> str:
    """List the pools that partitions come from."""
    call.nothing_else()
    if call.as_json:
        return output.as_json([{"id": CLUSTER, "agents": ["this-host"]}])
    return output.table(["Allocation ID", "Agents"], [[CLUSTER, "this-host"]])


def _list_attributes(call: _Call) -> str:
    """List the IPUs and who has them."""
    call.nothing_else()
    holders = {ipu: it.name for it in call.registry.partitions().values() for ipu in it.ipus()}
    rows = [["this-host", ipu, "partition", holders.get(ipu, "-")] for ipu in range(available_ipus())]
    if call.as_json:
        return output.as_json([dict(zip(("agent", "ipu", "attribute", "value"), row, strict=True)) for row in rows])
    return output.table(["Agent", "IPU", "Attribute", "Value"], rows)


_COMMANDS: dict[str, Callable[[_Call], str]] = {
    "create partition": _create,
    "reset partition": _reset,
    "remove partition": _remove,
    "delete partition": _remove,
    "get partition": _get,
    "list partition": _list_partitions,
    "list cluster": _list_clusters,
    "list allocation": _list_allocations,
    "list ipu-attr": _list_attributes,
}

_FLAGS: dict[Callable[[_Call], str], tuple[bool, Callable[[argparse.ArgumentParser], object] | None]] = {
    _create: (True, _creation_flags),
    _reset: (True, _reset_flags),
    _remove: (True, _removal_flags),
    _get: (True, _reading_flags),
}
"""Whether a command takes a name, and what adds its flags."""


def _described(partition: Partition) -> dict[str, Any]:
    spec = asdict(replace(partition.spec, index=None))
    del spec["index"]
    described = {
        "id": partition.name,
        "spec": {**spec, "ipus": [{"id": ipu} for ipu in partition.ipus()]},
        "status": {"ready_state": f"PS_{partition.state}", "operation_state": "POS_IDLE", "resets": partition.resets},
    }
    return {"partition": described}


def available_ipus() -> int:
    """How many IPUs this host has in all."""
    # Here, not above: most commands do without, and it imports torch.
    from poptorch.devices.system import whole_system

    system = whole_system()
    if system is None:
        raise RegistryError("this host has no IPUs (POPTORCH_SYSTEM=none)")
    return system.ipus


__all__ = ["available_ipus", "main", "run"]
