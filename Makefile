# Each target first lets tools/setup.sh install what is missing, on a Debian machine.

CONFIG ?= conf/volcache.toml
PYTEST_ARGS ?=
BENCH_ARGS ?=
CORES := $(shell nproc)
# Tests at the same time. More than there are cores: many tests wait for a server.
JOBS ?= $(shell echo $$(($(CORES) * 3 / 2)))
# Seconds that a test may take before it fails with a traceback.
TIMEOUT ?= 300

LINT := lint-types lint-imports lint-code lint-format lint-native lint-budget lint-prose
# Tests work in memory if there is room; those marked `disk` on the disk.
MEMORY := /dev/shm
HAS_ROOM := $(shell df -Pm $(MEMORY) 2>/dev/null | awk 'NR == 2 && $$4 > 2000')
TESTS = $(if $(HAS_ROOM),TMPDIR=$(MEMORY)) SEED=$(or $(SEED),$(shell date -u +%Y%m%d)) \
	$(PYTHON) -m pytest
# What these commands count is shown in docs/RELIABILITY.md.
COUNTED = $(PYTHON) tests/figures.py
WORKERS := -n $(JOBS)
AT_ONCE := --no-print-directory -j$(CORES) --output-sync=target
BIN := .venv/bin
PYTHON := $(BIN)/python

# Debian keeps nginx in /usr/sbin, which is not on every user's path.
export PATH := $(PATH):/usr/sbin:/sbin
# The tests start hundreds of Python processes; none of them should compile our modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run cluster check test nightly sanitize aarch64 crash fuzz mutations recipes \
	screenshot site bench image manifest reference lint format setup clean unit wheels $(LINT)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

# Settings on the command line of make, such as PORT=1235; an unknown one stops the start.
# The environment does not count: PORT may be set there for something else.
GIVEN := $(filter-out CONFIG VOLCACHE_%,$(foreach name,$(.VARIABLES), \
	$(if $(filter command,$(origin $(name))),$(name))))
$(foreach name,$(GIVEN),$(eval run: export \
	VOLCACHE_$(shell echo '$(name)' | tr a-z A-Z) = $$(value $(name))))
# What make cluster runs too if it is installed.
MONITORS = $(foreach name,prometheus grafana,$(if $(shell command -v $(name)),$(name)))
NGINX_PORT = $(if $(filter PORT,$(GIVEN)),$(PORT),8080)

run: ## serve ./data at 127.0.0.1:1234 until Ctrl-C (CONFIG=FILE PORT=1235, any setting)
	@tools/setup.sh run
	@exec $(PYTHON) src/ $(CONFIG)

cluster: ## run nginx, three instances and memcached until Ctrl-C (PORT=8080, of nginx)
	@for name in $(filter-out PORT,$(GIVEN)); do echo "make cluster: unknown $$name;" \
		"allowed is PORT; edit conf/cluster/Procfile for the rest" >&2; exit 2; done
	@case '$(NGINX_PORT)' in ''|*[!0-9]*) echo "make cluster: PORT = $(NGINX_PORT) is not" \
		"allowed; allowed is a number" >&2; exit 2;; esac
	@tools/setup.sh cluster
	@mkdir -p cluster/nginx/temp
	@cp -r nginx/. cluster/nginx
	@sed -i 's/127.0.0.1:8080/127.0.0.1:$(NGINX_PORT)/' cluster/nginx/volcache/listen.conf
	@echo 'access_log /dev/stdout volcache;' > cluster/nginx/volcache/log.conf
	@echo 'default 1;' > cluster/nginx/volcache/show-instance.conf
	@cp -r conf/prometheus conf/grafana cluster && cp conf/cluster/volcache.json cluster/prometheus
	@sed -i 's,http://prometheus:,http://127.0.0.1:,; s,/etc/grafana/dashboards,cluster/grafana,' \
		cluster/grafana/provisioning/*/*.yml
	@echo "nginx: http://127.0.0.1:$(NGINX_PORT)/ instances: http://127.0.0.1:1234/-/ to 1236"
	@echo "Prometheus: $(if $(filter prometheus,$(MONITORS)),http://127.0.0.1:9090/,not installed);" \
		"Grafana: $(if $(filter grafana,$(MONITORS)),http://127.0.0.1:3000/,not installed)"
	@exec $(BIN)/honcho --procfile conf/cluster/Procfile --app-root . start \
		disk1 disk2 disk3 memcached nginx $(MONITORS)

check: ## lint, types and the fast unit tests, for use while editing: 20 seconds
	@echo "make check: without processes, servers and random runs; make test has them"
	@tools/setup.sh lint
	@$(MAKE) $(AT_ONCE) unit $(LINT)

test: ## lint, types and a sample of all tests: 5 minutes (PYTEST_ARGS=... JOBS=N SEED=N)
	@echo "make test: a sample; make crash has the rest, make nightly programs of others"
	@tools/setup.sh test
	@$(MAKE) $(AT_ONCE) $(LINT)
	@echo "== tests/native"
	@tools/native_tests.sh asan 2
	@echo "== pytest"
	@$(TESTS) $(WORKERS) --timeout=$(TIMEOUT) $(PYTEST_ARGS)

nightly: ## clients and programs of others, and the image: 5 minutes
	@tools/setup.sh test
	@$(TESTS) $(WORKERS) --timeout=1200 -m nightly

sanitize: ## the C code with sanitizers of memory and threads: 3 minutes (SECONDS=10 SEED=1)
	@tools/setup.sh test
	@$(COUNTED) asan tools/native_tests.sh asan $(or $(SECONDS),10) $(or $(SEED),1)
	@$(COUNTED) tsan tools/native_tests.sh tsan $(or $(SECONDS),10) $(or $(SEED),1)
	@tools/native_tests.sh extension $(WORKERS) --timeout=7200 \
		tests/unit/store tests/golden tests/property/test_store_model.py \
		tests/property/test_fuzz.py

aarch64: ## the C code for 64-bit ARM in an emulator: 2 minutes (SECONDS=10 SEED=1)
	@tools/setup.sh aarch64
	@tools/native_tests.sh aarch64 $(or $(SECONDS),10) $(or $(SEED),1)

crash: ## all that make test samples, in full: 15 minutes for PART=1/8 (SEED=N)
	@tools/setup.sh test
	@PART=$(PART) $(COUNTED) crash env CRASH_EXTENT=0 $(TESTS) $(WORKERS) --timeout=7200 \
		--verbose --durations=0 --durations-min=10 \
		-m "(crash or property or sampled or slow) and not recipes and not nightly"

fuzz: ## random input for the C code, with libFuzzer: 3 minutes (SECONDS=60 SEED=1)
	@tools/setup.sh fuzz
	@tools/native_tests.sh fuzz $(or $(SECONDS),60) $(or $(SEED),1)

mutations: ## break the code in 385 ways; each must make a test fail: 30 minutes
	@tools/setup.sh test
	@$(COUNTED) mutations $(PYTHON) tests/mutations.py

recipes: ## docs/RECIPES.md with the clients that are installed by hand: 5 minutes
	@tools/setup.sh test
	@$(TESTS) $(WORKERS) --timeout=1200 -m recipes tests/recipes

screenshot: ## take docs/page.png again, of an instance under load: 1 minute
	@tools/setup.sh test
	@tools/setup.sh bench
	@$(PYTHON) tests/screenshot.py

reference: ## write docs/REFERENCE.md, docs/volcache.1 and conf/volcache.toml from the code
	@tools/setup.sh run
	@$(PYTHON) tools/sample_config.py
	@$(PYTHON) tools/reference.py
	@$(PYTHON) tools/man_page.py

manifest: ## write conf/kubernetes/volcache.yaml from the chart in conf/helm, with helm
	@sed '/^---$$/,$$d' conf/kubernetes/volcache.yaml > conf/kubernetes/new
	@helm template volcache conf/helm/volcache --kube-version 1.34 \
		--set nginx.configMap=volcache-nginx >> conf/kubernetes/new
	@mv conf/kubernetes/new conf/kubernetes/volcache.yaml

image: ## build the container image of the wheel in dist/, with docker or podman
	@tools/image.sh

# README.md, the pages and the files that they link, as in the tree.
SITE := README.md SECURITY.md CONTRIBUTING.md LICENSE pyproject.toml conf docs nginx \
	bench/README.md tests/README.md tests/behaviour/*.txt tools/smoke_test.py

site: ## build the documents as a site, build/site/index.html: 1 minute, then 5 seconds
	@tools/setup.sh run
	@[ -e build/mkdocs/bin/mkdocs ] || $(PYTHON) -m venv --clear build/mkdocs
	@build/mkdocs/bin/pip install --quiet --requirement docs/requirements.txt
	@rm -rf build/pages && mkdir -p build/pages && cp -r --parents $(SITE) build/pages
	@NO_MKDOCS_2_WARNING=1 build/mkdocs/bin/mkdocs build --strict --quiet \
		--config-file docs/mkdocs.yml

bench: ## measure volcache and its alternatives: 10 minutes (QUICK=1 ONLY=NAMES BASE=REVISION)
	@tools/setup.sh bench
	@$(PYTHON) -m bench.run $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) \
		$(if $(BASE),--base $(BASE)) $(BENCH_ARGS)

wheels: ## build the packages, install and test each: 4 minutes (ONLY='cp313-*' RELEASE=1)
	@tools/setup.sh run
	@$(PYTHON) tools/release.py $(if $(RELEASE),--release) $(if $(ONLY),--only '$(ONLY)')

lint: ## format check, lint, import rules and types: 2 seconds, 20 without caches
	@tools/setup.sh lint
	@$(MAKE) $(AT_ONCE) $(LINT)

lint-format:
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .

lint-code:
	@echo "== ruff check"
	@$(BIN)/ruff check .

lint-budget:
	@echo "== budgets of code lines"
	@$(PYTHON) tools/budget.py

lint-prose:
	@echo "== words and sentences of the documents"
	@$(PYTHON) tools/prose.py

lint-imports:
	@echo "== lint-imports"
	@$(BIN)/lint-imports

lint-types:
	@echo "== mypy"
	@$(BIN)/mypy

lint-native:
	@echo "== clang-format, gcc, cppcheck, clang-tidy"
	@tools/native_tests.sh lint

unit:
	@echo "== pytest tests/unit"
	@$(TESTS) -n $(CORES) -m "not slow and not nightly" -q \
		--timeout=$(TIMEOUT) $(PYTEST_ARGS) tests/unit tests/behaviour

format: ## format the code and apply the fixes that ruff has: 1 second
	@tools/setup.sh lint
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@find src tests bench -name '*.[ch]' -print0 | xargs -0 $(BIN)/clang-format -i

setup: ## install what run and test need, and nothing else: 1 minute
	@tools/setup.sh test

clean: ## remove what the other targets made, except ./data and ./cluster
	rm -rf .venv .cache build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache
	rm -rf .ruff_cache .coverage src/volcache.egg-info
	rm -f src/volcache/*/_*.so src/volcache/store/_core/_*.so
	find src tests bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
