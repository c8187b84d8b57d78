"""``poptorch estimate script.py:function``: what a model would cost on IPUs."""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from poptorch.errors import Error, createPoptorchError
from poptorch.ipu_model import ARCHITECTURES, Estimate, estimate

_EXPECTED = (
    "It must return (model, options, *inputs), a dictionary with 'model', 'options', 'inputs' and for training "
    "'optimizer', or an estimate."
)


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("estimate", help="predict cycles, memory and latency of a model on IPUs")
    parser.add_argument("function", help=f"a function without arguments: script.py:function. {_EXPECTED}")
    parser.add_argument(
        "--arch",
        help=f"{', '.join(ARCHITECTURES)}; by default that of the virtual system (POPTORCH_SYSTEM), which is mk2",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KNOB=VALUE", help="say otherwise about the chip: clock=1.5e9"
    )
    parser.add_argument("--meta", action="store_true", help="call the function with meta as the default device")
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a page (.html), all figures (.json), a text (.txt) or a folder",
    )
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    try:
        knobs = dict(_knob(text) for text in chosen.set)
        with torch.device("meta") if chosen.meta else contextlib.nullcontext():
            found = _estimate(_function(chosen.function)(), chosen.arch, knobs)
    except Error as why:
        print(why, file=sys.stderr)
        return 2
    print(json.dumps(found.to_dict(), indent=2) if chosen.json else found)
    if chosen.report is not None:
        try:
            written = found.save(chosen.report, chosen.function.rpartition(":")[2])
        except (Error, OSError) as why:
            print(why, file=sys.stderr)
            return 2
        print(f"Report: {written}", file=sys.stderr)
    return 0 if found.fits else 1


def _knob(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or number != number:
        raise createPoptorchError(f"--set {text}: expected a knob and a number, such as clock=1.5e9.")
    return name, int(number) if number.is_integer() else number


def _function(text: str) -> Any:
    """The function in a script; the script runs as a module, not as a program."""
    file, _, name = text.rpartition(":")
    if not file or not name:
        raise createPoptorchError(f"{text!r} names no function: write script.py:function.")
    if not Path(file).is_file():
        raise createPoptorchError(f"There is no file {file}.")
    sys.path.insert(0, str(Path(file).resolve().parent))
    function = runpy.run_path(file).get(name)
    if not callable(function):
        raise createPoptorchError(f"{file} has no function {name}.")
    return function


def _estimate(made: Any, arch: str | None, knobs: dict[str, Any]) -> Estimate:
    if isinstance(made, Estimate):
        return made
    if isinstance(made, tuple) and made:
        return estimate(*made, arch=arch, **knobs)
    if isinstance(made, Mapping) and "model" in made:
        inputs = made.get("inputs", ())
        return estimate(
            made["model"],
            made.get("options"),
            *(inputs if isinstance(inputs, (tuple, list)) else (inputs,)),
            optimizer=made.get("optimizer"),
            keywords=made.get("keywords"),
            arch=arch,
            **knobs,
        )
    raise createPoptorchError(f"The function returned a {type(made).__name__}. {_EXPECTED}")
