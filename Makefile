# Build, test and lint. Every target makes what it needs; a machine with Python 3.11 to 3.14, make and a C compiler is enough.
PYTHON ?= python3
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 3) # many tests wait for servers most of their time
BIN := .venv/bin
PIP = $(1)/bin/python -m pip install -q -c constraints.txt
PYTEST = $(BIN)/python -m pytest
unexport PYTHONDONTWRITEBYTECODE # hundreds of tests start Python: each would compile the package anew
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# what is imported is compiled then: most of what torch, ray and others install never is
export PIP_COMPILE := 0
export WDS_ORACLE_086 := $(CURDIR)/.oracles/0.2.86/bin/python
export WDS_ORACLE_102 := $(CURDIR)/.oracles/1.0.2/bin/python
export WDS_ORACLE_111 := $(CURDIR)/.oracles/0.2.111/bin/python

.PHONY: help demo test test-rest test-all lint format bench bench-peers docs wheels oracles interop environments compiled clean
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/.demo ## write shards from real images, train on them, print accuracy and throughput
	$(BIN)/python examples/demo.py

test: .venv/.test oracles ## run the suite on this Python
	scripts/servers.sh
	$(PYTEST) -n $(WORKERS) --dist worksteal $(ARGS)

test-rest: .venv/.test oracles ## after test: on the newest Python found, and torch tests under the other start methods
	scripts/servers.sh
	$(BIN)/python scripts/test_all.py --ci -n $(WORKERS) --dist worksteal $(ARGS)

test-all: oracles ## run it on the oldest and the newest Python found, and under every start method
	scripts/servers.sh
	$(PYTHON) scripts/test_all.py $(ARGS)

lint: .venv/.lint ## style, types, layers, laws, budgets and lock
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/laws.py
	$(BIN)/python scripts/structure.py
	$(BIN)/python scripts/word_list.py
	$(BIN)/python scripts/walks.py
	$(BIN)/python scripts/lock.py --check

format: .venv/.lint ## rewrite the files in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.test .oracles/1.0.2/.ready ## measure against webdataset 1.0.2; one table and a plot
	$(BIN)/python bench/table.py $(ARGS)

bench-peers: .venv/.test .oracles/1.0.2/.ready ## measure other libraries beside it, and what they make of damaged shards
	$(BIN)/python scripts/peers.py $(ARGS)
	$(BIN)/python bench/peers_speed.py $(ARGS)

docs: .venv/.docs ## build the pages into build/site
	$(BIN)/mkdocs build --strict -q

wheels: .venv/.test ## build the wheel and the source distribution into dist, with their checksums
	$(BIN)/python scripts/release.py

interop: ## let other projects read our shards and indexes, and read theirs (those that can be installed here)
	$(PYTHON) scripts/interop.py $(ARGS)

oracles: .oracles/0.2.86/.ready .oracles/0.2.111/.ready .oracles/1.0.2/.ready ## the published versions that the tests compare with

environments: .venv/.made oracles ## install what test, interop and test-rest need beside .venv
	scripts/servers.sh & servers=$$!; \
	$(PYTHON) scripts/interop.py --prepare && $(BIN)/python scripts/test_all.py --prepare && wait $$servers

compiled: .venv/.test ## let pytest compile the tests once, which its workers would all do at the same time
	$(PYTEST) --collect-only -qq -n 0 >/dev/null

clean: ## remove everything that these targets made
	rm -rf .venv .venvs .oracles .servers build dist demo-data bench/out .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.venv/.made:
	$(PYTHON) scripts/supported.py
	$(PYTHON) -m venv .venv
	$(call PIP,.venv) -U pip
	touch $@

.venv/.demo: .venv/.made pyproject.toml constraints.txt
	$(call PIP,.venv) -e '.[torch,images,fast,demo]'
	touch $@

.venv/.lint: .venv/.test
	$(call PIP,.venv) --group lint
	touch $@

.venv/.docs: .venv/.test
	$(call PIP,.venv) --group docs
	touch $@

.venv/.test: .venv/.made pyproject.toml constraints.txt $(wildcard native/*) scripts/hatch_build.py
	$(call PIP,.venv) -e . --group test
	touch $@

# its wids needs torch to be imported
.oracles/0.2.111/.ready: PACKAGES = 'torch; python_version < "3.12"'
.oracles/%/.ready: constraints.txt
	$(PYTHON) -m venv .oracles/$*
	$(call PIP,.oracles/$*) webdataset==$* numpy pillow msgpack cbor $(PACKAGES)
	touch $@
