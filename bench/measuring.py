"""Taking turns, running a measurement in a process of its own, and what there is to know about the machine."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / "build" / "bench-cache"


def take_turns(calls: Mapping[str, Callable[[], object]], rounds: int, seconds: float) -> dict[str, float]:
    """Median milliseconds of one call of each; a noisy moment of the machine hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats = {name: _repeats(call, seconds) for name, call in calls.items()}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name] * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def _repeats(call: Callable[[], object], seconds: float) -> int:
    start = time.perf_counter()
    call()
    return max(1, math.ceil(seconds / (time.perf_counter() - start)))


def in_a_process(
    arguments: Sequence[str], limit: float, cache: Path = CACHE, settings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a script for one measurement; the JSON in its last line, or ``{"error": why}`` after a failure.

    ``cache`` is where torch's compiler and poptorch keep what they compiled; ``settings`` are further environment
    variables, which win. Whatever the script started ends with it
    when the time is over: compilers have workers of their own.
    """
    cache.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "POPTORCH_CACHE_DIR": str(cache / "poptorch"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **(settings or {}),
    }
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {limit:.0f} s"}
    finally:
        _end(process)
    if process.returncode:
        last = (errors.strip().splitlines() or [""])[-1]
        return {"error": f"exit code {process.returncode}: {last[:200]}"}
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its children, if any are left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)  # the process leads a session of its own
    except ProcessLookupError:
        return
    process.communicate()


def machine() -> dict[str, object]:
    """What the figures depend on, the measured peak of matrix products included."""
    import torch

    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    facts = {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
    }
    for threads in (1, 2):
        facts[f"GEMM peak, {threads} thread{'s' * (threads > 1)}"] = f"{gemm_peak(threads):.0f} GFLOP/s"
    return facts | products()


def products() -> dict[str, str]:
    """The library that multiplies, and what is known of the machine."""
    from poptorch.cli.doctor import findings

    return {f"products, {name}": value for name, value in findings()[0]["matrix products"].items()}


def gemm_peak(threads: int, size: int = 1536, repeats: int = 12) -> float:
    """GFLOP/s of a large float32 matrix product, the best of several, by both libraries: no workload can do better."""
    import torch

    from poptorch.libraries import onednn

    libraries = [torch.mm, onednn.matmul_out] if onednn.is_there() else [torch.mm]

    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = torch.randn(size, size), torch.randn(size, size)
        out = a @ b
        fastest = math.inf
        for multiply in libraries * repeats:
            start = time.perf_counter()
            multiply(a, b, out=out)
            fastest = min(fastest, time.perf_counter() - start)
    finally:
        torch.set_num_threads(usual)
    return 2 * size**3 / fastest / 1e9


def commit() -> str:
    """What was measured."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench/*.py")
        return git("rev-parse", "--short", "HEAD").strip() + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_atomically(path: Path, text: str) -> None:
    """A reader, or a run that is interrupted here, never sees half a file."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)
