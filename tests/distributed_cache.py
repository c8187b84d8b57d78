"""One process of a job whose code is compiled once: ``python distributed_cache.py <process> <processes> <folder>``."""

from __future__ import annotations

import sys

import poptorch
from distributed_cases import Case, Net, adamw
from poptorch.host import build


def main() -> None:
    process, processes, folder = sys.argv[1:]
    build.EXCHANGE_BYTES = 1

    def cached(options: poptorch.Options) -> None:
        options.enableExecutableCaching(f"{folder}/cache")

    found = Case(options=cached, optimizer=adamw, make=Net).train(int(process), int(processes))
    print("weights:", sum(value.double().sum().item() for name, value in found.items() if name.endswith("weight")))


if __name__ == "__main__":
    main()
