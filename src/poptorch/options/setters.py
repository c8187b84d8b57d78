"""The classes that carry the generated setters; ``setters.pyi`` describes them to type checkers."""

from poptorch.options.generation import make_setters
from poptorch.options.table import rows_of

OptionsSetters = make_setters("OptionsSetters", rows_of("Options"))
TrainingSetters = make_setters("TrainingSetters", rows_of("Training"))
PrecisionSetters = make_setters("PrecisionSetters", rows_of("Precision"))
TensorLocationSetters = make_setters("TensorLocationSetters", rows_of("TensorLocations"))
DistributedSetters = make_setters("DistributedSetters", rows_of("Distributed"))
JitSetters = make_setters("JitSetters", rows_of("Jit"))
PopartSetters = make_setters("PopartSetters", rows_of("_Popart"))
TensorLocationSettingsSetters = make_setters(
    "TensorLocationSettingsSetters", rows_of("TensorLocationSettings")
)
