"""Where the time of a step goes, against the peak of matrix products that this machine reaches.

    python bench/breakdown.py bert-small train-sgd                  # torch.compile and ours, native
    python bench/breakdown.py gpt-mini train-adamw --contenders eager ours-interpret
    python bench/breakdown.py multi-bert train-sgd --threads 1      # a replica's share of bench/multi_ipu.py, and DDP's

Every contender runs in a process of its own, several times in turn, under torch's profiler, with a mark around each
generated kernel; the time of an operation is that of the thread that called it. The first table is in milliseconds a
step. The second says how fast the matrix products are: floating-point operations in their time, as a share of what a
large product reaches in the same minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any

from measuring import HERE, ROOT, gemm_peak, in_a_process
from results import MODES, OURS, PEERS, TITLES, table

CACHE = ROOT / "build" / "breakdown-cache"
STEPS = 5
KINDS = {
    "matrix products, convolutions": (
        "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_convolution", "convolution_backward",
        "linear_pointwise", "mkl_linear", "convolution_pointwise", "convolution_transpose",
    ),
    "attention": ("scaled_dot_product", "flash_attention"),
    "recurrent layers": ("rnn_layer",),
    "library optimizers": ("_fused_adam", "_fused_sgd", "_foreach", "Optimizer.step"),
    "generated kernels": ("cpp_fused", "cpp_CppMicroGemm"),
}  # fmt: skip
"""Names, or parts of names, of profiled operations. What has none of them is the last line."""
COUNTED = ("matrix products, convolutions", "recurrent layers")
"""Whose floating-point operations are counted; torch's counter does not know the attention of CPUs."""
REST = "other operations and the host"


def kind_of(operation: str) -> str:
    """The line of the table that an operation belongs to."""
    return next((kind for kind, parts in KINDS.items() if any(part in operation for part in parts)), REST)


def steps_of(workload: str, mode: str, name: str) -> tuple[Any, float]:
    """What to call, and the 10^9 floating-point operations of its matrix products and convolutions."""
    from contenders import contender, counted_gflop
    from workloads import WORKLOADS

    if not workload.startswith("multi-"):
        return contender(name, WORKLOADS[workload], mode).call, counted_gflop(WORKLOADS[workload], mode)

    import multi_ipu
    from torch.utils.flop_counter import FlopCounterMode

    kind = workload.removeprefix("multi-")
    multi_ipu.MICRO_BATCHES //= 2  # one of two replicas
    eager = multi_ipu.eager(kind, multi_ipu.SHAPES[kind])
    with FlopCounterMode(display=False) as counter:
        eager()
    gflop = counter.get_total_flops() / 1e9
    if name == "eager":
        return eager, gflop
    os.environ["POPTORCH_CODEGEN"] = name.removeprefix("ours-")
    return multi_ipu.ours(kind, multi_ipu.SHAPES[kind], micro_batches=multi_ipu.MICRO_BATCHES), gflop


def measure(workload: str, mode: str, name: str, threads: int) -> dict[str, Any]:
    """In a process of its own: milliseconds a step by kind, and the speed of the first kind beside the peak."""
    import torch
    from torch._inductor import config
    from torch.profiler import ProfilerActivity, profile

    config.cpp.enable_kernel_profile = True
    torch.set_num_threads(threads)
    call, gflop = steps_of(workload, mode, name)
    for _ in range(3):
        call()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            call()
    kinds = dict.fromkeys([*KINDS, REST], 0.0)
    for row in profiled.key_averages():
        kinds[kind_of(row.key)] += row.self_cpu_time_total / STEPS / 1e3
    return {"kinds": kinds, "gflop": gflop, "peak": gemm_peak(threads)}


def report(found: dict[str, list[dict[str, Any]]]) -> str:
    """Medians of what was measured, by contender."""

    def cell(name: str, kind: str) -> float:
        return statistics.median(each["kinds"][kind] for each in found[name])

    kinds = [kind for kind in (*KINDS, REST) if any(cell(name, kind) for name in found)]
    lines = [[kind, *(f"{cell(name, kind):.2f}" for name in found)] for kind in kinds]
    lines.append(["sum", *(f"{sum(cell(name, kind) for kind in kinds):.2f}" for name in found)])
    speeds = []
    for name, each in found.items():
        speed = statistics.median(one["gflop"] / sum(map(one["kinds"].get, COUNTED)) * 1e3 for one in each)
        peak = statistics.median(one["peak"] for one in each)
        speeds.append([TITLES[name], f"{each[0]['gflop']:.2f}", f"{speed:.0f}", f"{peak:.0f}", f"{speed / peak:.0%}"])
    titles = [TITLES[name] for name in found]
    return "\n\n".join(
        [
            table(["ms a step", *titles], lines),
            table(["products and recurrent layers", "GFLOP a step", "GFLOP/s", "peak, GFLOP/s", "share"], speeds),
        ]
    )


def impossible(arguments: argparse.Namespace) -> str | None:
    """What is wrong with a request, if anything."""
    from workloads import WORKLOADS

    multi = [f"multi-{kind}" for kind in ("mlp", "bert")]
    if arguments.workload not in (*WORKLOADS, *multi):
        return f"unknown workload {arguments.workload}. There are: {', '.join([*WORKLOADS, *multi])}"
    if arguments.workload in multi and arguments.mode != "train-sgd":
        return f"{arguments.workload} is measured with mode train-sgd only"
    if arguments.workload in multi and not set(arguments.contenders or ()) <= {"eager", *OURS}:
        return f"{arguments.workload} is measured with eager, {' and '.join(OURS)} only"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="one of bench/run.py, or multi-mlp, multi-bert: half a step of multi_ipu.py")
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--contenders", nargs="+", choices=[*PEERS, *OURS], help="default: compile and ours-native")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="processes of each contender (default: 3)")
    parser.add_argument("--one", metavar="CONTENDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    problem = impossible(arguments)
    if problem:
        parser.error(problem)
    if arguments.one:
        print(json.dumps(measure(arguments.workload, arguments.mode, arguments.one, arguments.threads)))
        return
    multi = arguments.workload.startswith("multi-")
    names = arguments.contenders or (["eager", "ours-native"] if multi else ["compile", "ours-native"])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name in names:
            command = [str(HERE / "breakdown.py"), arguments.workload, arguments.mode, "--one", name]
            got = in_a_process([*command, "--threads", str(arguments.threads)], 900, CACHE)
            if "error" in got:
                raise SystemExit(f"{name}: {got['error']}")
            found[name].append(got)
    print(report(found))


if __name__ == "__main__":
    main()
