# Two commands for a newcomer: `make train` (a policy learns in real sandboxes) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
RUN ?= runs/quickstart-$(shell date +%Y%m%d-%H%M%S)

# A laptop has few cores; OpenMP threads that spin while they wait would starve the engine and the trainer of each other.
export OMP_WAIT_POLICY = PASSIVE

.PHONY: help train test soak lint bench clean

help:
	@echo "make train   install what is needed and train the quick-start policy (SEED=0 RUN=$(RUN))"
	@echo "make test    install and run linters, type checks, the import contract and the tests"
	@echo "make soak    the long tests, whole"
	@echo "make lint    ruff, mypy and the import contract alone"
	@echo "make bench   the benchmarks, one JSON object each; fails when one misses a target"
	@echo "make clean   remove the virtual environment and the caches; runs stay"

train: $(VENV)/.train
	$(BIN)/glmgym train quickstart --out $(RUN) --set seed=$(SEED)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -rs

soak: $(VENV)/.dev
	OMP_NUM_THREADS=1 GLMGYM_SOAK=1 $(BIN)/python -m pytest -rs -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	@missed=; for name in sandbox env rollout engine trainer; do \
		echo "== $$name"; $(BIN)/python benchmarks/$$name.py --json || missed="$$missed $$name"; \
	done; [ -z "$$missed" ] || { echo "short of a target, or could not run:$$missed"; exit 1; }

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "glmgym needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; } # half of one, without pip, would pass for done

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train,dev]'
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[reasoning]' || { \
		echo "the tests of reasoning-gym will not run: one of its dependencies needs a C compiler"; [ "$$CI" != true ]; }
	$(BIN)/python -m pip install -q --no-deps miniwob==1.1.0 # its pages; the driver that it depends on is not used
	touch $@ $(VENV)/.train
