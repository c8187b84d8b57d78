"""What one item of a data set is made of: the tensors in it, and the container around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from poptorch.arg_parsers import parser_for

Kind = Literal["tensor", "sequence", "mapping", "custom"]


@dataclass(frozen=True)
class ItemStructure:
    """The container of the first item; all later items must look the same.

    >>> structure = ItemStructure.of({"x": torch.ones(2), "y": torch.zeros(3)})
    >>> [tuple(t.shape) for t in structure.flatten({"y": torch.zeros(3), "x": torch.ones(2)})]
    [(2,), (3,)]
    >>> list(structure.rebuild([torch.ones(2), torch.zeros(3)]))
    ['x', 'y']
    """

    kind: Kind
    keys: tuple[Any, ...] = ()
    example: Any = None
    """The first item, for types that only their registered parser can rebuild."""

    @classmethod
    def of(cls, item: Any) -> ItemStructure:
        """Recognise the container of ``item``; a registered parser wins over the built-in containers."""
        if isinstance(item, torch.Tensor):
            return cls("tensor")
        if parser_for(type(item)) is not None:
            return cls("custom", example=item)
        if isinstance(item, Mapping):
            return cls("mapping", keys=tuple(item))
        if isinstance(item, (tuple, list)):
            return cls("sequence")
        raise TypeError(
            f"Tensor at index 0 is not a torch tensor: the data set yields {type(item).__name__}. Yield a "
            "tensor, "
            "a flat tuple, list or dict of tensors, or a type registered with "
            "poptorch.registerCustomArgParser."
        )

    def flatten(self, item: Any) -> list[torch.Tensor]:
        """The tensors of ``item`` in the order of the first item, each one fit for shared memory."""
        tensors = self._tensors_of(item)
        for index, tensor in enumerate(tensors):
            _check_tensor(tensor, self._place(index))
        return tensors

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The item that holds ``tensors``. Tuples come back as lists, which is part of the API."""
        if self.kind == "tensor":
            return tensors[0]
        if self.kind == "sequence":
            return list(tensors)
        if self.kind == "mapping":
            return dict(zip(self.keys, tensors, strict=True))
        parser = parser_for(type(self.example))
        if parser is None:
            raise TypeError(
                f"The parser for {type(self.example).__name__} was removed while its items were being "
                "loaded. "
                "Keep it registered (poptorch.registerCustomArgParser) for as long as the loader lives."
            )
        return parser.reconstruct(self.example, iter(tensors))

    def describe(self, index: int) -> str:
        """How messages call the tensor at ``index``.

        >>> ItemStructure("mapping", keys=("x", "label")).describe(1)
        "Tensor at index 1 ('label')"
        """
        return f"Tensor at {self._place(index)}"

    def _place(self, index: int) -> str:
        return f"index {index} ({self.keys[index]!r})" if index < len(self.keys) else f"index {index}"

    def _tensors_of(self, item: Any) -> list[Any]:
        if self.kind == "custom":
            parser = parser_for(type(item))
            if parser is None:
                raise TypeError(self._changed(item))
            return list(parser.yieldTensors(item))
        if self.kind == "mapping":
            if not isinstance(item, Mapping) or len(item) != len(self.keys) or any(k not in item for k in self.keys):
                raise TypeError(self._changed(item))
            return [item[key] for key in self.keys]
        if self.kind == "sequence":
            if not isinstance(item, (tuple, list)):
                raise TypeError(self._changed(item))
            return list(item)
        if not isinstance(item, torch.Tensor):
            raise TypeError(self._changed(item))
        return [item]

    def _changed(self, item: Any) -> str:
        first = f"a mapping with the keys {list(self.keys)}" if self.kind == "mapping" else f"a {self.kind}"
        now = f"a mapping with the keys {list(item)}" if isinstance(item, Mapping) else type(item).__name__
        return f"The first item of the data set was {first}, a later one is {now}. All items must look the same."


def _check_tensor(tensor: Any, place: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"Tensor at {place} is not a torch tensor but {type(tensor).__name__}: asynchronous loading "
            "takes flat "
            "containers of tensors. Convert it in the data set or in collate_fn, for instance with "
            "torch.as_tensor."
        )
    if tensor.requires_grad:
        raise ValueError(
            f"Tensor at {place} requires grad, and gradients cannot flow into another process. "
            "Call .detach() on it in the data set or in collate_fn."
        )
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(
            f"Tensor at {place} is a {tensor.layout} tensor on {tensor.device}: only dense CPU tensors can "
            "be "
            "loaded asynchronously. Convert it in the data set or in collate_fn."
        )
