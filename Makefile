# Every target sets up what it needs in .venv; nothing outside this folder is touched.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SHELL := /bin/bash -o pipefail
# Python keeps the modules that it has compiled, so that the many processes of the tests start sooner.
export PYTHONDONTWRITEBYTECODE :=
# The Spark engine (PySpark, 450 MB) is tested where there is a Java to run it.
TEST_EXTRAS := test$(shell command -v java >/dev/null 2>&1 && echo ,spark)
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard lowrank/kernels/src/*)

# Installs into .venv, showing each download and each file that is compiled; the whole log is kept.
define install
$(PIP) install --verbose $(1) 2>&1 | tee $(VENV)/install.log \
	| sed -unE 's/^ *(Downloading [^ ]+ \(.*\))$$/   \1/p; s/^ *(\[[0-9]+\/[0-9]+\]) (Building|Linking) .*\/([^ ]+)$$/   \1 \2 \3/p' \
	|| { tail -n 30 $(VENV)/install.log; echo "The installation failed; $(VENV)/install.log has all of its output."; exit 1; }
endef

# Prints a command as one would type it, then runs it with tables, as on a terminal.
show = echo; echo "\$$ $(subst ",\",$(1))"; RECSYS_FORMAT=table PATH="$(CURDIR)/$(BIN):$$PATH" $(1)
, := ,

.PHONY: help demo test coverage sanitize faults debian fuzz service bench bench-gate bench-full docs dist wheel smoke clean

help:  ## List the targets
	@grep -E '^[a-z -]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with make PYTHON=..."; exit 1; }
	@echo "== Creating a virtual environment in $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(BUILD_INPUTS)
	@echo "== Installing the package and compiling its kernels into $(VENV)"
	@$(call install,--editable .)
	@touch $@

$(VENV)/.installed-test: $(BIN)/python $(BUILD_INPUTS)
	@echo "== Installing the package and the test tools, and compiling the kernels, into $(VENV)"
	@$(call install,--editable '.[$(TEST_EXTRAS)]')
	@touch $(VENV)/.installed $@

demo: $(VENV)/.installed  ## Fit a model on the sample data and recommend with it
	@$(call show,recsys fit data --out demo-model --force)
	@$(call show,recsys recommend demo-model --user 1089)
	@$(call show,recsys similar demo-model --title "The Good$(,) the Bad and the Ugly")
	@echo; echo "The saved model is in $(CURDIR)/demo-model."
	@echo "To go on: . $(VENV)/bin/activate; recsys info demo-model"

test: $(VENV)/.installed-test  ## Run every check: ruff, mypy, pytest with doctests
	@echo "== Kernels: $$($(BIN)/python -c 'from lowrank import kernels; print(kernels.backend())')"
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@command -v java >/dev/null 2>&1 && $(BIN)/python -c 'import pyspark' 2>/dev/null \
		&& echo "== The tests of the Spark engine run: there are PySpark and a Java" \
		|| echo "== The tests of the Spark engine are skipped: no Java on the PATH, or no PySpark in $(VENV)"
	@echo "== pytest in three processes, as some tests wait for Spark, a service or a lock; mypy in what they leave"
	@nice $(BIN)/mypy > $(VENV)/mypy.log 2>&1 & types=$$!; \
		OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 \
		$(BIN)/python -m pytest --numprocesses 3; tests=$$?; \
		wait $$types || { echo "== mypy"; cat $(VENV)/mypy.log; exit 1; }; exit $$tests

$(VENV)/.installed-docs: $(BIN)/python $(BUILD_INPUTS)
	@echo "== Installing the package and the documentation tools into $(VENV)"
	@$(call install,--editable '.[docs]')
	@touch $(VENV)/.installed $@

docs: $(VENV)/.installed-docs  ## Build the documentation into build/site; runs the notebooks
	@echo "== Building the pages; notebooks that changed are run first and keep their outputs (two minutes the first time)"
	@$(BIN)/python docs/pages.py
	@$(BIN)/zensical build --config-file mkdocs.yml --strict --clean
	@$(BIN)/python docs/links.py build/site
	@echo "The documentation is in $(CURDIR)/build/site; open index.html."
	@echo "Its search needs a server: $(BIN)/python -m http.server --directory build/site"

coverage: $(VENV)/.installed-test  ## Run the tests and list the lines that they do not reach
	@$(BIN)/python -m pytest --cov

sanitize: $(VENV)/.installed-test  ## Run kernels, random lives and mutated models under sanitizers (half an hour)
	@tests/sanitize.sh

faults: $(VENV)/.installed-test  ## Let each write, rename, fsync and allocation fail, and the power after each (minutes)
	@RECSYS_FAULTS=all $(BIN)/python -m pytest -o faulthandler_timeout=0 -s -q tests/faults

debian: $(VENV)/.installed-test  ## Run the steps of compose.yaml as services of a user, in a Debian folder (root, minutes)
	@sh tests/debian.sh build/debian
	@$(BIN)/python -m pytest -o faulthandler_timeout=0 -q -s tests/test_debian.py

$(VENV)/.installed-fuzz: $(VENV)/.installed-test
	@$(PIP) --quiet install atheris || echo "There is no atheris for this Python: seeds are changed at random."
	@touch $@

fuzz: $(VENV)/.installed-fuzz  ## Fuzz each reader of bytes from outside for SECONDS (60)
	@$(BIN)/python tests/fuzz/run.py $(or $(SECONDS),60)

$(VENV)/.installed-service: $(VENV)/.installed-test
	@$(PIP) --quiet install schemathesis
	@touch $@

service: $(VENV)/.installed-service  ## Send 10,000 hostile requests to the service, and those of schemathesis (minutes)
	@RECSYS_FUZZ_EXAMPLES=10000 $(BIN)/python -m pytest -o faulthandler_timeout=0 -s -q tests/fuzz/test_service.py
	@RECSYS_FUZZ_EXAMPLES=300 $(BIN)/python -m pytest -o faulthandler_timeout=0 -s -q tests/fuzz/test_openapi.py

bench: $(VENV)/.installed-test  ## Run the benchmarks (minutes); see benchmarks/README.md
	@$(BIN)/python benchmarks/run.py

# Peers that need other versions of NumPy than this package have environments of their own. The newest releases of
# some need a newer Python, too: LensKit 2026 needs 3.12.5, for example.
PEERS_PYTHON ?= $(shell for p in python3.13 python3.12 $(PYTHON); do \
	$$p -c '' 2>/dev/null && { echo $$p; break; }; done)
newer := lenskit features sequences
peer = $(VENV)/peers/$(1)/bin/python

$(VENV)/peers/%/.installed: $(BIN)/python $(BUILD_INPUTS)
	@python="$(if $(filter $*,$(newer)),$(PEERS_PYTHON),$(BIN)/python)"; \
		echo "== Installing the peers into $(@D) with $$($$python --version): $($*)"; \
		$$python -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install $($*)
	@touch $@

$(VENV)/peers/ours/.installed: $(shell find lowrank recsys -name '*.py')
ours := '.[plot,serve,spark,sql]' gensim bm25s
surprise := 'numpy<2' scikit-surprise
lenskit := lenskit ranx
ranx := ranx
features := cmfrec lightfm-next myfm
sequences := 'rectools[torch]'
peers := surprise $(newer)

bench-full: $(patsubst %,$(VENV)/peers/%/.installed,ours $(peers))  ## Run all benchmarks next to the peers (two hours, 20 GB), into build/bench-full.md
	@PEERS_PYTHON="$(subst $() ,:,$(foreach name,$(peers),$(CURDIR)/$(call peer,$(name))))" \
		$(call peer,ours) benchmarks/run.py --full --out build/bench-full.md $(BENCH)
	@echo "The results are in $(CURDIR)/build/bench-full.md"

# One thread, as idle ones would wait on the processor.
bench-gate: $(VENV)/peers/ours/.installed $(VENV)/peers/ranx/.installed  ## Compare ratios to peers with stored figures, and run each benchmark once on tiny data (minutes)
	@PEERS_PYTHON="$(CURDIR)/$(call peer,ranx)" $(call peer,ours) benchmarks/gate.py; pace=$$?; \
		mkdir -p build; echo "== Each section of bench-full once, on tiny data"; \
		OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(call peer,ours) benchmarks/run.py --tiny \
			> build/bench-tiny.md 2> build/bench-tiny.log || { tail -n 40 build/bench-tiny.log; exit 1; }; \
		exit $$pace

dist wheel: $(BIN)/python  ## Build an sdist, and a wheel from it, into dist/
	@echo "== Building into dist/"
	@$(PIP) --quiet install build
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . > $(VENV)/build.log 2>&1 \
		|| { cat $(VENV)/build.log; exit 1; }
	@ls dist

smoke: dist  ## Install each file of dist/ in an empty environment and try it
	@$(BIN)/python tests/smoke.py dist/*

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist demo-model .pytest_cache .mypy_cache .ruff_cache .hypothesis
