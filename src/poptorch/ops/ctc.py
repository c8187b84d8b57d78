"""CTC prefix beam search, vectorised over the batch, the beam and the classes.

A prefix is a node of a tree; the tree gives equal prefixes equal numbers, so prefixes that are dropped and
come back still meet their descendants. Per time step only the prefixes that survive touch Python objects, one
dictionary access each; everything else is array arithmetic in log space and float64.
"""

from __future__ import annotations

import numpy as np
import torch

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops._library import define

_NO_LABEL = 0
_DEAD, _NO_PARENT = -1, -2
"""Node number of an unused place in the beam; parent of a root. Neither equals a node."""


class _Tree:
    """All prefixes seen so far, numbered. The empty prefix of sequence ``b`` is node ``b``."""

    def __init__(self, roots: int, classes: int) -> None:
        self._classes = classes
        self._numbers: dict[int, int] = {}
        self._parents = [_NO_PARENT] * roots
        self._labels = [_NO_LABEL] * roots

    def extend(self, parents: np.ndarray, labels: np.ndarray) -> list[int]:
        numbers = self._numbers
        result = []
        for parent, label in zip(parents.tolist(), labels.tolist(), strict=True):
            key = parent * self._classes + label
            node = numbers.get(key)
            if node is None:
                node = numbers[key] = len(self._parents)
                self._parents.append(parent)
                self._labels.append(label)
            result.append(node)
        return result

    def path(self, node: int) -> list[int]:
        path = []
        while node >= 0 and self._parents[node] != _NO_PARENT:
            path.append(self._labels[node])
            node = self._parents[node]
        return path[::-1]


class _Beam:
    """The best prefixes of every sequence; arrays have the shape (sequences, beam width)."""

    def __init__(self, sequences: int, width: int, classes: int, blank: int) -> None:
        self.width, self.classes, self.blank = width, classes, blank
        self.tree = _Tree(sequences, classes)
        shape = (sequences, width)
        self.ends_blank = np.full(shape, -np.inf)
        self.ends_label = np.full(shape, -np.inf)
        self.node = np.full(shape, _DEAD, dtype=np.int64)
        self.parent = np.full(shape, _NO_PARENT, dtype=np.int64)
        self.label = np.full(shape, _NO_LABEL, dtype=np.int64)
        self.ends_blank[:, 0] = 0.0
        self.node[:, 0] = np.arange(sequences)

    def step(self, log_probs: np.ndarray) -> None:
        """Advance the first sequences by one time step; ``log_probs`` is (sequences, classes)."""
        count, width, classes = len(log_probs), self.width, self.classes
        ends_blank, ends_label = self.ends_blank[:count], self.ends_label[:count]
        node, parent, label = self.node[:count], self.parent[:count], self.label[:count]
        rows = np.arange(count)[:, None]
        places = np.arange(width)

        total = np.logaddexp(ends_blank, ends_label)
        of_label = log_probs[rows, label]
        kept_blank = total + log_probs[:, self.blank, None]
        kept_label = ends_label + of_label  # -inf for the empty prefix, which ends in no label
        # Scores of all candidates: column 0 keeps the prefix, column 1 + c extends it by class c.
        scores = np.empty((count, width, 1 + classes))
        extended = scores[:, :, 1:]
        np.add(total[:, :, None], log_probs[:, None, :], out=extended)
        has_label = parent != _NO_PARENT
        # Repeating the last label needs a blank in between. Dead places and roots have no last label.
        extended[rows, places, label] = np.where(has_label, ends_blank + of_label, extended[rows, places, label])
        extended[:, :, self.blank] = -np.inf

        # A kept prefix whose parent is in the beam too is also reached by extending that parent: add and drop
        # it.
        sequence, child, origin = np.nonzero(parent[:, :, None] == node[:, None, :])
        if len(sequence):
            by = label[sequence, child]
            kept_label[sequence, child] = np.logaddexp(kept_label[sequence, child], extended[sequence, origin, by])
            extended[sequence, origin, by] = -np.inf
        np.logaddexp(kept_blank, kept_label, out=scores[:, :, 0])

        flat = scores.reshape(count, -1)
        best = np.argpartition(flat, flat.shape[1] - width, axis=1)[:, -width:]
        best_scores = flat[rows, best]
        source, column = np.divmod(best, 1 + classes)
        is_new = column > 0
        alive = best_scores != -np.inf

        new_node, new_parent, new_label = node[rows, source], parent[rows, source], label[rows, source]
        self.ends_blank[:count] = np.where(is_new, -np.inf, kept_blank[rows, source])
        self.ends_label[:count] = np.where(is_new, best_scores, kept_label[rows, source])
        born = is_new & alive
        new_parent[born] = new_node[born]
        new_label[born] = column[born] - 1
        new_node[born] = self.tree.extend(new_parent[born], new_label[born])
        if not alive.all():
            new_node[~alive], new_parent[~alive] = _DEAD, _NO_PARENT
        self.node[:count], self.parent[:count], self.label[:count] = new_node, new_parent, new_label

    def best(self, count: int) -> tuple[np.ndarray, list[list[list[int]]]]:
        """Log probabilities, best first, and the paths that have them."""
        total = np.logaddexp(self.ends_blank, self.ends_label)
        order = np.argsort(-total, axis=1, kind="stable")[:, :count]
        nodes = np.take_along_axis(self.node, order, 1)
        return np.take_along_axis(total, order, 1), [[self.tree.path(n) for n in row] for row in nodes.tolist()]


def beam_search(
    log_probs: np.ndarray, lengths: np.ndarray, blank: int, beam_width: int, top_paths: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode (time, sequences, classes) log probabilities.

    Returns (sequences, top_paths) log probabilities and lengths, and (sequences, top_paths, time) labels.
    """
    steps, sequences, classes = log_probs.shape
    # Longest first: the sequences that are still running are always the first ones.
    order = np.argsort(-lengths, kind="stable")
    data = np.ascontiguousarray(log_probs[:, order], dtype=np.float64)
    running = (lengths[None, :] > np.arange(steps)[:, None]).sum(1)
    beam = _Beam(sequences, beam_width, classes, blank)
    with np.errstate(invalid="ignore"):  # -inf is a probability of zero, and legal
        for t in range(steps):
            if running[t] == 0:
                break
            beam.step(data[t, : running[t]])
        probabilities, paths = beam.best(top_paths)
    result = np.empty_like(probabilities)
    path_lengths = np.zeros((sequences, top_paths), dtype=np.int32)
    labels = np.zeros((sequences, top_paths, steps), dtype=np.int32)
    for position, sequence in enumerate(order.tolist()):
        result[sequence] = probabilities[position]
        for rank, path in enumerate(paths[position]):
            path_lengths[sequence, rank] = len(path)
            labels[sequence, rank, : len(path)] = path
    return result, path_lengths, labels


def _decode(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    data = probs.detach().to(torch.float32).numpy()
    counts = lengths.detach().to(torch.int64).numpy()
    if counts.size and (counts.min() < 0 or counts.max() > data.shape[0]):
        raise createPoptorchError(
            f"ctc_beam_search_decoder: lengths must be between 0 and the {data.shape[0]} time steps of the "
            f"probabilities, but are {counts.tolist()}."
        )
    valid = np.arange(data.shape[0])[:, None] < counts[None, :]
    bad = valid & ~(data < np.inf).all(2)
    if bad.any():
        step, sequence = np.argwhere(bad)[0].tolist()
        raise createPoptorchError(
            f"ctc_beam_search_decoder: the log-probabilities of sequence {sequence} at time step {step} "
            "contain NaN or +inf. Pass the result of log_softmax, and check the values before it."
        )
    probabilities, path_lengths, paths = beam_search(data, counts, blank, beam_width, top_paths)
    return (
        torch.from_numpy(probabilities).to(probs.dtype),
        torch.from_numpy(path_lengths),
        torch.from_numpy(paths),
    )


def _decoded_shapes(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    steps, batch, _ = probs.shape
    return (
        probs.new_empty(batch, top_paths),
        probs.new_empty(batch, top_paths, dtype=torch.int32),
        probs.new_empty(batch, top_paths, steps, dtype=torch.int32),
    )


CTC_BEAM_SEARCH = define(
    "ctc_beam_search_decoder(Tensor probs, Tensor lengths, int blank, int beam_width, int top_paths) "
    "-> (Tensor, Tensor, Tensor)",
    _decode,
    _decoded_shapes,
)


def ctc_beam_search_decoder(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> list[torch.Tensor]:
    """The most probable label sequences of a CTC model.

    ``probs`` holds log-probabilities (time, batch, classes), ``lengths`` the valid time steps of each
    sequence. Returns ``[path_probs, path_lengths, decoded_paths]``: log probabilities and lengths of shape
    (batch, top_paths), best first, and labels of shape (batch, top_paths, time), of which those past the
    path's length mean nothing. Outside of a PopTorch model the results are zeros of these shapes.

    >>> results = ctc_beam_search_decoder(torch.zeros(5, 2, 3), torch.tensor([5, 4]), top_paths=2)
    >>> [list(tensor.shape) for tensor in results]
    [[2, 2], [2, 2], [2, 2, 5]]
    """
    _check_arguments(probs, lengths, blank, beam_width, top_paths)
    if ambient.current() is None:
        return [torch.zeros_like(t) for t in _decoded_shapes(probs.detach(), lengths, blank, beam_width, top_paths)]
    return list(CTC_BEAM_SEARCH(probs.detach(), lengths, blank, beam_width, top_paths))


def _check_arguments(probs: object, lengths: object, blank: int, beam_width: int, top_paths: int) -> None:
    if not isinstance(probs, torch.Tensor) or not isinstance(lengths, torch.Tensor):
        raise createPoptorchError(
            f"ctc_beam_search_decoder: probs of type {type(probs).__name__} with lengths of type "
            f"{type(lengths).__name__} is not supported; pass tensors."
        )
    if probs.dim() != 3:
        raise createPoptorchError(
            "Incorrect shape for first input to CTC beam search decoder. "
            f"Expected (time, batch, classes), got {list(probs.shape)}."
        )
    if not probs.dtype.is_floating_point:
        raise createPoptorchError(f"ctc_beam_search_decoder: probs must be float16 or float32, not {probs.dtype}.")
    if list(lengths.shape) != [probs.shape[1]] or lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise createPoptorchError(
            f"Incorrect shape for second input to CTC beam search decoder. Expected {probs.shape[1]} "
            f"integers, one per sequence, got shape {list(lengths.shape)} of {lengths.dtype}."
        )
    if not 0 <= blank < probs.shape[2]:
        raise createPoptorchError(f"ctc_beam_search_decoder: blank {blank} is not one of the {probs.shape[2]} classes.")
    if not 1 <= top_paths <= beam_width:
        raise createPoptorchError(
            f"ctc_beam_search_decoder: top_paths ({top_paths}) must be at least 1 and at most beam_width "
            f"({beam_width})."
        )
