"""The fastest configuration that fits: a search over splits, micro-batches, recomputation, sharding and proportions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from poptorch.errors import Error, createPoptorchError
from poptorch.figures import byte_size, columns
from poptorch.ipu_model.architecture import architecture
from poptorch.ipu_model.estimation import estimate
from poptorch.ipu_model.pipelining import autoPipeline
from poptorch.ipu_model.result import Estimate
from poptorch.options import Options, TensorLocationSettings
from poptorch.placement.blocks import without_blocks
from poptorch.placement.counting import MAX_IPUS_PER_PROCESS, pipeline_stages

_PROPORTIONS = (0.1, 0.2, 0.4, 0.6, 0.9)
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
class Advice:
    """Configurations, the best one first; prints as a table with the code of the best."""

    options: tuple[Candidate, ...]
    tried: int

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
        return "\n".join([*lines, "", f"{verdict} ({self.tried} tried):", "", self.best.code])


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
    architecture(arch, **knobs)  # refuses what no chip has, before anything is tried
    search = _Search(model, Options() if options is None else options, example_inputs, optimizer, arch, knobs, tries)
    with without_blocks(model):
        found = search.run(ipus)
    return Advice(tuple(found[:show]), len(found))


class _Search:
    """Climbs from a start for every number of stages, one change at a time."""

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        inputs: Sequence[Any],
        optimizer: torch.optim.Optimizer | None,
        arch: str | None,
        knobs: dict[str, float],
        tries: int,
    ) -> None:
        self._model = model
        self._options = options
        self._inputs = tuple(inputs)
        self._optimizer = optimizer
        self._arch = arch
        self._knobs: dict[str, Any] = dict(knobs)
        self._tries = tries
        self._known: dict[Configuration, Candidate | None] = {}
        self._why = "no configuration has a whole number of micro-batches"
        rows = [t.shape[0] for t in self._inputs if isinstance(t, torch.Tensor) and t.ndim]
        if not rows:
            raise createPoptorchError("advise needs an example input whose first dimension counts samples.")
        self._rows = rows[0]

    def run(self, ipus: int) -> list[Candidate]:
        """All candidates, the best one first."""
        starts = [s for s in (self._start(stages, ipus // stages) for stages in _divisors(ipus)) if s is not None]
        for number, start in enumerate(starts):
            limit = self._tries * (number + 1) // len(starts)  # each number of stages has its share of the tries
            self._climb(start, limit)
        found = [candidate for candidate in self._known.values() if candidate is not None]
        if not found:
            raise createPoptorchError(f"advise found no way to run this model on {ipus} IPUs: {self._why}.")
        return sorted(found, key=lambda c: c.score, reverse=True)

    def _start(self, stages: int, replicas: int) -> Configuration | None:
        """The largest micro-batch that keeps the pipeline full."""
        for micro_batch in sorted(_divisors(self._rows), reverse=True):
            made = self._configuration(stages, replicas, micro_batch)
            if made is not None and made.repeats >= (4 * stages if stages > 1 else 1) and micro_batch <= 8:
                return made
        return self._configuration(stages, replicas, 1)

    def _configuration(self, stages: int, replicas: int, micro_batch: int) -> Configuration | None:
        training = self._optimizer is not None
        repeats, rest = divmod(self._rows, micro_batch * replicas)
        if micro_batch < 1 or rest or repeats < pipeline_stages(stages, training=training):
            return None
        return Configuration(stages, replicas, micro_batch, repeats, training, recompute=training and stages > 1)

    def _climb(self, start: Configuration, limit: int) -> None:
        best = self._try(start)
        while best is not None and len(self._known) < limit:
            better = [
                found
                for near in self._near(best.configuration)
                if len(self._known) < limit and (found := self._try(near)) is not None and found.score > best.score
            ]
            if not better:
                return
            best = max(better, key=lambda c: c.score)

    def _near(self, at: Configuration) -> Iterator[Configuration]:
        """Configurations that differ in one thing, those that matter most first."""
        for micro_batch in (at.micro_batch * 2, at.micro_batch // 2):
            made = self._configuration(at.stages, at.replicas, micro_batch)
            if made is not None:
                yield dataclasses.replace(at, micro_batch=micro_batch, repeats=made.repeats)
        if at.training:
            yield dataclasses.replace(at, recompute=not at.recompute)
            yield dataclasses.replace(at, off_chip=not at.off_chip)
            if at.replicas > 1:
                yield dataclasses.replace(at, sharded=not at.sharded)
        place = _PROPORTIONS.index(at.proportion)
        for other in (place - 1, place + 1):
            if 0 <= other < len(_PROPORTIONS):
                yield dataclasses.replace(at, proportion=_PROPORTIONS[other])

    def _try(self, configuration: Configuration) -> Candidate | None:
        if configuration not in self._known:
            try:
                self._known[configuration] = self._estimated(configuration)
            except Error as why:
                self._known[configuration] = None
                self._why = str(why)
        return self._known[configuration]

    def _estimated(self, configuration: Configuration) -> Candidate:
        options = self._options.clone()
        configuration.apply(options)
        with without_blocks(self._model):
            starts: tuple[str, ...] = ()
            if configuration.stages > 1:
                rows = configuration.micro_batch
                micro_batch = tuple(
                    t[:rows] if isinstance(t, torch.Tensor) and t.ndim and t.shape[0] == self._rows else t
                    for t in self._inputs
                )
                split = autoPipeline(
                    self._model, configuration.stages, micro_batch, options, verbose=False, arch=self._arch
                )
                starts = tuple(stage.first_module for stage in split.stages)
            found = estimate(
                self._model, options, *self._inputs, optimizer=self._optimizer, arch=self._arch, **self._knobs
            )
        return Candidate(configuration, found, starts)


def _divisors(number: int) -> list[int]:
    """All powers of two, and the number itself, that divide it.

    >>> _divisors(12), _divisors(8)
    ([1, 2, 4, 12], [1, 2, 4, 8])
    """
    powers = [2**n for n in range(number.bit_length()) if number % 2**n == 0]
    return sorted({*powers, number})


__all__ = ["Advice", "Candidate", "Configuration", "advise"]
