"""Where this package deliberately differs from the original, as data for docs/compatibility.md.

One entry each: what it is about, what the original does, what happens here. An entry belongs here when a
program could notice the difference; options that only the cost model sees are described by the option table.
"""

from __future__ import annotations

from typing import NamedTuple

from poptorch.startup import MINIMUM_TORCH


class Note(NamedTuple):
    """One recorded difference."""

    topic: str
    original: str
    here: str


NOTES: tuple[Note, ...] = (
    Note(
        "torch version",
        "Each release demands one version of torch and refuses all others at import.",
        f"torch {'.'.join(map(str, MINIMUM_TORCH))} or newer; an older one is refused with an "
        "`AssertionError` that names both versions.",
    ),
    Note(
        "`__version__`",
        "The SDK's version and build.",
        "The newest API level understood here and our own build number, `3.4.0-1`.",
    ),
    Note(
        "hardware",
        "Queries and runs need real IPUs.",
        "Virtual IPUs: a Pod64 of Mk2, unless `POPTORCH_SYSTEM` names another system or `none`.",
    ),
    Note(
        "Nesterov momentum with several micro-batches",
        "With `Mean` and `Post` the look-ahead adds the *sum* of the gradients, not their mean.",
        "The mean, as in `torch.optim.SGD(nesterov=True)`.",
    ),
    Note(
        "a returned value that follows from the loss",
        'Back-propagation starts at the marked loss: `cross_entropy(..., reduction="sum") / n` trains without the '
        "division.",
        "If the marked loss is not returned and one scalar that follows from it is, back-propagation starts there; "
        "with `strictCompatibility` at the mark.",
    ),
    Note(
        "native code in files",
        "Executables in files and caches are binaries for IPUs. They are loaded as they are.",
        "Native code in them is for this host. It runs if your own key signed it (`POPTORCH_KEY_FILE`), else it is "
        "compiled again. Caches that others can write to are not used.",
    ),
    Note(
        "cache directory that cannot be used",
        "Compilation fails.",
        "A warning, and the program goes on without; with several processes an `AssertionError`, as in the original.",
    ),
    Note(
        "`poptorch.load`",
        "Unpickles the model.",
        "Likewise; `trusted=False` with `model=` unpickles nothing.",
    ),
    Note(
        "`Options.from_json`",
        "Calls whatever method the text names.",
        "Calls the setters of options and no other method.",
    ),
    Note(
        "default log level",
        "Documented as INFO, in fact WARN.",
        "WARN.",
    ),
    Note(
        "`POPTORCH_LOG_DEST=stdout`",
        "Crashes.",
        "Backend lines go to standard output.",
    ),
    Note(
        "backend log level",
        "Belongs to a thread; new threads start from the environment variable.",
        "Belongs to the process.",
    ),
    Note(
        "repeated log lines",
        "`maxRepeatLogs` caps repetitive lines.",
        "The cap counts identical backend lines that follow each other; another line starts the count anew.",
    ),
    Note(
        "attributes of errors",
        "Stored on the exception class, so that an older instance shows the newest values.",
        "Stored on the instance.",
    ),
    Note(
        "uncaught exceptions",
        "`sys.excepthook` is replaced.",
        "Replaced too, and a hook that another library installed before is still called.",
    ),
    Note(
        "`poptorch.print`",
        "Fails in 2.6; later prints a module twice.",
        "Prints `module_repr` once.",
    ),
    Note(
        "`poptorch.testing.allclose`",
        "Undefined for anything but tensors, tuples and lists; tensors of different shapes may broadcast.",
        "`TypeError` for other types; different shapes are not close.",
    ),
    Note(
        "`poptorch.profiling.Channel`",
        "Writes to the `libpvti` trace, which must be installed.",
        "Needs no library: with `PVTI_OPTIONS` set, spans go to a trace file in the JSON format of Chrome and Perfetto,"
        " and the latest are in memory as `Channel.records`.",
    ),
    Note(
        "`hasMLIRSupportOnPlatform`",
        "Depends on the build.",
        "Always true: models are captured by dispatch.",
    ),
    Note(
        "`ipuHardwareVersion() == -1`",
        "For hardware whose architecture name is not understood.",
        "Does not occur: an unknown `POPTORCH_SYSTEM` is an error that lists the known ones.",
    ),
    Note(
        "float16 with float32",
        "2.6: float16 (tracing). From 3.0: PyTorch's promotion, layers take the type of their activations.",
        "float16, and `tensor.dtype` is the true type. `HalfUpcastToFloat` or an explicit `Jit.traceModel(False)`: as "
        "from 3.0. An explicit `Jit.traceModel(True)`: all rules of 2.6.",
    ),
    Note(
        "running statistics of a half module",
        "float32 in 2.6 unless the option says otherwise; the type of the buffers from 3.1 on.",
        "As in 2.6: `Precision.runningStatisticsAlwaysFloat`, on by default, decides.",
    ),
    Note(
        "`child.autocast(False)` under an autocast parent",
        "Documented to exclude the child, in fact without effect.",
        "Excludes the child and what it contains.",
    ),
    Note(
        "`promote` and `demote` of an autocast policy",
        "Documented for mixed operands, in fact applied to all.",
        "Only where operands are mixed.",
    ),
    Note(
        "autocast and the dispatcher",
        "Regions are ignored with `Jit.traceModel(False)`; functions written in Python never match a policy.",
        "Regions always work, and every torch function is matched by its name.",
    ),
    Note(
        "recomputation in pipelines",
        "Forward stages are run again by default.",
        "So they are for an IPU: in the program, the stash and the costs. The host, where few micro-batches are under "
        "way at once, runs only element-wise functions again, unless `autoRecomputation` is set: then it does as told.",
    ),
    Note(
        "micro-batches",
        "Run one after the other on an IPU.",
        "So they do for an IPU: in the program, the ideal schedule, the stash and the costs. The host computes small "
        "ones several at a time where nothing can tell but the last digits (`POPTORCH_GROUP`, "
        "[groups](host-parallelism.md#groups-of-micro-batches)).",
    ),
    Note(
        "partial sums",
        "`Precision.setPartialsType(torch.half)` loses precision.",
        "The host sums in float32; the type is recorded for the cost model.",
    ),
    Note(
        "results that are saved",
        "A returned tensor carries a local function in place of `backward()` and cannot be pickled.",
        "A plain `torch.Tensor` whose `backward()` explains itself; it can be copied, pickled and loaded anywhere.",
    ),
    Note(
        "plain tensor attributes that `forward` changes",
        "Changed once, while the model is captured, without a word.",
        "The same, with a warning that names the line: register it as a buffer to keep it from call to call.",
    ),
    Note(
        "names in the optimizer's state",
        "`model.` before the names of parameters with tracing, none with dispatch; not portable between the two.",
        "The prefix with an explicit `Jit.traceModel(True)` only. Loading accepts both spellings.",
    ),
    Note(
        "`executor._debugGetPopartIR()`",
        "The backend's intermediate representation as JSON.",
        "JSON with the list `maingraph`: operations of the program with names, places and recomputation, and stashes.",
    ),
)

COMPANIONS: dict[str, str] = {
    "popart": "The enumerations that programs pass to `Options._Popart.set`. Anything else is an `AttributeError` that "
    "says that this is a compatibility package.",
    "popdist": "Which part of a distributed job a process is. The getters read what the "
    "launcher says; `init()` brings the instances in contact. `popdist.popdist_core` has the same names.",
    "popdist.collectives": "Operations on tensors of all instances, on the host.",
    "popdist.horovod": "The part of `horovod.torch` that programs for PopRun use; under `poprun` it is found by that "
    "name where Horovod is not installed.",
    "popdist.poptorch": "Options whose processes, replicas and device come from the launcher.",
    "popdist.popart": "For programs that use PopART itself.",
    "popdist.tensorflow": "For TensorFlow; raises `RuntimeError`.",
}
"""The packages that are installed with `poptorch`, and what they are for."""
