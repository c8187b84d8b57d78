"""PopDist for TensorFlow: there to say that it is not."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["set_ipu_config"]


def set_ipu_config(cfg: Any, ipus_per_replica: int = 1, configure_device: bool = True) -> NoReturn:
    """There is no TensorFlow for IPUs here."""
    raise RuntimeError(
        "popdist.tensorflow.set_ipu_config: there is no TensorFlow for IPUs in this environment, which runs PyTorch "
        "programs only. These use popdist.poptorch.Options."
    )
