"""``poptorch doctor``: what a bug report needs to say about this machine and this installation."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from poptorch import environment
from poptorch._version import __version__
from poptorch.errors import Error

_PACKAGES = (
    "torch", "numpy", "tqdm", "transformers", "torch_geometric", "lightning", "safetensors", "jinja2", "matplotlib",
    "plotly", "rich", "mpi4py",
)  # fmt: skip
"""What the package uses, and the stacks that run over it."""

Section = dict[str, str]


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("doctor", help="what a bug report needs: versions, processor, compiler, settings")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    sections, problems = findings()
    if chosen.json:
        print(json.dumps({**sections, "problems": problems}, indent=1))
    else:
        print(as_text(sections, problems))
    return 1 if problems else 0


def findings() -> tuple[dict[str, Section], list[str]]:
    """Sections with names and values, and what is wrong."""
    problems: list[str] = []
    sections = {
        "versions": _versions(),
        "machine": _machine(),
        "native code": _native_code(problems),
        "matrix products": _products(problems),
        "files": _files(problems),
        "virtual IPUs": _devices(problems),
        "options that differ from the defaults": _options(problems),
        "environment variables": environment.given(),
    }
    return sections, problems


def as_text(sections: dict[str, Section], problems: list[str]) -> str:
    """The findings for people.

    >>> print(as_text({"versions": {"poptorch": "1", "torch": "2"}, "files": {}}, []))
    versions
      poptorch  1
      torch     2
    <BLANKLINE>
    files: none
    <BLANKLINE>
    No problems found.
    """
    blocks = []
    for title, rows in sections.items():
        width = max((len(name) for name in rows), default=0)
        lines = [f"  {name:{width}}  {value}" for name, value in rows.items()]
        blocks.append("\n".join([title, *lines]) if lines else f"{title}: none")
    blocks.append("\n".join(["Problems:", *(f"  {it}" for it in problems)]) if problems else "No problems found.")
    return "\n\n".join(blocks)


def _versions() -> Section:
    found = {"poptorch": f"{__version__} (from {Path(__file__).resolve().parents[1]})"}
    found["Python"] = f"{platform.python_version()} ({sys.executable})"
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _machine() -> Section:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": platform.platform(),
        "processor": processor(),
        "vector code": torch.backends.cpu.get_cpu_capability(),
        "cores": f"{cores} for this process",
        "threads of torch": str(torch.get_num_threads()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB",
    }


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _native_code(problems: list[str]) -> Section:
    from torch._inductor import config

    names = config.cpp.cxx
    candidates = [name for name in (names if isinstance(names, tuple) else (names,)) if name]
    path = next((found for name in candidates if (found := shutil.which(shlex.split(name)[0]))), None)
    rows = {"how programs run": environment.CODEGEN.read()}
    if path is None:
        problems.append(
            "There is no C++ compiler: programs stay interpreted, which is slower. Install g++ or clang++, or set CXX."
        )
        return {"C++ compiler": "none", **rows}
    return {"C++ compiler": f"{path}: {_first_line([path, '--version'])}", **rows}


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        return f"does not run ({problem})"
    return done.stdout.partition("\n")[0].strip()


def _products(problems: list[str]) -> Section:
    """Which library multiplies what; a machine that was not calibrated is, which takes half a second."""
    import torch

    from poptorch.libraries import choice, onednn

    try:
        wanted = choice.requested()
    except Error as problem:
        problems.append(problem.message)
        return {}
    rows = {"chosen by": f"POPTORCH_PRODUCTS={wanted}"}
    if wanted != "auto":
        return rows
    if not onednn.is_there():
        return {**rows, "libraries": "MKL alone: this torch has no oneDNN that multiplies float32"}
    threads = torch.get_num_threads()
    libraries = choice.libraries_for([choice.MatrixProduct(512, 512, 512)], threads)
    measured = libraries.calibration
    if measured is None:
        return {**rows, "libraries": "MKL alone: no calibration could be kept, or torch was told to use it"}
    rows["calibration"] = f"{measured.identity}, {measured.seconds:.2f} s"
    for product in choice.EXAMPLES:
        gain = 2 ** measured.gain(product.kind, product.sizes, threads)
        rows[f"{product}"] = f"{libraries.choose(product).value} (oneDNN {gain:.2f} times as fast as MKL)"
    return rows


def _files(problems: list[str]) -> Section:
    from poptorch.host.store import inventory
    from poptorch.host.store.cache import local_folder

    rows: Section = {}
    configured, local = environment.CACHE_DIR.read(), local_folder()
    folders = {"executable cache": Path(configured)} if configured else {}
    if local is not None:
        folders["native code cache"] = local.path
    for name, folder in folders.items():
        entries = inventory.entries(folder)
        size = sum(entry.size for entry in entries) / (1 << 20)
        rows[name] = f"{folder}: {len(entries)} files, {size:.1f} MiB"
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not os.access(existing, os.W_OK):
            problems.append(f"The {name} {folder} cannot be written: each start compiles again.")
    return rows


def _devices(problems: list[str]) -> Section:
    from poptorch.devices.sharing import directory
    from poptorch.devices.system import system

    try:
        machine = system()
        if machine is None:
            return {"system": "none (POPTORCH_SYSTEM=none)"}
        rows = {"system": f"{machine.name}: {machine.ipus} {machine.architecture} IPUs", "shared through": directory()}
    except Error as problem:
        problems.append(str(problem))
        return {}
    return rows


def _options(problems: list[str]) -> Section:
    from poptorch.options import Options

    try:
        return {name: repr(value) for name, value in Options().differences().items()}
    except (Error, ValueError, AttributeError, AssertionError, TypeError) as problem:
        problems.append(f"poptorch.Options() fails: {problem}")
        return {}
