"""``python -m poptorch.ipu_model.validate``: compare the IPU Model with published numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from poptorch.ipu_model.calibration import PLANNED_COMPUTE
from poptorch.ipu_model.validation.applications import APPLICATIONS, Application
from poptorch.ipu_model.validation.fitting import Scaled, fitted, knob_of, left_out, planned_share
from poptorch.ipu_model.validation.measurements import measurements
from poptorch.ipu_model.validation.tables import HEADER, Result, line, page, picture, summary

PAGE, PICTURE = "ipu-model-accuracy.md", "images/ipu-model-accuracy.svg"


def measured(only: str = "") -> list[Scaled | Result]:
    """Predictions of vertices, small programs and memory; with their knob, where they have one."""
    found: list[Scaled | Result] = []
    for it in measurements():
        if only in f"{it.group}: {it.name}":
            result = Result(it.group, it.name, it.unit, it.published, it.predict())
            knob = knob_of(result)
            found.append(result if knob is None else Scaled(result, knob, 1.0))
    return found


def applied(applications: Iterable[Application] = APPLICATIONS, only: str = "") -> list[Scaled]:
    """Predictions of throughputs."""
    found: list[Scaled] = []
    known: dict[object, tuple[float, float]] = {}
    for it in applications:
        if only not in f"application: {it.name}":
            continue
        if it.configuration not in known:
            estimate = it.estimate()
            known[it.configuration] = it.predicted(estimate), planned_share(estimate)
        predicted, share = known[it.configuration]
        name = f"{it.name} (row {it.row})"
        result = Result("application", name, "items/s", it.published, predicted, it.certainty)
        found.append(Scaled(result, PLANNED_COMPUTE, share))
    return found


def validate(only: str = "") -> list[Result]:
    """All cases whose names contain a text, with errors that do not know the case itself."""
    cases = [*measured(only), *applied(only=only)]
    by_knob: dict[str, list[Scaled]] = {}
    for case in cases:
        if isinstance(case, Scaled):
            by_knob.setdefault(case.knob.name, []).append(case)
    alone = {
        id(scaled): result for group in by_knob.values() for scaled, result in zip(group, left_out(group), strict=True)
    }
    return [alone[id(case)] if isinstance(case, Scaled) else case for case in cases]


def fits() -> list[str]:
    """The best value of every knob, as lines of text."""
    by_knob: dict[str, list[Scaled]] = {}
    for case in [*measured("memory"), *applied()]:
        if isinstance(case, Scaled):
            by_knob.setdefault(case.knob.name, []).append(case)
    return [f"{name}: {fitted(group):.3g} (is {group[0].knob.value:g})" for name, group in by_knob.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write the page of the documentation where that is asked for."""
    parser = argparse.ArgumentParser("python -m poptorch.ipu_model.validate", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names contain this text")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the page and its picture into this folder")
    parser.add_argument("--fit", action="store_true", help="print the best values of the knobs instead")
    chosen = parser.parse_args(arguments)
    if chosen.fit:
        print("\n".join(fits()))
        return 0
    results = validate(chosen.only)
    if not results:
        print(f"No case has {chosen.only!r} in its name.", file=sys.stderr)
        return 1
    print(HEADER, *(line(it) for it in results), "", *summary(results), sep="\n")
    if chosen.write is not None:
        (chosen.write / PICTURE).parent.mkdir(parents=True, exist_ok=True)
        (chosen.write / PICTURE).write_text(picture(results), encoding="utf-8")
        (chosen.write / PAGE).write_text(page(results, PICTURE), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
