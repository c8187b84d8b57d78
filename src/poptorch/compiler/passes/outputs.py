"""What leaves the program: supported types, contiguous memory of its own, never a view of a weight or an input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch._logging import warn_once
from poptorch.compiler.passes.summary import summary
from poptorch.errors import createPoptorchError
from poptorch.program.graphs import insert_call, memory_root, storage_root
from poptorch.program.opinfo import has_info, info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, is_write, value_of

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

aten = torch.ops.aten

NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32, torch.bfloat16: torch.float16}
_RETURNABLE = frozenset(
    {torch.float32, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, *NARROWED}
)


def narrow_result(tensor: torch.Tensor) -> torch.Tensor:
    """A host value in the type that the device would have returned."""
    check_returnable(tensor.dtype)
    return tensor.to(NARROWED.get(tensor.dtype, tensor.dtype))


def check_returnable(dtype: torch.dtype, value: fx.Node | None = None) -> None:
    """Refuse element types that the device cannot send to the host; ``value`` is what has this type."""
    if dtype not in _RETURNABLE:
        source = info_of(value).source if value is not None and has_info(value) else None
        where = "" if source is None else f" (computed at {source})"
        how = "torch.view_as_real(x)" if dtype.is_complex else "x.float()"
        raise createPoptorchError(
            f"Returning a {dtype} is not supported{where}. Convert it in forward(), for instance with {how}."
        )


def own_outputs(program: Program, context: Context) -> str:
    """Narrow the results' types and give every output, and every value that is written, memory of its own."""
    end = next((n for n in program.operations() if is_write(n)), program.output_node)
    seen: set[fx.Node] = set()
    owned = []
    copies = 0
    for output, value in program.returned():
        if output.kind is OutputKind.GRADIENT:
            # The update reads gradients while it writes weights, and may scale them in place.
            fresh = value if _is_owned(value, seen) else _copy(program, value, end)
        else:
            fresh = _fresh_result(program, _narrowed(program, value, end), end, seen)
        copies += fresh is not value
        seen.add(storage_root(fresh))
        owned.append((output, fresh))
    program.set_outputs(owned)
    copies += _own_writes(program)
    return summary(copies, f"{copies} outputs copied")


def _own_writes(program: Program) -> int:
    """Writes come one after the other: what one of them reads must not have been written by an earlier one."""
    writes = [node for node in program.operations() if is_write(node)]
    written: set[object] = set()
    copies = 0
    for write in writes:
        target, source = write.args[0], write.args[1]
        written.add(target)
        assert isinstance(source, fx.Node)
        if source is not target and memory_root(source) in written:
            write.args = (target, _copy(program, source, writes[0]), *write.args[2:])
            copies += 1
    return copies


def _narrowed(program: Program, value: fx.Node, end: fx.Node) -> fx.Node:
    dtype = value_of(value).dtype
    check_returnable(dtype, value)
    if dtype not in NARROWED:
        return value
    warn_once(
        f"narrow {dtype}",
        f"{str(dtype).removeprefix('torch.').capitalize()} is not supported natively on IPU, a result of this type is "
        f"returned as {NARROWED[dtype]}.",
    )
    return insert_call(program, end, aten._to_copy.default, (value,), value, dtype=NARROWED[dtype])


def _fresh_result(program: Program, value: fx.Node, end: fx.Node, seen: set[fx.Node]) -> fx.Node:
    if _is_owned(value, seen) and value_of(value).is_contiguous() and not _is_part_of_larger(value):
        return value
    return _copy(program, value, end)


def _is_owned(value: fx.Node, seen: set[fx.Node]) -> bool:
    root = storage_root(value)
    return root.op != "placeholder" and root not in seen


def _is_part_of_larger(value: fx.Node) -> bool:
    """A small view would keep the whole of a large value alive in the user's hands."""
    root = storage_root(value).meta.get("val")
    return isinstance(root, torch.Tensor) and root.numel() > value_of(value).numel()


def _copy(program: Program, value: fx.Node, end: fx.Node) -> fx.Node:
    return insert_call(program, end, aten.clone.default, (value,), value, memory_format=torch.contiguous_format)
