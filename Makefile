# Two commands do everything on a fresh machine:  make demo   make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help install demo test test-slow test-long test-gpu lint format types clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,analysis,test,dev]'
	@touch $@

install: $(STAMP) ## Make the virtual environment and install everything into it

demo: $(STAMP) ## Train the demo networks (a few minutes on two cores) and write demo/report.html
	$(BIN)/nonloc reproduce demo --output demo

test: $(STAMP) ## Run the ordinary tests, on all cores
	$(BIN)/python -m pytest -q -n auto

test-slow: $(STAMP) ## Run the long tests: kill -9 twenty times, memory at full size, the whole demo
	$(BIN)/python -m pytest -q -m slow --timeout 3600

test-long: $(STAMP) ## Look for counter-examples: every property on 1,000 new examples
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q tests/properties tests/ops tests/processes --timeout 3600

test-gpu: ## Run the tests that need a CUDA device, with whichever Python has torch
	$(PYTHON) -m pytest -q -m gpu

lint: $(STAMP) ## Style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(STAMP) ## Rewrite the files in the house style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean: ## Remove what the commands above made, but no run folder
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
