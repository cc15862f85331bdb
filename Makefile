# Two commands do everything: `make demo` runs the main job, `make test` passes the tests. Both install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On a CPU-only machine, point PIP_EXTRA_INDEX_URL at PyTorch's CPU builds to avoid the CUDA packages.
TORCH ?= torch==2.13.0

.PHONY: help demo test check lint types contracts test-unit test-shim test-cluster test-sites test-hosts soak slurm ready clean hooks hooks-deps
.PHONY: test-rehearse test-frameworks fuzz test-packages test-browser test-api test-exact test-kills test-torch test-python test-main-job test-scripts
.PHONY: bench-fairness bench-optimizer bench-models bench-input bench-paper bench-simulator bench-ingest bench-pollux bench-policy bench-goals bench-cluster bench-advise bench-deadlines
.PHONY: test-gpu bench-gpu bench-resize bench-batch bench-reports bench-round bench-history bench-rpcs bench-abuse bench-load bench-training soak-training soak-cluster soak-growth test-matrix

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

HOSTS ?= 0
NAMES ?= full
demo: ready slurm  ## the main job: elastic training on a private real Slurm, with a check of every sample and step (HOSTS= NAMES=)
	$(BIN)/python examples/demo/demo.py --hosts $(HOSTS) --names $(NAMES)

# Where processes, networks and Slurm's own daemons meet on a busy machine, a test that fails gets a second go; the run
# lists it ("rerun test summary"), and it is a defect of the test or of the product. The soaks give no second go.
AGAIN = --reruns 1 -rR

# Four runs side by side, the longest first: they mostly wait, for Slurm and for each other's processes. The others begin
# as these are done, also where one failed. Each prints when it is done; what any of them installs is there before (-o).
# Types last: without its cache mypy keeps one core busy for a minute, and nothing waits for it.
test: ready slurm hooks-deps lint contracts  ## every check and test, those on a private real Slurm included
	@echo "tests: four runs at a time; each prints when it is done"
	@$(MAKE) --no-print-directory -k -j4 --output-sync=target $(addprefix -o ,ready slurm hooks-deps) \
		test-hosts test-cluster test-sites test-shim test-unit test-main-job \
		test-gpu types GPU_PYTHON=$(BIN)/python WITHOUT_GPU=skip

check: ready  ## for every day, in about two minutes: lint, types, contracts, and the unit tests without torch
	@HYPOTHESIS_PROFILE=others $(MAKE) --no-print-directory -j2 --output-sync=target lint types contracts test-unit

lint: ready  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }

types: ready  ## mypy, strict
	$(BIN)/mypy protocol client trainer_shim db daemon

contracts: ready  ## which part may import which
	PYTHONPATH=packaging/namespace $(BIN)/lint-imports

SHIM_TESTS = tests/unit/trainer_shim
STAND_IN_TESTS = tests/unit/gpu/stand_in
test-unit: ready  ## the tests that need neither Slurm nor torch
	MAKEFLAGS= $(BIN)/python -m pytest -n 3 --dist worksteal $(AGAIN) --durations=12 --ignore=$(SHIM_TESTS) --ignore=$(STAND_IN_TESTS) tests/unit tests/packaging

test-shim: ready hooks-deps  ## the trainer shim and its supervisor, in real worlds of torch
	MAKEFLAGS= $(BIN)/python -m pytest -n 2 --dist worksteal $(AGAIN) --durations=12 $(SHIM_TESTS) $(STAND_IN_TESTS)

test-rehearse: ready  ## every fault that `selastic rehearse` is to find in a script; `make test` tries six
	SELASTIC_REHEARSE_ALL=1 MAKEFLAGS= $(BIN)/python -m pytest -n 2 --dist worksteal tests/unit/trainer_shim/rehearse

# Suites of tests/unit/trainer_shim whose scripts put their models on job.device. Left out: tests whose ranks find out by
# gloo's errors that another one was killed; over NCCL the supervisor, or the watch of a GPU, does. And Transformers', whose
# arange() on the device the stand-in does not know.
ON_STAND_IN ?= loops/test_iterations.py training/test_switch.py adapters/test_frameworks.py::test_a_resized_training_equals_an_unresized_one
test-stand-in: ready  ## suites of resizes, own loops and sharded models on the stand-in for GPUs; make test has a few of each (ON_STAND_IN=)
	SELASTIC_ON_STAND_IN=1 SELASTIC_GPU_PATIENCE_S=5 MAKEFLAGS= $(BIN)/python -m pytest -n 2 --dist worksteal $(AGAIN) --durations=12 \
		-k 'not killed and not dies and not scripts_own and not transformers' $(addprefix $(SHIM_TESTS)/,$(ON_STAND_IN)) $(STAND_IN_TESTS)

test-cluster: ready slurm hooks-deps  ## the tests on two private real Slurms
	MAKEFLAGS= $(BIN)/python -m pytest -n 2 --dist loadfile $(AGAIN) --durations=12 --ignore=tests/cluster/sites --ignore=tests/cluster/hosts tests/cluster

test-sites: ready slurm  ## the tests on a private real Slurm as sites configure it: limits, vetoes, preemption, epilogs
	MAKEFLAGS= $(BIN)/python -m pytest $(AGAIN) --durations=12 tests/cluster/sites

test-hosts: ready slurm hooks-deps  ## the tests on a private real Slurm with several hosts, each with its own network, /tmp and names
	MAKEFLAGS= $(BIN)/python -m pytest $(AGAIN) --durations=12 tests/cluster/hosts

test-main-job: ready slurm  ## the main job, end to end on a private real Slurm, with selasticd killed in the middle
	MAKEFLAGS= $(BIN)/python -m pytest $(AGAIN) tests/end_to_end

soak: soak-training soak-cluster  ## hundreds of kills at random points of resizes, and the proof that nothing was lost

# How many of each, and minutes for each: 10,000 take about an hour each on a busy machine.
RESIZES ?= 10000
JOBS ?= 10000
MINUTES ?= 100000
soak-growth: ready  ## what grows while one training is resized, and short jobs pass through one daemon (RESIZES= JOBS= MINUTES=)
	$(BIN)/python tests/support/soak.py growth --resizes $(RESIZES) --minutes $(MINUTES)
	$(BIN)/python tests/support/soak.py jobs --jobs $(JOBS) --minutes $(MINUTES)
	$(BIN)/python tests/support/torch_growth.py

# SOAK_ARGS: --resizes, --kills, --seed.
soak-training: ready  ## of which: a training alone, its parameters replayed; and the same on stand-ins for GPUs and NCCL
	$(BIN)/python tests/support/soak.py training $(SOAK_ARGS)
	$(BIN)/python tests/support/soak.py training --gpus --resizes 40 --kills 20 $(SOAK_ARGS)

ROUNDS ?= 100
SEED ?= 1
SOAK_NAMES ?= loopback,private
soak-cluster: ready slurm  ## of which: selasticd, supervisors, workers, Slurm, nodes, the network (ROUNDS= SEED= KINDS=)
	@failed=0; \
	SELASTIC_SOAK_ROUNDS=$(ROUNDS) SELASTIC_SOAK_SEED=$(SEED) SELASTIC_SOAK_KINDS=$(KINDS) SELASTIC_SOAK_NAMES=$(SOAK_NAMES) \
		$(BIN)/python -m pytest -s tests/cluster/test_killing.py tests/cluster/sites/test_site_kills.py \
		tests/cluster/hosts/test_host_kills.py || failed=1; \
	SELASTIC_EVERYWHERE=1 $(BIN)/python -m pytest tests/unit/daemon/mechanisms/test_faults_everywhere.py \
		tests/unit/daemon/rounds/test_any_order.py \
		tests/cluster/hosts/test_failover.py tests/cluster/hosts/test_nodes_fail.py tests/cluster/hosts/test_cut_off.py \
		tests/cluster/sites/test_minutes_and_associations.py || failed=1; \
	exit $$failed

# BENCH_ARGS: for example --quick, or --profiles/--data FOLDER of measured profiles.
bench-optimizer bench-models bench-input bench-paper bench-simulator bench-fairness bench-ingest bench-resize bench-batch bench-reports bench-round bench-history bench-rpcs bench-abuse bench-goals bench-training: \
		bench-%: ready
	$(BIN)/python benchmarks/bench_$*.py $(BENCH_ARGS)

bench-cluster: ready  ## what services for the whole cluster bring; DATA: a folder with Philly's jobs and nodes (philly_*.csv)
	$(BIN)/python benchmarks/bench_power.py $(or $(DATA),.); $(BIN)/python benchmarks/bench_queue.py $(DATA) $(BENCH_ARGS)
bench-load: ready  ## the daemon's share of a core with 2,000 jobs that report every 30 s, and the status asked each second
	$(BIN)/python benchmarks/bench_ingest.py --only jobs_polled,jobs_floor --asked-every 1 $(BENCH_ARGS)

bench-advise: ready  ## selastic advise on a table of measured speeds: cost, deadlines missed; DATA: a folder with simulation_throughputs.json
	$(BIN)/python benchmarks/bench_advise.py $(or $(DATA),.) $(BENCH_ARGS)

bench-deadlines: ready  ## deadlines kept, simulated, with and without deadline_weight (BENCH_ARGS=)
	$(BIN)/python benchmarks/bench_deadlines.py $(BENCH_ARGS)

bench-goals:  ## the goals that stay beside their last committed figures; status 1 when one is worse by a third
bench-optimizer:  ## the exact optimizer beside other methods: CPU time, memory, value
bench-models:  ## throughput models: error and value of the plans made from them
bench-input:  ## made-up jobs that wait for their input: error with and without the models' term for it
bench-paper:  ## the paper's experiments: elastic batches against fixed ones
bench-simulator:  ## the simulator: speed, policies, restarts, needless moves
bench-fairness:  ## how even plans are between users on public traces, and what it costs (BENCH_ARGS="--data FOLDER")
bench-pollux:  ## our policy in the simulator of Pollux's artifact; ARTIFACT: a checkout of adaptdl, branch osdi21-artifact
	test -x build/pollux/bin/python || python3 -m venv build/pollux
	build/pollux/bin/pip install -q numpy==1.26.4 pandas==1.5.3 scipy==1.10.1 autograd==1.5 cython wheel 'setuptools<66'
	build/pollux/bin/pip install -q --no-build-isolation pymoo==0.4.2.2 numpy==1.26.4
	build/pollux/bin/pip install -q . ./packaging/daemon numpy==1.26.4
	build/pollux/bin/python benchmarks/bench_pollux.py --artifact $(ARTIFACT) $(BENCH_ARGS)
bench-policy: ready  ## beside Pollux in sixteen cells: loads, pauses, what scripts ask for and say; ARTIFACT as for bench-pollux
	$(BIN)/python benchmarks/bench_policy.py --artifact $(ARTIFACT) $(BENCH_ARGS)
bench-ingest:  ## reports per CPU-second accepted and committed
bench-round:  ## one round of the daemon at 5,000 and 10,000 running jobs: time, memory, queries to Slurm
bench-history:  ## what a year of a cluster takes in the database, in MB
bench-rpcs: slurm  ## what Slurm is asked when 300 jobs change in one round
bench-abuse: slurm  ## what one hostile user costs the others' reports, status and rounds
bench-batch:  ## loss under random changes of the batch, by learning-rate rule
bench-training:  ## techniques for elastic trainings: adaptive summation beside linear scaling, and what it costs
bench-reports:  ## what reports cost a step
bench-resize: slurm  ## the pause of a resize, beside a cold restart and torchrun

# They need torch and this tree alone, of any Python that has torch (PYTHON=), and eight minutes on one GPU. Named together
# they are one run with one table: what fails in one does not keep the other from running. WITHOUT_GPU=skip: no error.
OUT ?= build/gpu
GPU_RUN = $(or $(GPU_PYTHON),$(PYTHON)) tests/gpu/runner.py --out $(OUT) $(GPU_ARGS)
test-gpu:  ## checks on a real GPU, or else on the stand-in for one: forks, NCCL, checkpoints (PYTHON= OUT= GPU_ARGS=)
	@$(GPU_RUN) $(filter test-gpu bench-gpu,$(MAKECMDGOALS))

bench-gpu:  ## figures of a real GPU: forming, overhead, pauses, step times (PYTHON= OUT= GPU_ARGS=)
	@$(if $(filter test-gpu,$(MAKECMDGOALS)),:,$(GPU_RUN) bench-gpu)

# SCRIPTS: a folder with checkouts of their repositories, by name; without it they are fetched, or the tests skipped.
SCRIPTS ?=
TORCHVISION ?= torchvision==0.28.0
test-scripts: ready slurm  ## public training scripts with the diffs of examples/diffs, resized and killed on a private real Slurm (SCRIPTS=)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCHVISION)' '$(TORCH)' PyYAML diffusers datasets tensorboard
	SELASTIC_SCRIPTS=$(SCRIPTS) $(BIN)/python -m pytest --durations=0 tests/scripts

FRAMEWORKS ?= build/frameworks
test-frameworks: ready slurm  ## the recipes of selastic hold with Ray and torchft, each without it, too, on a private real Slurm (FRAMEWORKS=)
	@$(FRAMEWORKS)/bin/python -c "import ray.train, torchft" 2>/dev/null || { $(PYTHON) -m venv $(FRAMEWORKS) && $(FRAMEWORKS)/bin/pip install --quiet 'ray[train]' torchft-nightly; }
	SELASTIC_FRAMEWORKS=$(abspath $(FRAMEWORKS))/bin $(BIN)/python -m pytest -s tests/cluster/test_hold_recipes.py

test-matrix: ready  ## the contract with Slurm and the main job on the Slurm of Debian trixie and forky (24.11, 26.05)
	packaging/test-matrix $(SUITES)

hooks: hooks-deps  ## build the SPANK plugin against this machine's Slurm headers
	$(MAKE) -C slurm_hooks

hooks-deps:
	@packaging/install-build-deps-debian

# A venv of its own; the adapters are left out: their frameworks ask for a newer torch.
OLD_PYTHON ?= python3.10
OLD_TORCH ?= torch==2.4.0
OLD_VENV ?= build/$(subst =,,$(OLD_TORCH))
OLD_DAEMON_VENV ?= build/$(OLD_PYTHON)-daemon
test-torch: hooks-deps  ## the shim's tests on the oldest torch and Python that are promised (OLD_TORCH= OLD_PYTHON= OLD_VENV=)
	@test -x $(OLD_VENV)/bin/python || $(OLD_PYTHON) -m venv $(OLD_VENV)
	$(OLD_VENV)/bin/python -m pip install --quiet --disable-pip-version-check '$(OLD_TORCH)' 'numpy<2.3' \
		'pytest>=8' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'setuptools>=70.1' 'tqdm>=4.60'
	$(OLD_VENV)/bin/python -m pytest --confcutdir=tests/unit -o pythonpath="packaging/namespace tests/support" \
		--ignore=$(SHIM_TESTS)/adapters $(SHIM_TESTS) tests/unit/protocol/test_request.py tests/unit/protocol/test_codec.py

# The lowest version of each requirement that the daemon's setup.cfg accepts; tomli's own is schemathesis'.
test-python:  ## the daemon's and the command line's tests on the oldest Python and the oldest libraries that are promised
	@test -x $(OLD_DAEMON_VENV)/bin/python || $(OLD_PYTHON) -m venv $(OLD_DAEMON_VENV)
	sed -n '/^install_requires/,/^# Links/s/^ *\([A-Za-z0-9-]*\) *>=\([0-9.]*\).*/\1==\2/p' packaging/daemon/setup.cfg | grep -v tomli >$(OLD_DAEMON_VENV)/oldest.txt
	$(OLD_DAEMON_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLD_DAEMON_VENV)/oldest.txt \
		-e '.[convert]' -e packaging/daemon 'pytest>=8' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'httpx>=0.27' 'PyYAML>=6' 'schemathesis>=4' \
		'scipy>=1.15' 'scikit-learn>=1.4' 'shtab>=1.7' 'argparse-manpage>=4.6' 'PyMySQL>=1.1' 'tomli>=2'
	$(OLD_DAEMON_VENV)/bin/python -m pytest --confcutdir=tests/unit -o pythonpath="packaging/namespace tests/support" \
		--ignore=$(SHIM_TESTS) --ignore=$(STAND_IN_TESTS) tests/unit

EXAMPLES ?= 3000
fuzz: ready  ## malformed messages to supervisors, agents and workers, and malformed checkpoints, EXAMPLES of each kind
	MAKEFLAGS= HYPOTHESIS_PROFILE=fuzz SELASTIC_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n 2 --timeout=3600 \
		$(SHIM_TESTS)/control/test_malformed.py $(SHIM_TESTS)/supervisor/state_machine/test_malformed_messages.py \
		$(SHIM_TESTS)/checkpoint/test_contents.py

test-api: ready  ## 1,000 requests of every kind to every address of the API, against its own document
	HYPOTHESIS_PROFILE=others SELASTIC_API_EXAMPLES=1000 $(BIN)/python -m pytest --timeout=3600 tests/unit/daemon/api/test_openapi.py

test-exact: ready  ## the solver on 59,000 random instances against brute force, the recurrence and a MILP; make test has a quarter
	SELASTIC_ALL_INSTANCES=1 $(BIN)/python -m pytest -n 2 --timeout=3600 tests/unit/daemon/optimizer/solver

test-upgrade: ready slurm hooks-deps  ## jobs of the release before, from the history, live through the upgrade from it
	SELASTIC_FORMER=1 $(BIN)/python -m pytest tests/cluster/test_upgrades.py

test-kills: ready  ## kill -9 under load, a hundred rounds: nothing acknowledged is lost
	SELASTIC_KILL_ROUNDS=100 $(BIN)/python -m pytest --timeout=1800 tests/unit/db/test_durability.py

test-browser: ready  ## the page of `selastic report` in a real browser; leaves a picture in build/report.png
	@packaging/install-build-deps-debian --browser
	SELASTIC_TEST_BROWSER=1 $(BIN)/python -m pytest tests/browser

test-packages: ready  ## build .deb and .rpm; install, upgrade, boot and remove them on a clean Debian root
	packaging/test-packages

slurm:  ## install Slurm's Debian packages, without starting or enabling any service
	@packaging/install-slurm-debian

ready: $(VENV)/.ready

$(VENV)/.ready: setup.cfg pyproject.toml packaging/daemon/setup.cfg
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "python3-venv is missing; installing it"; apt-get update -qq && apt-get install -y -qq python3-venv && \
		$(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' -e '.[dev]' -e packaging/daemon
	@touch $@

clean:  ## remove what was built here
	rm -rf $(VENV) build dist slurm_hooks/build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo
