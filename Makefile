# Two commands: `make up` serves, `make test` tests. Both install what they need into .venv and compile the engine once.
#
#   make up [PROFILE=demo]   install, build the engine if there is none, fetch a model that fits, serve
#   make setup               the first two of these only
#   make test                everything: checks, unit tests, tests with the real engine
#   make check               format, lint, types, layers, unit tests: under a minute, no engine
#   make plan-accuracy       planned against allocated memory: part of make test
#   make registry-tests      downloads, imports and bundles against a hub that misbehaves: part of make test
#   make fuzz [FUZZ_S=60]    hostile GGUF files: part of make test
#   make clients             agents and frameworks, configured by garra connect, without a network: 3 GB of downloads, root
#   make soak                the long random runs, in full
#   make bench               everything in benchmarks/: about half an hour
#   make lock                resolve pyproject.toml anew into the lock files

PYTHON ?= python3
BIN := .venv/bin
PROFILE ?=
FUZZ_S ?= 60

.PHONY: up setup test check unit registry-tests engine-tests plan-accuracy fuzz soak bench lock wheel clean

up: setup
	@$(BIN)/garra up $(PROFILE)

setup: .venv/run.stamp
	@$(BIN)/garra engine build --if-missing

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: garra needs Python 3.11 or newer, $(PYTHON) is older"; echo "  fix: make up PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: python3-venv is not installed"; echo "  fix: apt install python3-venv"; exit 2; }
	$(PYTHON) -m venv .venv

.venv/run.stamp: .venv/bin/python requirements.lock pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: .venv/run.stamp requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

test: check fuzz registry-tests engine-tests plan-accuracy

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_layers.py tests/unit

unit: .venv/dev.stamp
	$(BIN)/pytest -q tests/unit

registry-tests: .venv/dev.stamp
	$(BIN)/pytest -q tests/registry

engine-tests: .venv/dev.stamp setup
	$(BIN)/pytest -q tests/engine

plan-accuracy: .venv/dev.stamp setup
	@$(BIN)/garra pull demo
	$(BIN)/python -m benchmarks.plan_accuracy

fuzz: .venv/dev.stamp
	$(BIN)/python -m tests.hostile $(FUZZ_S) 1

soak: .venv/dev.stamp setup
	GARRA_TEST_SOAK=1 $(BIN)/pytest -q tests --timeout 3600

clients: .venv/dev.stamp setup
	@$(BIN)/garra pull demo
	$(BIN)/python -m tests.clients.agents $(CLIENTS)

bench: .venv/dev.stamp setup
	$(BIN)/python benchmarks/proxy_overhead.py
	$(BIN)/python benchmarks/swap_thrash.py
	$(BIN)/python benchmarks/swap_prompt.py
	$(BIN)/python benchmarks/steering.py
	$(BIN)/python benchmarks/hundred_clients.py
	$(BIN)/python benchmarks/download_beside.py
	$(BIN)/python benchmarks/compare_power.py

lock: .venv/bin/python
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header --extra build \
	  --group lock -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-annotate --no-header --extra build --extra dev \
	  --group lock -c requirements.lock -o requirements-dev.lock pyproject.toml

wheel: .venv/dev.stamp
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

clean:
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache
