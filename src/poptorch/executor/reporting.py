"""Whether a compiled model gets a report. What writes it is imported only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from poptorch._logging import logger
from poptorch.errors import Error
from poptorch.options import Options
from poptorch.options.engine import engine_options, wants_report

if TYPE_CHECKING:
    from poptorch.ipu_model.result import Estimate
    from poptorch.report.recording import Reporter


def reporter_for(estimate: Callable[[], Estimate], options: Options, training: bool) -> Reporter | None:
    """What writes the report that the engine options ask for, in the first process of a job."""
    settings = engine_options(options)
    if not wants_report(settings) or options.Distributed.distributed_process_id:
        return None
    from poptorch.report.page import ReportWriter
    from poptorch.report.recording import Reporter

    default = "training" if training else "inference"
    try:
        found = estimate()
    except Error as why:
        logger.warning("There is no report of this model, because the IPU Model has no estimate of it: %s", why)
        return None
    name = str(options.model_name) if options.exists("model_name") else default
    return Reporter(found, name, settings, ReportWriter())
