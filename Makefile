# Everything a newcomer needs: each target makes the virtual environment when it is missing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
MINUTES ?= 1
PERCENT ?= 5

# The tests start thousands of processes: without bytecode on disk, each compiles every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo upstream django test nightly buggify check docs vectors pictures compat simulate simulator soak fuzz mutants power faults snapshots containers matrix bench load dist clean

PIP := $(BIN)/pip install --quiet --disable-pip-version-check

$(VENV)/.cli: pyproject.toml
	@echo "fdbqueue and its command line, ten small packages, go into $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) --editable '.[cli]'
	@touch $@

$(VENV)/.ready: $(VENV)/.cli
	@echo "the tools of its developers, some hundred packages, go into $(VENV): this takes minutes"
	@$(BIN)/pip install --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.cli   ## the main job, end to end: a fleet, kills, stalls, a proof
	@$(BIN)/fdbqueue demo

upstream: .upstream/.ready   ## the tests of frameworks, in .upstream/: `make test` skips them without, and runs the quick ones

.upstream/.ready: tests/frameworks/upstream.txt | $(VENV)/.ready
	rm -rf .upstream
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --ignore-requires-python \
		--require-hashes --requirement $< --dest .upstream
	for archive in .upstream/*.tar.gz; do tar --extract --gzip --directory .upstream --file $$archive || exit 1; done
	@touch $@

django: $(VENV)/.ready ## the tests of Django's tasks with Django 6.0 and the newest, on a Python 3.12 or later if there is one
	$(BIN)/python -m tests.django.newest

# One worker more than there are processors: half of a run waits for processes of its own.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test: $(VENV)/.ready   ## the tests, slow ones in their short version
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

nightly: upstream   ## the long versions, too: soak, kill, big simulation, all tests of frameworks
	FDBQUEUE_TEST_SLOW=1 $(BIN)/pytest --numprocesses auto --dist worksteal --timeout 3600

buggify: $(VENV)/.ready   ## tests, demo and load on the cluster of FDB_CLUSTER_FILE, whose client injects faults; PERCENT=5
	FDBQUEUE_TEST_BUGGIFY=$(PERCENT) $(BIN)/pytest --numprocesses auto --dist worksteal
	$(BIN)/python -m tests.buggify --percent $(PERCENT) $(BIN)/fdbqueue --url fdb: demo
	$(BIN)/python -m tests.buggify --percent $(PERCENT) $(BIN)/python -m loadtest --headless --only-summary \
		--url fdb: --shape ramp --users 8 --run-time 60s

check: $(VENV)/.ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.ready   ## rewrite what is generated in docs/, and build the site: site/index.html
	$(BIN)/python docs/cli_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

vectors: $(VENV)/.ready   ## rewrite fdbqueue/operate/layout/vectors.json: its diff shows each change of the key layout
	$(BIN)/python -m tests.system.vectors.writing

pictures: $(VENV)/.ready   ## the pictures of docs/dashboard.md, with the Chromium of the system
	$(BIN)/python docs/dashboard_pictures.py

simulate: $(VENV)/.ready   ## races, crashes and lost commits under a seed; MINUTES=1 NEAR=a changed file
	$(BIN)/python -m tests.system --minutes $(MINUTES) $(NEAR:%=--near %)

FDBSERVER ?= fdbserver
SEEDS ?= 100
simulator: $(VENV)/.ready   ## the same in FoundationDB's simulator; FDBSERVER=path CLIENT=path SEEDS=100 MINUTES=10
	$(BIN)/python -m tests.simulator --fdbserver $(FDBSERVER) $(CLIENT:%=--client %) --seeds $(SEEDS) --minutes $(MINUTES)

soak: $(VENV)/.ready       ## processes, killed and stopped at random, then a count; MINUTES=1 URL=fdb: SUBJECTS=leases,groups
	$(BIN)/python -m tests.system.soak --minutes $(MINUTES) $(URL:%=--url %) $(SUBJECTS:%=--subjects %)

fuzz: $(VENV)/.ready   ## hostile values for every call and every option of the command line; MINUTES=1
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

mutants: $(VENV)/.ready   ## are small changes of our own source found? ROOM=line MINUTES=60; goes on behind the last run
	$(BIN)/python -m tests.mutants $(ROOM:%=--room=%) --minutes $(MINUTES)

power: $(VENV)/.ready   ## power cuts at any moment of recorded runs; MINUTES=1; needs a C compiler
	$(BIN)/python -m tests.power --minutes $(MINUTES)

faults: $(VENV)/.ready   ## EIO and ENOSPC at each change of a disk in turn; MINUTES=1; needs a C compiler
	$(BIN)/python -m tests.power.faults --minutes $(MINUTES)

snapshots: $(VENV)/.ready   ## file-system snapshots under load, opened; MINUTES=1; needs root and btrfs
	$(BIN)/python -m tests.power.snapshots --minutes $(MINUTES)

COMPOSE := docker compose
containers: $(VENV)/.ready ## docker/compose.yaml in real containers; COMPOSE="docker compose"
	$(COMPOSE) --file docker/compose.yaml --profile load build
	FDBQUEUE_TEST_SLOW=1 FDBQUEUE_TEST_COMPOSE="$(COMPOSE)" $(BIN)/pytest tests/docker/test_containers.py

matrix: $(VENV)/.ready   ## bindings 7.1 to 8.0 on each Python found, as a table; with FDB_CLUSTER_FILE on its cluster, too
	$(BIN)/python -m tests.matrix

bench: $(VENV)/.ready  ## the measurements behind docs/performance.md
	$(BIN)/python -m benchmarks.start_up
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.parts
	$(BIN)/python -m benchmarks.queue
	$(BIN)/python -m benchmarks.tasks
	$(BIN)/python -m benchmarks.keys
	$(BIN)/python -m benchmarks.bag
	$(BIN)/python -m benchmarks.tenants
	$(BIN)/python -m benchmarks.persistent
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.elements
	$(BIN)/python -m benchmarks.fleet
	$(BIN)/python -m benchmarks.observing
	$(BIN)/python -m benchmarks.scrape
	$(BIN)/python -m benchmarks.beanstalkd
	$(BIN)/python -m benchmarks.waking
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.frameworks celery
	$(BIN)/python -m benchmarks.frameworks dramatiq
	$(BIN)/python -m benchmarks.frameworks taskiq
	$(BIN)/python -m benchmarks.frameworks django

load: $(VENV)/.ready   ## a minute of mixed load up a ramp of users; a report and plots in load-report/
	rm -rf load-report && mkdir load-report
	$(BIN)/python -m loadtest --headless --only-summary --url embedded:load-report/data \
		--shape ramp --users 32 --run-time 60s --html load-report/report.html --plots load-report
	rm -rf load-report/data

compat: $(VENV)/.ready ## what stays between releases: the layout's vectors, and the directories that releases have left
	$(BIN)/fdbqueue conformance -- $(BIN)/python -m examples.layout_program
	$(BIN)/pytest tests/layout tests/releases tests/public

dist: $(VENV)/.ready   ## a wheel and a source distribution in dist/, checked, installed with each extra, and run
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	FDBQUEUE_TEST_SLOW=1 $(BIN)/pytest tests/packaging

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis load-report build dist site .upstream .venv-django *.egg-info
