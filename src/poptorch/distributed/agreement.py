"""What the processes of a job must agree about before they train: their programs, their weights, their seed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import torch

from poptorch.distributed.process_group import ProcessGroup
from poptorch.errors import createPoptorchError

_SHOWN = 5
_LONGEST = 200
_DIGEST = re.compile(r"[0-9a-f]{16,}|")


def compare(group: ProcessGroup, parts: Mapping[str, str], options: Mapping[str, str]) -> None:
    """Refuse to go on unless the parts are the same in all processes; an error on each names the first that differ.

    ``options`` may differ. The error lists those that do, because they may be the reason.
    """
    found = group.gather_values({"parts": dict(parts), "options": dict(options), "failed": ""})
    _raise_failures(group, found)
    first = found[0]
    for member, other in zip(group.members, found, strict=True):
        unequal = differences(first["parts"], other["parts"])
        if unequal:
            raise createPoptorchError(_message((group.members[0], member), unequal, first, other))


def report_failure(group: ProcessGroup, error: BaseException) -> None:
    """Take part in :func:`compare` as a process that has nothing to compare, because it failed before."""
    group.gather_values({"parts": {}, "options": {}, "failed": f"{type(error).__name__}: {error}"})


def _raise_failures(group: ProcessGroup, found: list[Any]) -> None:
    for member, other in zip(group.members, found, strict=True):
        if other["failed"]:
            raise createPoptorchError(f"Process {member} could not compile its model: {other['failed']}")


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The names under which two mappings have different texts.

    >>> differences({"a": "1", "b": "2"}, {"a": "1", "c": "3"})
    ['b', 'c']
    """
    return [name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name)]


def _message(members: tuple[int, int], unequal: list[str], first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    root, member = members
    what = " and ".join(_shown(name, first["parts"], second["parts"]) for name in unequal)
    verb = "differs" if len(unequal) == 1 else "differ"
    text = f"Processes {root} and {member} do not train the same model: {what} {verb}."
    options = first["options"], second["options"]
    settings = [f"{n} ({options[0].get(n)} and {options[1].get(n)})" for n in differences(*options)]
    if settings:
        text += f" Their options differ in {', '.join(settings[:_SHOWN])}."
    return text + " All processes must make the same models with the same options, optimizers and sizes of batches."


def _shown(name: str, first: Mapping[str, str], second: Mapping[str, str]) -> str:
    """A part, with what it is in each process where people can read that.

    >>> _shown("rate", {"rate": "0.1"}, {"rate": "0.2"}), _shown("graph", {"graph": "0" * 32}, {"graph": "1" * 32})
    ('the rate (0.1 and 0.2)', 'the graph')
    """
    texts = [parts.get(name, "none") for parts in (first, second)]
    if any(_DIGEST.fullmatch(text) for text in texts):
        return f"the {name}"
    return f"the {name} ({texts[0][:_LONGEST]} and {texts[1][:_LONGEST]})"


def digest_of(tensor: torch.Tensor) -> str:
    """A digest of the values of a tensor, whatever their order in memory.

    >>> digest_of(torch.zeros(2, 3)) == digest_of(torch.zeros(3, 2).T)
    True
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
    return hashlib.blake2b(data.numpy().data, digest_size=16).hexdigest()


def make_equal(group: ProcessGroup, tensors: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    """Give all processes the tensors of the first, in place; tells which differed, and in which processes."""
    own = {name: digest_of(tensor) for name, tensor in tensors.items()}
    found = group.gather_values(own)
    unequal = {
        name: [m for m, other in zip(group.members, found, strict=True) if other[name] != found[0][name]]
        for name in own
    }
    unequal = {name: members for name, members in unequal.items() if members}
    for name in unequal:
        tensor = tensors[name]
        value = tensor.detach().clone(memory_format=torch.contiguous_format)
        tensor.detach().copy_(group.broadcast(value, group.members[0]))
    return unequal
