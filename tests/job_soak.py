"""A long training of several processes: ``python job_soak.py <process> <processes> <seconds>``.

It prints what the process uses after a tenth of the time, and at the end.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch

import poptorch
from distributed_cases import FEATURES, ROWS, Net


def used() -> dict[str, int]:
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = sum(1 for _ in os.scandir("/proc/self/task"))
    return {"memory": resident, "files": len(os.listdir("/proc/self/fd")), "threads": threads}


def main(process: int, processes: int, seconds: float) -> None:
    options = poptorch.Options().randomSeed(7)
    options.Distributed.configureProcessId(process, processes)
    model = Net()
    executor = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=0.01))
    started, before, steps = time.monotonic(), None, 0
    while True:
        x, y = torch.randn(ROWS, FEATURES), torch.randn(ROWS, 2)
        executor(x, y)
        steps += 1
        passed = time.monotonic() - started
        if before is None and passed > seconds / 10 and steps > 50:
            before = used()
        # Process 0 decides when it ends: all do as many steps. All ask at the same steps, whatever their clocks say.
        if steps % 20 == 0:
            from poptorch.distributed import process_group

            group = process_group.current()
            assert group is not None
            if group.gather_values(passed > seconds)[0]:
                break
    assert before is not None
    after = used()
    assert threading.active_count() < 100
    print(steps, "steps;", *(f"{name} {before[name]} {after[name]};" for name in after))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
