"""The CTC decoder against enumeration of all alignments and against the definition of the beam search."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import poptorch
from closeness import assert_close_sums
from poptorch.ops.ctc import CTC_BEAM_SEARCH


def _log_probs(seed: int, *shape: int, sharpness: float = 2.0) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (values * sharpness).log_softmax(-1)


def _all_alignments(log_probs: np.ndarray, blank: int) -> list[tuple[tuple[int, ...], float]]:
    """Every label sequence with its probability, by enumerating what the network could have said."""
    total: dict[tuple[int, ...], float] = {}
    steps, classes = log_probs.shape
    for alignment in itertools.product(range(classes), repeat=steps):
        labels = tuple(k for k, _ in itertools.groupby(alignment) if k != blank)
        probability = math.exp(sum(log_probs[t, c] for t, c in enumerate(alignment)))
        total[labels] = total.get(labels, 0.0) + probability
    return sorted(total.items(), key=lambda item: -item[1])


def _search(log_probs: np.ndarray, blank: int, width: int) -> list[tuple[tuple[int, ...], float]]:
    """The beam search as its definition says, in probabilities and dictionaries."""
    beam = {(): (1.0, 0.0)}
    for row in np.exp(log_probs.astype(np.float64)):
        grown: dict[tuple[int, ...], list[float]] = {}
        for prefix, (b, n) in beam.items():
            kept = grown.setdefault(prefix, [0.0, 0.0])
            kept[0] += (b + n) * row[blank]
            if prefix:
                kept[1] += n * row[prefix[-1]]
            for c, p in enumerate(row):
                if c != blank:
                    longer = grown.setdefault((*prefix, c), [0.0, 0.0])
                    longer[1] += (b if prefix and prefix[-1] == c else b + n) * p
        best = sorted(grown.items(), key=lambda item: -sum(item[1]))[:width]
        beam = {prefix: (b, n) for prefix, (b, n) in best}
    return sorted(((prefix, b + n) for prefix, (b, n) in beam.items()), key=lambda item: -item[1])


def _check(
    result: list[torch.Tensor], sequence: int, expected: list[tuple[tuple[int, ...], float]], steps: int
) -> None:
    probabilities, lengths, paths = result
    for rank, (labels, probability) in enumerate(expected[: probabilities.shape[1]]):
        # Each time step adds the logarithms of at most three ways to say the same, of numbers up to the result.
        wanted = torch.tensor(math.log(probability))
        assert_close_sums(probabilities[sequence, rank], wanted, terms=3, steps=steps, scale=1.0)
        assert tuple(paths[sequence, rank, : lengths[sequence, rank]].tolist()) == labels


@pytest.mark.parametrize("blank", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_the_truth(blank: int, seed: int) -> None:
    log_probs, lengths = _log_probs(seed, 5, 3, 3), torch.tensor([5, 3, 4])
    result = CTC_BEAM_SEARCH(log_probs, lengths, blank, 300, 4)
    for sequence, length in enumerate(lengths.tolist()):
        _check(result, sequence, _all_alignments(log_probs[:length, sequence].double().numpy(), blank), length)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_a_narrow_beam_follows_the_definition(width: int, seed: int) -> None:
    # Prefixes are dropped and come back here: their descendants must still find them.
    log_probs, lengths = _log_probs(seed, 30, 4, 6), torch.tensor([30, 11, 30, 1])
    result = CTC_BEAM_SEARCH(log_probs, lengths, 2, width, width)
    for sequence, length in enumerate(lengths.tolist()):
        _check(result, sequence, _search(log_probs[:length, sequence].numpy(), 2, width), length)


def test_types_shapes_and_capture(capture) -> None:
    log_probs, lengths = _log_probs(0, 6, 2, 4).half(), torch.tensor([6, 5], dtype=torch.int16)
    graph = capture(
        lambda p, n: poptorch.ctc_beam_search_decoder(p, n, blank=3, beam_width=8, top_paths=2), log_probs, lengths
    )
    probabilities, path_lengths, paths = graph(log_probs, lengths)
    assert (probabilities.dtype, path_lengths.dtype, paths.dtype) == (torch.float16, torch.int32, torch.int32)
    assert (probabilities.shape, path_lengths.shape, paths.shape) == ((2, 2), (2, 2), (2, 2, 6))
    assert 3 not in paths[0, 0, : path_lengths[0, 0]]


def test_improbable_paths_do_not_vanish() -> None:
    # Relative probabilities far below the smallest float64: only log space keeps them apart.
    log_probs = torch.full((4, 1, 3), -2000.0)
    log_probs[:, :, 0] = 0.0
    log_probs[0, :, 1] = -1000.0
    probabilities, lengths, paths = CTC_BEAM_SEARCH(log_probs, torch.tensor([4]), 0, 10, 2)
    assert probabilities.tolist() == [[0.0, -1000.0]]
    assert lengths.tolist() == [[0, 1]]
    assert paths[0, 1, 0] == 1


def test_impossible_classes_and_empty_sequences() -> None:
    log_probs = torch.full((2, 2, 3), -math.inf)
    log_probs[:, :, 0] = 0.0
    probabilities, lengths, _ = CTC_BEAM_SEARCH(log_probs, torch.tensor([2, 0]), 0, 5, 3)
    assert probabilities[:, 0].tolist() == [0.0, 0.0]
    assert probabilities[:, 1:].isinf().all()
    assert lengths.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_outside_of_a_model_the_results_are_zeros() -> None:
    result = poptorch.ctc_beam_search_decoder(_log_probs(0, 5, 2, 3), torch.tensor([5, 5]), beam_width=4, top_paths=2)
    assert [list(tensor.shape) for tensor in result] == [[2, 2], [2, 2], [2, 2, 5]]
    assert [tensor.dtype for tensor in result] == [torch.float32, torch.int32, torch.int32]
    assert not any(tensor.any() for tensor in result)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_values_are_named(value: float) -> None:
    log_probs = _log_probs(0, 5, 2, 3)
    log_probs[3, 1, 0] = value
    with pytest.raises(poptorch.Error, match="sequence 1 at time step 3 contain NaN"):
        CTC_BEAM_SEARCH(log_probs, torch.tensor([5, 5]), 0, 4, 1)
    CTC_BEAM_SEARCH(log_probs, torch.tensor([5, 3]), 0, 4, 1)  # beyond the length nothing is read


@pytest.mark.parametrize("lengths", [[6, 1], [-1, 1]])
def test_lengths_must_fit(lengths: list[int]) -> None:
    with pytest.raises(poptorch.Error, match="lengths must be between 0 and the 5 time steps"):
        CTC_BEAM_SEARCH(_log_probs(0, 5, 2, 3), torch.tensor(lengths), 0, 4, 1)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"probs": torch.zeros(5, 3)}, "Incorrect shape for first input to CTC beam search decoder."),
        ({"probs": torch.zeros(5, 2, 3).int()}, "float16 or float32"),
        ({"probs": [1]}, "is not supported"),
        ({"lengths": torch.tensor([5])}, "Incorrect shape for second input"),
        ({"lengths": torch.tensor([5.0, 5.0])}, "integers"),
        ({"blank": 3}, "blank 3 is not one of the 3 classes"),
        ({"beam_width": 2, "top_paths": 3}, r"top_paths \(3\)"),
        ({"top_paths": 0}, r"top_paths \(0\)"),
    ],
)
def test_wrong_arguments(changes: dict, phrase: str) -> None:
    arguments = {"probs": torch.zeros(5, 2, 3), "lengths": torch.tensor([5, 5])} | changes
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.ctc_beam_search_decoder(**arguments)
