"""The tensors that a wrapped model returns."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from poptorch.errors import createPoptorchError


class DeviceTensor(torch.Tensor):
    """An ordinary tensor, except that ``backward()`` explains where the backward pass already happened."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Saved results must load where this package is not installed.
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).__deepcopy__(memo)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(self.as_subclass(torch.Tensor))

    def backward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: a training model's own program contains the backward pass."""
        raise createPoptorchError(
            "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, "
            "the backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, "
            "you should use a trainingModel instead."
        )
