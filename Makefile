# Sash. `make` alone says what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# One more process than cores: many tests wait for disks and for processes that they start.
WORKERS ?= $(shell expr $$(nproc) + 1)
ROOMS := service clients proto tests bench loadtest docs deploy

# Spark: workers use the interpreter of this environment, and nothing listens beyond this machine.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
export SPARK_LOCAL_IP := 127.0.0.1

# Tests start many processes. Where this is set, each of them would compile the service again, which is a third of a start.
export PYTHONDONTWRITEBYTECODE :=

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(VENV)/.has-dev ## install everything into .venv, and, where it may, what tests need of Debian

# What serves, what the demo needs as well, everything: each is installed once, and again when one of these files changes.
$(VENV)/.has-%: pyproject.toml constraints.txt deploy/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) deploy/setup.sh $*

# The engine compiled, ahead of the same in Python: once, until its sources change. It says why where there is no compiler.
ENGINE = PYTHONPATH=$$($(BIN)/python -m deploy.compile_engine)

demo: $(VENV)/.has-demo ## real flights through Spark into windows, every answer compared with pandas (about two minutes)
	$(ENGINE) $(BIN)/python -m sash_spark.demo $(DEMO)

run: $(VENV)/.has-server ## serve on 127.0.0.1:7070 (gRPC) and :7071 (REST and the page)
	$(ENGINE) $(BIN)/sash serve

# Users get the engine compiled, so all tests run on it. Forests are what is compiled: a sample of their tests runs as
# Python first, so that the last line says what all tests skipped. Spark's JVMs live for seconds here: what its second
# compiler makes of them never pays, a collector without threads saves a twentieth of the processor time, and an archive
# of classes halves their start, see tests/support/spark_classes.py.
CLASSES := build/spark.jsa
JAVA := JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile=$(CURDIR)/$(CLASSES) -Xlog:cds=off -Xlog:cds+dynamic=off"
STEPS := tests/windows/test_steps.py tests/windows/test_conformance.py
PYTEST := $(JAVA) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
$(CLASSES): constraints.txt | $(VENV)/.has-dev
	-command -v java >/dev/null && $(BIN)/python -m tests.support.spark_classes $@

# Every process of the tests reads all of them. In a new clone, one process makes their bytecode meanwhile, not each.
READ := build/read
test: setup $(CLASSES) ## all tests: Spark in local mode and real servers included
	[ -e $(READ) ] || { mkdir -p build && $(BIN)/python -m pytest --collect-only -qq >/dev/null && touch $(READ); } & \
		engine=$$($(BIN)/python -m deploy.compile_engine) && wait && \
		if [ -n "$$engine" ]; then SASH_PROFILE=sample $(PYTEST) tests/forest $(STEPS); fi && \
		PYTHONPATH=$$engine $(PYTEST)

# A pass of its own: following every line would double the time of the tests above. Few examples reach the same lines.
# Left out is what follows no line: benchmarks, packages and images that are built and installed, the compiled engine. And
# what dies or is given ten seconds to start: processes that tests kill, and Spark's Connect and its versions.
coverage: setup $(CLASSES) ## line and branch coverage of each room, from a shorter pass of the tests
	@rm -rf build/coverage
	$(JAVA) SASH_PROFILE=coverage $(BIN)/python -m coverage run -m pytest -q -n $(WORKERS) --dist loadfile \
		--ignore tests/bench --ignore tests/crash \
		--ignore tests/e2e/test_compiled.py --ignore tests/e2e/test_image.py --ignore tests/e2e/test_wheel.py \
		--ignore tests/spark/test_connect.py --ignore tests/spark/test_versions.py
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage json -q -o build/coverage/files.json
	@$(BIN)/python -m tests.support.rooms build/coverage/files.json

check: setup ## format, lint, types, import contract, stub freshness
	$(BIN)/ruff format --check $(ROOMS)
	$(BIN)/ruff check $(ROOMS)
	$(BIN)/mypy
	$(BIN)/lint-imports
	@rm -rf build/proto && mkdir -p build/proto && cp -r proto/sash_proto build/proto/
	@$(MAKE) --no-print-directory proto PROTO=build/proto
	diff -r -x __pycache__ proto/sash_proto build/proto/sash_proto && echo "stubs are fresh"

format: setup ## put code into the house's format
	$(BIN)/ruff format $(ROOMS)
	$(BIN)/ruff check --fix $(ROOMS)

soak: setup ## long: properties with thousands of examples, hundreds of kills on each tier, and of losses of power
	SASH_PROFILE=soak $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --timeout 3600 -m "not spark"
	SASH_PROFILE=soak $(BIN)/python -m pytest -rP tests/spark/test_cluster.py tests/spark/test_versions.py tests/bench/test_smoke.py::test_the_spark_benchmark_runs
	$(BIN)/python -m tests.crash.driver --kills 200
	$(BIN)/python -m tests.crash.power --losses 200 --lost 100
	$(BIN)/python -W ignore -m tests.simulation --seeds 10000 --met

simulate: setup ## simulate a service and a cluster on virtual time, seed after seed, on all cores, until stopped
	$(BIN)/python -W ignore -m tests.simulation --met

bench: setup ## all benchmarks at real size, pinned to one core where they measure one
	taskset -c 1 $(BIN)/python -m bench.engine
	taskset -c 1 $(BIN)/python -m bench.engine_both
	taskset -c 1 $(BIN)/python -m bench.changes
	taskset -c 1 $(BIN)/python -m bench.keys
	$(BIN)/python -m bench.training
	$(BIN)/python -m bench.known
	$(BIN)/python -m bench.edges
	$(BIN)/python -m bench.unary
	$(BIN)/python -m bench.combine_counts
	taskset -c 1 $(BIN)/python -m bench.papers
	$(BIN)/python -m bench.storage
	$(BIN)/python -m bench.overload
	$(BIN)/python -m bench.ingest
	$(BIN)/python -m bench.spark

pins: setup ## resolve constraints.txt anew, for the oldest Python that pyproject.toml promises; UPGRADE=--upgrade takes newer ones
	$(BIN)/uv pip compile --quiet $(UPGRADE) --python-version 3.11.0 --all-extras --no-annotate --no-emit-package sash \
		--custom-compile-command "make pins" -o constraints.txt pyproject.toml

docs: setup ## build the documentation into build/docs; a broken link fails (docs run as tests with `make test`)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/docs/index.html; to search, serve it: $(BIN)/python -m http.server -d build/docs"

load: setup ## a bounded load test with REST and gRPC users against a server of its own
	$(BIN)/python -m loadtest

# Stubs of protobuf 4.25 work with every later release; its compiler needs that release, and so a place of its own.
PROTO := proto
PROTOC := build/protoc/.installed
$(PROTOC):
	$(BIN)/python -m venv build/protoc
	build/protoc/bin/pip install --quiet --disable-pip-version-check grpcio-tools==1.62.3 "setuptools<81"
	@touch $@

proto: setup $(PROTOC) ## make the stubs from the .proto files
	cd $(PROTO) && $(CURDIR)/build/protoc/bin/python -m grpc_tools.protoc -I. \
		--python_out=. --pyi_out=. --grpc_python_out=. sash_proto/v1/windows.proto sash_proto/envoy/ratelimit.proto

wheel: setup ## a wheel with the engine compiled, into dist/: for this kind of machine and this version of Python
	COMPILE_SASH=1 $(BIN)/python -m hatchling build -t wheel -d dist

clean: ## remove what was built and installed
	rm -rf $(VENV) build dist service/sash/ui/packages .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup demo run test coverage check format soak simulate bench pins docs load proto wheel clean
