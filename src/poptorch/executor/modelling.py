"""The IPU Model in the executor: which chip it describes, what it says of a program, and its memory verdict."""

from __future__ import annotations

import dataclasses

from poptorch import environment
from poptorch._logging import logger
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.request import CompileRequest, is_offline, uses_ipu_model
from poptorch.errors import Error, createPoptorchError
from poptorch.ipu_model.architecture import ARCHITECTURES, DEFAULT, Architecture, architecture
from poptorch.ipu_model.estimation import estimate_program
from poptorch.ipu_model.page import verdict
from poptorch.ipu_model.result import Estimate
from poptorch.ipu_model.trials import Bench
from poptorch.options import Options
from poptorch.options.engine import engine_options, is_true

_SMALL_TILES = 4
_OFFLINE = {1: "mk1", 2: "mk2", 21: "c600"}
_ALLOW = "debug.allowOutOfMemory"


def chip_for(options: Options) -> Architecture:
    """The IPUs that a program is for: of the IPU Model, of an offline target, or of this machine's virtual system."""
    if uses_ipu_model(options):
        version = environment.ipu_model_version().rpartition(":")[2]
        small = not options.exists("use_model") and environment.ipu_model_request().small
        known = version in ARCHITECTURES or version.startswith("ipu")
        return architecture(version if known else DEFAULT, **({"tiles": _SMALL_TILES} if small else {}))
    if is_offline(options):
        return architecture(_OFFLINE.get(int(options.ipu_version), DEFAULT))
    return architecture()


def estimate_for(device: DeviceProgram, options: Options, request: CompileRequest | None = None) -> Estimate:
    """What a compiled program costs on its IPUs; with what it was compiled from, changes can be tried."""
    chip = chip_for(options)
    found = estimate_program(device, chip)
    return found if request is None else dataclasses.replace(found, bench=Bench(request, chip))


def give_verdict(device: DeviceProgram, options: Options, request: CompileRequest | None = None) -> Estimate | None:
    """Say what does not fit: a warning, or an error if the engine options forbid to go on.

    A program that the model cannot describe still runs: that is a warning, and there is no estimate.
    """
    try:
        found = estimate_for(device, options, request)
    except Error as why:
        logger.warning("The IPU Model has no estimate of this program: %s", why)
        return None
    if found.fits:
        return found
    lines = [line for ipu in found.ipus if not ipu.fits for line in verdict(ipu)]
    lines += [f"Suggestion: {text}" for text in found.suggestions()]
    text = "\n".join(lines)
    if not _may_exceed(options):
        raise createPoptorchError(
            f"The model does not fit on its IPUs, and {_ALLOW} is false. {text}\nRun without that engine option to go "
            "on all the same."
        )
    logger.warning("%s", text)
    return found


def _may_exceed(options: Options) -> bool:
    """What the engine options say about programs that do not fit."""
    return is_true(engine_options(options), _ALLOW, True)
