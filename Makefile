# headrace: everything a developer runs. `make` alone prints this list.
# Needs Python 3.11 or later with venv, git and make; the rest comes from PyPI, pinned by requirements.lock.

PYTHON ?= python3
# Twice as many workers as a small machine has cores: tests of clusters wait for leases and elections
PYTEST_FLAGS ?= -n 4 --dist loadgroup
# What make release builds: make release VERSION=0.2.0 RELEASE_FLAGS=--dry-run
VERSION ?=
RELEASE_FLAGS ?=
# Lines of a file of yours for the demo's user activity: make demo LOG=/path/to/access.log
LOG ?=
DEMO_FLAGS ?=
UP_FLAGS ?=
# Which rules are taken out of the code: make mutants, or make mutants MUTANT=its-id (MUTANT_FLAGS=--help, --list)
MUTANT ?=
MUTANT_FLAGS ?=
# What the simulator runs: make sim SEED=7 STEPS=5000, or make sim SEEDS=0..999 JOBS=2 (SIM_FLAGS=--help)
SEED ?=
SEEDS ?= 0..99
STEPS ?= 2000
JOBS ?= 1
SIM_FLAGS ?=
BENCH_FLAGS ?=
# Where make site writes
SITE ?= build/site
CHAOS_SECONDS ?= 60
CHAOS_SEED ?= 1
# The faults of replicas that are done, by the names that docs/protocols/chaos.md lists; none: all
CHAOS_FAULTS ?=
# Runs of consumer groups: so many seeds, from CHAOS_SEED on, with faults for so many seconds each
CHAOS_GROUP_RUNS ?= 20
CHAOS_GROUP_SECONDS ?= 10
# Number of invalid calls, and the seed that draws them
FUZZ_CALLS ?= 1000000
FUZZ_SEED ?= 1
# Frames of make fuzz, drawn by the same seed (FUZZ_FLAGS=--help)
FUZZ_FRAMES ?= 10000000
FUZZ_FLAGS ?=

BIN := .venv/bin
# Tests whose coverage of MEASURED counts: at least 95 % of the lines and branches of each. The longest first
CORE_TESTS := tests/property tests/scenario tests/unit/log tests/unit/coordinator tests/unit/broker tests/unit/partition tests/unit/placement tests/unit/wire
# What make check runs, too
TEST_OF_WORDS := tests/unit/docs/test_docs_words.py
MEASURED := sdk/headrace/wire sdk/headrace/placement sdk/headrace/partition sdk/headrace/groups sdk/headrace/log services/broker/headrace_broker/core services/coordinator/headrace_coordinator/core
GENERATED := sdk/headrace/v1 services/common/headrace_server/internal_v1

.DEFAULT_GOAL := help
.PHONY: help set-up demo up down status test test-slow test-grpc test-directory fast test-containers test-dashboards test-kubernetes sim sim-groups mutants check check-types check-text check-imports check-pages check-proto proto proto-baseline golden lock sbom release docs site blocking bench bench-peers chaos security fuzz clean
ifndef CHECKS_IN_PARALLEL
.NOTPARALLEL:
endif
# Tools and tests are hundreds of processes: they keep what they compile, whatever the image says.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

set-up: ## make .venv from the lock file (every target does it by itself)
	@$(PYTHON) tools/set_up.py

demo: set-up ## a cluster, a million records in and out, kill -9 of a leader meanwhile, all checked, then a Spark table (LOG=file for your own lines)
	@$(BIN)/python -m examples.demo $(if $(LOG),--log "$(LOG)") $(DEMO_FLAGS)

up: set-up ## start a local cluster in the background: SDK and CLI find it at localhost:7170
	@$(BIN)/python -m headrace_devcluster up $(UP_FLAGS)

down: set-up ## stop it
	@$(BIN)/python -m headrace_devcluster down

status: set-up ## what runs, where, since when
	@$(BIN)/python -m headrace_devcluster status

test: check ## the checks, then all tests but the slow ones; those of the cores and of the storage engine first, with their coverage
	@mkdir -p build
	$(BIN)/pytest $(PYTEST_FLAGS) -m "not slow" --cov --cov-report= $(CORE_TESTS)
	@for folder in $(MEASURED); do percent=$$($(BIN)/coverage report --include="$$folder/*" --format=total) \
		&& echo "coverage of $$folder: $$percent %" || { $(BIN)/coverage report --include="$$folder/*" --skip-covered; exit 1; }; done
	$(BIN)/pytest $(PYTEST_FLAGS) -m "not slow" $(CORE_TESTS:%=--ignore=%) --ignore=$(TEST_OF_WORDS)

test-slow: set-up ## the tests marked slow, which make test leaves out: most jobs on Spark, programs that start a Spark of their own, the documentation site, benchmarks
	$(BIN)/pytest $(PYTEST_FLAGS) -m slow

test-grpc: set-up ## the tests of clients and brokers where brokers do not serve the native protocol, so that all use gRPC
	HEADRACE_TEST_TRANSPORT=grpc $(BIN)/pytest $(PYTEST_FLAGS) -m "not slow" tests/contract tests/integration tests/paper

test-directory: set-up ## the tests of the SDK on a directory (headrace.open) in place of a cluster
	HEADRACE_TEST_DIRECTORY=1 $(BIN)/pytest $(PYTEST_FLAGS) -n 2 $$($(BIN)/python -m tests.integration.on_directory)

fast: set-up ## the unit and property tests of what changed since main, nearest first, for at most a minute (FAST_FLAGS=--help)
	@$(BIN)/python tools/fast.py $(FAST_FLAGS)

test-containers: set-up ## Dockerfile, docker-compose.yml and Prometheus' own checks, on a Docker engine of the run's own: needs root on Debian, takes minutes
	@$(BIN)/python -m tests.containers tests/deploy/test_rules.py tests/deploy/test_dashboards.py tests/deploy/test_dashboards_live.py tests/containers

test-dashboards: set-up ## pictures of the Grafana dashboards, of a live cluster, in build/dashboards: needs root on Debian and npm
	@$(BIN)/python -m tests.dashboards tests/dashboards

test-kubernetes: set-up ## the Helm chart's life on a Kubernetes of three nodes, the run's own: needs root on Debian and Go, builds for a quarter of an hour the first time
	@$(BIN)/python -m tests.kubernetes tests/kubernetes

sim: set-up ## replication on a simulated network, disk, clock and etcd, all of which fail (SEED=, SEEDS=, STEPS=, JOBS=)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) --steps $(STEPS) --jobs $(JOBS) $(SIM_FLAGS)

sim-groups: SIM_FLAGS += --groups
sim-groups: sim ## consumer groups on the same network and etcd, as sim

mutants: set-up ## take each rule out of the code, one at a time, and see that a test fails (MUTANT=, JOBS=)
	@$(BIN)/python -m tests.mutation $(if $(MUTANT),--id $(MUTANT)) $(if $(filter command,$(origin JOBS)),--jobs $(JOBS)) $(MUTANT_FLAGS)

check: ## ruff, mypy --strict, import layers, words, protos, generated code and pages
	@$(MAKE) CHECKS_IN_PARALLEL=yes -j 2 --output-sync=target check-types check-text check-imports check-pages check-proto

# Steps of make check, two at a time; the longest first.
check-types: set-up
	$(BIN)/mypy

check-text: set-up
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest $(TEST_OF_WORDS)

check-imports: set-up
	$(BIN)/lint-imports

check-pages: set-up
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/python tools/settings_types.py --check

# buf lint and breaking, and the committed code is what the protos give
check-proto: set-up
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/baseline.binpb
	@$(PYTHON) tools/set_up.py proto && $(BIN)/python tools/proto.py --check

proto: set-up ## write the code generated from proto/
	@$(PYTHON) tools/set_up.py proto
	$(BIN)/python tools/proto.py

proto-baseline: set-up ## at a release: what later protos must stay compatible with
	$(BIN)/buf build --exclude-source-info --output proto/baseline.binpb

golden: set-up ## before a release: what it asks of its servers and what they answer, for the next ones to answer too
	@$(BIN)/python -m tests.golden.conversation

lock: set-up ## write the lock files (UPGRADE=1 takes the newest versions)
	tools/lock.sh

sbom: set-up ## write the image's software bill of materials (CycloneDX), from its lock file, to dist/headrace.cdx.json
	@$(BIN)/python tools/sbom.py

release: set-up ## what a release has, built from the last commit, checked, in dist/VERSION; pushes nothing (VERSION=x.y.z, RELEASE_FLAGS=--dry-run)
	@$(BIN)/python tools/release.py $(RELEASE_FLAGS) "$(VERSION)"

blocking: set-up ## write the SDK's generated code: blocking classes and their tests from the asyncio ones, types of settings
	$(BIN)/python tools/async_to_sync.py
	$(BIN)/python tools/settings_types.py

docs: set-up ## write the reference pages that are generated from code and protos
	$(BIN)/python tools/docs.py

site: set-up ## build the documentation site with the Python API, in build/site; a broken link is an error (SITE=)
	@$(BIN)/sphinx-build --quiet --fail-on-warning -c docs -d $(SITE)/.doctrees . $(SITE)

bench: set-up ## what headrace moves beside plain gRPC calls with the same bytes, the paper's figures (BENCH_FLAGS=--help)
	@$(BIN)/python -m bench $(BENCH_FLAGS)

bench-peers: set-up ## the same beside Kafka, RabbitMQ, NATS, Redis, ActiveMQ, Fluss; bench/peers/install.sh installs them
	@$(BIN)/python -m bench.peers $(BENCH_FLAGS)

chaos: set-up ## real processes under faults drawn by a seed, etcd away for a minute (CHAOS_SECONDS=60 CHAOS_SEED=1 CHAOS_GROUP_RUNS=20)
	HEADRACE_TEST_CHAOS_SECONDS=$(CHAOS_SECONDS) HEADRACE_TEST_CHAOS_SEED=$(CHAOS_SEED) HEADRACE_TEST_CHAOS_FAULTS="$(CHAOS_FAULTS)" \
	HEADRACE_TEST_OUTAGE_SECONDS=60 \
	HEADRACE_ETCD="$$($(BIN)/python -m tests.newer_etcd)" \
	HEADRACE_TEST_KILLS=10 HEADRACE_TEST_GROUP_RUNS=$(CHAOS_GROUP_RUNS) HEADRACE_TEST_GROUP_SECONDS=$(CHAOS_GROUP_SECONDS) \
	$(BIN)/pytest -s -k "at_random or away_while or one_after or befalls" tests/integration/test_replication_chaos.py \
	tests/integration/test_replication_etcd.py tests/integration/test_replication_failover.py \
	tests/integration/test_groups_chaos.py

security: set-up ## every attack on a real cluster, the largest call of every method, as many fuzzed calls (FUZZ_CALLS=, FUZZ_SEED=); then what an honest client feels
	HEADRACE_TEST_SECURITY=1 FUZZ_CALLS=$(FUZZ_CALLS) FUZZ_SEED=$(FUZZ_SEED) $(BIN)/pytest --timeout 36000 tests/security
	$(BIN)/python -m tests.security.honest_client

fuzz: set-up ## invalid frames, sent to every end of a connection of the native protocol, in memory (FUZZ_FRAMES=, FUZZ_SEED=, JOBS=)
	@$(BIN)/python -m tests.security.frame_fuzz --frames $(FUZZ_FRAMES) --seed $(FUZZ_SEED) $(if $(filter command,$(origin JOBS)),--jobs $(JOBS)) $(FUZZ_FLAGS)

clean: ## remove environments, caches and the local cluster's data
	-@[ ! -x $(BIN)/python ] || $(BIN)/python -m headrace_devcluster down --quiet
	rm -rf .venv .venv-proto .headrace build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
