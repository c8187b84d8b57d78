"""What a program that waits for IPUs needs to know: whether it makes sense, and what to say."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence
from types import FrameType

from poptorch.devices.sharing import Owner

_HELPERS = ("multiprocessing", "torch", "tqdm", "poptorch.data", "poptorch.host", "poptorch.runtime")
"""Modules whose threads never detach a model: loaders, compilers, workers, progress bars."""

_MOST_LISTED = 8


def other_threads_can_act(that_wait: Collection[int]) -> bool:
    """Whether this process has a thread of the user's that does not wait for IPUs itself.

    >>> other_threads_can_act(sys._current_frames())
    False
    """
    known = {threading.get_ident(), *that_wait}
    return any(not _is_helper(frame) for ident, frame in sys._current_frames().items() if ident not in known)


def _is_helper(frame: FrameType) -> bool:
    """Whether the code that a thread was started with belongs to a package that never detaches models."""
    modules = []
    current: FrameType | None = frame
    while current is not None:
        modules.append(str(current.f_globals.get("__name__")))
        current = current.f_back
    started_with = next((name for name in reversed(modules) if name != "threading"), "threading")
    return any(started_with == helper or started_with.startswith(f"{helper}.") for helper in _HELPERS)


def listed(owners: Sequence[Owner]) -> str:
    """The owners of devices, one after the other.

    >>> listed([Owner(64, range(0, 2), 7, "python a.py", "ann", None), Owner(3, range(3, 4), 0, "b", None, None)])
    'process 7 (python a.py): device Id 64; a process in another container (b): device Id 3'
    """
    by_process: dict[tuple[int, str], list[Owner]] = {}
    for owner in owners:
        by_process.setdefault((owner.pid, owner.command), []).append(owner)
    texts = [f"{min(held, key=_age)}: {_devices(held)}" for held in by_process.values()]
    more = [f"{len(texts) - _MOST_LISTED} more"] if len(texts) > _MOST_LISTED else []
    return "; ".join([*texts[:_MOST_LISTED], *more]) or "a process that has just ended"


def _age(owner: Owner) -> float:
    return float("inf") if owner.since is None else owner.since


def _devices(owners: Sequence[Owner]) -> str:
    known = [str(owner.device_id) for owner in owners if owner.device_id is not None]
    if len(known) < len(owners) or len(known) > _MOST_LISTED:
        return f"{sum(len(owner.ipus) for owner in owners)} IPU(s)"
    return f"device Id{'s' if len(known) > 1 else ''} {', '.join(known)}"


def announcement(wanted: str, owners: Sequence[Owner], earlier: int, own: bool) -> str:
    """What is awaited, and from whom.

    >>> announcement("device Id 3", [Owner(3, range(3, 4), 7, "python a.py", None, None)], earlier=1, own=False)
    'Waiting for device Id 3, in use by process 7 (python a.py): device Id 3. Before this program: 1 other.'
    """
    line = f"Waiting for {wanted}, in use by {listed(owners)}." if owners else f"Waiting for {wanted}."
    if earlier:
        line += f" Before this program: {earlier} other{'s' if earlier > 1 else ''}."
    if own:
        line += " This process has them itself: only another thread of it can free them."
    return line
