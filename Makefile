# `make` alone lists the targets. Everything lives in this directory; only `servers` installs Debian packages, and
# fetches servers that Debian's release does not have into a cache (tests/support/fetching.py).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV := .venv
VENV_APS310 := .venv-aps310
VENV_FLOORS := .venv-floors
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-warn-script-location

# Which Python to build the environments with: make PYTHON=python3.13 setup
export PYTHON
# More arguments for pytest: make test ARGS="-k postgres -x"
ARGS ?=
# More arguments for the fault suite: make faults FAULTS_ARGS="--minutes 5 --only kill --store redis"
FAULTS_ARGS ?=
# How many processes run the tests, each with servers of its own
JOBS ?= 2
PYTEST := -m pytest -n $(JOBS) --dist loadfile
# More arguments for the simulation: make simulate SIMULATE_ARGS="--hours 24 --kind elections --seed 7"
SIMULATE_ARGS ?=
# More arguments for the benchmark: make bench BENCH_ARGS="--quick --only redis,latency"
BENCH_ARGS ?=
# More arguments for the demo
DEMO_ARGS ?=
# What the demo's locks are on: a file, or a private server that lives as long as the demo
STORE ?= sqlite
STORES := sqlite postgres mariadb mysql redis redis-quorum mongodb
PRIVATE := $(filter-out sqlite,$(STORE))
# What of that is a Debian package, and what is fetched into the cache: MongoDB's is a package of Python's
SERVER := $(filter mariadb,$(PRIVATE))
FETCHED := $(filter postgres mysql redis,$(PRIVATE:redis-quorum=redis))

ifneq ($(filter demo,$(MAKECMDGOALS)),)
ifeq ($(findstring :$(or $(STORE),sqlite):,$(STORES:%=:%:)),)
$(error unknown STORE=$(STORE); choose one of: $(STORES))
endif
endif

.PHONY: help setup servers servers-all demo test test-apscheduler-3.10 test-floors faults simulate bench check format docs docs-serve clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  make demo STORE=redis       the demo on a private server: $(filter-out sqlite,$(STORES))'

setup: $(VENV)/.setup ## create .venv with everything that needs no compiler

servers: setup ## bring the servers that `make test` needs, those that are missing: Debian packages, and a cache
	@scripts/install-servers.sh $(BIN)/python
	@$(BIN)/python -m tests.support.fetching

servers-all: setup ## bring all servers and Pythons that the tests know
	@scripts/install-servers.sh $(BIN)/python all
	@$(BIN)/python -m tests.support.fetching --all

demo: $(VENV)/.demo$(if $(PRIVATE),-private) ## run the demo: three replicas, one of them killed (DEMO_ARGS=..., STORE=...)
	@$(if $(SERVER),scripts/install-servers.sh $(BIN)/python $(SERVER))
	@$(if $(FETCHED),$(BIN)/python -m tests.support.fetching $(FETCHED))
	@$(BIN)/python -m examples.demo $(if $(PRIVATE),--private '$(PRIVATE)') $(DEMO_ARGS)

test: servers $(VENV)/.test ## run every test, with real servers (ARGS="-k name" for pytest)
	$(BIN)/python $(PYTEST) $(ARGS)

faults: servers $(VENV)/.test ## try to break the promises for half an hour, and rewrite the table in docs/reliability.md
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

simulate: $(VENV)/.setup ## simulate a year without servers, try the mutants, and rewrite its section of docs/reliability.md
	$(BIN)/python -m tests.simulation $(SIMULATE_ARGS)

bench: servers $(VENV)/.bench ## measure it beside the floor and other packages, and rewrite docs/benchmarks.md (a quarter of an hour)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

test-apscheduler-3.10: servers $(VENV_APS310)/.test ## run the APScheduler tests on APScheduler 3.10.4
	$(VENV_APS310)/bin/python $(PYTEST) tests/apscheduler $(ARGS)

# What meets the packages of the extras. Not those tests that quote the words of newer releases of click.
FLOORS_TESTS := tests/core/test_versions.py tests/contract/test_sqlite.py \
	$(foreach class,TestUrl TestAsyncUrl,tests/contract/test_redis.py::$(class) tests/contract/test_mongodb.py::$(class)) \
	tests/apscheduler tests/observability \
	$(foreach name,main run run_once_per manage show screens watch doctor,tests/cli/test_$(name).py) \
	--deselect tests/cli/test_main.py::test_a_mistake_is_one_line \
	--deselect tests/cli/test_run.py::test_a_mistake_is_one_line_with_a_hint

test-floors: servers $(VENV_FLOORS)/.test ## run the tests that meet them on the oldest packages that pyproject.toml allows
	$(VENV_FLOORS)/bin/python $(PYTEST) $(FLOORS_TESTS) $(ARGS)

check: setup ## ruff, ruff format --check and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: setup ## let ruff format and fix the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs ## build the documentation into site/ (open site/index.html)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.docs ## build it at each change, and serve it on http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --strict

clean: ## remove the environments and the caches
	rm -rf $(VENV) $(VENV_APS310) $(VENV_FLOORS) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.setup: pyproject.toml scripts/make-venv.sh
	@scripts/make-venv.sh $(VENV)
	@echo "==> installing the development tools into $(VENV) (about a minute)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[all]' --group lint --group test --group demo --group docs
	@touch $(VENV)/.demo $(VENV)/.demo-private $(VENV)/.docs $@

$(VENV)/.demo: pyproject.toml scripts/make-venv.sh
	@scripts/make-venv.sh $(VENV)
	@echo "==> installing what the demo needs into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[all]' --group demo
	@touch $@

$(VENV)/.demo-private: pyproject.toml scripts/make-venv.sh
	@scripts/make-venv.sh $(VENV)
	@echo "==> installing what the demo needs for private servers into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[all]' --group demo --group demo-private
	@touch $(VENV)/.demo $@

$(VENV)/.docs: pyproject.toml scripts/make-venv.sh
	@scripts/make-venv.sh $(VENV)
	@echo "==> installing what the documentation needs into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[all]' --group docs
	@touch $@

$(VENV)/.test: $(VENV)/.setup | servers
	@echo "==> building mysqlclient"
	@$(BIN)/python $(PIP_INSTALL) --group test-native
	@touch $@

# redlock-ng and mithril-locks ask for an older redis-py than the one we test with; they work with it all the same.
$(VENV)/.bench: $(VENV)/.test | servers
	@echo "==> installing what the benchmark compares with"
	@$(BIN)/python $(PIP_INSTALL) -e '.[all]' --group bench
	@$(BIN)/python $(PIP_INSTALL) --no-deps 'redlock-ng>=2' 'mithril-locks>=0.1' || echo "==> without redlock-ng and mithril-locks"
	@touch $@

# pkg_resources, which APScheduler 3.10 imports, left setuptools in version 81.
$(VENV_APS310)/.test: pyproject.toml scripts/make-venv.sh
	@scripts/make-venv.sh $(VENV_APS310)
	@echo "==> installing APScheduler 3.10.4 and the tests' tools into $(VENV_APS310) (about a minute)"
	@$(VENV_APS310)/bin/python $(PIP_INSTALL) -e '.[all]' 'apscheduler==3.10.4' 'setuptools<81' --group test
	@touch $@

$(VENV_FLOORS)/.test: pyproject.toml scripts/make-venv.sh scripts/floors.py
	@scripts/make-venv.sh $(VENV_FLOORS)
	@echo "==> installing the oldest packages that pyproject.toml allows and the tests' tools into $(VENV_FLOORS) (about a minute)"
	@$(VENV_FLOORS)/bin/python scripts/floors.py > $(VENV_FLOORS)/floors.txt
	@$(VENV_FLOORS)/bin/python $(PIP_INSTALL) -e '.[all]' 'setuptools<81' --group test --constraint $(VENV_FLOORS)/floors.txt
	@touch $@
