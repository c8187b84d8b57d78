"""The IPU Model: what a program would cost in cycles and memory on real IPUs."""

from poptorch.ipu_model.advice import Advice, advise
from poptorch.ipu_model.architecture import ARCHITECTURES, Architecture, architecture
from poptorch.ipu_model.estimation import estimate
from poptorch.ipu_model.result import Estimate

__all__ = ["ARCHITECTURES", "Advice", "Architecture", "Estimate", "advise", "architecture", "estimate"]
