"""Every parser of the package: how to feed it, what it may raise, and sound input to begin with.

A parser takes bytes that may be anything. It either understands them, or raises an error of ours, or one that the API
promises, whose text names the file or variable. It never raises anything else, never takes much memory for a small
input, and never takes long.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import poptorch
from popdist import context
from popdist.poprun import command_line, hosts, layout
from popdist.poprun.errors import PoprunError
from popdist.vipu.registry import Registry, RegistryError, Spec
from poptorch import environment, launchers
from poptorch.devices import partition, sharing, system
from poptorch.executable import file as container
from poptorch.executable.file import File
from poptorch.options import engine
from poptorch.options.connection_files import connection_files
from poptorch.profiling.requests import trace_request
from poptorch.report.page.content import calls_of, model_of
from poptorch.runtime.fault_text import parse_faults


@dataclass(frozen=True)
class Parser:
    """One parser."""

    name: str
    feed: Callable[[bytes, Path], None]
    """Gives it an input; the folder is for files."""

    seeds: Sequence[bytes]
    raises: tuple[type[BaseException], ...] = (poptorch.Error,)
    names: str = ""
    """What the texts of its errors contain."""

    tries: int = 3000
    """Of ``make exhaustive``; fewer for those that take long."""


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    try:
        os.environ.update(values)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def text_of(data: bytes) -> str:
    """Text as an environment variable can have it: no NUL, and surrogates for bytes that are no UTF-8."""
    return os.fsdecode(data.replace(b"\0", b""))


def written(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# -- executables -------------------------------------------------------------------------------------------------------


class Sum(torch.nn.Module):
    def forward(self, x, y=None):
        return x.sum() if y is None else (x + y).sum()


def sound_executable(folder: Path) -> bytes:
    path = folder / "sound.poptorch"
    poptorch.inferenceModel(Sum()).compileAndExport(str(path), torch.ones(3))
    return path.read_bytes()


def read_executable(data: bytes, folder: Path) -> None:
    file = File(written(data, folder, "fuzzed"))
    for name in file.names():
        file.bytes(name)


_SECTIONS = ("metadata", "inputs", "input tensors", "program", "rng")


def read_section(data: bytes, folder: Path) -> None:
    """The first byte chooses the section, whose hash is right."""
    path = folder / "fuzzed"
    sound = folder / "sound.poptorch"
    file = File(sound) if sound.exists() else File(written(sound_executable(folder), folder, "sound.poptorch"))
    sections = {name: file.bytes(name) for name in file.names()}
    name = _SECTIONS[data[0] % len(_SECTIONS)] if data else "metadata"
    container.write(path, {**sections, name: data[1:]})
    poptorch.inferenceModel(Sum()).loadExecutable(str(path))


def read_untrusted(data: bytes, folder: Path) -> None:
    """Changes of the section that the first byte chooses; the others belong to a sound file."""
    sound = folder / "sound.poptorch"
    file = File(sound) if sound.exists() else File(written(sound_executable(folder), folder, "sound.poptorch"))
    sections = {name: file.bytes(name) for name in file.names() if name != "model"}
    name = sorted(sections)[data[0] % len(sections)] if data else "metadata"
    container.write(folder / "fuzzed", {**sections, name: data[1:]})
    poptorch.load(str(folder / "fuzzed"), trusted=False, model=Sum())


def read_cache(data: bytes, folder: Path) -> None:
    """Whatever is in a cache, the program runs, and its results are right."""
    directory = folder / "cache"
    known = list(directory.glob("*.poptorch"))
    for path in known:
        path.write_bytes(data)
    result = poptorch.inferenceModel(Sum(), poptorch.Options().enableExecutableCaching(str(directory)))(torch.ones(3))
    assert result == 3
    assert known or not data or list(directory.glob("*.poptorch"))


# -- reports -----------------------------------------------------------------------------------------------------------


def read_report(data: bytes, folder: Path) -> None:
    use_report(written(data, folder, "fuzzed"))


def use_report(path: Path) -> None:
    report = poptorch.report.openReport(path)
    str(report)
    compilation = report.compilation
    for part in (*compilation.tiles[:3], *compilation.livenessProgramSteps[:3], *compilation.programs[:3]):
        repr(part)
    for operation in compilation.operations[:3]:
        _ = operation.programs(), operation.livenessStep, operation.debugContext
    for program in compilation.programs:
        _ = program.parent, program.children, program.operation, program.ipu
    if "variables" in compilation.profile.tables:
        _ = compilation.loweredVariables.allBriefVars, compilation.alwaysLiveVariablesForTile(0)
    _ = compilation.tiles[0].memory.vertices, compilation.tiles[-1].memory.category
    _ = report.execution.steps, report.execution.blocks
    model_of(compilation.profile).packed()
    calls_of(compilation.profile).packed()


def sound_profile(folder: Path) -> bytes:
    options = poptorch.Options().enableProfiling(str(folder)).modelName("sound")
    poptorch.inferenceModel(torch.nn.Linear(2, 2), options)(torch.ones(1, 2))
    return (folder / "sound" / "profile.pop").read_bytes()


def read_profile_parts(data: bytes, folder: Path) -> None:
    """Lines of ``path = JSON`` that change the document of a sound profile, or a column: ``table/column = number``."""
    sound = folder / "sound.pop"
    if not sound.exists():
        sound.write_bytes(sound_profile(folder))
    with zipfile.ZipFile(sound) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(members["profile.json"])
    for line in data.decode(errors="replace").splitlines():
        where, _, value = line.partition("=")
        change(document, members, where.strip(), value.strip())
    members["profile.json"] = json.dumps(document).encode()
    with zipfile.ZipFile(folder / "fuzzed", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    use_report(folder / "fuzzed")


def change(document: Any, members: dict[str, bytes], where: str, text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if "/" in where:
        name = f"tables/{where}.npy"
        if name in members and isinstance(value, (int, float)) and not isinstance(value, bool):
            column = np.lib.format.read_array(io.BytesIO(members[name]))
            with contextlib.suppress(ValueError, OverflowError, IndexError, TypeError):
                column[len(column) // 2] = value
            file = io.BytesIO()
            np.lib.format.write_array(file, column)
            members[name] = file.getvalue()
        elif value is None:
            members.pop(name, None)
        return
    *path, last = where.split(".")
    for part in path:
        document = document.get(part) if isinstance(document, dict) else document[0] if document else None
        if not isinstance(document, (dict, list)):
            return
    if isinstance(document, dict):
        document[last] = value
    elif document:
        document[0] = value


# -- settings ----------------------------------------------------------------------------------------------------------


def read_options_file(data: bytes, folder: Path) -> None:
    before, level = torch.get_rng_state(), poptorch.Options()
    try:
        level.loadFromFile(str(written(data, folder, "fuzzed")))
    finally:
        torch.set_rng_state(before)


def read_options_json(data: bytes, folder: Path) -> None:
    before = torch.get_rng_state()
    try:
        poptorch.Options().from_json(data.decode(errors="replace"))
    finally:
        torch.set_rng_state(before)


def read_import_config(data: bytes, folder: Path) -> None:
    line = command_line.parse([f"--import-config={written(data, folder, 'fuzzed')}", "true"])
    layout.layout_of(line.settings)


def read_command_line(data: bytes, folder: Path) -> None:
    words = [os.fsdecode(word) for word in data.split(b"\n")]
    made = layout.layout_of(command_line.parse([word for word in words if "config" not in word]).settings)
    assert made.instances <= layout.MOST_INSTANCES


def read_hostfile(data: bytes, folder: Path) -> None:
    hosts._from_file(written(data, folder, "fuzzed"))


def read_host_list(data: bytes, folder: Path) -> None:
    assert len(hosts.expand(os.fsdecode(data))) <= hosts.MOST_HOSTS


def read_registry(data: bytes, folder: Path) -> None:
    home = folder / "vipu"
    home.mkdir(exist_ok=True)
    written(data, home, "fuzzed.json")
    found, problems = Registry(home, folder).look()
    for one in found.values():
        _ = one.ipus(), one.connection(0), Spec(**vars(one.spec)).checked()
    with variables(POPTORCH_VIPU_DIR=str(home), IPUOF_VIPU_API_PARTITION_ID="fuzzed"):
        part = partition.visible()
    assert part is None or "/" not in part.name
    for problem in problems.values():
        raise problem


def read_connection(data: bytes, folder: Path) -> None:
    path = written(data, folder, "fuzzed")
    with variables(IPUOF_CONFIG_PATH=str(path)):
        machine = system.system()
        assert machine is not None
        assert "/" not in machine.name
    connection_files(str(path))


def sound_registry(folder: Path) -> bytes:
    Registry(folder, folder).create("fuzzed", Spec(4, 2), 64, connect=False)
    return (folder / "fuzzed.json").read_bytes()


def read_faults(data: bytes, folder: Path) -> None:
    parse_faults(data.decode(errors="replace"))


def read_environment(data: bytes, folder: Path) -> None:
    """The first byte chooses a variable."""
    text = text_of(data[1:])
    chosen = environment.VARIABLES[data[0] % len(environment.VARIABLES)] if data else environment.FAULTS
    with variables(**{chosen.name: text}):
        chosen.read()
        if chosen is environment.SYSTEM:
            system.system()
        elif chosen is environment.POPLAR_ENGINE_OPTIONS:
            engine.engine_options(poptorch.Options())
        elif chosen is environment.PVTI_OPTIONS:
            trace_request(text)
        elif chosen is environment.DEFAULT_OPTIONS:
            read_options_json(b"{}", folder)
            environment.json_object(text)


_LAUNCHERS = (
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "PMI_SIZE", "PMI_RANK",
    context.NUM_TOTAL_REPLICAS, context.NUM_LOCAL_REPLICAS, context.REPLICA_INDEX_OFFSET,
)  # fmt: skip


def read_launchers(data: bytes, folder: Path) -> None:
    """Values of the variables of launchers, one in each line."""
    values = dict(zip(_LAUNCHERS, (text_of(line) for line in data.split(b"\n")), strict=False))
    launchers.layout(values)
    with variables(**values):
        _ = context.getNumInstances(), context.getInstanceIndex()


def read_slot(data: bytes, folder: Path) -> None:
    found = sharing.owner_in(data)
    assert found is None or str(found).isprintable()


SOUND_OPTIONS = b"""# comment
deviceIterations(4)
setExecutionStrategy(poptorch.ShardedExecution())
Training.gradientAccumulation(2 * 4)  # more
outputMode(poptorch.OutputMode.EveryN, 3)
setAvailableMemoryProportion({'IPU0': 0.5, 'IPU1': options.replication_factor})
log_dir = "/tmp/x"
TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
"""

PARSERS = (
    Parser("executable", read_executable, (), names="fuzzed"),
    Parser(
        "sections", read_section, (b"\0{}", b"\1{}", b"\2" + bytes(8), b'\4{"state": [1]}'), names="fuzzed", tries=600
    ),
    Parser("untrusted", read_untrusted, (b"\0{}", b"\1{}", b"\2{}", b"\3[]"), names="fuzzed", tries=400),
    Parser("cache", read_cache, (b"", b"poptorch executable\n" + bytes(44)), (), tries=400),
    Parser("report", read_report, (), names="fuzzed", tries=1500),
    Parser(
        "report parts",
        read_profile_parts,
        (
            b"target.numTiles = 3\nprograms/parent = 7",
            b"memory.ipus = []\ntiles/weights = 1e300",
            b"estimate.cycles = null\nvertices/program = -1",
            b'execution.runs = [{"name": "x"}]\nprograms/repeat = 99999',
        ),
        names="fuzzed",
        tries=1000,
    ),
    Parser(
        "options file",
        read_options_file,
        (SOUND_OPTIONS, *SOUND_OPTIONS.splitlines()),
        # What setters raise for wrong values is a part of the API, with a note that names file and line.
        (poptorch.Error, AttributeError, AssertionError, ValueError, TypeError, NameError, KeyError, ArithmeticError),
        names="fuzzed",
    ),
    Parser(
        "options JSON",
        read_options_json,
        (
            b'{"deviceIterations": 4, "outputMode": ["OutputMode.EveryN", 2], "_Popart.set": ["autoRecomputation", 3]}',
            b'{"Training.gradientAccumulation": 8, "setAvailableMemoryProportion": {"IPU0": 0.5}}',
        ),
        (AttributeError, AssertionError, ValueError, TypeError, KeyError, poptorch.Error),
    ),
    Parser(
        "import config",
        read_import_config,
        (b"num-replicas = 4\nhost = a,b[0-3]\nvv = yes\nmpi-local-args = -x A",),
        (PoprunError,),
        names="--",
    ),
    Parser(
        "command line",
        read_command_line,
        (b"--num-replicas=4\n--host=a,b[0-3]\n-v\n--only-output-from-instance\n0",),
        (PoprunError,),
    ),
    Parser("hostfile", read_hostfile, (b"a slots=4\n# comment\nb[1-3]\n10.0.0.1\n",), (PoprunError,), names="fuzzed"),
    Parser("host list", read_host_list, (b"a,node[08-10,12],10.0.0.1", b"x[0-9][0-9]"), (PoprunError,), names="--host"),
    Parser("registry", read_registry, (), (RegistryError, poptorch.Error), names="fuzzed"),
    Parser(
        "connection",
        read_connection,
        (b'{"devices": [1, 2], "attributes": {"GCD Id": "0", "Number of GCDs": "1", "Partition": "p"}}',),
        names="fuzzed",
    ),
    Parser(
        "faults",
        read_faults,
        (
            b"seed=7; ipu_reset: call=3..5, ipu=1; slow: seconds=0.1, replica=2",
            b"full_reset: probability=0.01, program=training; link_error: compilation=2",
        ),
        names="POPTORCH_FAULTS",
    ),
    Parser(
        "environment",
        read_environment,
        tuple(
            bytes([place]) + value
            for place in range(len(environment.VARIABLES))
            for value in (b"1", b"x", b'{"enable": "true"}')
        ),
        (poptorch.Error, ValueError, AttributeError, AssertionError, TypeError, KeyError),
    ),
    Parser("launchers", read_launchers, (b"4\n3\n2\n1\n2\n1\n8\n2\n6",), (ValueError, RuntimeError, poptorch.Error)),
    Parser(
        "slot",
        read_slot,
        (b'{"pid": 12, "command": "python x", "since": 1700000000.5, "device": 3, "user": "me"}',),
        (),
    ),
)


def seeds_of(parser: Parser, folder: Path) -> list[bytes]:
    """Sound input; that of files is made by the package itself."""
    made = {"executable": sound_executable, "report": sound_profile, "registry": sound_registry}
    return [*parser.seeds, *([made[parser.name](folder)] if parser.name in made else [])]
