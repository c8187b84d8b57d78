"""The CTC decoder against the same search in plain Python: ``python bench/ctc.py`` prints one ratio."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from poptorch.ops.ctc import CTC_BEAM_SEARCH

STEPS, BATCH, CLASSES, BEAM = 200, 8, 32, 16


def log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b)) without overflow."""
    if a < b:
        a, b = b, a
    return a if b == -math.inf else a + math.log1p(math.exp(b - a))


def decode_in_python(log_probs: list[list[float]], width: int, blank: int = 0) -> tuple[float, tuple[int, ...]]:
    """The best path of one sequence: prefixes in a dictionary, one addition at a time."""
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
    for row in log_probs:
        grown: dict[tuple[int, ...], tuple[float, float]] = {}
        for prefix, (ends_blank, ends_label) in beam.items():
            total = log_add(ends_blank, ends_label)
            b, n = grown.get(prefix, (-math.inf, -math.inf))
            repeated = ends_label + row[prefix[-1]] if prefix else -math.inf
            grown[prefix] = log_add(b, total + row[blank]), log_add(n, repeated)
            for label, score in enumerate(row):
                if label == blank:
                    continue
                longer = (*prefix, label)
                b, n = grown.get(longer, (-math.inf, -math.inf))
                source = ends_blank if prefix and prefix[-1] == label else total
                grown[longer] = b, log_add(n, source + score)
        beam = dict(sorted(grown.items(), key=lambda item: -log_add(*item[1]))[:width])
    best = max(beam, key=lambda prefix: log_add(*beam[prefix]))
    return log_add(*beam[best]), best


def best_time(function: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Decode the same data both ways, compare the answers, print the times and their ratio."""
    torch.manual_seed(0)
    log_probs = (2 * torch.randn(STEPS, BATCH, CLASSES)).log_softmax(-1)
    lengths = torch.full((BATCH,), STEPS)
    rows = [log_probs[:, sequence].tolist() for sequence in range(BATCH)]

    probabilities, path_lengths, paths = CTC_BEAM_SEARCH(log_probs, lengths, 0, BEAM, 1)
    for sequence in range(BATCH):
        score, path = decode_in_python(rows[sequence], BEAM)
        assert tuple(paths[sequence, 0, : path_lengths[sequence, 0]].tolist()) == path
        assert math.isclose(probabilities[sequence, 0].item(), score, rel_tol=1e-5)

    ours = best_time(lambda: CTC_BEAM_SEARCH(log_probs, lengths, 0, BEAM, 1), 5)
    python = best_time(lambda: [decode_in_python(row, BEAM) for row in rows], 2)
    print(f"CTC decoder, T={STEPS} batch={BATCH} classes={CLASSES} beam={BEAM}")
    print(f"plain Python {python * 1e3:8.1f} ms")
    print(f"poptorch     {ours * 1e3:8.1f} ms")
    print(f"ratio        {python / ours:8.1f}")


if __name__ == "__main__":
    main()
