# make demo: train on the demo set.  make test: check everything.  Both make .venv first.
# make results: RESULTS.md and figures/ from logs/.  make study-scaling_cpu: its runs anew, in logs/.
# make bench DIR=FOLDER, make bench-gpu: the benchmarks, in logs/benchmarks/.  make chaos: faults.
PYTHON ?= python3
BIN := .venv/bin
CIFAR10 ?= cifar10
LOGS ?= logs

demo: .venv/installed
	$(BIN)/python -m torch.distributed.launch --nproc_per_node=2 imagenet_ddp_apex.py \
		-a resnet18 --opt-level O1 -b 32 --lr 0.4 --lr-schedule cosine --epochs 10 \
		--desired-acc 0.9 --no-accel
	$(BIN)/python make_results.py runs --out demo_results
	@echo "To see the curves: $(BIN)/tensorboard --logdir runs, then open http://localhost:6006"

test: .venv/installed-dev .venv/installed-horovod
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/sync_copies.py
	$(BIN)/python make_results.py logs --check
	$(BIN)/python -m pytest $(PYTEST)

test-all: PYTEST += -m "slow or not slow"
test-all: test

results: .venv/installed
	$(BIN)/python make_results.py $(LOGS) $(if $(OUT),--out "$(OUT)")

study-%: .venv/installed .venv/installed-horovod
	$(BIN)/python benchmarks/studies.py $* --dir "$(CIFAR10)"

# What the data path and the loop gain over others': DIR=FOLDER with JPEGs of ImageNet's size.
bench: .venv/installed-bench .venv/installed-horovod
	$(BIN)/python benchmarks/decoders.py "$(DIR)"
	$(BIN)/python benchmarks/data_loading.py "$(DIR)"
	$(BIN)/python benchmarks/training.py "$(DIR)"

# On a CUDA device, in under eight minutes; DIR is optional.
bench-gpu: .venv/installed
	$(BIN)/python benchmarks/gpu.py $(if $(DIR),"$(DIR)")

# Kills, freezes and starves runs in every way that they must survive: over an hour; disk, nodes and
# slurm need root.
chaos: .venv/installed-dev .venv/installed-horovod
	$(BIN)/python benchmarks/chaos.py

horovod: .venv/installed-horovod

.venv/installed: requirements.txt requirements-results.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -r requirements.txt -r requirements-results.txt
	@touch $@

.venv/installed-dev: .venv/installed requirements-dev.txt
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	@touch $@

.venv/installed-bench: .venv/installed requirements-bench.txt
	$(BIN)/python -m pip install -q -r requirements-bench.txt
	@touch $@

.venv/installed-horovod: .venv/installed tools/install_horovod.sh
	bash tools/install_horovod.sh $(BIN)/python
	@touch $@

.PHONY: demo test test-all results bench bench-gpu chaos horovod
