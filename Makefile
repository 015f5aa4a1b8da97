# make demo: train on the demo set.   make test: check everything.   make setup: all that they need.
# make results: RESULTS.md and figures/ from logs/.  make study-scaling_cpu: its runs anew, in logs/.
# make bench DIR=FOLDER: the benchmarks, in logs/benchmarks/.  make gpu: one GPU.  make chaos: faults.
# make equal COMMIT=86e46ec: whether the scripts train exactly as those of that commit.
# make flat: each script as one file, with what it uses of trainparts/ in it, in flat/.
PYTHON ?= python3
BIN := .venv/bin
CIFAR10 ?= cifar10
LOGS ?= logs

# On the CPU glibc would give large blocks back to the kernel after each step, which clears new ones
# for the next (docs/precision.md).
demo study-% bench: export MALLOC_MMAP_MAX_ = 0
demo study-% bench: export MALLOC_TRIM_THRESHOLD_ = 2147483647

demo: .venv/installed
	env -u IMAGENET_DIR $(BIN)/python imagenet_ddp.py --nproc-per-node 2 --no-accel -b 32 --lr 0.2 \
		--lr-schedule cosine --epochs 5 --desired-acc 0.9
	@$(BIN)/python make_results.py runs --out demo_results >/dev/null
	@echo "Figures: demo_results/figures/, tables: demo_results/RESULTS.md"

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/python tools/sync_copies.py
	$(BIN)/python make_results.py logs --check
	$(BIN)/python -m pytest $(PYTEST)

test-all: PYTEST += -m "slow or not chaos"
test-all: test

results: .venv/installed
	$(BIN)/python make_results.py $(LOGS) $(if $(OUT),--out "$(OUT)")

study-text_cpu: .venv/installed-text
study-%: .venv/installed .venv/installed-horovod
	$(BIN)/python benchmarks/studies.py $* --dir "$(CIFAR10)"

# What parallel strategies send, need and waste; of these, exchange needs root.
study-exchange_cpu study-dtype_cpu study-memory_cpu study-bubble_cpu: study-%_cpu: .venv/installed
	$(BIN)/python benchmarks/parallel.py $*

# What text_*.py send, gather and take; of these, exchange and traffic take root.
TEXT := exchange traffic albert gathers stages ngrams
$(TEXT:%=study-text_%): study-text_%: .venv/installed-text .venv/installed-horovod
	$(BIN)/python benchmarks/text.py $*

# What the data path and the loop gain over others': DIR=FOLDER with JPEGs of ImageNet's size.
bench: .venv/installed-bench .venv/installed-horovod
	$(BIN)/python benchmarks/data_loading.py "$(DIR)"
	$(BIN)/python benchmarks/training.py "$(DIR)"

# On a CUDA device, in ten minutes; the top of the program says what DATA may hold, and OUT gets.
gpu: .venv/installed
	$(BIN)/python benchmarks/one_gpu.py --data "$(or $(DATA),gpu_data)" --out "$(or $(OUT),gpu_logs)"

# Kills, freezes and starves runs in every way that they must survive: hours; some of it needs root.
# K="kills or signals" chooses trials by name. Folders of trials that failed are kept.
CHAOS := logs/benchmarks/chaos.json
chaos: setup
	$(BIN)/python -m pytest -v -n 0 -m chaos -k "$(K)" -o tmp_path_retention_policy=failed \
		--chaos-log $(CHAOS) tests/chaos

# It needs no packages, and no environment.
flat:
	mkdir -p flat
	for script in imagenet_*.py text_*.py; do \
		[ ! -e "$$script" ] || { "$(PYTHON)" tools/one_file.py "$$script" > flat/.new && \
			mv flat/.new "flat/$$script"; } || exit 1; \
	done

# Compares this working tree with a commit, bit for bit: ten minutes. K="ddp recipe" chooses
# comparisons by name. COMMIT=flat compares the scripts with what `make flat` makes of them.
equal: setup
	$(BIN)/python tests/equal.py $(COMMIT) $(if $(K),-k "$(K)")

# Environment, tests' tools, Horovod: each part is made once, and again when pyproject.toml, which
# lists what they need, has changed. trainparts is installed as a link to the folder here (-e), of
# which setuptools always warns (-qq).
setup: .venv/installed-dev .venv/installed-horovod

.venv/installed: pyproject.toml
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -qq -e ".[results]"
	@touch $@

.venv/installed-dev .venv/installed-bench .venv/installed-text: .venv/installed-%: .venv/installed
	$(BIN)/python -m pip install -qq -e ".[$*]"
	@touch $@

.venv/installed-horovod: .venv/installed tools/install_horovod.sh
	bash tools/install_horovod.sh $(BIN)/python
	@touch $@

horovod: .venv/installed-horovod

.PHONY: demo test test-all results bench gpu chaos equal flat setup horovod
