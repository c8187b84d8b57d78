"""Private names of the original that public libraries and programs use.

They are reached under their old names: the modules ``poptorch._impl``, ``poptorch._utils``,
``poptorch._poplar_executor`` and ``poptorch._args_parser``, and the operators ``torch.ops.poptorch.*``. New programs
need none of them. ``NAMES`` says what each one is for.
"""

from __future__ import annotations

NAMES: dict[str, str] = {
    "poptorch._impl.unwrapModelIfNecessary(model)": "give a model that is being trained its own classes back for a "
    "while, with the trained weights; used for generating text.",
    "poptorch._impl.rewrapModelIfNecessary(model)": "undo `unwrapModelIfNecessary`.",
    "poptorch._impl.isDispatchTracing()": "whether a model is being captured; as `poptorch.isRunningOnIpu`.",
    "poptorch._utils.combine_batch_tensors_gen(tensors)": "the tensors of several batches, joined position by "
    "position along dimension 0.",
    "poptorch._poplar_executor._OverwriteContextManager.registerSubsitutionManager(cls)": "have functions replaced "
    "during each capture: `cls().replace()` before, `.restore()` after it.",
    "poptorch._poplar_executor.PoplarExecutor": "`poptorch.PoplarExecutor`, for libraries that derive from it.",
    "poptorch._args_parser.ArgsParser": "arguments in the order of `forward`, for libraries that derive from it.",
    "torch.ops.poptorch.push_name_scope(name)": "begin a name scope; as entering `poptorch.NameScope`.",
    "torch.ops.poptorch.pop_name_scope()": "end the name scope that was begun last.",
    "torch.ops.poptorch.internal_cast(x, dtype)": 'cast to `"FLOAT"` or `"HALF"`.',
    "torch.ops.poptorch.nop(x)": "`poptorch.nop`.",
    "torch.ops.poptorch.identity_loss(x, reduction)": "`poptorch.identity_loss`; the reduction may be a number: 0 sum, "
    "1 mean, 2 none.",
    "torch.ops.poptorch.ipu_print_tensor(x, title, ...)": "`poptorch.ipu_print_tensor`; the float format may be a "
    "number.",
    "torch.ops.poptorch.recomputation_checkpoint(x)": "`poptorch.recomputationCheckpoint` of one tensor.",
    "torch.ops.poptorch.set_available_memory(x, proportion)": "`poptorch.set_available_memory`.",
    "torch.ops.poptorch.set_matmul_serialization(x, mode, factor, keep_precision)": "compute the matrix product that "
    "was just made in parts, as `poptorch.serializedMatMul`.",
    "torch.ops.poptorch.begin_ipu_block(stage_id, phase_id, ipu_id)": "start a block by the numbers of its stage, "
    "phase and IPU.",
    "torch.ops.poptorch.end_ipu_block()": "end the block, as leaving `poptorch.Block` does.",
    "torch.ops.poptorch.set_attribute(attribute, key, value)": "add one pair, as entering `poptorch.Attribute` does.",
    "torch.ops.poptorch.clear_attribute(attribute, key)": "take that pair away.",
}
"""Every such name, with its purpose."""
