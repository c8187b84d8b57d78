"""How training scales with the number of processes: measured for up to 8 on this machine, predicted for up to 1,024.

    python bench/processes.py                        # all parts; writes bench/processes.json and docs/scaling.md
    python bench/processes.py transport check page   # some parts; the others stay as they were measured before
    python bench/processes.py predict                # the tables again, nothing measured

Parts:

- ``transport``: times of collective operations of 2, 4 and 8 processes, and the α and β that explain them
- ``models``: what BERT-base and ResNet-50 exchange, from their modules on the meta device
- ``compute``: a step of one process, one thread, with BERT-base and ResNet-50
- ``check``: steps of 1, 2, 4 and 8 processes with small models, beside their prediction
- ``predict``: volumes, weak and strong scaling, and a simulation beside the closed form
- ``page``: ``docs/scaling.md`` with its picture

Each process is on a host of its own where that is possible (see hosts.py). Other work on the machine shows in all
times: the load when a part began is kept with it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import processes_page
from hosts import namespaces_work
from measuring import HERE, ROOT, in_a_process, machine, write_atomically

DATA = HERE / "processes.json"
LIMIT = 900.0
COUNTS = (1, 2, 4, 8)
NAMESPACES, LOOPBACK = "network namespaces", "loopback"

Part = dict[str, Any]


def measure(what: str, counts: tuple[int, ...], rounds: int, loopback: bool) -> Part:
    """The rows of one job for each number of processes."""
    place = NAMESPACES if not loopback and namespaces_work() else LOOPBACK
    load = os.getloadavg()[0]
    rows: list[Any] = []
    for count in counts:
        print(f"{what}: {count} processes", file=sys.stderr)
        job = [str(count), str(HERE / "process_jobs.py"), what, "--rounds", str(rounds)]
        arguments = [str(HERE / "hosts.py"), *(["--loopback"] if loopback else []), *job]
        # Connections, although all processes are here: what is modelled is one machine for each process.
        settings = {"POPTORCH_CODEGEN": "interpret", "POPTORCH_SHARED_MEMORY": "0"}
        found = in_a_process(arguments, LIMIT, settings=settings)
        if isinstance(found, dict):
            sys.exit(f"{what} with {count} processes: {found['error']}")
        rows += found
    return {"place": place, "load": load, "cores": len(os.sched_getaffinity(0)), "rows": rows}


def describe_models() -> dict[str, Any]:
    """What all models exchange."""
    from data_parallel_models import LARGE, SMALL, workload_of

    models = {it.name: it.trainable for it in LARGE} | SMALL
    return {name: dataclasses.asdict(workload_of(trainable(1), name)) for name, trainable in models.items()}


def main() -> None:
    """Measure what is asked for, keep it, and show what follows from all that is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("transport", "models", "compute", "check", "predict", "page")
    parser.add_argument("parts", nargs="*", default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loopback", action="store_true", help="all processes on this host")
    chosen = parser.parse_args()
    unknown = set(chosen.parts) - set(names)
    if unknown:
        parser.error(f"There is no part {', '.join(sorted(unknown))}.")
    data: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    parts: dict[str, Callable[[], object]] = {
        "transport": lambda: measure("transport", COUNTS[1:], chosen.rounds, chosen.loopback),
        "models": describe_models,
        "compute": lambda: measure("compute", (1,), chosen.rounds, True),
        "check": lambda: measure("train", COUNTS, chosen.rounds, chosen.loopback),
    }
    for name, part in parts.items():
        if name in chosen.parts:
            data[name] = part()
            data["machine"] = machine()
            write_atomically(DATA, json.dumps(data, indent=1) + "\n")
    shown = {
        "transport": processes_page.fits,
        "check": processes_page.check,
        "predict": processes_page.predictions,
    }
    for name, text in shown.items():
        if name in chosen.parts:
            print(text(data), end="\n\n")
    if "page" in chosen.parts:
        write_atomically(ROOT / "docs" / processes_page.PICTURE, processes_page.picture(data))
        write_atomically(ROOT / "docs" / processes_page.PAGE, processes_page.page(data))


if __name__ == "__main__":
    main()
