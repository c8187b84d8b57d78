"""Looking inside compiled models: where values stop being finite, where they differ from eager mode, TensorBoard."""

from poptorch.debug.comparison import Comparison, ComparisonRow, compareWithEager
from poptorch.debug.non_finite import NonFinite, findNonFinite
from poptorch.debug.tensorboard import AnchorWriter

__all__ = ["AnchorWriter", "Comparison", "ComparisonRow", "NonFinite", "compareWithEager", "findNonFinite"]
