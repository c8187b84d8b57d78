"""The options of PopRun: what each is called, what it takes and what it is for."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from popdist.poprun.errors import UsageError

_BOOLEANS = {
    "yes": True, "on": True, "1": True, "true": True,
    "no": False, "off": False, "0": False, "false": False,
}  # fmt: skip


_LONGEST_MESSAGE, _LONGEST_VALUE = 300, 60


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def boolean(text: str) -> bool:
    """One of the spellings of yes and no.

    >>> [boolean(text) for text in ("yes", "ON", "0", "false")]
    [True, True, False, False]
    """
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"is {text!r}, but must be one of {', '.join(_BOOLEANS)}") from None


def at_least(minimum: int) -> Callable[[str], int]:
    """Parses whole numbers that are not below ``minimum``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise ValueError(f"is {text!r}, but must be a whole number, {minimum} or more")
        return value

    return parse


def one_of(*words: str) -> Callable[[str], str]:
    """Parses one of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"is {text!r}, but must be one of {', '.join(words)}")
        return text

    return parse


def words(text: str) -> tuple[str, ...]:
    """Arguments for ``mpirun``, split on blanks and line breaks; quotes keep words together.

    >>> words("-x A=1\\n  -x B='2 3'")
    ('-x', 'A=1', '-x', 'B=2 3')
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"is {text!r}, which cannot be split into words: {error}") from None


def words_of_instance(text: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """``N:arguments``: the number of an instance, and arguments for it.

    >>> words_of_instance("1:-x A=1")
    ((1, ('-x', 'A=1')),)
    """
    number, colon, rest = text.partition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,6}", number.strip()):
        raise ValueError(f"is {text!r}, but must be the number of an instance, a colon and arguments: '1:-x NAME'")
    return ((int(number), words(rest)),)


def _option(
    default: Any, parse: Callable[[str], Any], value: str, text: str, *, adds_up: bool = False, aliases: str = ""
) -> Any:
    about = {"parse": parse, "value": value, "help": text, "adds_up": adds_up, "aliases": tuple(aliases.split())}
    return dataclasses.field(default=default, metadata=about)


def _flag(text: str, aliases: str = "") -> Any:
    return _option(False, boolean, "", text, aliases=aliases)


@dataclass(frozen=True)
class Settings:
    """What the command line and a configuration file say. The fields have the names of the options."""

    help: bool = _flag("print this text", "-h")
    version: bool = _flag("print the version")
    version_format: str = _option(
        "text", one_of("text", "full-text", "full-json"), "FORMAT", "text, full-text or full-json; the last two name "
        "what PopRun depends on, too",
    )  # fmt: skip
    import_config: str | None = _option(None, str, "FILE", "read options from a file; the command line wins")
    export_config: str | None = _option(None, str, "FILE", "write the options in force to a file")
    overwrite_config: bool = _option(False, boolean, "YES|NO", "let --export-config overwrite a file")
    verbose: bool = _flag("information messages", "-v")
    vv: bool = _flag("debug messages", "-vv")

    host: str | None = _option(
        None, str, "HOSTS", "hosts, separated by commas, with ranges such as host[0-2,4]; instances are divided evenly",
        aliases="-H",
    )  # fmt: skip
    hostfile: str | None = _option(None, str, "FILE", "a file with one host in each line, instead of --host")
    host_subnet: str | None = _option(None, str, "NET", "the network between hosts, for example 10.1.0.0/16")

    num_replicas: int = _option(1, at_least(1), "N", "replicas of the whole job")
    num_instances: int = _option(1, at_least(1), "N", "processes that they are divided between")
    ipus_per_replica: int = _option(1, at_least(1), "N", "IPUs of each replica")
    num_ilds: int | None = _option(None, at_least(1), "N", "IPU-Link domains; by default as few as possible")

    vipu_server_host: str | None = _option(None, str, "HOST", "the V-IPU controller; localhost by default")
    vipu_server_port: int = _option(8090, at_least(1), "PORT", "its port")
    vipu_server_timeout: int = _option(120, at_least(0), "SECONDS", "how long to wait for it")
    vipu_partition: str | None = _option(None, str, "NAME", "the partition; it is made if it does not exist")
    vipu_partition_attempts: int = _option(1, at_least(1), "N", "tries to bring the partition to ACTIVE")
    vipu_allocation: str | None = _option(None, str, "NAME", "where to make a partition")
    vipu_cluster: str | None = _option(None, str, "NAME", "deprecated: use --vipu-allocation")
    update_partition: bool = _option(False, boolean, "YES|NO", "make a partition that does not fit anew")
    reset_partition: bool | None = _option(
        None, boolean, "YES|NO", "reset the partition first; by default if it is not reconfigurable"
    )
    remove_partition: bool = _option(True, boolean, "YES|NO", "remove a partition that PopRun made, after the run")
    sync_type: str | None = _option(None, str, "TYPE", "the sync type of a partition that PopRun makes")

    executable_cache_path: str | None = _option(None, str, "DIR", "where instances keep compiled executables")
    mpi_global_args: tuple[str, ...] = _option(
        (), words, "ARGS", "arguments for mpirun, once; may be repeated", adds_up=True
    )
    mpi_local_args: tuple[str, ...] = _option(
        (), words, "ARGS", "arguments for each instance, mostly '-x NAME' or '-x NAME=VALUE'; may be repeated",
        adds_up=True,
    )  # fmt: skip
    instance_mpi_local_args: tuple[tuple[int, tuple[str, ...]], ...] = _option(
        (), words_of_instance, "N:ARGS", "the same for instance N only; may be repeated", adds_up=True
    )
    numa_aware: bool | None = _option(None, boolean, "YES|NO", "bind instances to NUMA nodes in turn; on by default")
    process_placement: str | None = _option(
        None, one_of("disabled", "numa"), "WORD", "numa (default) binds instances to NUMA nodes in turn; or disabled"
    )
    print_topology: bool = _option(False, boolean, "YES|NO", "print a table of hosts, instances and replicas")
    only_output_from_instance: int | None = _option(
        None, at_least(0), "N", "hide what the other instances print, errors too"
    )
    offline_mode: bool = _option(False, boolean, "YES|NO", "run without IPUs and without a partition")
    allow_run_as_root: bool | None = _option(None, boolean, "YES|NO", "accepted; root may always run jobs")
    synchronise_python_venv: bool = _option(
        False, boolean, "YES|NO", "copy the Python environment to the other hosts first"
    )
    synchronise_poplar_sdk: bool = _option(False, boolean, "YES|NO", "copy the SDK to the other hosts first")
    distribute_ssh_key: bool = _option(False, boolean, "YES|NO", "copy the ssh key to the other hosts first")

    def binds_to_numa_nodes(self) -> bool:
        """Whether instances of one host are to be bound to its NUMA nodes in turn."""
        if self.process_placement is not None:
            return self.process_placement != "disabled"
        return self.numa_aware is not False


@dataclass(frozen=True)
class Option:
    """One option, as the command line and configuration files see it."""

    field: str
    default: Any
    parse: Callable[[str], Any]
    value: str
    """What stands for its value in the help; empty for an option without a value."""

    help: str
    adds_up: bool
    aliases: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name, without the two dashes."""
        return self.field.replace("_", "-")

    def read(self, text: str) -> Any:
        """The value that a text stands for."""
        if "\0" in text:  # from a file: neither paths nor arguments of programs can have it
            raise UsageError(f"--{self.name} has a character NUL: {_shortened(text)!r}.")
        try:
            return self.parse(text)
        except ValueError as error:
            what = str(error).replace(repr(text), repr(_shortened(text)))
            raise UsageError(f"--{self.name} {what[:_LONGEST_MESSAGE]}.") from None

    def texts(self, value: Any) -> Iterator[str]:
        """How a configuration file writes the value: one text for each line; none for "not given"."""
        if value is None:
            return
        if self.parse is words_of_instance:
            yield from (f"{number}:{shlex.join(arguments)}" for number, arguments in value)
        elif self.adds_up:
            if value:
                yield shlex.join(value)
        elif isinstance(value, bool):
            yield "yes" if value else "no"
        else:
            yield str(value)


OPTIONS: tuple[Option, ...] = tuple(
    Option(field.name, field.default, **field.metadata) for field in dataclasses.fields(Settings)
)
"""All options, in the order of the help."""
