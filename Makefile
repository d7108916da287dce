# Everything one does with this repository. `make` alone lists the targets.
#   PYTHON=python3.12     the interpreter for a new .venv        SERVICES="databases"   what up and test start
#   ARGS="-k relay -x"    goes to pytest, the demo, the benchmark

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

SERVICES ?= all
ARGS ?=
bin := .venv/bin
export PYTHON

demo_ready := .venv/.demo
dev_ready := .venv/.dev

$(demo_ready): pyproject.toml constraints.txt
	@scripts/setup demo

$(dev_ready): pyproject.toml constraints.txt
	@scripts/setup dev

##@ See it
.PHONY: demo
demo: $(demo_ready)  ## The whole story on SQLite and the in-memory bus; needs no server
	@$(bin)/semel demo $(ARGS)

.PHONY: shop
shop: $(dev_ready)  ## The example shop at http://127.0.0.1:8000/, on SQLite without a broker
	@$(bin)/python -m examples.shop $(ARGS)

##@ Check it
.PHONY: test
test: $(dev_ready)  ## Every test, on real servers
	@scripts/services up $(SERVICES) || echo "make: not every server is up; see the summary of the tests"
	@eval "$$(scripts/services env)"; $(bin)/pytest $(ARGS)

.PHONY: test-fast
test-fast: $(dev_ready)  ## The tests that need no server
	@for name in $$(env | sed -n 's/^\(SEMEL_TEST_[A-Z]*_URL\)=.*/\1/p'); do unset "$$name"; done; \
	$(bin)/pytest -m "not postgres and not mariadb and not redis and not nats and not rabbitmq and not kafka and not pulsar and not registry and not browser" $(ARGS)

.PHONY: lint
lint: $(dev_ready)  ## ruff, the import rules, known holes in dependencies
	@$(bin)/ruff check
	@$(bin)/ruff format --check
	@$(bin)/lint-imports --no-logo
	@$(bin)/python scripts/audit.py

.PHONY: types
types: $(dev_ready)  ## mypy --strict
	@$(bin)/mypy src $(wildcard tests/typing)

.PHONY: bench
bench: $(dev_ready)  ## The benchmark, on real servers, in some minutes; docs/benchmarks.md anew
	@scripts/services up $(SERVICES) || echo "make: not every server is up"
	@eval "$$(scripts/services env)"; $(bin)/python -m benchmarks $(ARGS)
	@$(bin)/python -m benchmarks.report

.PHONY: bench-full
bench-full: $(dev_ready)  ## The same with the largest backlogs and other libraries; takes hours
	@$(MAKE) --no-print-directory bench ARGS="--full --peers $(ARGS)"

.PHONY: chaos
chaos: $(dev_ready)  ## Crashes, simulation, properties, then chaos on every database and bus: 30 minutes
	@scripts/services up $(SERVICES) || echo "make: not every server is up"
	@eval "$$(scripts/services env)"; status=0; $(bin)/python -m tests.chaos matrix $(ARGS) || status=$$?; \
	$(bin)/python -m tests.chaos report; exit $$status

.PHONY: chaos-mutants
chaos-mutants: $(dev_ready)  ## Plant 22 known bugs, one after the other: do the tests find each?
	@scripts/services up $(SERVICES) || echo "make: not every server is up"
	@eval "$$(scripts/services env)"; $(bin)/python -m tests.mutants --json .chaos/mutants.json $(ARGS)

##@ Work on it
.PHONY: setup
setup: $(dev_ready)  ## .venv with semel and all tools

.PHONY: format
format: $(dev_ready)  ## Let ruff format and fix
	@$(bin)/ruff check --fix-only --show-fixes
	@$(bin)/ruff format

.PHONY: up
up:  ## Start the servers of the tests and print their URLs
	@scripts/services up $(SERVICES)
	@scripts/services env

.PHONY: down
down:  ## Stop them
	@scripts/services down

.PHONY: docs
docs: $(dev_ready)  ## Run every example in the documents
	@$(bin)/pytest $(wildcard tests/docs) $(wildcard tests/spec) $(ARGS)

.PHONY: constraints
constraints:  ## Resolve all dependencies anew into constraints.txt
	@scripts/constraints

.PHONY: sbom
sbom: $(dev_ready)  ## Write the software bill of materials to dist/
	@scripts/sbom

.PHONY: clean
clean:  ## Remove .venv and everything made by the tools
	@rm -rf .venv build dist site htmlcov .coverage .coverage.* .hypothesis
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help:  ## This list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
