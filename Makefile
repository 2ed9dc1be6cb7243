# `make` alone lists the targets. They install into .venv from the hashed lock files, on first use
# and when a lock file has changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test check lint lock e2e clients focus sql bench soak crash
.DEFAULT_GOAL := help

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## A simulated fleet, the gateway before it, some calls and what they cost
	@exec $(BIN)/weighbridge demo

# What depends on the driver runs with the other one too. The closing line is that of all runs (tests/lanes.py).
DATA_PATH := $(addprefix tests/integration/test_,bounds.py cut.py faces.py openai_schemas.py recorded_apis.py surfaces.py) tests/field

test: lint ## Lint, types and all tests that need no vLLM
	$(BIN)/python -m tests.lanes --all '-q -m "not e2e and not clients"' \
	  'tests/integration --ignore-glob=*/test_[a-h]*' \
	  'tests/integration --ignore-glob=*/test_[!a-h]*' \
	  'WEIGHBRIDGE_DRIVER=plain $(DATA_PATH)' \
	  'tests --ignore=tests/integration'

check: lint ## Lint, types and unit tests: under 2 minutes
	$(BIN)/python -m tests.lanes --all '-q -m "not integration and not e2e and not clients and not debian"' \
	  'tests/metering --ignore-glob=*/test_[a-f]*' 'tests/metering --ignore-glob=*/test_[!a-f]*' \
	  tests/gateway 'tests --ignore=tests/metering --ignore=tests/gateway'

e2e: $(VENV)/.dev ## A real vLLM on this machine's CPUs behind the gateway (4 GB, the first time 4 minutes more)
	$(BIN)/python -m tests.e2e.environment
	$(BIN)/python -m pytest -q -m e2e tests/e2e

clients: $(VENV)/.dev ## Client libraries, Python and JavaScript, before the gateway (800 MB, the first time 2 minutes more)
	$(BIN)/python -m tests.clients.environment
	WEIGHBRIDGE_DRIVER=plain $(BIN)/python -m pytest -q -m clients tests/clients
	$(BIN)/python -m pytest -q -m clients tests/clients

focus: $(VENV)/.dev ## Both FOCUS files before the public validator (900 MB, the first time half a minute more)
	$(BIN)/python -m tests.focus $(if $(SEED),--seed $(SEED))

sql: $(VENV)/.dev ## The page on SQL by Spark and in Athena's dialect (needs Java 17; 600 MB, the first time a minute more)
	$(BIN)/python -m tests.sql $(if $(SEED),--seed $(SEED))

bench: $(VENV)/.runtime ## CPU time and latency beside nginx, HAProxy, Envoy and other gateways (two cores, 15 minutes)
	$(BIN)/python -m tests.bench.install
	$(BIN)/python -m tests.bench

soak: $(VENV)/.runtime ## An hour of mixed load: memory flat, the loop never late, every call in the journal
	$(BIN)/python -m tests.bench.soak

crash: $(VENV)/.runtime ## Kills, power cuts, full disks and lost stores under load: nothing lost, doubled or altered (25 minutes)
	$(BIN)/python -m tests.crash $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(if $(MUTANT),--mutant $(MUTANT))

lint: $(VENV)/.dev
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

lock: $(VENV)/.dev ## Renew the lock files
	for each in "" -dev; do \
	  CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	    --build-deps-for editable --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    $${each:+--extra dev} --output-file requirements$$each.lock pyproject.toml || exit; \
	done
	cd tests/clients && CUSTOM_COMPILE_COMMAND="make lock" $(abspath $(BIN))/pip-compile --quiet --generate-hashes \
	  --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  --output-file requirements.lock requirements.in

# The project is installed in place, without its dependencies: those are the lock's.
$(VENV)/.runtime: requirements.lock pyproject.toml | $(BIN)/python
	@echo "installing from requirements.lock into $(VENV)" >&2
	@$(PIP_INSTALL) --require-hashes --requirement requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@echo "installing from requirements-dev.lock into $(VENV)" >&2
	@$(PIP_INSTALL) --require-hashes --requirement requirements-dev.lock
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
