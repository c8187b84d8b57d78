"""The options system in one screen: chaining, groups, files, validation and freezing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import poptorch


def refused(call: str, action) -> None:
    """Show what a mistake looks like."""
    try:
        action()
    except (AssertionError, AttributeError, ValueError, poptorch.Error) as error:
        print(f"  {call}\n    {type(error).__name__}: {str(error).splitlines()[0]}")
    else:
        raise SystemExit(f"{call} should have been refused")


def main() -> None:
    """Build options in the three ways that programs do, and show what they hold."""
    options = poptorch.Options().deviceIterations(4).replicationFactor(2)
    options.Training.gradientAccumulation(8)
    options.outputMode(poptorch.OutputMode.Final)

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "tuned.conf"
        file.write_text("# a file changes only what it mentions\ndeviceIterations(16)\n")
        options.loadFromFile(str(file))

    print(f"poptorch {poptorch.__version__}, IPUs of generation {poptorch.ipuHardwareVersion()}")
    print("\nWhat a model would be compiled with:")
    for key in ("device_iterations", "replication_factor", "gradient_accumulation", "output_mode"):
        print(f"  {key} = {options.toDict()[key]}")

    print("\nMistakes are told apart at once:")
    refused("options.deviceIterations('four')", lambda: options.deviceIterations("four"))
    refused("options.deviceIteration", lambda: options.deviceIteration)
    refused("poptorch.setLogLevel('loud')", lambda: poptorch.setLogLevel("loud"))


if __name__ == "__main__":
    main()
