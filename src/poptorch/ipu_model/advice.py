"""The fastest configuration that fits: a search over splits, micro-batches, recomputation, sharding and proportions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from poptorch.ambient import Placement
from poptorch.compiler.lowering import Rewritten, rewrite
from poptorch.compiler.request import request_for
from poptorch.errors import Error, createPoptorchError
from poptorch.figures import Shown, byte_size, columns
from poptorch.ipu_model.architecture import Architecture, architecture
from poptorch.ipu_model.estimation import estimate_program
from poptorch.ipu_model.pipelining import cycle_price
from poptorch.ipu_model.result import Estimate
from poptorch.options import Options, TensorLocationSettings
from poptorch.placement.auto import CutPoint, best_cuts, cut_points
from poptorch.placement.blocks import BeginBlock, without_blocks
from poptorch.placement.counting import MAX_IPUS_PER_PROCESS, pipeline_stages
from poptorch.program.opinfo import has_info, info_of, set_info
from poptorch.program.program import Program

_PROPORTIONS = (0.1, 0.2, 0.4, 0.6, 0.9)
_MOST_POINTS = 48
"""Places where a model may be cut: the modules of an inner level are left out if they are more."""

_RECOMPUTE = {True: 3, False: 0}
_RECOMPUTE_ALONE = {True: 1, False: 0}


@dataclass(frozen=True)
class Configuration:
    """One way to run a model on IPUs."""

    stages: int
    replicas: int
    micro_batch: int
    repeats: int
    """Gradient accumulation in training, device iterations in inference."""

    training: bool
    recompute: bool = False
    sharded: bool = False
    """Whether replicas share the optimizer's state."""

    off_chip: bool = False
    """Whether the optimizer's state is in streaming memory."""

    proportion: float = 0.6
    cuts: tuple[int, ...] = ()
    """Where stages begin, by the numbers of the modules that can begin one."""

    def apply(self, options: Options) -> None:
        """Set everything that is said here."""
        options.replicationFactor(self.replicas)
        if self.training:
            options.Training.gradientAccumulation(self.repeats)
            modes = _RECOMPUTE if self.stages > 1 else _RECOMPUTE_ALONE
            options._Popart.set("autoRecomputation", modes[self.recompute])
        else:
            options.deviceIterations(self.repeats)
        if self.sharded or self.off_chip:
            place = TensorLocationSettings().useOnChipStorage(not self.off_chip)
            options.TensorLocations.setOptimizerLocation(place.useReplicatedTensorSharding(self.sharded))
        options.setAvailableMemoryProportion({f"IPU{ipu}": self.proportion for ipu in range(self.stages)})

    def differences(self, other: Configuration) -> list[str]:
        """What is different, for people."""
        words = {
            "stages": "stages",
            "replicas": "replicas",
            "micro_batch": "rows in a micro-batch",
            "proportion": "of a tile for products",
        }
        found = [f"{getattr(self, k):g} {w}" for k, w in words.items() if getattr(self, k) != getattr(other, k)]
        for name, on, off in (
            ("recompute", "recomputation", "no recomputation"),
            ("sharded", "sharded state", "whole state"),
            ("off_chip", "state off the chip", "state on the chip"),
        ):
            if getattr(self, name) != getattr(other, name):
                found.append(on if getattr(self, name) else off)
        if not found and self.cuts != other.cuts:
            found.append("another split")
        return found

    def code(self, starts: Sequence[str]) -> str:
        """The same as statements; ``starts`` are the modules that stages begin with."""
        lines = [f"# micro-batches of {self.micro_batch}: the batch_size of poptorch.DataLoader"]
        lines.append("options = poptorch.Options()")
        if self.replicas > 1:
            lines.append(f"options.replicationFactor({self.replicas})")
        if self.training:
            lines.append(f"options.Training.gradientAccumulation({self.repeats})")
            modes = _RECOMPUTE if self.stages > 1 else _RECOMPUTE_ALONE
            lines.append(f'options._Popart.set("autoRecomputation", {modes[self.recompute]})')
        else:
            lines.append(f"options.deviceIterations({self.repeats})")
        if self.sharded or self.off_chip:
            lines.append("location = poptorch.TensorLocationSettings()")
            lines.append(f"location.useOnChipStorage({not self.off_chip}).useReplicatedTensorSharding({self.sharded})")
            lines.append("options.TensorLocations.setOptimizerLocation(location)")
        shares = ", ".join(f'"IPU{ipu}": {self.proportion}' for ipu in range(self.stages))
        lines.append(f"options.setAvailableMemoryProportion({{{shares}}})")
        for ipu, name in enumerate(starts):
            if name:
                lines.append(f'poptorch.BeginBlock(model.get_submodule("{name}"), ipu_id={ipu})')
        return "\n".join(lines)


@dataclass(frozen=True)
class Candidate:
    """A configuration with its predictions."""

    configuration: Configuration
    estimate: Estimate = field(repr=False)
    starts: tuple[str, ...] = ()
    """The modules that stages begin with."""

    @property
    def code(self) -> str:
        """Statements to paste."""
        return self.configuration.code(self.starts)

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.estimate.throughput

    @property
    def fits(self) -> bool:
        return self.estimate.fits

    @property
    def headroom(self) -> int:
        """Bytes that are free on the fullest tile; negative if it does not fit."""
        return min(ipu.limit - ipu.peak_tile_bytes for ipu in self.estimate.ipus)

    @property
    def score(self) -> tuple[bool, float]:
        """Larger is better: what fits by its speed, the rest by what is missing."""
        return (True, self.throughput) if self.fits else (False, float(self.headroom))


@dataclass(frozen=True)
class Advice(Shown):
    """Configurations, the best one first; prints as a table with the code of the best."""

    options: tuple[Candidate, ...]
    tried: int
    closest: Candidate | None = None
    """What is faster than the best, and misses the least memory."""

    @property
    def best(self) -> Candidate:
        return self.options[0]

    def __len__(self) -> int:
        return len(self.options)

    def __getitem__(self, index: int) -> Candidate:
        return self.options[index]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.options)

    def __str__(self) -> str:
        titles = ("stages", "replicas", "micro", "repeats", "recompute", "state", "share", "samples/s")
        rows = [(*titles, "free on a tile")]
        for found in self.options:
            c = found.configuration
            state = " ".join(w for w, on in (("sharded", c.sharded), ("off-chip", c.off_chip)) if on) or "on-chip"
            rows.append((
                str(c.stages), str(c.replicas), str(c.micro_batch), str(c.repeats), "yes" if c.recompute else "no",
                state, f"{c.proportion:g}", f"{found.throughput:,.1f}", byte_size(found.headroom),
            ))  # fmt: skip
        lines = columns(rows, ">" * 9, (6, 8, 5, 7, 9, 16, 5, 12, 15), gap=1)
        verdict = "The best of them" if self.best.fits else "None of them fits; the closest"
        return "\n".join([*lines, "", f"{verdict} ({self.tried} tried):", *self.limits(), "", self.best.code])

    def limits(self) -> list[str]:
        """What limits the best one, and what would move the limit."""
        best = self.best.estimate
        spent = best.timeline.spent
        ranked = sorted(spent.by.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{key} {cycles / spent.total:.0%}" for key, cycles in ranked if cycles > 0.05 * spent.total)
        fullest = max(best.ipus, key=lambda ipu: ipu.peak_tile_bytes)
        lines = [
            f"limited by {best.bound_by} ({shares}); the fullest tile has {byte_size(fullest.peak_tile_bytes)} of "
            f"{byte_size(fullest.limit)}"
        ]
        if self.closest is not None:
            faster = self.closest.throughput / self.best.throughput - 1
            changed = ", ".join(self.closest.configuration.differences(self.best.configuration))
            lines.append(
                f"memory limits: {changed} would be {faster:.0%} faster, and needs {byte_size(-self.closest.headroom)} "
                "more on a tile"
            )
        return lines


def advise(
    model: nn.Module,
    options: Options | None,
    *example_inputs: Any,
    ipus: int,
    optimizer: torch.optim.Optimizer | None = None,
    arch: str | None = None,
    tries: int = 40,
    show: int = 5,
    **knobs: float,
) -> Advice:
    """Search for the fastest way to run a model on so many IPUs, without running anything.

    ``example_inputs`` are those of one call, as for :func:`poptorch.ipu_model.estimate`; their rows are the samples of
    a call in every configuration that is tried. ``options`` are where the search starts: what it does not decide about
    stays as it is. With an ``optimizer`` the search is about training. Annotations of the model are left alone.
    ``tries`` limits the number of estimates, ``show`` that of the answers.

    >>> import poptorch
    >>> layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).to("meta")
    >>> found = advise(layers, poptorch.Options(), torch.empty(64, 256, device="meta"), ipus=2, tries=6)
    >>> found.best.fits, found.best.configuration.stages * found.best.configuration.replicas
    (True, 2)
    """
    if isinstance(ipus, bool) or not isinstance(ipus, int) or not 1 <= ipus <= MAX_IPUS_PER_PROCESS:
        raise createPoptorchError(f"advise: ipus must be from 1 to {MAX_IPUS_PER_PROCESS}, not {ipus!r}.")
    if tries < 1 or show < 1:
        raise createPoptorchError("advise: tries and show must be at least 1.")
    chip = architecture(arch, **knobs)  # refuses what no chip has, before anything is tried
    search = _Search(model, Options() if options is None else options, example_inputs, optimizer, chip, tries)
    found = search.run(ipus)
    best = found[0]
    faster = [it for it in found if not it.fits and it.throughput > best.throughput * 1.01] if best.fits else []
    return Advice(tuple(found[:show]), len(found), min(faster, key=lambda it: -it.headroom, default=None))


class _Search:
    """Climbs from a start for every number of stages, one change at a time; captures each size of micro-batch once."""

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        inputs: Sequence[Any],
        optimizer: torch.optim.Optimizer | None,
        chip: Architecture,
        tries: int,
    ) -> None:
        self._model = model
        self._options = options
        self._inputs = tuple(inputs)
        self._optimizer = optimizer
        self._chip = chip
        self._tries = tries
        self._known: dict[Configuration, Candidate | None] = {}
        self._programs: dict[int, Rewritten] = {}
        self._points: list[CutPoint] = []
        self._why = "no configuration has a whole number of micro-batches"
        rows = [t.shape[0] for t in self._inputs if isinstance(t, torch.Tensor) and t.ndim]
        if not rows:
            raise createPoptorchError("advise needs an example input whose first dimension counts samples.")
        self._rows = rows[0]

    def run(self, ipus: int) -> list[Candidate]:
        """All candidates, the best one first."""
        if ipus > 1:
            self._points = self._cut_points()
        starts = [s for s in (self._start(stages, ipus // stages) for stages in _divisors(ipus)) if s is not None]
        tried = [self._try(start) for start in starts[-self._tries :]]
        for start, found in zip(starts, tried, strict=False):
            if (found is None or not found.fits) and len(self._known) < self._tries:
                tried.append(self._try(self._lean(start)))
        ranked = sorted((it for it in tried if it is not None), key=lambda it: it.score, reverse=True)
        for number, promising in enumerate(ranked):
            # Half of what is left for the most promising one: the others have their turn, too.
            left = self._tries - len(self._known)
            last = number == len(ranked) - 1
            self._climb(promising, len(self._known) + (left if last else -(-left // 2)))
        found_all = [candidate for candidate in self._known.values() if candidate is not None]
        if not found_all:
            raise createPoptorchError(f"advise found no way to run this model on {ipus} IPUs: {self._why}.")
        return sorted(found_all, key=lambda c: c.score, reverse=True)

    # -- configurations --------------------------------------------------------------------------------------------

    def _start(self, stages: int, replicas: int) -> Configuration | None:
        """The largest micro-batch that keeps the pipeline full."""
        for micro_batch in sorted(_divisors(self._rows), reverse=True):
            made = self._configuration(stages, replicas, micro_batch)
            if made is not None and made.repeats >= (4 * stages if stages > 1 else 1) and micro_batch <= 8:
                return made
        return self._configuration(stages, replicas, 1)

    def _lean(self, at: Configuration) -> Configuration:
        """The same with as little memory as possible."""
        lean = dataclasses.replace(
            at, recompute=at.training, off_chip=at.training, sharded=at.training and at.replicas > 1, proportion=0.2
        )
        return self._with_micro_batch(lean, 1) or lean

    def _configuration(self, stages: int, replicas: int, micro_batch: int) -> Configuration | None:
        training = self._optimizer is not None
        repeats, rest = divmod(self._rows, micro_batch * replicas) if micro_batch else (0, 1)
        if rest or repeats < pipeline_stages(stages, training=training):
            return None
        if len(self._points) < stages - 1:
            self._why = f"only {len(self._points)} of its modules can begin a stage"
            return None
        cuts = best_cuts(self._points, stages) if stages > 1 else ()
        return Configuration(
            stages, replicas, micro_batch, repeats, training, recompute=training and stages > 1, cuts=cuts
        )

    def _with_micro_batch(self, at: Configuration, micro_batch: int) -> Configuration | None:
        made = self._configuration(at.stages, at.replicas, micro_batch)
        if made is None:
            return None
        return dataclasses.replace(at, micro_batch=micro_batch, repeats=made.repeats)

    def _near(self, at: Candidate) -> Iterator[Configuration]:
        """Configurations that differ in one thing: first what moves the limit that this one has."""
        c = at.configuration
        smaller, larger = self._with_micro_batch(c, c.micro_batch // 2), self._with_micro_batch(c, c.micro_batch * 2)
        moves: list[Configuration | None] = [*self._moved_cuts(at)]
        if at.fits:
            moves += [larger]
        switches: list[Configuration | None] = []
        if c.training:
            switches.append(dataclasses.replace(c, recompute=not c.recompute))
            switches.append(dataclasses.replace(c, off_chip=not c.off_chip))
            if c.replicas > 1:
                switches.append(dataclasses.replace(c, sharded=not c.sharded))
        moves += switches
        place = _PROPORTIONS.index(c.proportion)
        order = (place + 1, place - 1) if at.fits else (place - 1, place + 1)
        moves += [
            dataclasses.replace(c, proportion=_PROPORTIONS[other]) for other in order if 0 <= other < len(_PROPORTIONS)
        ]
        moves += [smaller] if at.fits else [smaller, larger]
        yield from (move for move in moves if move is not None)

    def _moved_cuts(self, at: Candidate) -> Iterator[Configuration]:
        """Give a module of the slowest stage, or of the fullest one, to a neighbour."""
        c = at.configuration
        if c.stages == 1:
            return
        busy: dict[int, float] = {}
        for stage in at.estimate.stages:
            busy[stage.ipu] = busy.get(stage.ipu, 0.0) + stage.cycles
        fullest = max(at.estimate.ipus, key=lambda ipu: ipu.peak_tile_bytes).ipu
        heavy = fullest if not at.fits else max(busy, key=busy.__getitem__)
        # The cut before the stage moves back, so that it begins later; the one after it, so that it ends earlier.
        for place, step in ((heavy - 1, 1), (heavy, -1)):
            if 0 <= place < len(c.cuts):
                cuts = list(c.cuts)
                cuts[place] += step
                if 0 <= cuts[place] < len(self._points) and sorted(set(cuts)) == cuts:
                    yield dataclasses.replace(c, cuts=tuple(cuts))

    # -- trying ----------------------------------------------------------------------------------------------------

    def _climb(self, start: Candidate, limit: int) -> None:
        best, better = start, True
        while better and len(self._known) < limit:
            better = False
            for near in self._near(best):
                if len(self._known) >= limit and near not in self._known:
                    break
                found = self._try(near)
                if found is not None and found.score > best.score:
                    best, better = found, True
                    break

    def _try(self, configuration: Configuration) -> Candidate | None:
        if configuration not in self._known:
            try:
                self._known[configuration] = self._estimated(configuration)
            except Error as why:
                self._known[configuration] = None
                self._why = str(why)
        return self._known[configuration]

    def _estimated(self, configuration: Configuration) -> Candidate:
        program = self._program(configuration.micro_batch)
        options = program.request.options.clone()
        configuration.apply(options)
        places = [Placement(stage=n, phase=0, ipu=n, block=f"stage {n}") for n in range(configuration.stages)]

        def place(program: Program) -> None:
            """Blocks are numbered by the cut that they begin with; the first one has no cut."""

            def of(given: Placement) -> Placement:
                return places[sum(1 for cut in configuration.cuts if given.ipu > cut)]

            for node in program.operations():
                if has_info(node):
                    set_info(node, info_of(node).but(placement=of(info_of(node).placement)))
            program.block_starts = list(dict.fromkeys(of(start) for start in program.block_starts))

        found = estimate_program(program.divided(options, place), self._chip)
        starts = ("", *(self._points[cut].name for cut in configuration.cuts))
        return Candidate(configuration, found, starts)

    def _program(self, micro_batch: int) -> Rewritten:
        """The model with a block at every place where it can be cut."""
        if micro_batch not in self._programs:
            options = self._options.clone()
            repeats = self._rows // micro_batch
            if self._optimizer is not None:
                options.Training.gradientAccumulation(repeats)
            else:
                options.deviceIterations(repeats)
            options.replicationFactor(1)
            with without_blocks(self._model):
                for number, point in enumerate(self._points):
                    BeginBlock(self._model.get_submodule(point.name), user_id=f"cut {number}", ipu_id=number + 1)
                request = request_for(self._model, options, self._inputs, None, self._optimizer)
                self._programs[micro_batch] = rewrite(request)
        return self._programs[micro_batch]

    def _cut_points(self) -> list[CutPoint]:
        rows = min(8, self._rows)
        micro_batch = tuple(
            t[:rows] if isinstance(t, torch.Tensor) and t.ndim and t.shape[0] == self._rows else t for t in self._inputs
        )
        with without_blocks(self._model):
            return cut_points(self._model, micro_batch, cycle_price(self._options, self._chip), _MOST_POINTS)


def _divisors(number: int) -> list[int]:
    """All powers of two, and the number itself, that divide it.

    >>> _divisors(12), _divisors(8)
    ([1, 2, 4, 12], [1, 2, 4, 8])
    """
    powers = [2**n for n in range(number.bit_length()) if number % 2**n == 0]
    return sorted({*powers, number})


__all__ = ["Advice", "Candidate", "Configuration", "advise"]
