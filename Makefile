# Two commands do everything on a fresh machine:  make demo   make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

INTEROP := .venv-interop
OLDEST  := .venv-oldest
NEWEST  := .venv-newest
MINIMAL := .venv-minimal
DOCS    := .venv-docs
RUNNERS := pytest pytest-timeout pytest-xdist hypothesis

.PHONY: help install demo demo-full test test-slow test-long test-faults test-gpu test-interop test-oldest test-newest test-minimal test-page docs lint format types clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(STAMP): pyproject.toml paper/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing nonloc and nonloc-paper into $(VENV); torch is the large part."
	$(PIP) -e '.[plots,graphs]' -e ./paper
	@echo "Done. The command is $(BIN)/nonloc; after 'source $(BIN)/activate' it is nonloc."
	@touch $@

$(VENV)/.tested: $(STAMP)
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.linted: $(VENV)/.tested
	$(PIP) -e '.[dev]'
	@touch $@

install: $(STAMP) ## Make the virtual environment with both distributions, and what running them needs

demo: $(STAMP) ## Train six small networks (under two minutes on two idle cores) and write demo/report.html
	$(BIN)/nonloc reproduce demo --output demo --seeds 1 --rows 1 3 4 5 6 7 --processes 2
	@echo "Open demo/report.html in a browser. Next: $(BIN)/nonloc explore, a page to touch with these networks."

demo-full: $(STAMP) ## Train all 17 networks of the demo, several seeds a row; goes on from what `make demo` did
	$(BIN)/nonloc reproduce demo --output demo --processes 2

test: $(VENV)/.tested ## Run the tests of both distributions, on all cores
	$(BIN)/python -m pytest -q -n auto

test-slow: $(VENV)/.tested ## Run the slow tests: memory at full size, the whole demo
	$(BIN)/python -m pytest -q -m slow --timeout 3600

test-long: $(VENV)/.tested ## Look for counter-examples: every property on 1,000 new examples
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q tests/properties tests/ops tests/processes paper/tests/theory --timeout 3600

test-faults: $(VENV)/.tested ## Break things on purpose: kill, flip bits, fill the disk, mistype; SEED= and SECONDS= for each
	PYTHONPATH=tests:paper/tests:paper/tests/training $(BIN)/python -m faults --seed $(or $(SEED),0) --seconds $(or $(SECONDS),60)

test-gpu: ## Run the tests that need a CUDA device, with the Python named by PYTHON=
	$(PYTHON) -m pytest -q -m gpu

$(INTEROP)/.installed: pyproject.toml constraints.txt constraints-interop.txt
	test -x $(INTEROP)/bin/python || $(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[test]' -e ./paper
	$(INTEROP)/bin/python -m pip install --disable-pip-version-check --no-deps -r constraints-interop.txt
	@touch $@

test-interop: $(INTEROP)/.installed ## Run the tests with other libraries, in an environment of their own; a skip fails
	$(INTEROP)/bin/python -m pytest -q -m interop tests/interop

$(OLDEST)/.installed: TORCH := torch==2.6.0
$(NEWEST)/.installed: TORCH := torch
$(OLDEST)/.installed $(NEWEST)/.installed: pyproject.toml paper/pyproject.toml constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	grep -vE '^(torch|triton|sympy)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --disable-pip-version-check -c $(@D)/constraints.txt $(TORCH) -e '.[plots,graphs]' -e ./paper scikit-image $(RUNNERS)
	@touch $@

test-oldest: $(OLDEST)/.installed ## Run the tests with the oldest torch that pyproject.toml allows
	$(OLDEST)/bin/python -m pytest -q -n auto

test-newest: $(NEWEST)/.installed ## Run the tests with the newest torch: some gigabytes, for it comes with CUDA
	$(NEWEST)/bin/python -m pytest -q -n auto

$(MINIMAL)/.installed: pyproject.toml constraints.txt
	test -x $(MINIMAL)/bin/python || $(PYTHON) -m venv $(MINIMAL)
	$(MINIMAL)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e . $(RUNNERS)
	@touch $@

test-minimal: $(MINIMAL)/.installed ## Run the tests of the library with torch and numpy alone
	$(MINIMAL)/bin/python -m pytest -q -n auto --minimal tests/nn tests/ops tests/processes tests/properties

$(VENV)/.paged: $(VENV)/.tested
	$(PIP) -e '.[page]'
	@touch $@

test-page: $(VENV)/.paged ## Run the explorer and reports in Chromium (Debian's package); screenshots go to build/
	command -v $(or $(CHROMIUM),chromium) > /dev/null || apt-get install -y chromium
	$(BIN)/python -m pytest -q -m page paper/tests/explorer paper/tests/report

$(DOCS)/.installed: pyproject.toml paper/pyproject.toml constraints.txt constraints-docs.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -c constraints-docs.txt -e '.[plots,graphs,docs]' -e ./paper
	@touch $@

docs: $(DOCS)/.installed ## Build the site into docs/_build/html, and run its tutorials; a warning is an error
	$(DOCS)/bin/python -m sphinx -q -E -n -W --keep-going -b html -c docs . docs/_build/html
	@echo "Open docs/_build/html/index.html"

lint: $(VENV)/.linted ## Check style and types, with tools that are installed here first
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(VENV)/.linted ## Rewrite the files in the house style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean: ## Remove what the commands above made, but no run folder
	rm -rf $(VENV) $(INTEROP) $(OLDEST) $(NEWEST) $(MINIMAL) $(DOCS) docs/_build docs/api .pytest_cache .mypy_cache .ruff_cache .hypothesis
