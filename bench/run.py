"""The benchmark: every workload as training step and as inference, ours beside its peers, ratios from one run.

    make bench                       # everything, writes bench/results.md and bench/results.json
    python bench/run.py mlp-tiny     # one workload, printed only

Each (workload, mode) runs in a process of its own. In it the contenders take turns, so that a noisy moment of the
machine hits all of them, and medians are compared. Peak memory is measured in further processes, one a contender.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
MODES = ("train-sgd", "train-adamw", "inference")
PEERS = ("eager", "eager-fused", "compile")
OURS = ("ours-interpret", "ours-native")
ITERATIONS = 100


def contender(workload: str, mode: str, name: str):
    """The step function of one contender, and how many steps one call of it does."""
    os.environ["POPTORCH_CODEGEN"] = name.removeprefix("ours-") if name.startswith("ours") else "interpret"
    import contenders
    from workloads import WORKLOADS

    chosen = WORKLOADS[workload]
    if mode == "inference":
        make = {
            "eager": contenders.eager_inference,
            "compile": contenders.compiled_inference,
            "ours-interpret": contenders.wrapped_inference,
            "ours-native": contenders.wrapped_inference,
        }
        return (make[name](chosen), 1) if name in make else (None, 1)
    optimizer = mode.removeprefix("train-")
    if name == "compile":
        return contenders.compiled_training(chosen, optimizer), 1
    if name.startswith("eager"):
        return contenders.eager_training(chosen, optimizer, fused=name == "eager-fused"), 1
    iterations = ITERATIONS if workload == "mlp-tiny" else 1
    return contenders.wrapped_training(chosen, optimizer, iterations), iterations


def measure(workload: str, mode: str, rounds: int, seconds: float) -> dict[str, float]:
    """Median milliseconds a step of every contender, taking turns."""
    steps = {}
    for name in (*PEERS, *OURS):
        step, count = contender(workload, mode, name)
        if step is not None:
            for _ in range(3):
                step()
            steps[name] = (step, count)
    times: dict[str, list[float]] = {name: [] for name in steps}
    repeats = {name: _repeats(step, seconds) for name, (step, _) in steps.items()}
    for _ in range(rounds):
        for name, (step, count) in steps.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                step()
            times[name].append((time.perf_counter() - start) / repeats[name] / count * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def _repeats(step, seconds: float) -> int:
    start = time.perf_counter()
    step()
    return max(1, math.ceil(seconds / (time.perf_counter() - start)))


def peak_memory(workload: str, mode: str, name: str) -> float:
    """Peak resident MiB that running a contender adds to the imports."""
    step, _ = contender(workload, mode, name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def child(*arguments: str) -> dict:
    """Run this script for one measurement in a fresh process."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=1800)
    if done.returncode:
        return {"error": f"exit code {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> dict[str, object]:
    import torch

    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}


def best(row: dict[str, float], names: tuple[str, ...]) -> float:
    return min(row[n] for n in names if n in row)


def table(results: list[dict]) -> str:
    """The rows as a Markdown table, with geometric means below."""
    lines = [
        "| workload | mode | eager | eager fused | compile | ours interpret | ours native | interpret / eager |"
        " best ours / best peer |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {}
    for result in results:
        row = result["ms"]
        cells = [f"{row[n]:.3f}" if n in row else "–" for n in (*PEERS, *OURS)]
        ratio = best(row, PEERS) / best(row, OURS)
        ratios.setdefault("inference" if result["mode"] == "inference" else "training", []).append(ratio)
        lines.append(
            f"| {result['workload']} | {result['mode']} | {' | '.join(cells)} | "
            f"{row['eager'] / row['ours-interpret']:.2f} | {ratio:.2f} |"
        )
    for kind, values in ratios.items():
        lines.append(f"\nGeometric mean, {kind}: {math.exp(statistics.fmean(map(math.log, values))):.2f}")
    return "\n".join(lines)


def write(results: list[dict], facts: dict[str, object]) -> None:
    (HERE / "results.json").write_text(json.dumps({"machine": facts, "results": results}, indent=1) + "\n")
    text = (
        "# Benchmark results\n\nMade by the command below. Milliseconds a step (medians, contenders in turn); the last "
        "columns are ratios, larger is better for us.\n\n"
        + "\n".join(f"- {key}: {value}" for key, value in facts.items())
        + f"\n- `mlp-tiny` training uses deviceIterations({ITERATIONS}) on our side\n\n"
        + table(results)
        + "\n"
    )
    (HERE / "results.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.15, help="time of one turn")
    parser.add_argument("--child", nargs=2, metavar=("WORKLOAD", "MODE"))
    parser.add_argument("--memory", nargs=3, metavar=("WORKLOAD", "MODE", "CONTENDER"))
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if arguments.child:
        print(json.dumps(measure(*arguments.child, arguments.rounds, arguments.seconds)))
        return
    if arguments.memory:
        print(json.dumps({"mib": peak_memory(*arguments.memory)}))
        return
    from workloads import WORKLOADS

    results = []
    for workload in arguments.workloads or WORKLOADS:
        for mode in arguments.modes:
            settings = ("--rounds", str(arguments.rounds), "--seconds", str(arguments.seconds))
            row = child("--child", workload, mode, *settings)
            memory = {
                name: child("--memory", workload, mode, name).get("mib")
                for name in ("eager", *OURS)
                if name in row
            }
            if "error" in row:
                print(f"{workload} {mode}: {row['error']}", file=sys.stderr)
                continue
            results.append({"workload": workload, "mode": mode, "ms": row, "mib": memory})
            print(workload, mode, {k: round(v, 3) for k, v in row.items()}, memory, flush=True)
    print(table(results))
    if not arguments.workloads:
        write(results, {**machine(), "command": " ".join(["python bench/run.py", *sys.argv[1:]])})


if __name__ == "__main__":
    main()
