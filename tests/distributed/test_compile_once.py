"""On one host, the first process of a job compiles, and the others load what it has compiled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import processes

PROGRAM = processes.TESTS / "distributed_cache.py"
COUNT = 2


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_others_load_what_the_first_process_has_compiled(tmp_path: Path) -> None:
    own = [{"POPTORCH_CODEGEN": "native", "POPTORCH_LOG_LEVEL": "DEBUG"} for _ in range(COUNT)]
    for rank, variables in enumerate(own):  # nothing is shared but the cache of the options
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / f"inductor-{rank}")
    with processes.Job(PROGRAM, COUNT, str(tmp_path), variables=own, seconds=700) as job:
        ended = job.wait(800)
    assert [end.code for end in ended] == [0] * COUNT, ended[0].output[-3000:] + ended[1].output[-3000:]
    outputs = [end.output for end in ended]
    taken = re.compile(r"Native code \w+ taken from .*/cache/")
    loaded = [bool(taken.search(output)) for output in outputs]
    assert sorted(loaded) == [False] * 1 + [True] * (COUNT - 1)
    for output, is_loaded in zip(outputs, loaded, strict=True):
        assert ("Executable found in the cache" in output) == is_loaded
        assert "cannot be kept" not in output
    weights = {line for output in outputs for line in output.splitlines() if line.startswith("weights:")}
    assert len(weights) == 1
