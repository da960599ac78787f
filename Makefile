# Every target sets up what it needs in .venv; nothing outside this folder is touched.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The Spark engine (PySpark, 450 MB) is tested where there is a Java to run it.
TEST_EXTRAS := test$(shell command -v java >/dev/null 2>&1 && echo ,spark)
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard lowrank/kernels/src/*)

# Prints a command as one would type it, then runs it with tables, as on a terminal.
show = echo; echo "\$$ $(subst ",\",$(1))"; RECSYS_FORMAT=table PATH="$(CURDIR)/$(BIN):$$PATH" $(1)
, := ,

.PHONY: help demo test coverage bench docs wheel clean

help:  ## List the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with make PYTHON=..."; exit 1; }
	@echo "== Creating a virtual environment in $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(BUILD_INPUTS)
	@echo "== Installing the package and compiling its kernels into $(VENV) (about a minute)"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "== Installing the test tools into $(VENV)"
	@$(PIP) install --editable '.[$(TEST_EXTRAS)]'
	@touch $@

demo: $(VENV)/.installed  ## Fit a model on the sample data and recommend with it
	@$(call show,recsys fit data --out demo-model --force)
	@$(call show,recsys recommend demo-model --user 1089)
	@$(call show,recsys similar demo-model --title "The Good$(,) the Bad and the Ugly")
	@echo; echo "The saved model lies in $(CURDIR)/demo-model; see: recsys info demo-model"

test: $(VENV)/.installed-test  ## Run every check: ruff, mypy, pytest with doctests
	@echo "== Kernels: $$($(BIN)/python -c 'from lowrank import kernels; print(kernels.backend())')"
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy
	@command -v java >/dev/null 2>&1 && $(BIN)/python -c 'import pyspark' 2>/dev/null \
		&& echo "== The tests of the Spark engine run: there are PySpark and a Java" \
		|| echo "== The tests of the Spark engine are skipped: no Java on the PATH, or no PySpark in $(VENV)"
	@echo "== pytest"
	@$(BIN)/python -m pytest

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "== Installing the documentation tools into $(VENV)"
	@$(PIP) install --editable '.[docs]'
	@touch $@

docs: $(VENV)/.installed-docs  ## Build the documentation into build/site; runs the notebooks
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The documentation lies in $(CURDIR)/build/site; open index.html"

coverage: $(VENV)/.installed-test  ## Run the tests and list the lines that none of them reaches
	@$(BIN)/python -m pytest --cov=lowrank --cov=recsys --cov-report=term-missing:skip-covered

bench: $(VENV)/.installed-test  ## Run the benchmarks (minutes); see benchmarks/README.md
	@$(BIN)/python benchmarks/run.py

wheel: $(BIN)/python  ## Build a wheel into dist/
	@echo "== Building a wheel into dist/"
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@ls dist

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist demo-model .pytest_cache .mypy_cache .ruff_cache .hypothesis
