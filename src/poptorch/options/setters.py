"""The setters of all options, with their documentation.

Made by ``scripts/generate_option_setters.py`` from the option table: edit the table and run the script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from poptorch.options.calling import call
from poptorch.options.rows import ABSENT

if TYPE_CHECKING:
    import torch

    import poptorch.autocasting
    import poptorch.enums
    import poptorch.options.groups
    import poptorch.placement.strategies


class OptionsSetters:
    """The setters of ``Options``."""

    __slots__ = ()

    if TYPE_CHECKING:
        device_iterations: int
        replication_factor: int
        input_group_size: int
        input_cgt: poptorch.enums.CommGroupType
        auto_round_num_ipus: bool
        available_memory_proportion: dict[Any, Any]
        broadcast_buffers: bool
        output_mode: int
        output_return_period: int
        anchored_tensors: dict[Any, Any]
        use_model: bool
        connection_type: int
        sync_pattern: int
        ipu_id: int
        ipu_version: int
        log_dir: str
        model_name: str
        max_repeat_logs: int
        random_seed: int
        _execution_strategy: poptorch.placement.strategies.ExecutionStrategy
        _show_compilation_progress_bar: bool
        _module_namescope_enabled: bool
        _source_location_excludes: list[str]
        _relax_optimizer_checks: bool
        _strict_compatibility: bool

    @property
    def execution_strategy(self) -> poptorch.placement.strategies.ExecutionStrategy:
        """What ``setExecutionStrategy`` set; starts as ``PipelinedExecution(AutoStage.SameAsIpu)``."""
        return self._execution_strategy

    @property
    def show_compilation_progress_bar(self) -> bool:
        """What ``showCompilationProgressBar`` set; starts as ``True``."""
        return self._show_compilation_progress_bar

    @property
    def module_namescope_enabled(self) -> bool:
        """What ``disableModuleNamescope`` set; starts as ``True``."""
        return self._module_namescope_enabled

    @property
    def source_location_excludes(self) -> list[str]:
        """What ``sourceLocationExcludes`` set; starts as ``['install/poptorch', 'site-packages/torch', 'site-
        packages/poptorch']``."""
        return self._source_location_excludes

    @property
    def relax_optimizer_checks(self) -> bool:
        """What ``relaxOptimizerAttributesChecks`` set; starts as ``False``."""
        return self._relax_optimizer_checks

    @property
    def strict_compatibility(self) -> bool:
        """What ``strictCompatibility`` set; starts as ``False``."""
        return self._strict_compatibility

    def deviceIterations(self, device_iterations: int) -> Self:
        """How many batches the device works through in one call, each with new data. Pipelined inference
        needs at least as many as there are pipeline stages.

        Effect: the engine runs this many steps before it returns to Python.

        Starts as ``device_iterations`` = ``1``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.deviceIterations(4)
        >>> opts.device_iterations
        4
        """
        return call(self, "Options.deviceIterations", device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """How many copies of the model train or infer side by side, each on its own IPUs with its own
        share of the data. In a distributed run: the copies of this process.

        Effect: replicas run in parallel workers of the host and share the memory of equal weights.

        Starts as ``replication_factor`` = ``1``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.replicationFactor(2)
        >>> opts.replication_factor
        2
        """
        return call(self, "Options.replicationFactor", replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: poptorch.enums.CommGroupType) -> Self:
        """Give all replicas of a group the same slice of the input, which is then divided among
        ``replication_factor / input_group_size`` groups. Set the replication factor first.

        Effect: inputs are divided among groups of replicas.

        Starts as ``input_group_size`` = ``1``, ``input_cgt`` = ``<CommGroupType.Consecutive: 1>``.

        A wrong argument raises ``ValueError``.

        In the original from 3.1 to today.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.inputReplicaGrouping(1, poptorch.CommGroupType.Orthogonal)
        >>> opts.input_group_size
        1
        """
        return call(self, "Options.inputReplicaGrouping", input_group_size, input_group_type)

    def setExecutionStrategy(self, strategy: poptorch.placement.strategies.ExecutionStrategy) -> Self:
        """How the blocks of a model are laid out over IPUs and time: pipelined, sharded or in phases.

        Effect: selects the schedule of the runtime.

        Starts as ``execution_strategy`` = ``PipelinedExecution(AutoStage.SameAsIpu)``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.setExecutionStrategy(poptorch.ShardedExecution())
        >>> opts.execution_strategy
        ShardedExecution(AutoStage.SameAsIpu)
        """
        return call(self, "Options.setExecutionStrategy", strategy)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Whether a number of IPUs that is not a power of two is rounded up; the surplus is idle. Without
        it such a model does not compile.

        Effect: virtual IPUs are handed out in powers of two, as real ones.

        Starts as ``auto_round_num_ipus`` = ``False``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.autoRoundNumIPUs()
        >>> opts.auto_round_num_ipus
        True
        """
        return call(self, "Options.autoRoundNumIPUs", auto_round_num_ipus)

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Self:
        """The share (0 to 1) of each IPU's memory that convolutions, matrix products and look-ups may use
        for temporary data, keyed by ``"IPU0"``, ``"IPU1"``, … Each call replaces all shares.

        Effect (IPU Model only): the IPU Model plans temporary memory with it; results do not depend on it.

        Starts as ``available_memory_proportion`` = ``{}``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.setAvailableMemoryProportion({"IPU0": 0.7, "IPU1": 0.2})
        >>> opts.available_memory_proportion
        {0: 0.7, 1: 0.2}
        """
        return call(self, "Options.setAvailableMemoryProportion", available_memory_proportion)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Whether buffers are meant to be broadcast from one replica, which is not supported: a
        replicated model whose ``forward`` writes to a buffer then does not compile. ``False`` lets each
        replica         keep its own, as it does with the running statistics of normalisations in any case.

        Effect: checked when a replicated model is compiled.

        Starts as ``broadcast_buffers`` = ``True``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.broadcastBuffers(False)
        >>> opts.broadcast_buffers
        False
        """
        return call(self, "Options.broadcastBuffers", broadcast_buffers)

    def outputMode(self, output_mode: poptorch.enums.OutputMode, output_return_period: int | None = None) -> Self:
        """Which results of a call come back: the last, every N-th (with a period), all, or their sum. The
        default is all for inference and the last for training.

        Effect: results that are not asked for are not kept.

        Starts as ``output_mode`` = ``4``, ``output_return_period`` = ``1``.

        A wrong argument raises ``AssertionError``.

        In the original from 2.4 to today.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.outputMode(poptorch.OutputMode.EveryN, 2)
        >>> opts.output_mode
        1
        """
        return call(self, "Options.outputMode", output_mode, output_return_period)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: poptorch.enums.OutputMode | None = None,
        output_return_period: int | None = 1,
        *,
        anchor_mode: Any = ABSENT,
        anchor_return_period: Any = ABSENT,
    ) -> None:
        """Fetch the tensor called ``long_name`` after each run;
        ``PoplarExecutor.getAnchoredTensor(short_name)`` returns it. Without a mode the model's own applies;
        the period counts only with ``EveryN``, which keeps ``deviceIterations // period`` entries.

        Effect: the engine keeps the named tensor and returns it.

        Starts as ``anchored_tensors`` = ``{}``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.anchorTensor("grad", "Gradient___weight", poptorch.OutputMode.All, 3)
        >>> opts.anchored_tensors
        {'grad': ['Gradient___weight', False, 2, 1]}
        """
        call(
            self,
            "Options.anchorTensor",
            short_name,
            long_name,
            output_mode,
            output_return_period,
            anchor_mode=anchor_mode,
            anchor_return_period=anchor_return_period,
        )

    def anchorMode(self, anchor_mode: poptorch.enums.OutputMode, anchor_return_period: int | None = None) -> Self:
        """The old name of ``outputMode``.

        Effect: as outputMode.

        A wrong argument raises ``AssertionError``.

        In the original from the first release to 2.4.

        Deprecated: use ``outputMode``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.anchorMode(poptorch.OutputMode.All)
        """
        return call(self, "Options.anchorMode", anchor_mode, anchor_return_period)

    def useIpuModel(self, use_model: bool) -> Self:
        """True: run on the IPU Model. False: on the IPUs of the system, whatever the environment says.
        Without this call ``POPTORCH_IPU_MODEL`` and ``POPTORCH_SMALL_IPU_MODEL`` decide.

        Effect: the same code runs; the cost model then checks memory and counts cycles.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.useIpuModel(True)
        >>> opts.use_model
        True
        """
        return call(self, "Options.useIpuModel", use_model)

    def connectionType(self, connection_type: poptorch.enums.ConnectionType) -> Self:
        """When to attach to a device: before compiling, when there is something to run, or never.

        Effect: decides when virtual IPUs are locked for this process.

        Starts as ``connection_type`` = ``0``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.connectionType(poptorch.ConnectionType.OnDemand)
        >>> opts.connection_type
        1
        """
        return call(self, "Options.connectionType", connection_type)

    def syncPattern(self, sync_pattern: poptorch.enums.SyncPattern) -> Self:
        """Which IPUs wait for each other when data moves between host and device.

        Effect (IPU Model only): changes the timeline of the IPU Model; the host only ever waits for data.

        Starts as ``sync_pattern`` = ``0``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.syncPattern(poptorch.SyncPattern.SinglePipeline)
        >>> opts.sync_pattern
        1
        """
        return call(self, "Options.syncPattern", sync_pattern)

    def useIpuId(self, ipu_id: int) -> Self:
        """Use exactly this device, numbered as by ``gc-info``. It needs at least IPUs per replica times
        replication factor IPUs.

        Effect: attaches to that device of the virtual system.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.useIpuId(1)
        >>> opts.ipu_id
        1
        """
        return call(self, "Options.useIpuId", ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile without a device, for architecture 1 (Mk1), 2 (Mk2) or 21 (Mk2 with FP8); also sets the
        connection type to ``Never``. Such a model can be exported, not run.

        Effect: compiles and refuses to run; the IPU Model uses the architecture.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.useOfflineIpuTarget()
        >>> opts.ipu_version
        2
        """
        return call(self, "Options.useOfflineIpuTarget", ipu_version)

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Keep compiled executables in this directory and use those that are there; ``None`` switches it
        off. Files are never removed automatically.

        Effect: one file for each graph; what makes starting take long, native code, is in it.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.enableExecutableCaching("/tmp/cache")
        >>> opts._Popart.options['cachePath']
        '/tmp/cache'
        """
        return call(self, "Options.enableExecutableCaching", path)

    def logDir(self, log_dir: str) -> Self:
        """The directory for the backend's log and graph files.

        No effect yet: nothing is written there yet.

        Starts as ``log_dir`` = ``'.'``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.logDir("/tmp/logs")
        >>> opts.log_dir
        '/tmp/logs'
        """
        return call(self, "Options.logDir", log_dir)

    def modelName(self, name: str) -> Self:
        """The sub-directory for profiles; without it "training" or "inference".

        Effect: names the folder of the report.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.modelName("bert")
        >>> opts.model_name
        'bert'
        """
        return call(self, "Options.modelName", name)

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Write a profile of compiling and running into ``profile_dir`` (default: the current directory).
        Values in the environment variable ``POPLAR_ENGINE_OPTIONS`` win.

        Effect (IPU Model only): writes a report: figures of the IPU Model, and times measured on this host.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.enableProfiling("out")
        >>> opts._Popart.options['engineOptions']
        {'debug.allowOutOfMemory': 'true', 'autoReport.directory': 'out', 'autoReport.all': 'true'}
        """
        return call(self, "Options.enableProfiling", profile_dir)

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Count the cycles of each run: logged at DEBUG, and returned by ``PoplarExecutor.cycleCount()``.

        Effect (IPU Model only): cycles are computed by the IPU Model.

        Starts as ``instrumentWithHardwareCycleCounter`` = ``False``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.logCycleCount(True)
        >>> opts._Popart.options['instrumentWithHardwareCycleCounter']
        True
        """
        return call(self, "Options.logCycleCount", log_cycle_count)

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Generate normal-distributed inputs on the device instead of transferring any.

        Effect: inputs are replaced by random numbers and outputs are not copied back.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.enableSyntheticData(True)
        >>> opts._Popart.options['syntheticDataMode']
        2
        """
        return call(self, "Options.enableSyntheticData", enabled)

    def enablePipelining(self, enable_pipelining: bool) -> Self:
        """Overlap the parts of a model on several IPUs, or run them one after the other. Without it the
        execution strategy decides.

        Effect: `False` runs the stages of a pipeline one after the other, as shards.

        In the original from the first release to 1.3.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.enablePipelining(False)
        >>> opts._Popart.options['enablePipelining']
        False
        """
        return call(self, "Options.enablePipelining", enable_pipelining)

    def enableStableNorm(self, enabled: bool) -> Self:
        """Use the slower, more accurate form of normalisation layers.

        Effect (IPU Model only): the IPU Model charges for it; the host always uses the accurate form.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.enableStableNorm(True)
        >>> opts._Popart.options['enableStableNorm']
        True
        """
        return call(self, "Options.enableStableNorm", enabled)

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Whether a progress bar is shown during compilation.

        Effect: the bar appears on terminals; ``PoplarExecutor.compilationTime()`` needs the option.

        Starts as ``show_compilation_progress_bar`` = ``True``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.showCompilationProgressBar(False)
        >>> opts.show_compilation_progress_bar
        False
        """
        return call(self, "Options.showCompilationProgressBar", show)

    def disableModuleNamescope(self) -> Self:
        """Do not prefix the names of operations with the path of their ``torch.nn.Module``. Only a new
        object brings the prefixes back.

        Effect: changes the names in graphs, profiles and errors.

        Starts as ``module_namescope_enabled`` = ``True``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.disableModuleNamescope()
        >>> opts.module_namescope_enabled
        False
        """
        return call(self, "Options.disableModuleNamescope")

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Replace the list of file-name parts by which stack frames are skipped when an operation is
        attributed to a source line.

        Effect: changes the source lines in graphs, profiles and errors.

        Starts as ``source_location_excludes`` = ``['install/poptorch', 'site-packages/torch', 'site-
        packages/poptorch']``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.sourceLocationExcludes(["site-packages"])
        >>> opts.source_location_excludes
        ['site-packages']
        """
        return call(self, "Options.sourceLocationExcludes", excludes)

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Add to the list that ``sourceLocationExcludes`` replaces.

        Effect: changes the source lines in graphs, profiles and errors.

        Starts as ``source_location_excludes`` = ``['install/poptorch', 'site-packages/torch', 'site-
        packages/poptorch']``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.appendToLocationExcludes("my_layers")
        >>> opts.source_location_excludes
        ['install/poptorch', 'site-packages/torch', 'site-packages/poptorch', 'my_layers']
        """
        return call(self, "Options.appendToLocationExcludes", *excludes)

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Report unexpected optimizer attributes found by ``setOptimizer`` at DEBUG instead of WARNING.

        Effect: changes the level of those messages.

        Starts as ``relax_optimizer_checks`` = ``False``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.relaxOptimizerAttributesChecks()
        >>> opts.relax_optimizer_checks
        True
        """
        return call(self, "Options.relaxOptimizerAttributesChecks", relax)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """How often a repeated backend log line is printed before the rest is dropped; ``None``: always.

        Effect: limits the backend's log.

        Starts as ``max_repeat_logs`` = ``4``.

        A wrong argument raises ``AssertionError``.

        In the original from 3.1 to today.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.maxRepeatLogs(10)
        >>> opts.max_repeat_logs
        10
        """
        return call(self, "Options.maxRepeatLogs", max_lines)

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """The buffers that ``PoplarExecutor.copyNamedBuffersToDevice()`` refreshes.

        Effect: only these buffers can be refreshed without a full upload of the weights.

        A wrong argument raises ``AssertionError``.

        In the original from 3.3 to today.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.updatableNamedBuffers(["scale"])
        >>> opts._Popart.options['updatableNamedBuffers']
        ['scale']
        """
        return call(self, "Options.updatableNamedBuffers", buffers)

    def randomSeed(self, random_seed: int) -> Self:
        """Seed the random numbers of the device, and torch's own on the host at once.

        Effect: the same seed gives the same results.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.randomSeed(42)
        >>> opts.random_seed
        42
        """
        return call(self, "Options.randomSeed", random_seed)

    def strictCompatibility(self, strict: bool = True) -> Self:
        """Refuse what the original could not do (some torch operations, gradients of a host loop,
        changing list arguments), for people who prepare code for hardware. Not part of the original API.

        Effect: brings the original's refusals back.

        Starts as ``strict_compatibility`` = ``False``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.strictCompatibility()
        >>> opts.strict_compatibility
        True
        """
        return call(self, "Options.strictCompatibility", strict)


class TrainingSetters:
    """The setters of ``Options.Training``."""

    __slots__ = ()

    if TYPE_CHECKING:
        gradient_accumulation: int
        accumulation_and_replication_reduction_type: poptorch.enums.ReductionType
        meanAccumulationAndReplicationReductionStrategy: poptorch.enums.MeanReductionStrategy

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """How many micro-batches contribute to one weight update. Pipelined training needs at least as
        many as there are pipeline stages; inference needs 1. Batch normalisation still sees single
        micro-batches.

        Effect: the weights are updated once in this many micro-batches.

        Starts as ``gradient_accumulation`` = ``1``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Training.gradientAccumulation(8)
        >>> opts.Training.gradient_accumulation
        8
        """
        return call(self, "Training.gradientAccumulation", gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: poptorch.enums.ReductionType) -> Self:
        """Whether gradients are averaged or summed over micro-batches and replicas, whatever the
        reduction of the loss is.

        Effect: decides what the optimizer receives.

        Starts as ``accumulation_and_replication_reduction_type`` = ``<ReductionType.Mean: 1>``.

        A wrong argument raises ``ValueError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
        >>> opts.Training.accumulation_and_replication_reduction_type
        <ReductionType.Sum: 0>
        """
        return call(self, "Training.accumulationAndReplicationReductionType", reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: poptorch.enums.MeanReductionStrategy
    ) -> Self:
        """When the division of a mean takes place. An optimizer that accumulates in float16 overrides it
        with ``Running``.

        Effect: changes the order of the arithmetic, and with float16 what overflows.

        Starts as ``meanAccumulationAndReplicationReductionStrategy`` = ``<MeanReductionStrategy.Post: 1>``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)
        >>> opts.Training.meanAccumulationAndReplicationReductionStrategy
        <MeanReductionStrategy.Running: 0>
        """
        return call(self, "Training.setMeanAccumulationAndReplicationReductionStrategy", mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Let the loss scale follow the size of the gradients; it becomes a variable of the optimizer.

        Effect: the loss scale is adapted while training.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Training.setAutomaticLossScaling(True)
        >>> opts._Popart.options['automaticLossScalingSettings.enabled']
        True
        """
        return call(self, "Training.setAutomaticLossScaling", enabled)

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Spread convolutions over the tiles from different starting points, to balance memory.

        Effect (IPU Model only): the IPU Model lays convolutions out accordingly; results do not depend on
        it.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Training.setConvolutionDithering(True)
        >>> opts._Popart.options['convolutionOptions']
        {'enableConvDithering': True}
        """
        return call(self, "Training.setConvolutionDithering", enabled)

    def accumulationReductionType(self, reduction_type: poptorch.enums.ReductionType) -> Self:
        """The old name of ``accumulationAndReplicationReductionType``.

        Effect: as accumulationAndReplicationReductionType.

        A wrong argument raises ``ValueError``.

        In the original from 2.0 to 2.1.

        Deprecated: use ``accumulationAndReplicationReductionType``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Training.accumulationReductionType(poptorch.ReductionType.Sum)
        """
        return call(self, "Training.accumulationReductionType", reduction_type)


class PrecisionSetters:
    """The setters of ``Options.Precision``."""

    __slots__ = ()

    if TYPE_CHECKING:
        autocast_enabled: bool
        autocast_policy: poptorch.autocasting.Policy
        autocast_policy_dict: dict[Any, Any]
        half_float_casting: poptorch.enums.HalfFloatCastingBehavior
        running_statistics_always_float: bool

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """The master switch for autocasting: when off, no autocast region has any effect.

        Effect: decides whether autocast regions cast.

        Starts as ``autocast_enabled`` = ``True``.

        A wrong argument raises ``ValueError``.

        In the original from 2.1 to 3.0.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.autocastEnabled(False)
        >>> opts.Precision.autocast_enabled
        False
        """
        return call(self, "Precision.autocastEnabled", autocast_enabled)

    def autocastPolicy(self, autocast_policy: poptorch.autocasting.Policy) -> Self:
        """Which operations are cast to which type inside an autocast region.

        Effect: decides the types inside autocast regions.

        Starts as ``autocast_policy`` = ``Policy(fp16=[addbmm, addmm, addmv, addr, baddbmm, bmm,
        chain_matmul, conv1d, conv2d, conv3d, conv_tbc, conv_transpose1d, conv_transpose2d,
        conv_transpose3d, convolution, matmul, mm, mv, Conv2d], fp32=[], promote=[addcdiv, addcmul, atan2,
        bilinear, cat, cross, dot, equal, index_put, stack, tensordot], demote=[])``,
        ``autocast_policy_dict`` = ``{'fp16': ['addbmm', 'addmm', 'addmv', 'addr', 'baddbmm', 'bmm',
        'chain_matmul', 'conv1d', 'conv2d', 'conv3d', 'conv_tbc', 'conv_transpose1d', 'conv_transpose2d',
        'conv_transpose3d', 'convolution', 'matmul', 'mm', 'mv', 'Conv2d'], 'fp32': [], 'promote':
        ['addcdiv', 'addcmul', 'atan2', 'bilinear', 'cat', 'cross', 'dot', 'equal', 'index_put', 'stack',
        'tensordot'], 'demote': []}``.

        A wrong argument raises ``ValueError``.

        In the original from 2.1 to 3.0.

        >>> import poptorch, torch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.autocastPolicy(poptorch.autocasting.Policy(fp16=[torch.matmul]))
        >>> opts.Precision.autocast_policy
        Policy(fp16=[matmul], fp32=[], promote=[], demote=[])
        """
        return call(self, "Precision.autocastPolicy", autocast_policy)

    def halfFloatCasting(self, half_float_casting: poptorch.enums.HalfFloatCastingBehavior) -> Self:
        """The type of operations that mix float16 and float32: float16 (the default), or as in PyTorch.

        Effect: decides the type of mixed operations.

        Starts as ``half_float_casting`` = ``<HalfFloatCastingBehavior.Default: 2>``.

        A wrong argument raises ``ValueError``.

        In the original from the first release to 3.0.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
        >>> opts.Precision.half_float_casting
        <HalfFloatCastingBehavior.HalfUpcastToFloat: 1>
        """
        return call(self, "Precision.halfFloatCasting", half_float_casting)

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Whether batch normalisation keeps its running statistics in float32 whatever its input type.

        Effect: decides the type of the running statistics.

        Starts as ``running_statistics_always_float`` = ``True``.

        A wrong argument raises ``ValueError``.

        In the original from the first release to 3.0.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.runningStatisticsAlwaysFloat(False)
        >>> opts.Precision.running_statistics_always_float
        False
        """
        return call(self, "Precision.runningStatisticsAlwaysFloat", value)

    def runningVarianceAlwaysFloat(self, value: bool) -> Self:
        """The old name of ``runningStatisticsAlwaysFloat``.

        Effect: as runningStatisticsAlwaysFloat.

        A wrong argument raises ``ValueError``.

        In the original from 2.0 to 2.1.

        Deprecated: use ``runningStatisticsAlwaysFloat``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.runningVarianceAlwaysFloat(False)
        """
        return call(self, "Precision.runningVarianceAlwaysFloat", value)

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Raise an error at run time for a division by zero, an overflow, or an invalid operation.

        Effect: results are checked after each operation.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.enableFloatingPointExceptions(True)
        >>> opts._Popart.options['enableFloatingPointChecks']
        True
        """
        return call(self, "Precision.enableFloatingPointExceptions", enabled)

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Round float16 results up or down at random, so that the expectation is the exact value.

        Effect: float16 results are rounded at random.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.enableStochasticRounding(True)
        >>> opts._Popart.options['enableStochasticRounding']
        True
        """
        return call(self, "Precision.enableStochasticRounding", enabled)

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """The type of partial sums in matrix products and convolutions: torch.float or torch.half.

        Effect (IPU Model only): the IPU Model counts cycles and memory with it; the host always sums in
        float32.

        A wrong argument raises ``ValueError``.

        >>> import poptorch, torch
        >>> opts = poptorch.Options()
        >>> _ = opts.Precision.setPartialsType(torch.half)
        >>> opts._Popart.options['partialsTypeMatMuls']
        'half'
        """
        return call(self, "Precision.setPartialsType", dtype)


class TensorLocationSetters:
    """The setters of ``Options.TensorLocations``."""

    __slots__ = ()

    if TYPE_CHECKING:
        location_activation: dict[Any, Any]
        location_weight: dict[Any, Any]
        location_optimizer: dict[Any, Any]
        location_accumulator: dict[Any, Any]

    def numIOTiles(self, num_tiles: int) -> Self:
        """How many tiles of each IPU are set aside for input and output: an even number from 32 to 192.

        Effect (IPU Model only): the IPU Model takes them from the computing tiles; overlapped I/O requires
        them.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.TensorLocations.numIOTiles(64)
        >>> opts.TensorLocations('numIOTiles')
        64
        """
        return call(self, "TensorLocations.numIOTiles", num_tiles)

    def setActivationLocation(self, location: poptorch.options.groups.TensorLocationSettings) -> Self:
        """Where activations live. Later changes of ``location`` have no effect.

        Effect (IPU Model only): the IPU Model places them; on the host they stay in memory.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        >>> opts.TensorLocations.location_activation
        {'onChip': 0}
        """
        return call(self, "TensorLocations.setActivationLocation", location)

    def setWeightLocation(self, location: poptorch.options.groups.TensorLocationSettings) -> Self:
        """Where weights live. Later changes of ``location`` have no effect.

        Effect (IPU Model only): the IPU Model places them; on the host they stay in memory.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        >>> opts.TensorLocations.location_weight
        {'onChip': 0}
        """
        return call(self, "TensorLocations.setWeightLocation", location)

    def setOptimizerLocation(self, location: poptorch.options.groups.TensorLocationSettings) -> Self:
        """Where optimizer states live. Later changes of ``location`` have no effect.

        Effect (IPU Model only): the IPU Model places them; on the host they stay in memory.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        >>> opts.TensorLocations.location_optimizer
        {'onChip': 0}
        """
        return call(self, "TensorLocations.setOptimizerLocation", location)

    def setAccumulatorLocation(self, location: poptorch.options.groups.TensorLocationSettings) -> Self:
        """Where gradient accumulators live. Later changes of ``location`` have no effect.

        Effect (IPU Model only): the IPU Model places them; on the host they stay in memory.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.TensorLocations.setAccumulatorLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        >>> opts.TensorLocations.location_accumulator
        {'onChip': 0}
        """
        return call(self, "TensorLocations.setAccumulatorLocation", location)


class DistributedSetters:
    """The setters of ``Options.Distributed``."""

    __slots__ = ()

    if TYPE_CHECKING:
        num_distributed_processes: int
        distributed_process_id: int
        ipuof_configs: dict[Any, Any]
        processes_per_replica: int

    def disable(self) -> Self:
        """Be the only process, whatever the environment says.

        Effect: no communication with other processes.

        Starts as ``num_distributed_processes`` = ``1``, ``distributed_process_id`` = ``0``,
        ``ipuof_configs`` = ``{}``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Distributed.disable()
        >>> opts.Distributed.num_distributed_processes
        1
        """
        return call(self, "Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Take the number of processes and the ID of this one from two environment variables, now; those
        that are not set count as 1 and 0.

        Effect: data loaders divide their data, and training sums gradients over all processes.

        Starts as ``num_distributed_processes`` = ``1``, ``distributed_process_id`` = ``0``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Distributed.setEnvVarNames("MY_WORLD_SIZE", "MY_RANK")
        >>> opts.Distributed.num_distributed_processes
        1
        """
        return call(self, "Distributed.setEnvVarNames", var_num_processes, var_process_id)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Say which of how many processes this is.

        Effect: data loaders divide their data, and training sums gradients over all processes.

        Starts as ``num_distributed_processes`` = ``1``, ``distributed_process_id`` = ``0``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Distributed.configureProcessId(1, 4)
        >>> opts.Distributed.num_distributed_processes
        4
        """
        return call(self, "Distributed.configureProcessId", process_id, num_processes)

    def processesPerReplica(self, processes: int) -> Self:
        """Let this many consecutive processes share each replica: its IPUs are divided into as many blocks of
        equal         size, and each process runs the pipeline stages on one block. They read the same data.
        The original has         nothing like it.

        Effect: activations and gradients travel between processes; each holds the weights of its own
        stages.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Distributed.processesPerReplica(2)
        >>> opts.Distributed.processes_per_replica
        2
        """
        return call(self, "Distributed.processesPerReplica", processes)


class JitSetters:
    """The setters of ``Options.Jit``."""

    __slots__ = ()

    if TYPE_CHECKING:
        trace_model: bool
        _tracing_requested: bool

    @property
    def tracing_requested(self) -> bool:
        """What ``traceModel`` set; starts as ``False``."""
        return self._tracing_requested

    def traceModel(self, trace_model: bool) -> Self:
        """True: types follow the rules of the tracing front end. False: those of the dispatcher, that is
        exactly PyTorch's. Both capture the model in the same way here.

        Effect: decides the types of operations that mix float16 and float32.

        Starts as ``trace_model`` = ``True``, ``tracing_requested`` = ``False``.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts.Jit.traceModel(False)
        >>> opts.Jit.trace_model
        False
        """
        return call(self, "Jit.traceModel", trace_model)


class PopartSetters:
    """The setters of ``Options._Popart``."""

    __slots__ = ()

    def set(self, key: str, value: Any) -> Self:
        """Store ``value`` for the backend under ``key``. Nothing is checked before a model is compiled;
        values are bool, int, float, str, or lists, sets and dictionaries of these.

        Effect: depends on the key, see the table of backend keys.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts._Popart.set("autoRecomputation", 3)
        """
        return call(self, "_Popart.set", key, value)

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Options of the engine by name; replaces earlier ones.

        Effect (IPU Model only): ``debug.allowOutOfMemory`` decides about programs that do not fit,
        ``autoReport.*`` on reports.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts._Popart.setEngineOptions({"debug.allowOutOfMemory": "true"})
        >>> opts._Popart.options['engineOptions']
        {'debug.allowOutOfMemory': 'true'}
        """
        return call(self, "_Popart.setEngineOptions", engine_options)

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Switch rewrite patterns of the compiler on or off, on top of level 0 (none), 1 (mandatory), 2
        (default) or 3 (all).

        No effect on virtual IPUs: the patterns belong to the original's compiler; the values are checked
        and kept.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> opts = poptorch.Options()
        >>> _ = opts._Popart.setPatterns({"PadSum": True}, 0)
        >>> opts._Popart.options['patterns']
        {'PadSum': True}
        """
        return call(self, "_Popart.setPatterns", patterns, level)


class TensorLocationSettingsSetters:
    """The setters of ``TensorLocationSettings``."""

    __slots__ = ()

    if TYPE_CHECKING:
        onChip: int

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Tensors with fewer elements than this are never moved off chip.

        Effect (IPU Model only): used where the IPU Model places tensors.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> settings = poptorch.TensorLocationSettings()
        >>> _ = settings.minElementsForOffChip(1024)
        >>> settings('minElementsForOffChip')
        1024
        """
        return call(self, "TensorLocationSettings.minElementsForOffChip", min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Only tensors with at least this many elements are sharded.

        Effect (IPU Model only): used where the IPU Model places tensors.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> settings = poptorch.TensorLocationSettings()
        >>> _ = settings.minElementsForReplicatedTensorSharding(1024)
        >>> settings('minElementsForReplicatedTensorSharding')
        1024
        """
        return call(self, "TensorLocationSettings.minElementsForReplicatedTensorSharding", min_elements)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Whether the tensor stays on chip between uses; ``None`` forgets the setting.

        Effect (IPU Model only): used where the IPU Model places tensors.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> settings = poptorch.TensorLocationSettings()
        >>> _ = settings.useOnChipStorage(False)
        >>> settings.onChip
        0
        """
        return call(self, "TensorLocationSettings.useOnChipStorage", use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Whether the tensor is split over the replicas.

        Effect (IPU Model only): used where the IPU Model places tensors.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> settings = poptorch.TensorLocationSettings()
        >>> _ = settings.useReplicatedTensorSharding(False)
        >>> settings('useReplicatedTensorSharding')
        0
        """
        return call(self, "TensorLocationSettings.useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Whether I/O tiles load the tensor instead of computing tiles.

        Effect (IPU Model only): used where the IPU Model places tensors.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> settings = poptorch.TensorLocationSettings()
        >>> _ = settings.useIOTilesToLoad(False)
        >>> settings('useIOTilesToLoad')
        0
        """
        return call(self, "TensorLocationSettings.useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Whether a sharded tensor is kept on I/O tiles.

        Effect (IPU Model only): used where the IPU Model places tensors.

        A wrong argument raises ``AssertionError``.

        >>> import poptorch
        >>> settings = poptorch.TensorLocationSettings()
        >>> _ = settings.useIOTilesToStore(False)
        >>> settings('useIOTilesToStore')
        0
        """
        return call(self, "TensorLocationSettings.useIOTilesToStore", use)
