# Two commands matter to a newcomer: `make train` and `make test`. Both make what they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOURCES := configs jacreg_train models scripts
INSTALLED := $(VENV)/.installed

.PHONY: help train test test-all check format bench bench-quick clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jacreg needs Python 3.11 or newer; name one with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,sweeps,reports]'
	touch $@

train: $(INSTALLED) ## train a penalised CNN on scikit-learn's digits (two minutes, first install included)
	$(BIN)/jacreg-train $(ARGS)

test: $(INSTALLED) ## the tests, without the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not slow' $(ARGS)

test-all: $(INSTALLED) ## every test, the long ones too
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

check: $(INSTALLED) ## format, lint and types
	$(BIN)/ruff format --check $(SOURCES) tests
	$(BIN)/ruff check $(SOURCES) tests
	$(BIN)/mypy $(SOURCES)

format: $(INSTALLED) ## rewrite the sources in the project's format
	$(BIN)/ruff format $(SOURCES) tests
	$(BIN)/ruff check --fix $(SOURCES) tests

bench: $(INSTALLED) ## the whole benchmark
	$(BIN)/python scripts/benchmark.py $(ARGS)

bench-quick: $(INSTALLED) ## a short form of it
	$(BIN)/python scripts/benchmark.py --quick $(ARGS)

clean: ## remove the environment and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
