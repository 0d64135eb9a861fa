# Everything a fresh Debian machine needs is set up by tools/setup.sh on the way.

CONFIG ?= conf/volcache.toml
PYTEST_ARGS ?=
BENCH_ARGS ?=
# Seconds; a test that hangs says where instead of stopping everything.
TIMEOUT ?= 120

BIN := .venv/bin
PYTHON := $(BIN)/python

# Debian keeps nginx in /usr/sbin, which is not on every user's path.
export PATH := $(PATH):/usr/sbin:/sbin

.DEFAULT_GOAL := help
.PHONY: help run cluster test crash mutations soak bench screenshot lint format setup clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

run: ## set up what is missing, then serve ./data at 127.0.0.1:1234 (CONFIG=FILE)
	@tools/setup.sh run
	@exec $(PYTHON) src/ $(CONFIG)

cluster: ## set up what is missing, then nginx at 127.0.0.1:8080 over three instances
	@tools/setup.sh cluster
	@mkdir -p cluster/nginx/temp
	@cp -r nginx/. cluster/nginx
	@echo 'access_log /dev/stdout volcache;' > cluster/nginx/volcache/log.conf
	@exec $(BIN)/honcho --procfile conf/cluster/Procfile --app-root . start

test: ## set up what is missing, then all checks and all tests (PYTEST_ARGS=...)
	@tools/setup.sh test
	@$(MAKE) --no-print-directory lint
	@echo "== pytest"
	@$(PYTHON) -m pytest --timeout=$(TIMEOUT) $(PYTEST_ARGS)

crash: ## every byte torn, every bit flipped, more power losses: minutes (SEED=1)
	@tools/setup.sh test
	@CRASH_EXTENT=0 CRASH_SEED=$(or $(SEED),1) $(PYTHON) -m pytest -s -q --timeout=3600 \
		tests/crash tests/property

mutations: ## take out what carries the load, one piece at a time: a test must fail
	@tools/setup.sh test
	@$(PYTHON) tests/mutations.py

soak: ## mixed load with kills and restarts, every answer checked (MINUTES=1 SEED=1)
	@tools/setup.sh test
	@$(PYTHON) tests/soak.py --minutes $(or $(MINUTES),1) --seed $(or $(SEED),1)

screenshot: ## make docs/page.png again: an instance under load, seen in a browser
	@tools/setup.sh test
	@$(PYTHON) tests/screenshot.py

bench: ## everything measured beside what one would use instead (QUICK=1 ONLY=NAMES BASE=REV)
	@tools/setup.sh bench
	@$(PYTHON) bench/run.py $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) \
		$(if $(BASE),--base $(BASE)) $(BENCH_ARGS)

lint: ## the checks that run no code: format, lint, arrows, types
	@tools/setup.sh lint
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== lint-imports"
	@$(BIN)/lint-imports
	@echo "== mypy"
	@$(BIN)/mypy

format: ## let ruff format the code and mend what it can
	@tools/setup.sh lint
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

setup: ## set up what run and test need, and nothing else
	@tools/setup.sh test

clean: ## remove what the above made, but not ./data and ./cluster
	rm -rf .venv .cache build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache
	rm -rf .ruff_cache .coverage src/volcache.egg-info
	find src tests bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
