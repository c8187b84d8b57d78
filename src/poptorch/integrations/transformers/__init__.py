"""Models of ``transformers`` on virtual IPUs: training, evaluation, pipelines and generation.

>>> from poptorch.integrations.transformers import IPUConfig
>>> IPUConfig(replication_factor=2, gradient_accumulation_steps=4).rows_per_update(micro_batch=3)
24
"""

from poptorch.integrations.requirements import require

require("transformers", "transformers", "accelerate")

from poptorch.integrations.transformers.config import IPUConfig  # noqa: E402
from poptorch.integrations.transformers.generation import IPUGenerator  # noqa: E402
from poptorch.integrations.transformers.inference import FixedShapes, pipeline  # noqa: E402
from poptorch.integrations.transformers.trainer import IPUTrainer  # noqa: E402
from poptorch.integrations.transformers.training_args import IPUTrainingArguments  # noqa: E402

__all__ = ["FixedShapes", "IPUConfig", "IPUGenerator", "IPUTrainer", "IPUTrainingArguments", "pipeline"]
