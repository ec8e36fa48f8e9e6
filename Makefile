# Everything runs in .venv, made from the system's Python 3.11 or newer.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
JOBS ?= 2

.PHONY: tune test test-engines stress lint bench clean

# The main job: on the GPUs if there are any, else on the recorded H200 that ships with the package.
tune: .venv/base
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; then \
		$(BIN)/pip install --quiet -e '.[gpu]' && $(BIN)/blockscale tune deepseek-v3 --tp-size 8 --yes; \
	else \
		echo "No NVIDIA GPU here: tuning two DeepSeek-V3 shapes on the recorded H200 instead." && \
		$(BIN)/blockscale tune --N 24576 --K 1536 --device recorded:h200 --batch-sizes 1 16 64 256 4096 && \
		$(BIN)/blockscale tune --N 2112 --K 7168 --device recorded:h200 --batch-sizes 1 16 64 256 1024 4096; \
	fi

# The whole fast test set.
test: .venv/dev
	$(BIN)/python -m pytest -m 'not slow and not gpu and not multi_gpu' -n $(JOBS)

# What the engines' published code does with our files and theirs; downloads 1.2 GB of wheels once.
ENGINES ?= $(HOME)/.cache/blockscale/engines
test-engines: .venv/dev
	$(BIN)/python tests/published_engines/fetch.py $(ENGINES)
	BLOCKSCALE_ENGINE_PACKAGES=$(ENGINES) $(BIN)/python -m pytest -n $(JOBS) \
		tests/published_engines tests/kernels/engine_kernels/test_published_packages.py

# The long ones, many times: runs killed 100 times, 50 rounds of concurrent writers, properties on 2,000 examples each.
stress: .venv/dev
	$(BIN)/python -m pytest -m 'slow and not gpu and not multi_gpu' -n $(JOBS)
	$(BIN)/python -m pytest tests/property --hypothesis-profile=stress -n $(JOBS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Figures that need no GPU; those that do are named in benchmarks/README.md.
bench: .venv/dev
	$(BIN)/python benchmarks/search_regret.py --seeds 1 --only "new shape" ladder random exhaustive

# pip and not python: where the system has no ensurepip, venv fails and leaves a python behind.
.venv/bin/pip:
	@test -n "$(PYTHON)" || { echo "blockscale needs Python 3.11 or newer"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip

.venv/base: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet -e .
	@touch $@

.venv/dev: .venv/base
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
