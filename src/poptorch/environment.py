"""The environment variables of the package.

Four modules read the environment: this one; ``launchers`` what launchers set; ``_logging`` its two, because it must
work before errors can be reported; ``startup`` what other libraries need. ``popdist`` reads and writes that of jobs.

Each variable is a typed object with a name, a default and an explanation. Nothing is cached here: ``read()``
looks at the process environment each time, and whoever needs "once per process" keeps the answer.

>>> import os
>>> os.environ["POPTORCH_IPU_MODEL"] = "1"
>>> IPU_MODEL.read()
True
>>> del os.environ["POPTORCH_IPU_MODEL"]
>>> IPU_MODEL.read()
False
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from poptorch.errors import createPoptorchError
from poptorch_files import parse_json

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable: ``read()`` gives its value, or the default when it is not set."""

    name: str
    default: T
    doc: str
    read_at: str
    """When the package looks at it; a later change of the variable has no effect on what was read."""

    def read(self) -> T:
        """The current value, converted and checked."""
        text = os.environ.get(self.name)
        return self.default if text is None else self.parse(text)

    def parse(self, text: str) -> T:
        """The value that ``text`` stands for; an error names the variable, the text and what is accepted."""
        raise NotImplementedError

    @property
    def accepts(self) -> str:
        """The accepted values in words, for error messages and documentation."""
        raise NotImplementedError


@dataclass(frozen=True)
class Text(Variable[str | None]):
    """Any text; an empty one is kept as it is."""

    def parse(self, text: str) -> str | None:
        return text

    @property
    def accepts(self) -> str:
        return "text"


@dataclass(frozen=True)
class PathName(Variable[str | None]):
    """A file or directory name; empty means not set."""

    def parse(self, text: str) -> str | None:
        return text or self.default

    def write(self, path: str) -> None:
        """Set it, for this process and for those that it starts."""
        os.environ[self.name] = path

    @property
    def accepts(self) -> str:
        return "path"


@dataclass(frozen=True)
class Integer(Variable[int]):
    """A decimal integer."""

    def parse(self, text: str) -> int:
        return _decimal(self.name, text)

    @property
    def accepts(self) -> str:
        return "decimal integer"


@dataclass(frozen=True)
class OptionalInteger(Variable[int | None]):
    """A decimal integer, or nothing."""

    def parse(self, text: str) -> int | None:
        return _decimal(self.name, text) if text else self.default

    @property
    def accepts(self) -> str:
        return "decimal integer"


@dataclass(frozen=True)
class Flag(Variable[bool]):
    """A decimal integer: 0 is off, any other is on."""

    def parse(self, text: str) -> bool:
        return _decimal(self.name, text) != 0

    @property
    def accepts(self) -> str:
        return "decimal integer (0 = off, any other = on)"


@dataclass(frozen=True)
class Choice(Variable[str]):
    """One of a fixed set of words."""

    choices: tuple[str, ...] = field(kw_only=True)
    phrase: str = field(default="", kw_only=True)
    """What the error message begins with, where programs match on it."""

    def parse(self, text: str) -> str:
        if text in self.choices or self._passes_through(text):
            return text
        phrase = f"{self.phrase} " if self.phrase else ""
        raise createPoptorchError(
            f"{phrase}The environment variable {self.name} is {quoted(text)}; use {self.accepts}, or unset it."
        )

    def _passes_through(self, text: str) -> bool:
        return False

    @property
    def accepts(self) -> str:
        return " or ".join(repr(choice) for choice in self.choices)


@dataclass(frozen=True)
class ModelVersion(Choice):
    """``ipu1``, ``ipu2``, ``ipu21``; names that contain ``ipu:`` select an architecture directly."""

    def _passes_through(self, text: str) -> bool:
        return "ipu:" in text


_LONGEST_QUOTED = 100


def quoted(text: str) -> str:
    """A text that may be any, for a message.

    >>> quoted("one"), len(quoted("x" * 1_000_000))
    ("'one'", 105)
    """
    return repr(text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}...")


def _decimal(name: str, text: str) -> int:
    try:
        return int(text, 10)
    except ValueError:
        raise createPoptorchError(
            f"The environment variable {name} is {quoted(text)}, which is not a decimal integer. "
            "Set it to 0 (off) or 1 (on), or unset it."
        ) from None


def integer(name: str, default: int, variables: Mapping[str, str] | None = None) -> int:
    """An integer from a variable that the *user* or a launcher named; ``ValueError`` for text that is not one.

    >>> integer("NO_SUCH_VARIABLE", 3)
    3
    """
    text = (os.environ if variables is None else variables).get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"The environment variable {name} is {quoted(text)}, which is not an integer.") from None


_AT_COMPILE = "each compilation"
_AT_QUERY = "each hardware query and each compilation"
_AT_OPTIONS = "construction of poptorch.Options"

IPU_MODEL = Flag(
    "POPTORCH_IPU_MODEL",
    False,
    "Run on the IPU Model: no hardware is reserved, and none is there. Options.useIpuModel wins.",
    _AT_QUERY,
)
SMALL_IPU_MODEL = Flag(
    "POPTORCH_SMALL_IPU_MODEL",
    False,
    "As POPTORCH_IPU_MODEL with four tiles, for any POPTORCH_IPU_MODEL_VERSION; ignored while that one is on.",
    _AT_QUERY,
)
IPU_MODEL_VERSION = ModelVersion(
    "POPTORCH_IPU_MODEL_VERSION",
    "ipu2",
    "The architecture that the IPU Model describes.",
    "each compilation for the IPU Model",
    choices=("ipu1", "ipu2", "ipu21"),
    phrase="Invalid IPU model version.",
)
SYSTEM = Text(
    "POPTORCH_SYSTEM",
    None,
    "The virtual IPU system of this machine: pod64 (default), pod4, bow-pod16, ... or none.",
    _AT_QUERY,
)
VERIFY = Flag(
    "POPTORCH_VERIFY",
    False,
    "Check the program after each compiler pass; an error shows the operations around a fault.",
    _AT_COMPILE,
)
DUMP = PathName(
    "POPTORCH_DUMP",
    None,
    "Write the program as it was captured, and what it is after each compiler pass, host step and kernel pass, "
    "to numbered files in a folder for each compiled model.",
    _AT_COMPILE,
)
CODEGEN = Choice(
    "POPTORCH_CODEGEN",
    "auto",
    "How programs run: interpret (no compile delay), native (C++ kernels), or auto (the first, then the second).",
    _AT_COMPILE,
    choices=("interpret", "native", "auto"),
)
PRODUCTS = Choice(
    "POPTORCH_PRODUCTS",
    "auto",
    "The library that multiplies float32 matrices: mkl (what torch's own operators call), onednn, or auto: for each "
    "product the one that was faster when this machine was calibrated, which happens once and takes under a second.",
    _AT_COMPILE,
    choices=("mkl", "onednn", "auto"),
)
BACKGROUND = Flag(
    "POPTORCH_BACKGROUND",
    True,
    "With POPTORCH_CODEGEN=auto: run native code that an earlier process left from the first call on, and compile what "
    "is not there in a process beside the program, from its first half second on. 0: compile in the program, at the "
    "call that it fixes for the change.",
    _AT_COMPILE,
)
FULL_TRACEBACK = Flag(
    "POPTORCH_FULL_TRACEBACK",
    False,
    "Errors show all frames, also those of this package and of torch between the frames of the program.",
    "each error",
)
KEEP_MEMORY = Flag(
    "POPTORCH_KEEP_MEMORY",
    True,
    "Keep memory that programs have freed for their next call, instead of giving it back to the system each time.",
    "the first compilation",
)
GROUP = Integer(
    "POPTORCH_GROUP",
    0,
    "How many micro-batches of a replica the host computes at once, between two updates of the weights; 1: each by "
    "itself. 0 chooses by the program, so that products have enough rows.",
    "each compilation",
)
SPILL_WEIGHTS = Flag(
    "POPTORCH_SPILL_WEIGHTS",
    True,
    "Keep the host's copy of weights that are being trained in a temporary file instead of in memory, until somebody "
    "looks at it.",
    "each compilation of a training model",
)
WAIT_FOR_IPU = Flag(
    "POPTORCH_WAIT_FOR_IPU",
    False,
    "Wait for a device instead of failing when all suitable ones are taken. Programs get their turn in order.",
    "each attempt to attach to a device",
)
DEVICES_DIR = PathName(
    "POPTORCH_DEVICES_DIR",
    None,
    "The directory through which processes share the virtual IPUs of a system. Without, a folder of your own in the "
    "folder for temporary files: all your programs on this machine share. Files get the permissions of the directory, "
    "so users can share one that all of them can write to.",
    _AT_QUERY,
)
FAULTS = Text(
    "POPTORCH_FAULTS",
    None,
    "Failures of devices to rehearse, for instance ipu_reset:call=3,ipu=1 or seed=7;full_reset:probability=0.01. "
    "The grammar is in docs/rehearsing.md; text that is not understood is an error that says where.",
    _AT_COMPILE,
)
CACHE_DIR = PathName(
    "POPTORCH_CACHE_DIR",
    None,
    "Same as Options.enableExecutableCaching(path); later calls on the object win.",
    _AT_OPTIONS,
)
KEY_FILE = PathName(
    "POPTORCH_KEY_FILE",
    None,
    "The key that signs native code in caches and exported files: 32 bytes that only you can read, made if it is not "
    "there. Without, ~/.local/state/poptorch/key. Code that another key signed is compiled again.",
    "each use of stored native code",
)
DEFAULT_OPTIONS = Text(
    "POPTORCH_DEFAULT_OPTIONS",
    None,
    "JSON text given to Options.from_json for each new Options; later calls on the object win.",
    _AT_OPTIONS,
)
LOG_LEVEL = Text(
    "POPTORCH_LOG_LEVEL",
    None,
    "TRACE, DEBUG, INFO, WARN, ERR or OFF; anything else is a ValueError at import.",
    "import",
)
LOG_DEST = Text(
    "POPTORCH_LOG_DEST",
    None,
    "Where backend log lines go: stderr, stdout or a file name.",
    "the first backend log line",
)
MAX_GRAPH_LEN = Integer(
    "POPTORCH_MAX_GRAPH_LEN",
    10,
    "How many trailing lines of the captured program are shown in trace logs; 0 or less shows all.",
    _AT_COMPILE,
)
EXPORT_PROTO_FILE = PathName(
    "POPTORCH_EXPORT_PROTO_FILE",
    None,
    "Save the compiler's input, which is the listing of the captured program: a file when it has an extension, else a "
    "directory that gets a model.proto.",
    _AT_COMPILE,
)
EXPORT_PROTO_AS_BINARY = Flag(
    "POPTORCH_EXPORT_PROTO_AS_BINARY",
    False,
    "No effect but a warning: POPTORCH_EXPORT_PROTO_FILE is always text, because there is no protocol buffer.",
    "each such export",
)
MLIR_DOT_FILE = PathName(
    "POPTORCH_MLIR_DOT_FILE",
    None,
    "Save the captured program in Graphviz form.",
    _AT_COMPILE,
)
POPLAR_ENGINE_OPTIONS = Text(
    "POPLAR_ENGINE_OPTIONS",
    None,
    "JSON with engine options; the only variable that wins over code.",
    "each compilation; Options.enableProfiling looks for the names it sets itself",
)
PVTI_OPTIONS = Text(
    "PVTI_OPTIONS",
    None,
    'JSON such as {"enable":"true","directory":"traces"}: each process writes a trace of its compilations, calls, data '
    "loading and profiling channels in Chrome's JSON format. Without it profiling channels do nothing.",
    "import of poptorch.profiling",
)
DISTRIBUTED_TIMEOUT = Integer(
    "POPTORCH_DISTRIBUTED_TIMEOUT",
    600,
    "How many seconds a process waits for the others, at the start of a job and at each meeting of all processes, "
    "before it raises an error that names the missing ones. One that has died is noticed at once.",
    "the first compilation of a training model over several processes",
)
SHARED_MEMORY = Flag(
    "POPTORCH_SHARED_MEMORY",
    True,
    "Whether processes of one host exchange gradients through memory that they share. With 0 in one of them, all send "
    "them over network connections, as processes of several hosts do.",
    "the first training call over several processes",
)
RENDEZVOUS = Text(
    "POPTORCH_RENDEZVOUS",
    None,
    "Where the processes of a job find each other, as host:port, on which process 0 listens. It wins over MASTER_ADDR "
    "and MASTER_PORT, which torchrun sets. Without any of them, processes of one host find each other through a file "
    "in the temporary folder.",
    "the first compilation of a training model over several processes",
)
JOB_SECRET = Text(
    "POPTORCH_JOB_SECRET",
    None,
    "A random text that the processes of a job, and nobody else, know: each proves to the others that it knows it. "
    "PopRun makes one for each job. Processes of one host that meet by themselves need none; on several hosts, set it.",
    "the first compilation of a training model over several processes",
)
IPUOF_CONFIG_PATH = PathName(
    "IPUOF_CONFIG_PATH",
    None,
    "The connection file of the partition to use, or of a part of one; creating a partition writes it.",
    _AT_QUERY,
)
IPUOF_PARTITION = PathName(
    "IPUOF_VIPU_API_PARTITION_ID",
    None,
    "The name of the partition to use.",
    _AT_QUERY,
)
IPUOF_GCD = OptionalInteger(
    "IPUOF_VIPU_API_GCD_ID",
    None,
    "The part of that partition to use; without, the one with the number of this process.",
    _AT_QUERY,
)
VIPU_DIR = PathName(
    "POPTORCH_VIPU_DIR",
    None,
    "Where the partitions of this host are described. Without, ~/.local/state/poptorch/vipu.",
    _AT_QUERY,
)
CXX = PathName(
    "CXX",
    None,
    "The C++ compiler of poptorch.buildCustomOp, with arguments if need be; its own argument wins.",
    "each build of a custom operator",
)
CXXFLAGS = Text(
    "CXXFLAGS",
    None,
    "Further flags for that compiler; flags given in code come later and win.",
    "each build of a custom operator",
)

VARIABLES: tuple[Variable[str | None] | Variable[int] | Variable[int | None] | Variable[bool] | Variable[str], ...] = (
    IPU_MODEL,
    SMALL_IPU_MODEL,
    IPU_MODEL_VERSION,
    SYSTEM,
    VERIFY,
    DUMP,
    CODEGEN,
    PRODUCTS,
    BACKGROUND,
    FULL_TRACEBACK,
    KEEP_MEMORY,
    GROUP,
    SPILL_WEIGHTS,
    WAIT_FOR_IPU,
    DEVICES_DIR,
    FAULTS,
    CACHE_DIR,
    KEY_FILE,
    DEFAULT_OPTIONS,
    LOG_LEVEL,
    LOG_DEST,
    MAX_GRAPH_LEN,
    EXPORT_PROTO_FILE,
    EXPORT_PROTO_AS_BINARY,
    MLIR_DOT_FILE,
    POPLAR_ENGINE_OPTIONS,
    PVTI_OPTIONS,
    DISTRIBUTED_TIMEOUT,
    SHARED_MEMORY,
    RENDEZVOUS,
    JOB_SECRET,
    IPUOF_CONFIG_PATH,
    IPUOF_PARTITION,
    IPUOF_GCD,
    VIPU_DIR,
    CXX,
    CXXFLAGS,
)
"""Every variable of the package, for the documentation."""


def given() -> dict[str, str]:
    """The variables of the package that are set, and their texts.

    >>> import os
    >>> os.environ["POPTORCH_VERIFY"] = "1"
    >>> given()["POPTORCH_VERIFY"]
    '1'
    >>> del os.environ["POPTORCH_VERIFY"]
    """
    return {variable.name: os.environ[variable.name] for variable in VARIABLES if variable.name in os.environ}


@dataclass(frozen=True)
class ModelRequest:
    """Which IPU Model the environment asks for."""

    enabled: bool
    small: bool


def ipu_model_request() -> ModelRequest:
    """Resolve the two model variables: the small model counts only while the full one is off.

    >>> ipu_model_request()
    ModelRequest(enabled=False, small=False)
    """
    full, small = IPU_MODEL.read(), SMALL_IPU_MODEL.read()
    return ModelRequest(enabled=full or small, small=small and not full)


def ipu_model_version() -> str:
    """The architecture name for the IPU Model; the small model takes any name.

    >>> ipu_model_version()
    'ipu2'
    """
    if ipu_model_request().small:
        return os.environ.get(IPU_MODEL_VERSION.name, IPU_MODEL_VERSION.default)
    return IPU_MODEL_VERSION.read()


def json_object(text: str | None) -> tuple[dict[str, Any], str]:
    """The JSON object in a variable's text, and what is wrong with the text: nothing, if the second is empty.

    >>> json_object('{"enable": "true"}'), json_object(None)
    (({'enable': 'true'}, ''), ({}, ''))
    >>> json_object("[1]")
    ({}, 'it is not an object')
    """
    if not text:
        return {}, ""
    try:
        parsed = parse_json(text)
    except ValueError as error:
        return {}, str(error)
    return (parsed, "") if isinstance(parsed, dict) else ({}, "it is not an object")
