# Everything runs in .venv, which the first target that needs it creates; a second run finds the stamp and starts at once.
# Needs Python >= 3.11 with venv and pip, nothing else.

PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    := .venv
BIN     := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt

# Parallel test workers; one thread each, or they would fight for the cores, unless OMP_NUM_THREADS says otherwise.
# Each starts with its share of the files and takes tests from the end of another share when it has none left: no worker
# waits for another, and what the tests of a file share is made once.
WORKERS ?= auto
PARALLEL := -n $(WORKERS) --dist worksteal
OMP_NUM_THREADS ?= 1
PYTEST  := OMP_NUM_THREADS=$(OMP_NUM_THREADS) $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test check test-cpus exhaustive lint format bench scaling docs compatibility clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/ -/'

setup: $(VENV)/ready  ## create .venv and install the package with its tools

demo: $(VENV)/ready  ## a short program that shows what works today
	@$(BIN)/python $(firstword $(wildcard examples/demo.py) examples/options_demo.py)

test: $(VENV)/ready  ## all tests, and the examples in docstrings and documentation
	@$(PYTEST) -q $(PARALLEL) $(ARGS)

check: $(VENV)/ready  ## one test in twelve of those that are not slow: a cut through all rooms in some minutes
	@TEST_SAMPLE=12 $(PYTEST) -q $(PARALLEL) -m "not slow and not exhaustive" $(ARGS)

test-cpus: $(VENV)/ready  ## the tests as on other processors: scalar, AVX2 and AVX-512 code, one and two threads
	@PYTHON=$(BIN)/python scripts/test_cpus.sh $(PARALLEL) $(ARGS)

exhaustive: $(VENV)/ready  ## the zoo of architectures as native code, fuzzers of all parsers, a soak: more than an hour
	@$(PYTEST) -q $(PARALLEL) -m exhaustive $(ARGS)

lint: $(VENV)/ready  ## style and types, and how large each room is
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "make format writes what ruff format expects"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/python scripts/room_sizes.py

format: $(VENV)/ready  ## the layout of all source files
	@$(BIN)/ruff format .

bench: $(VENV)/ready  ## benchmarks against peers, ratios in one run; ARGS=--resume goes on with an interrupted one
	@$(BIN)/python bench/run.py $(ARGS)
	@$(BIN)/python scripts/generate_benchmark_table.py

scaling: $(VENV)/ready-report  ## cost against batch size, depth and micro-batches, with plots
	@$(BIN)/python bench/scaling.py $(ARGS)

docs: $(VENV)/ready-docs  ## the documentation, as a site in site/
	@$(BIN)/python scripts/generate_compatibility.py --check
	@$(BIN)/python scripts/generate_reference.py --check
	@$(BIN)/python scripts/generate_error_catalogue.py --check
	@$(BIN)/python scripts/generate_operations_table.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

compatibility: $(VENV)/ready  ## write what of the documentation is made from the code
	@$(BIN)/python scripts/generate_compatibility.py
	@$(BIN)/python scripts/generate_reference.py
	@$(BIN)/python scripts/generate_error_catalogue.py
	@$(BIN)/python scripts/generate_operations_table.py

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) ..."
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

$(VENV)/ready-docs: $(VENV)/ready
	@$(INSTALL) --no-build-isolation --editable '.[docs]'
	@touch $@

$(VENV)/ready-report: $(VENV)/ready
	@$(INSTALL) --no-build-isolation --editable '.[report]'
	@touch $@
