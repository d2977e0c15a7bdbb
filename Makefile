# Flambeau: `make help` lists the targets. Each makes the environment it needs in $(VENV) (see tools/environment.py);
# once that is there nothing below needs the network.

PYTHON ?= python3
VENV ?= .venv
# The share of derived tests in the quick tier; every op keeps one. `make test-all` takes them all.
FRACTION ?= 0.1
ARGS ?=

RUN := $(VENV)/bin/python
ENVIRONMENT := $(PYTHON) tools/environment.py --into $(VENV)
# Packages installed for another interpreter, and settings of the calling shell, must not reach what runs here.
CLEAN := env -u PYTHONPATH -u PYTHONHOME -u PYTEST_ADDOPTS

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sort | awk 'BEGIN {FS = ":.*## "} {printf "  make %-10s %s\n", $$1, $$2}'
	@echo
	@echo "  PYTHON=python3   interpreter the environment is made from (3.11 or newer)"
	@echo "  ARGS='...'       further arguments for pytest or the benchmarks, as in make test ARGS='-k gemm'"

demo:  ## show what Flambeau does, on small models
	@$(ENVIRONMENT) demo weights
	@$(CLEAN) $(RUN) -m flambeau.tools.demo

test:  ## run the quick tests: a seeded tenth of the derived ones, none of the slow
	@$(ENVIRONMENT) test
	@$(CLEAN) FLAMBEAU_TEST_FRACTION=$(FRACTION) $(RUN) -m pytest -m "not slow and not parity" $(ARGS)

test-all:  ## run every test but those that need PyTorch
	@$(ENVIRONMENT) test weights
	@$(CLEAN) FLAMBEAU_TEST_FRACTION=1 $(RUN) -m pytest -m "not parity" $(ARGS)

lint:  ## check style (ruff), layers and files
	@$(ENVIRONMENT) lint
	@$(RUN) -m ruff check --quiet --output-format concise .
	@$(RUN) tools/check_layers.py
	@$(RUN) tools/check_files.py

bench:  ## time the workloads in benchmarks/, side by side with PyTorch
	@$(ENVIRONMENT) demo torch
	@$(CLEAN) $(RUN) benchmarks/run.py $(ARGS)

clean:  ## delete the environments and all that was made in the tree
	rm -rf .venv .venv-parity .venv.lock .venv-parity.lock build dist .cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
