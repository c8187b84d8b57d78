"""Tables, picture and page of what ``bench/processes.py`` measured and what follows from it.

Everything here is computed from ``bench/processes.json``: the same file gives the same page.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_parallel import Compute, Exchange, Portion, Sharding, Training, Workload, exposed, operations, volume
from exchange_simulation import simulate
from results import table
from transport import Collective, Fit, Link, Sample, Transport, fit

PAGE, PICTURE = "scaling.md", "images/scaling.svg"
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHOWN = (2, 8, 32, 128, 512, 1024)
SIMULATED = (2, 8, 64)
STRAGGLING = 0.1
"""In one of the simulations, each process is slower than the fastest by up to this part of back-propagation."""

Data = Mapping[str, Any]


def uniform(name: str, latency: float, bits_per_second: float) -> Transport:
    """A transport whose operations all cost the same for each message."""
    return Transport(name, dict.fromkeys(Collective, Link(latency, 8 / bits_per_second)))


STATED = (
    uniform("10 Gbit/s, 50 µs", 50e-6, 10e9),
    uniform("100 Gbit/s, 10 µs", 10e-6, 100e9),
)
"""Networks that were not measured: full bandwidth in both directions at once, no contention in switches."""


@dataclass(frozen=True)
class Setting:
    """How a model is trained on one kind of machine."""

    model: str
    machine: str
    samples: int
    micro_batch: int
    global_samples: int
    samples_per_second: float | None = None
    """Of one process; ``None``: measured here."""


HERE, IPUS = "one core of this machine", "four Bow IPUs"
SETTINGS = (
    Setting("BERT-base", HERE, samples=8, micro_batch=8, global_samples=1024),
    Setting("ResNet-50", HERE, samples=16, micro_batch=16, global_samples=2048),
    Setting("BERT-base", IPUS, samples=16384, micro_batch=32, global_samples=65536, samples_per_second=16391 / 4),
    Setting("ResNet-50", IPUS, samples=880, micro_batch=88, global_samples=65536, samples_per_second=43280 / 4),
)
"""Throughputs of IPUs are a quarter of what the vendor published for 16 of them, with these micro-batches: rows 11 and
3 of the validation of the IPU Model."""


# --- from data to objects ---------------------------------------------------------------------------------------------


def samples_of(data: Data) -> list[Sample]:
    """The measured collectives."""
    rows = data["transport"]["rows"]
    return [Sample(Collective(it["collective"]), it["processes"], it["size"], it["seconds"]) for it in rows]


def fits_of(data: Data) -> dict[Collective, Fit]:
    """α and β of each collective."""
    found = samples_of(data)
    cores = data["transport"]["cores"]
    return {kind: fit([it for it in found if it.collective is kind], cores) for kind in Collective}


def measured_transport(data: Data) -> Transport:
    """The transport of this machine, with its cores."""
    links = {kind: it.link for kind, it in fits_of(data).items()}
    return Transport("this machine", links, data["transport"]["cores"])


def workload_from(row: Data) -> Workload:
    """What ``describe_models`` kept."""

    def portions(rows: Iterable[Data]) -> tuple[Portion, ...]:
        return tuple(Portion(**it) for it in rows)

    sharding = row["sharding"]
    shards = Sharding(tuple(sharding["elements"]), portions(sharding["whole"]), sharding["bucket_bytes"])
    return Workload(row["name"], portions(row["portions"]), portions(row["as_ready"]), shards)


def training_of(data: Data, setting: Setting) -> Training:
    """A setting with its times."""
    if setting.samples_per_second is None:
        rows = [it for it in data["compute"]["rows"] if it["model"] == setting.model]
        few, many = ((it["samples"], it["seconds"]) for it in sorted(rows, key=lambda it: it["samples"]))
        compute = Compute.through(few, many)
    else:
        compute = Compute(0.0, 1 / setting.samples_per_second)
    workload = workload_from(data["models"][setting.model])
    return Training(workload, compute, setting.samples, setting.global_samples, setting.micro_batch)


@dataclass(frozen=True)
class Checked:
    """A measured step of several processes beside its prediction, in seconds."""

    model: str
    samples: int
    processes: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted / self.measured - 1


def checked(data: Data) -> list[Checked]:
    """Steps of more than one process. They are predicted from one process with as many samples, and the transport."""
    rows = data["check"]["rows"]
    alone = {(it["model"], it["samples"]): it["seconds"] for it in rows if it["processes"] == 1}
    transport = measured_transport(data)
    found = []
    for it in rows:
        if it["processes"] > 1:
            samples = it["samples"]
            workload = workload_from(data["models"][it["model"]])
            training = Training(workload, Compute(alone[it["model"], samples], 0.0), samples, samples, samples)
            predicted = training.seconds(transport, it["processes"], Exchange.AFTER, samples)
            found.append(Checked(it["model"], samples, it["processes"], it["seconds"], predicted))
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


def fits(data: Data) -> str:
    """α and β of each operation, with the errors of the fit."""
    rows = [
        [kind.value, f"{it.link.latency * 1e6:.0f}", f"{it.link.seconds_per_byte * 1e9:.2f}",
         f"{1 / it.link.seconds_per_byte / 1e9:.2f}" if it.link.seconds_per_byte else "",
         f"{it.median_error:.0%}", f"{it.worst_error:.0%}"]
        for kind, it in fits_of(data).items()
    ]  # fmt: skip
    return table(["operation", "α, µs", "β, ns a byte", "1/β, GB/s", "median error", "worst error"], rows)


def times(data: Data) -> str:
    """The measured all-reduces beside the fit."""
    transport = measured_transport(data)
    rows: dict[int, list[str]] = {}
    for it in samples_of(data):
        if it.collective is Collective.ALL_REDUCE:
            predicted = transport.seconds(it.collective, it.processes, it.size)
            rows.setdefault(it.size, [size_text(it.size)])
            rows[it.size].append(f"{milliseconds(it.seconds)} ({milliseconds(predicted)})")
    return table(["bytes", "2 processes, ms", "4 processes, ms", "8 processes, ms"], list(rows.values()))


def check(data: Data) -> str:
    """Measured and predicted steps."""
    rows = [
        [it.model, str(it.processes), str(it.samples), milliseconds(it.measured), milliseconds(it.predicted),
         f"{it.error:+.0%}"]
        for it in checked(data)
    ]  # fmt: skip
    return table(["model", "processes", "samples of each", "measured, ms", "predicted, ms", "error"], rows)


def volumes(data: Data) -> str:
    """What each process sends in a step."""
    models = [workload_from(data["models"][name]) for name in ("BERT-base", "ResNet-50")]
    head = ["processes"]
    for it in models:
        head += [f"{it.name}, MB", "operations", "sharded, MB", "operations"]
    rows = []
    for count in COUNTS:
        row = [f"{count:,}"]
        for it in models:
            for exchange in (Exchange.AFTER, Exchange.SHARDED):
                row += [f"{volume(it, count, exchange) / 1e6:.1f}", str(len(operations(it, count, exchange)))]
        rows.append(row)
    return table(head, rows)


def transports(data: Data) -> list[Transport]:
    """The one that was measured, between processes on machines of their own, and the stated ones."""
    return [measured_transport(data).on_own_machines(), *STATED]


def scaling(data: Data, setting: Setting, weak: bool) -> str:
    """Efficiencies or speed-ups of one setting."""
    training = training_of(data, setting)
    ways = ("after", "overlapped", "sharded")
    head = ["processes", *(f"{wire.name}: {way}" for wire in transports(data) for way in ways)]
    rows = []
    for count in SHOWN:
        row = [f"{count:,}"]
        for wire in transports(data):
            for exchange in Exchange:
                if weak:
                    row.append(f"{training.weak_efficiency(wire, count, exchange):.0%}")
                else:
                    row.append(f"{training.strong_speedup(wire, count, exchange):.1f}")
        rows.append(row)
    return table(head, rows)


def simulations(data: Data) -> str:
    """Seconds from the start of back-propagation to the end of the exchange: closed form and simulation."""
    rows = []
    for setting in SETTINGS:
        training = training_of(data, setting)
        backward = training.compute.per_sample * training.compute.backward * training.micro_batch
        for count in SIMULATED:
            equal = simulated(training.workload, STATED[0], count, backward, 0.0)
            uneven = simulated(training.workload, STATED[0], count, backward, STRAGGLING)
            rows.append([_title(setting), str(count), *(f"{it:.3f}" for it in (*equal, *uneven))])
    head = ["", "processes", "closed form, s", "simulated, s", "uneven: closed form, s", "uneven: simulated, s"]
    return table(head, rows)


def simulated(
    workload: Workload, wire: Transport, processes: int, backward: float, straggling: float
) -> tuple[float, float]:
    """By the closed form, for the slowest process, and by the simulation; processes are slower by random parts."""
    chance = random.Random(processes)
    lengths = [backward * (1 + straggling * chance.random()) for _ in range(processes)]
    ready = [[it.ready * length for it in workload.as_ready] for length in lengths]
    costs = [wire.seconds(Collective.ALL_REDUCE, processes, it.size) for it in workload.as_ready]
    slowest = max(lengths)
    closed = slowest + exposed(zip([it.ready * slowest for it in workload.as_ready], costs, strict=True), slowest)
    link = wire.links[Collective.ALL_REDUCE]
    return closed, max(slowest, simulate(ready, [it.size for it in workload.as_ready], link))


def predictions(data: Data) -> str:
    """All that follows from the measurements."""
    parts = ["Megabytes that each process sends in a step", volumes(data)]
    for setting in SETTINGS:
        parts += [f"Weak scaling of {_title(setting)}", scaling(data, setting, weak=True)]
        parts += [f"Strong scaling of {_title(setting)}", scaling(data, setting, weak=False)]
    return "\n\n".join([*parts, "Closed form and simulation", simulations(data)])


def _title(setting: Setting) -> str:
    return f"{setting.model}, {setting.machine} for each process"


def milliseconds(seconds: float) -> str:
    """With the digits that matter.

    >>> milliseconds(0.00123456), milliseconds(1.5)
    ('1.23', '1,500')
    """
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def size_text(size: int) -> str:
    """Bytes in units of 1024.

    >>> size_text(4), size_text(16384), size_text(4 << 20)
    ('4', '16 Ki', '4 Mi')
    """
    for power, unit in ((20, " Mi"), (10, " Ki")):
        if size >> power:
            return f"{size >> power}{unit}"
    return str(size)


# --- the page ---------------------------------------------------------------------------------------------------------

INTRODUCTION = """\
# Scaling over processes

This page says how the time of a training step should grow with the number of processes, up to 1,024, and how well
such a prediction fits what this machine can check. `python bench/processes.py` measures, and writes the page; the
measurements are in `bench/processes.json`. [Several processes](distributed.md) says how to start a job.
"""

METHOD = """\
## What is measured, and what is modelled

*Measured*: collective operations of our process group between 2, 4 and 8 processes; steps of one process with BERT-base
and ResNet-50 (one thread, interpreted code, SGD); steps of 1, 2, 4 and 8 processes with three small models. {place}

*From the real modules*: parameters, sizes of gradients, and the portions in which
`poptorch.distributed.connections` sends them: gradients of 4 MiB or more alone, the others together in buckets of up to
8 MiB. (Processes of one host [share memory](process-exchange.md#how-gradients-travel) instead. Here they do not: every
process stands for a host.)

*Modelled*: a message of n bytes takes α + β·n seconds. An all-reduce over P processes is 2·(P - 1) rounds around a
ring, in each of which a process sends n/P bytes; so it sends 2·(P - 1)/P·n bytes. Reduce-scatter and all-gather are
half of that. Portions take turns. A step is the time of one process alone, and the time of the exchange that it waits
for. Where P processes share C cores and P > C, all work takes P/C times as long, that of the transport included.

*after* is an exchange that begins when back-propagation has ended. *overlapped* sends a portion as soon as
back-propagation has all of its gradients. When that is, follows from the matrix products and convolutions of the
modules; back-propagation is taken to be two thirds of the time of samples. With gradient accumulation, only the last
micro-batch overlaps. *sharded* is the exchange with sharded optimizer state: reduce-scatter before the update,
all-gather after it.
"""

SIMULATION = """\
`bench/exchange_simulation.py` follows every message of every process around the ring. The closed form is the maximum
over portions of when one was ready and what it and all later ones take. The table has seconds from the start of the
last back-propagation to the end of the exchange, with {wire}. Uneven: each process is slower than the fastest by a
random part of up to {straggling}; the closed form then takes all processes to be as slow as the slowest.
"""

LIMITS = """\
## Where this stops being true

* Two cores cannot run eight processes side by side. The check says how well their turns are modelled, not that
  a network of 1,024 machines would behave like a ring of equal links. No network was measured.
* The ring of gloo needs 2·(P - 1) rounds for every portion, however small the messages become. For hundreds of
  processes α decides. A tree, or rings within and between hosts, would need fewer rounds; gloo has neither by default.
* α and β do not depend on the size here. In truth buffers that fit into the cache of a processor are copied faster
  than larger ones, and the operating system divides messages. That is a part of the error of the fit.
* In gloo a reduce-scatter takes about as long as an all-reduce of the same tensor, though a ring would need half of the
  messages. The β of the table above is for the messages of a ring, so it is larger.
* Overlap is free here. On a host without a free core, the transport takes time from back-propagation.
* Processes are equally fast, but for the last two columns of the simulation. Loading of data, evaluation and
  checkpoints are not in the step.
* The update is part of the fixed time of a step. With sharded state it becomes shorter; the model does not know that.
* Throughputs of IPUs are published figures, divided by the number of processes. They include what the vendor's own
  exchange took.
"""


def page(data: Data) -> str:
    """The page of the documentation."""
    errors = [abs(it.error) for it in checked(data)]
    loads = ", ".join(f"{data[name]['load']:.1f} before `{name}`" for name in ("transport", "compute", "check"))
    facts = ", ".join(f"{name}: {value}" for name, value in data["machine"].items())
    parts = [
        INTRODUCTION,
        "## In short",
        "\n".join(_summary(data, errors)),
        f"![Weak scaling]({PICTURE})",
        METHOD.format(place=_place(data)),
        "## What is sent",
        "Megabytes that each process sends in a step, and the number of collective operations. With sharding there is "
        "padding: each process owns equally many elements of each gradient.",
        volumes(data),
        "## The transport of this machine",
        "α and β by least squares of relative errors, over 2, 4 and 8 processes and sizes from 4 bytes to 64 MiB "
        "(point-to-point: 2 processes).",
        fits(data),
        "All-reduce, measured and in parentheses as fitted:",
        times(data),
        "## The check",
        f"Steps of small models. The prediction knows the step of one process and the transport. Median error "
        f"{statistics.median(errors):.0%}, worst {max(errors):.0%}.",
        check(data),
        "## Assumptions",
        _assumptions(data),
        "## Weak scaling",
        "Every process has as many samples as one process alone; the time of one process, divided by that of many.",
    ]
    for setting in SETTINGS:
        samples = f"{setting.samples:,} samples for each process, in micro-batches of {setting.micro_batch}"
        parts += [f"{_title(setting)}: {samples}.", scaling(data, setting, weak=True)]
    parts += ["## Strong scaling", "All processes together have as many samples: how many times faster are they?"]
    for setting in SETTINGS:
        parts += [f"{_title(setting)}: {setting.global_samples:,} samples.", scaling(data, setting, weak=False)]
    parts += [
        "## The closed form and a simulation",
        SIMULATION.format(wire=STATED[0].name, straggling=f"{STRAGGLING:.0%}"),
        simulations(data),
        LIMITS,
        "## Machine",
        f"{facts}. Load of the machine: {loads}.{_busy(data)}",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _busy(data: Data) -> str:
    """A warning, if other programs were at work."""
    if max(data[name]["load"] for name in ("transport", "compute", "check")) < data["transport"]["cores"] / 2:
        return ""
    return " Other programs were at work, so these times are too long and their errors too large: measure again."


def _place(data: Data) -> str:
    if data["check"]["place"] == "loopback":
        return "All processes are on this host and talk over its loopback."
    return (
        "Each process is on a host of its own: a network namespace with its own name and address, joined to the others "
        "by a bridge (`bench/hosts.py`)."
    )


def _summary(data: Data, errors: Sequence[float]) -> list[str]:
    lines = [f"* The check: median error {statistics.median(errors):.0%}, worst {max(errors):.0%}."]
    for setting in SETTINGS:
        training = training_of(data, setting)
        found = [
            f"{training.weak_efficiency(wire, 1024, Exchange.AFTER):.0%} and "
            f"{training.weak_efficiency(wire, 1024, Exchange.OVERLAPPED):.0%} with {wire.name}"
            for wire in STATED
        ]
        lines.append(
            f"* {_title(setting)}: weak scaling to 1,024 processes, without and with overlap, {'; '.join(found)}."
        )
    return lines


def _assumptions(data: Data) -> str:
    rows = []
    for wire in transports(data):
        link = wire.links[Collective.ALL_REDUCE]
        source = "stated" if wire in STATED else "measured; every process has a machine of its own"
        speed = f"β {link.seconds_per_byte * 1e9:.2g} ns a byte"
        rows.append([wire.name, f"α {link.latency * 1e6:.0f} µs, {speed}", source])
    for setting in SETTINGS:
        compute = training_of(data, setting).compute
        source = "published" if setting.samples_per_second else "measured"
        text = f"{milliseconds(compute.fixed)} ms a step and {milliseconds(compute.per_sample)} ms a sample"
        rows.append([_title(setting), text, source])
    return table(["what", "value", "from"], rows)


# --- the picture ------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 520, 300, 48, 330
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951")


def picture(data: Data) -> str:
    """Weak scaling over processes as an SVG: solid without overlap, dashed with it."""

    def x(count: int) -> float:
        return round(_MARGIN + math.log2(count) / 10 * (_WIDTH - 2 * _MARGIN), 1)

    def y(share: float) -> float:
        return round(_HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN), 1)

    shapes = [f'<rect width="{_WIDTH + _LEGEND}" height="{_HEIGHT}" fill="white"/>']
    for quarter in range(5):
        height = y(quarter / 4)
        shapes.append(f'<path d="M{x(1)} {height}H{x(1024)}" stroke="#ddd"/>')
        shapes.append(f'<text x="{_MARGIN - 6}" y="{height + 4}" text-anchor="end">{quarter * 25} %</text>')
    for count in COUNTS[::2]:
        shapes.append(f'<text x="{x(count)}" y="{_HEIGHT - _MARGIN + 18}" text-anchor="middle">{count:,}</text>')
    shapes.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" text-anchor="middle">processes, {STATED[0].name}</text>')
    for place, setting in enumerate(SETTINGS):
        training, colour = training_of(data, setting), _COLOURS[place]
        for exchange, dash in ((Exchange.AFTER, ""), (Exchange.OVERLAPPED, ' stroke-dasharray="5 4"')):
            found = [(x(it), y(training.weak_efficiency(STATED[0], it, exchange))) for it in COUNTS]
            points = " ".join(f"{a},{b}" for a, b in found)
            shapes.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        top = _MARGIN + 20 * place
        shapes.append(f'<path d="M{_WIDTH - 20} {top}h20" stroke="{colour}" stroke-width="2"/>')
        shapes.append(f'<text x="{_WIDTH + 8}" y="{top + 4}">{setting.model}, {setting.machine}</text>')
    shapes.append(f'<text x="{_WIDTH + 8}" y="{_MARGIN + 88}">dashed: overlapping back-propagation</text>')
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _LEGEND}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'
    )
