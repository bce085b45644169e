# `make` alone lists the targets. Everything lives in this directory; only `servers` installs Debian packages, and
# fetches servers that Debian's release does not have into a cache (tests/support/fetching.py).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
INSTALL := scripts/install.sh $(VENV)

# Which Python to build the environments with: make PYTHON=python3.13 setup
export PYTHON
# Tests and demo start hundreds of Python processes, and without its bytecode each compiles the package again
unexport PYTHONDONTWRITEBYTECODE
# More arguments for pytest: make test ARGS="-k postgres -x"
ARGS ?=
# More arguments for the fault suite: make faults FAULTS_ARGS="--minutes 5 --only kill --store redis"
FAULTS_ARGS ?=
# How many processes run the tests, each with servers of its own
# Most tests wait most of the time, so there are more processes than cores
JOBS ?= 6
PARALLEL = -n $(JOBS) --dist worksteal
# Quick tests wait less, and each process reads them all
quick: JOBS = 4
PYTEST = $(BIN)/python -m pytest $(PARALLEL)
# The tests in other environments, against the built wheel: tests/matrix/rows.py
MATRIX = -m tests.matrix '--parallel=$(PARALLEL)'
# More arguments for the simulation: make simulate SIMULATE_ARGS="--hours 24 --kind elections --seed 7"
SIMULATE_ARGS ?=
# More arguments for the release check: make release-check RELEASE_ARGS="--only build,readme"
RELEASE_ARGS ?=
# More arguments for the benchmark: make bench BENCH_ARGS="--quick --only redis,latency"
BENCH_ARGS ?=
# More arguments for the demo
DEMO_ARGS ?=
# What the demo's locks are on: a file, or a private server that lives as long as the demo
STORE ?= sqlite
STORES := sqlite postgres mariadb mysql redis redis-quorum mongodb etcd dynamodb s3
PRIVATE := $(filter-out sqlite,$(STORE))
# What of that is a Debian package, and what is fetched into the cache: MongoDB's is a package of Python's
SERVER := $(filter mariadb,$(PRIVATE))
FETCHED := $(filter postgres mysql redis etcd dynamodb s3,$(PRIVATE:redis-quorum=redis))

ifneq ($(filter demo,$(MAKECMDGOALS)),)
ifeq ($(findstring :$(or $(STORE),sqlite):,$(STORES:%=:%:)),)
$(error unknown STORE=$(STORE); choose one of: $(STORES))
endif
endif

.PHONY: help setup servers servers-full servers-all demo quick test test-full test-all test-apscheduler-3.10 test-django-newest test-floors faults simulate bench release-check project-url check format docs docs-tables docs-serve clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  make demo STORE=redis       the demo on a private server: $(filter-out sqlite,$(STORES))'

setup: $(VENV)/.test ## create .venv with what the tests need

servers: setup ## bring the servers that `make test` needs: Debian packages, and a cache for those of newer releases
	@scripts/install-servers.sh $(BIN)/python test
	@$(BIN)/python -m tests.support.fetching

servers-full: setup ## bring what `make test-full` needs, too: a browser, a compiler, the API server of Kubernetes (five minutes, once)
	@scripts/install-servers.sh $(BIN)/python full
	@$(BIN)/python -m tests.support.fetching --full

servers-all: setup ## bring all servers and Pythons that the tests know
	@scripts/install-servers.sh $(BIN)/python all
	@$(BIN)/python -m tests.support.fetching --all

demo: $(VENV)/.demo$(if $(PRIVATE),-private) ## run the demo: three replicas, one of them killed (DEMO_ARGS=..., STORE=...)
	@$(if $(SERVER),scripts/install-servers.sh $(BIN)/python $(SERVER))
	@$(if $(FETCHED),$(BIN)/python -m tests.support.fetching $(FETCHED))
	@$(BIN)/python -m examples.demo $(if $(PRIVATE),--private '$(PRIVATE)') $(DEMO_ARGS)

quick: $(VENV)/.test ## run the tests that need no server: 40 s, at each save
	$(PYTEST) --tier=quick $(ARGS)

test: servers ## run the tests that show each promise on each store, with real servers (ARGS="-k name" for pytest)
	$(PYTEST) --tier=test $(ARGS)

test-full: servers-full $(VENV)/.native ## run all tests but those of test-all: more drivers, long ones, the documentation's programs
	SHEDLOCK_TEST_KUBERNETES=1 $(PYTEST) --tier=full $(ARGS)

test-all: servers-all $(VENV)/.native ## run all tests on all drivers, servers, Pythons and APSchedulers, and write docs/tested-with.md (ARGS="--only redis")
	$(BIN)/python $(MATRIX) $(ARGS)

test-apscheduler-3.10: servers ## run the APScheduler tests on APScheduler 3.10.4: a row of test-all
	$(BIN)/python $(MATRIX) --only '^apscheduler-3.10$$' $(ARGS)

test-django-newest: servers ## run the Django tests on the newest Django, and on a Python that it supports: a row of test-all
	$(BIN)/python $(MATRIX) --only '^django-newest$$' $(ARGS)

test-floors: servers ## run the tests that meet them on the oldest packages that pyproject.toml allows: a row of test-all
	$(BIN)/python $(MATRIX) --only '^floors$$' $(ARGS)

faults: servers-full $(VENV)/.native ## try to break the promises for an hour or more, and rewrite docs/results/faults.md
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

simulate: $(VENV)/.test ## simulate a year without servers, try the mutants, and rewrite docs/results/simulation.md
	$(BIN)/python -m tests.simulation $(SIMULATE_ARGS)

bench: servers-full $(VENV)/.bench ## measure it beside the floor and other packages, and rewrite docs/results/benchmarks.md (25 minutes)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

release-check: servers-full $(VENV)/.native $(VENV)/.lint ## build it and check all that a release needs (half an hour; RELEASE_ARGS="--list" names the steps)
	@$(BIN)/python -m scripts.release --jobs $(JOBS) $(RELEASE_ARGS)

docs-tables: $(VENV)/.test ## write the tables of stores in the docs, and the page of public names
	@$(BIN)/python -m scripts.docs_tables
	@$(BIN)/python -m scripts.public_api

project-url: $(VENV)/.test ## put the address of the project into all files that need it: make project-url URL=https://HOST/OWNER/NAME
	@$(BIN)/python -m scripts.release.texts $(URL)

check: $(VENV)/.full $(VENV)/.lint ## ruff, ruff format --check, mypy --strict, pyright, and how plain the prose is
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/basedpyright --pythonpath $(BIN)/python -p tests/core/typing
	$(BIN)/python -m scripts.prose --check

format: $(VENV)/.lint ## let ruff format and fix the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs ## build the documentation into site/ (open site/index.html)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.docs ## build it at each change, and serve it on http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --strict

clean: ## remove the environments and all that is built; the cache of fetched servers is outside the clone and stays
	rm -rf $(VENV) .venv-matrix .venv-release .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What is in .venv: one mark for each purpose. A purpose that contains another one makes its mark, too.
NEEDED := pyproject.toml scripts/install.sh scripts/make-venv.sh

$(VENV)/.test: $(NEEDED)
	@$(INSTALL) "what the tests need" -e '.[all]' --group test
	@touch $(VENV)/.demo $(VENV)/.demo-private $@

# arq asks for an older redis-py than the one we test with; its cron jobs work with it all the same.
$(VENV)/.full: $(NEEDED) | $(VENV)/.test
	@$(INSTALL) "what the long tests need" -e '.[all]' --group test-full --group docs
	@$(INSTALL) "arq" --no-deps 'arq>=0.28'
	@touch $(VENV)/.docs $@

# Built from source: the compiler and the headers are Debian packages.
$(VENV)/.native: $(NEEDED) | $(VENV)/.full servers-full
	@$(INSTALL) "mysqlclient" --group test-native
	@touch $@

$(VENV)/.lint: $(NEEDED) | $(VENV)/.test
	@$(INSTALL) "the linters and type checkers" --group lint
	@touch $@

$(VENV)/.demo: $(NEEDED)
	@$(INSTALL) "what the demo needs" -e '.[all]' --group demo
	@touch $@

$(VENV)/.demo-private: $(NEEDED)
	@$(INSTALL) "what the demo needs for private servers" -e '.[all]' --group demo --group demo-private
	@touch $(VENV)/.demo $@

$(VENV)/.docs: $(NEEDED)
	@$(INSTALL) "what the documentation needs" -e '.[all]' --group docs
	@touch $@

# redlock-ng and mithril-locks ask for an older redis-py than the one we test with; they work with it all the same.
$(VENV)/.bench: $(NEEDED) | $(VENV)/.native
	@$(INSTALL) "what the benchmark compares with" -e '.[all]' --group bench
	@$(INSTALL) "two more" --no-deps 'redlock-ng>=2' 'mithril-locks>=0.1' || echo "==> without redlock-ng and mithril-locks"
	@touch $@
