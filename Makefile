# Everything one does with this repository by hand. `make` alone explains.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
RUN_INSTALLED := $(VENV)/run-installed
SHELL := /bin/bash

.DEFAULT_GOAL := help
SEEDS ?= 2000
FIRST_SEED ?= 100000000
JOBS ?= 2
IMAGE ?= popwheel:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
MESSAGES ?= 100000
DATA_DIR ?= ./data
GRPC_PORT ?= 8081
HTTP_PORT ?= 8080
KUBE_BASE ?= localhost/python:testbed
COMPILER := $(shell command -v cc)

.PHONY: help setup lock hooks run test test-compiled wheel release coverage sim mutants lint format demo proto docs site dashboards picture pictures quiet-hour image \
	image-on-test-bed spark-image spark-image-on-test-bed bench bench-peer drills interop ui ui-scale e2e drill spark spark-long spark-format pipeline h2spec fuzz clean

help: ## Show this help
	@echo "Popwheel. What make can do:"
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | while IFS=$$'\t' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED) ## Make the virtual environment .venv with all that the rest needs

# Quiet in a log, else pip shows what it fetches: it may take minutes.
PIP_INSTALL := quiet=--quiet; test ! -t 1 || quiet=; $(BIN)/python -m pip install $$quiet --disable-pip-version-check --constraint requirements.lock

# pip runs again only when pyproject.toml or the lock has changed.
$(INSTALLED): pyproject.toml requirements.lock | $(BIN)/python
	@echo "installing all that tests and tools need into $(VENV): about 1 GB to fetch, 2 GB on disk, some minutes"
	@$(PIP_INSTALL) --editable '.[dev,compile]'
	@touch $@ $(RUN_INSTALLED)

# What the servers need and no more, as most who run them test nothing.
$(RUN_INSTALLED): pyproject.toml requirements.lock | $(BIN)/python
	@echo "installing what Popwheel needs to run into $(VENV): about 40 MB to fetch, half a minute"
	@$(PIP_INSTALL) --no-compile --editable .  # a server compiles the few modules that it loads
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Popwheel needs Python 3.11 or newer, and '$(PYTHON)' is not: say which one to use, for example make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "could not make a virtual environment; on Debian: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }

lock: setup ## Write requirements.lock: the version of each library that setup installs, also of those that libraries need
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(BIN)/uv pip compile --quiet --all-extras --universal --python-version 3.11 --no-annotate \
		--custom-compile-command 'make lock' --output-file requirements.lock pyproject.toml

hooks: setup ## Have git run what make lint checks before each commit
	@$(BIN)/pre-commit install

run: $(RUN_INSTALLED) ## Start Popwheel on this machine: data in DATA_DIR=./data, gRPC on GRPC_PORT=8081, HTTP on HTTP_PORT=8080 (ARGS="--workers auto")
	@exec $(BIN)/popwheel standalone --data-dir $(DATA_DIR) --grpc-port $(GRPC_PORT) --http-port $(HTTP_PORT) $(ARGS)

test: setup ## Run all default tests, folder by folder, and print how long each took
	@$(BIN)/python tools/run_tests.py

test-compiled: setup build/compiled/made ## Run tests on compiled modules: units, traces of simulators, servers (needs a C compiler; ARGS="tests/unit -k pop")
	@unset PYTHONDONTWRITEBYTECODE; PYTHONPATH=$(CURDIR)/build/compiled PYTHONSAFEPATH=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile \
		$(if $(ARGS),,$(addprefix --ignore=tests/unit/,chart test_code.py test_links.py test_tidy.py test_words.py)) \
		-o pythonpath="build/compiled . $(wildcard services/*) spark" $(or $(ARGS),tests/unit tests/sim/test_compiled.py tests/integration)

wheel: setup ## Build wheels: of popwheel with compiled modules for this Python and machine, and of popwheel-spark: build/wheels (needs a C compiler)
	@HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --wheel-dir build/wheels . ./spark

release: setup ## Build and check all of a release: build/release (needs a C compiler; ARGS="--python python3.12")
	@$(PIP_INSTALL) --editable '.[release]'
	@$(BIN)/python -m tools.release build/release $(ARGS)
	@$(BIN)/python -m pytest -q tests/release

build/compiled/made: pyproject.toml tools/compile.py $(shell find services -name '*.py') | setup
	@$(BIN)/python tools/compile.py build/compiled
	@touch $@

coverage: setup ## Run the unit tests and say which lines and branches of services and spark none of them reaches
	@$(BIN)/python -m pytest -q -n $(JOBS) --cov --cov-report term:skip-covered --cov-report html:build/coverage tests/unit $(ARGS)

sim: setup ## Run all kept seeds, then the simulators of one server, of a cluster and of a broker group over SEEDS seeds each from FIRST_SEED on, JOBS at a time
	@SIM=all $(BIN)/python -m pytest -q -n $(JOBS) -k found_something_before tests/sim; kept=$$?; \
	$(BIN)/python -m tests.sim --seeds $(FIRST_SEED):$$(($(FIRST_SEED) + $(SEEDS))) --jobs $(JOBS); one=$$?; \
	$(BIN)/python -m tests.sim.cluster --seeds $(FIRST_SEED):$$(($(FIRST_SEED) + $(SEEDS))) --jobs $(JOBS); many=$$?; \
	$(BIN)/python -m tests.sim.replicas --seeds $(FIRST_SEED):$$(($(FIRST_SEED) + $(SEEDS))) --jobs $(JOBS) && [ $$kept = 0 ] && [ $$one = 0 ] && [ $$many = 0 ]

mutants: setup ## Run changes that break promises against unit tests and simulators (ARGS="wiped-may-lead --seeds 50")
	@$(BIN)/python -m tests.mutants --jobs $(JOBS) --first-seed $(FIRST_SEED) $(ARGS)

lint: setup ## Check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## Put all code into the common format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: setup ## Messages through a server by the official Python client: one of them twice, two ahead of their time
	@$(BIN)/python -m demo.run

picture: setup ## Record docs/pictures/at-work.svg: the command line at work with a server of this machine
	@$(BIN)/python -m demo.picture

proto: setup ## Generate services/common/popwheel_common/pb from proto/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/generate_proto.py

docs: setup ## Write docs/reference, the tables of states, the chart's schema, and what its defaults make
	@$(BIN)/python -m tools.reference
	@$(BIN)/python -m tools.generate_state_tables
	@$(BIN)/python -m tools.generate_values_schema
	@$(BIN)/python -m tests.harness.chart

site: setup ## Make the documentation as pages to read offline: build/site/index.html
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[docs]'
	@$(BIN)/python -m tools.site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dashboards: setup ## Write the Grafana dashboards as JSON into helm/popwheel/dashboards
	@$(BIN)/python -m tools.dashboards

pictures: setup ## Draw the console, and the dashboards from a Prometheus that watches a cluster (needs chromium, prometheus)
	@$(BIN)/python -m tests.ui.pictures
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[pictures]'
	@$(BIN)/python -m tests.harness.pictures

quiet-hour: setup ## Watch a cluster that is well for MINUTES=60, and see that no alert fires (needs prometheus)
	@$(BIN)/python -m tests.harness.quiet_hour --minutes $(or $(MINUTES),60)

image: ## Make the container image IMAGE (default: popwheel:VERSION) with docker or podman, or on a test bed: KUBE=path/to/kube
	@if [ -n "$(KUBE)" ]; then $(MAKE) --no-print-directory image-on-test-bed; \
	elif docker info >/dev/null 2>&1; then docker build --tag $(IMAGE) .; \
	elif podman info >/dev/null 2>&1; then podman build --tag $(IMAGE) .; \
	else echo "no container engine answers here: install and start docker or podman, or name a test bed that makes layers, KUBE=path/to/kube" >&2; exit 1; fi

spark-image: ## Make SPARK_IMAGE, Apache Spark with popwheel-spark, with docker or podman (ARGS="--target e2e": for make e2e), or KUBE=path/to/kube
	@if [ -z "$(SPARK_IMAGE)" ]; then echo "name it: make spark-image SPARK_IMAGE=registry.example.com/popwheel-spark:0.1.0" >&2; exit 1; \
	elif [ -n "$(KUBE)" ]; then $(MAKE) --no-print-directory spark-image-on-test-bed; \
	elif docker info >/dev/null 2>&1; then docker build --tag $(SPARK_IMAGE) --file spark/Dockerfile $(ARGS) .; \
	elif podman info >/dev/null 2>&1; then podman build --tag $(SPARK_IMAGE) --file spark/Dockerfile $(ARGS) .; \
	else echo "no container engine answers here: install and start docker or podman, or name a test bed that makes layers, KUBE=path/to/kube" >&2; exit 1; fi

LIBRARIES := localhost/popwheel-libraries:testbed

# Where there is no C compiler the image runs the sources as they stand.
image-on-test-bed: setup build/image/loaded $(if $(COMPILER),build/compiled/made)
	@$(if $(COMPILER),,echo "no C compiler is here, so nothing in the image is compiled: install gcc for a faster one")
	@$(BIN)/python tools/image_root.py build/image $(if $(COMPILER),--compiled build/compiled)
	@$(KUBE) layer $(IMAGE) $(LIBRARIES) build/image/code popwheel

# The libraries are a layer of their own, made anew and loaded only when they may have changed.
build/image/loaded: pyproject.toml requirements.lock tools/image_root.py | setup
	@$(BIN)/python tools/image_root.py build/image --only-libraries
	@$(KUBE) layer $(LIBRARIES) $(KUBE_BASE) build/image/libraries
	@touch $@

spark-image-on-test-bed: setup
	@$(BIN)/python -m tests.e2e.spark.image build/spark-image
	@$(KUBE) layer $(SPARK_IMAGE) $(IMAGE) build/spark-image

bench: setup ## Measure this machine: sends, receives, latency, CPU, memory, start-up (ARGS="--case send-64")
	$(BIN)/python -m bench $(ARGS)

bench-peer: setup ## The same, in turn with another server of the protocol: PEER=host:port [PEER_PIDS=1,2]
	@test -n "$(PEER)" || { echo "say which server: make bench-peer PEER=127.0.0.1:28081" >&2; exit 1; }
	$(BIN)/python -m bench --peer $(PEER) --peer-pids "$(PEER_PIDS)" $(ARGS)

drills: setup ## Kill, pause and cut apart under load, ROUNDS times each (default 10): replicas, a server, a server with timers
	@FAILOVER_ROUNDS=$(or $(ROUNDS),10) CRASH_ROUNDS=$(or $(ROUNDS),10) $(BIN)/python -m pytest -q \
		tests/integration/test_failover.py tests/integration/test_crashes.py tests/integration/test_timers.py $(ARGS)

interop: setup ## Run official clients of other languages against a server (LANGUAGES=go,java,node,rust CASES=fifo-push,sql; docs/use/clients.md)
	@echo "installing the clients into build/interop; the first time takes minutes, most of them for Rust"
	@mkdir -p build/interop
	@INTEROP=1 LANGUAGES="$(LANGUAGES)" CASES="$(CASES)" $(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup \
		--basetemp build/interop/runs tests/interop/clients $(ARGS)

ui: setup ## Look at every page of the console in Chromium, with all that takes minutes (needs chromium; ARGS="-k held")
	@UI=all $(BIN)/python -m pytest -q tests/ui $(ARGS)

ui-scale: setup ## Time every page and route with 100,000 topics, 10,000 groups, a million held and a million delayed (ARGS="--part 0.1")
	@$(BIN)/python -m tests.ui.scale $(ARGS)

e2e: setup ## Install the chart on the cluster that KUBECONFIG names, and see that messages go through: IMAGE=repository:tag [NAMESPACE=..] [VALUES="--set a=b"] [SPARK_IMAGE=..] [LOAD="kind load docker-image"]
	@$(if $(LOAD),$(LOAD) $(IMAGE))
	@POPWHEEL_E2E=1 IMAGE="$(IMAGE)" NAMESPACE="$(NAMESPACE)" KEEP="$(KEEP)" VALUES="$(VALUES)" SPARK_IMAGE="$(SPARK_IMAGE)" \
		$(BIN)/python -m pytest -q -s tests/e2e/test_release.py tests/e2e/test_spark.py $(ARGS)

drill: setup ## Kubernetes failures under load of the official client (docs/operate/failures.md): as e2e, and CLIENT_IMAGE=.. [NEXT_IMAGE=.. FREEZE=.. THAW=.. CUT=.. JOIN=.. KILL=.. START=..]
	@$(if $(LOAD),$(LOAD) $(IMAGE) && $(if $(NEXT_IMAGE),$(LOAD) $(NEXT_IMAGE),true))
	@POPWHEEL_E2E=1 IMAGE="$(IMAGE)" NAMESPACE="$(NAMESPACE)" KEEP="$(KEEP)" VALUES="$(VALUES)" CLIENT_IMAGE="$(CLIENT_IMAGE)" \
		NEXT_IMAGE="$(NEXT_IMAGE)" FREEZE="$(FREEZE)" THAW="$(THAW)" CUT="$(CUT)" JOIN="$(JOIN)" KILL="$(KILL)" START="$(START)" $(BIN)/python -m pytest -q -s tests/e2e/test_drills.py $(ARGS)

spark: setup ## Run the tests of the data source with a real Spark and real servers (ARGS="-k stream"; MESSAGES=1000000)
	@SPARK_MESSAGES=$(MESSAGES) $(BIN)/python -m pytest -q --timeout 900 tests/spark $(ARGS)

spark-long: setup ## Read and send a long stream in order while driver, worker, masters and proxy are killed (MESSAGES=50000; default a million)
	@$(BIN)/python -m tests.spark.long $(MESSAGES)

spark-format: setup ## Write a topic to a table of Delta or Iceberg by a stream: ARGS="iceberg org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
	@$(BIN)/python -m tests.spark.table_format $(ARGS)

pipeline: setup ## Start a cluster, send, archive to Parquet by a stream of Spark, report and audit (ARGS="--messages 100000")
	@$(BIN)/python -m demo.pipeline $(ARGS)

h2spec: setup ## Run the public HTTP/2 conformance suite against a server of this machine (needs Go)
	@$(BIN)/python -m tools.h2spec

fuzz: setup ## Sixty seconds of structured garbage for the HTTP/2 core and every call (ARGS="--seconds 600 --seed 7")
	@$(BIN)/python -m tests.fuzz --seconds 60 $(ARGS)

clean: ## Remove what make has made, but not ./data
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* build dist
