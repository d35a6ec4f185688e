# headrace: everything a newcomer types. `make help` lists it.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format wire bench compose-check lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The runtime and the development environment are one .venv; each stamp names the lock it was made from.
$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "headrace needs Python 3.11 or newer; none was found" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "headrace needs Python 3.11 or newer; $(PYTHON) is older. Say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON)" >&2
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/runtime.stamp: requirements/runtime.txt pyproject.toml | $(VENV)/bin/python
	@echo "installing the locked dependencies" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/runtime.txt >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . >&2
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/runtime.stamp
	@echo "installing the locked development dependencies" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/dev.txt >&2
	@touch $@

demo: $(VENV)/runtime.stamp ## the whole thing on this machine, then the failover ladder (ARGS="--once --json")
	@$(BIN)/headrace demo $(ARGS)

test: $(VENV)/dev.stamp ## the whole test suite, on real PostgreSQL and Redis (ARGS="-k name")
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/dev.stamp ## ruff, types, import rules, generated code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@PYTHON=$(BIN)/python fleet/wire/generate.sh --check

format: $(VENV)/dev.stamp ## rewrite sources in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

wire: $(VENV)/dev.stamp ## regenerate protobuf code
	@PYTHON=$(BIN)/python fleet/wire/generate.sh

bench: $(VENV)/dev.stamp ## what relaying costs, beside HAProxy
	@$(BIN)/python -m bench.relay $(ARGS)

compose-check: $(VENV)/dev.stamp ## docker-compose.yml: valid, and all that it names exists
	@$(BIN)/python deploy/compose_check.py

lock: ## resolve requirements/*.in again into hashed locks (wants uv)
	@uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-emit-index-url --no-header requirements/runtime.in -o requirements/runtime.txt
	@uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-emit-index-url --no-header -c requirements/runtime.txt requirements/dev.in -o requirements/dev.txt

clean: ## remove what was built, the environment included
	@rm -rf $(VENV) build dist *.egg-info
