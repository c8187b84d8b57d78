"""What an estimate of the IPU Model costs on this machine: time and memory against the depth of a model.

    python bench/ipu_model.py                  # BERT-Large training on 4 x 4 IPUs with 6, 12, 24 and 48 layers
    python bench/ipu_model.py --layers 24

Each depth has a process of its own. The time is that of ``poptorch.ipu_model.estimate``, without imports. Memory is the
peak of the process, with imports. The model is that of row 14 of the validation; its layers are spread evenly.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
import time

from measuring import commit, in_a_process

LAYERS = (6, 12, 24, 48)
STAGES = 4
LIMIT = 900.0


def measure(layers: int) -> dict[str, float]:
    """In a process of its own: seconds of one estimate, peak memory, and what was counted."""
    from poptorch.ipu_model.validation.applications import APPLICATIONS
    from poptorch.ipu_model.validation.transformers import LARGE, PretrainingBert

    published = next(it for it in APPLICATIONS if it.row == "14")
    size = dataclasses.replace(LARGE, layers=layers)
    shares = [layers * (i + 1) // STAGES - layers * i // STAGES for i in range(STAGES)]
    application = dataclasses.replace(published, model=lambda: PretrainingBert(size, shares, 2, True))
    start = time.perf_counter()
    found = application.estimate()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"layers": layers, "seconds": seconds, "GiB": peak, "samples/s": found.throughput}


def main() -> None:
    """Print one line for each depth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one is not None:
        print(json.dumps(measure(chosen.one)))
        return
    print(f"commit {commit()}")
    print(f"{'layers':>6} {'seconds':>8} {'s/layer':>8} {'peak GiB':>9} {'samples/s':>10}")
    for layers in chosen.layers:
        found = in_a_process([__file__, "--one", str(layers)], LIMIT)
        if "error" in found:
            sys.exit(f"{layers} layers: {found['error']}")
        each = found["seconds"] / layers
        print(f"{layers:>6} {found['seconds']:>8.1f} {each:>8.2f} {found['GiB']:>9.2f} {found['samples/s']:>10,.0f}")


if __name__ == "__main__":
    main()
