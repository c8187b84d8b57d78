"""The end of a program while daemon threads train: no abort, whatever they are in the middle of."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, random, sys, threading, time
sys.path.insert(0, sys.argv[2])
import torch
import interrupted_program as programs
from poptorch.host import width

width.WORTH_A_THREAD_SECONDS = 0.0
executors = {strategy: programs.executor_of(strategy) for strategy in programs.STRATEGIES}
data = {}
for strategy, executor in executors.items():
    rows = programs.ROWS * (2 if strategy == "replicated" else 1)
    data[strategy] = torch.zeros(rows, 64), torch.zeros(rows, dtype=torch.long)
    executor.compile(*data[strategy])
chosen = random.Random(0)
for attempt in range(int(sys.argv[1])):
    strategy, interrupted = programs.STRATEGIES[attempt % 3], attempt % 2 == 1
    delay = chosen.uniform(0, 0.05)
    child = os.fork()
    if not child:
        begun = threading.Event()

        def train():
            while True:
                executors[strategy](*data[strategy])
                begun.set()

        threading.Thread(target=train, daemon=True).start()
        begun.wait()
        time.sleep(delay)
        if interrupted:
            raise KeyboardInterrupt
        sys.exit(0)
    print(json.dumps([strategy, interrupted, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each try is a fork")
@pytest.mark.parametrize("tries", [6, pytest.param(120, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])])
def test_the_program_ends_in_the_usual_way(tries: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tries), str(Path(__file__).parent)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == tries
    print(f"{tries} programs ended while a daemon thread trained: {collections.Counter(map(str, results))}")
    for strategy, interrupted, status in results:
        assert status == (-2 if interrupted else 0), (strategy, done.stderr[-4000:])
    for words in ("Exception in thread", "Exception ignored"):
        assert words not in done.stderr, done.stderr[done.stderr.index(words) :][:4000]
