# The only entry a newcomer needs. `make` alone explains.
#
# Packages come from wherever pip is configured to look; nothing here names an index.

RECIPE ?= recipes/smollm2-135m-cpu.yaml
# Read as "$$RECIPE", so that a path may hold blanks and quotes.
export RECIPE
VENV   := .venv
PY     := $(VENV)/bin/python
# Runs from the checkout itself, before anything is installed.
BOOT   := PYTHONPATH=kernels:. $(PY) -P -m tokenspeed.appliance.bootstrap
SOURCES := pyproject.toml kernels/pyproject.toml kernels/tokenspeed_kernels/_version.py \
           $(shell find tokenspeed/scheduler/csrc kernels/csrc -type f)

# The newest Python that runs here (a shim may exist for a version that does not).
PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
            command -v $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help up test image-test system-test check lint bench bench-scheduler gpu-test gpu-sanitize \
        gpu-bench clean

help: ## this text
	@echo "tokenspeed: a recipe becomes a running language model server"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@printf '  RECIPE=%s    PYTHON=%s\n' "$$RECIPE" "$(PYTHON)"

up: $(VENV)/.ready ## set up .venv, fetch the model, boot RECIPE and answer; Ctrl-C drains
	@exec $(VENV)/bin/tokenspeed up "$$RECIPE"

# Tests of one file share servers, so a file stays in one process.
test: $(VENV)/.test ## run every test that needs no GPU, two files at a time
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile -m "not gpu and not image and not systemd"

image-test: $(VENV)/.test ## build the CPU image twice and run it (root, buildah, podman; minutes)
	$(PY) -m pytest -m image tests/appliance

system-test: $(VENV)/.test ## boot a real systemd in a container and run the units there; needs root
	OMP_NUM_THREADS=1 $(PY) -m pytest -m systemd -rs tests/system

check: $(VENV)/.dev ## formatting, lint, types, import contracts, Containerfile
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/hadolint containers/Containerfile

lint: $(VENV)/.dev ## mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Figures and results are kept in OUT, and only where that is given.
KEEP = $(if $(OUT),--out "$(OUT)")

bench: $(VENV)/.bench ## measure on this machine, beside the peers; OUT=FOLDER keeps the figures
	OMP_NUM_THREADS=1 $(VENV)/bin/tokenspeed bench $(KEEP)

bench-scheduler: $(VENV)/.test ## CPU cost of scheduling, from C++ and from Python
	@cmake -S tokenspeed/scheduler/csrc -B build/scheduler-bench -DCMAKE_BUILD_TYPE=Release \
	  -DTOKENSPEED_BUILD_MODULE=OFF -DTOKENSPEED_BUILD_BENCH=ON >/dev/null && \
	  cmake --build build/scheduler-bench --parallel >/dev/null
	build/scheduler-bench/scheduler_bench
	OMP_NUM_THREADS=1 $(PY) -m tokenspeed.bench.scheduler

# With the python3 at hand where that one sees a CUDA device and has what the tests import, else
# with .venv.
GPU_PY = $(shell python3 -c 'import sys, torch, triton, transformers, gguf, msgspec, pytest_timeout; \
             sys.exit(not torch.cuda.is_available())' \
           2>/dev/null && echo python3 || echo $(PY))

# The checkout first, then what the caller brought along.
GPU_PATH = kernels:.$(if $(PYTHONPATH),:$(PYTHONPATH))

# Most of their time goes into compiling kernels, which as many processes share as there are cores.
GPU_WORKERS = $(shell $(GPU_PY) -c 'import xdist' 2>/dev/null && echo -p no:benchmark -n auto --dist worksteal)

# A kernel that waits for ever ends with its process only; another one takes over.
GPU_TESTS = tests/gpu tests/kernels/gpu
gpu-test: gpu-core ## run the tests that need a CUDA device; failures are named as they happen
	OMP_NUM_THREADS=1 PYTHONPATH=$(GPU_PATH) $(GPU_PY) -m pytest -m gpu -p tests.failures \
	  --tb=short --durations=12 -o timeout=150 -o timeout_method=thread $(GPU_WORKERS) \
	  $(if $(OUT),--junitxml="$(OUT)/gpu-test.xml") $(GPU_TESTS)

# torch's own allocator would hide what lies beyond a tensor.
gpu-sanitize: gpu-core ## watch the kernels for races and stray accesses, with compute-sanitizer
	@command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed: it" \
	  "comes with the CUDA toolkit"; exit 69; } >&2
	@for tool in memcheck racecheck; do \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=$(GPU_PATH) \
	    $(GPU_PY) tests/kernels/triton/sanitize.py $$tool || exit; done

gpu-bench: gpu-core ## measure on the CUDA device; OUT=FOLDER keeps the figures
	PYTHONPATH=$(GPU_PATH) $(GPU_PY) -m tokenspeed bench decode $(KEEP)
	PYTHONPATH=$(GPU_PATH) $(GPU_PY) -m tokenspeed bench prefill $(KEEP)

# The scheduler's core for an interpreter in which tokenspeed is not installed.
.PHONY: gpu-core
gpu-core:
	@test $(GPU_PY) != $(PY) || $(MAKE) --no-print-directory $(VENV)/.test
	@PYTHONPATH=$(GPU_PATH) $(GPU_PY) -c 'import tokenspeed.scheduler' 2>/dev/null || { \
	  cmake -S tokenspeed/scheduler/csrc -B build/gpu -DCMAKE_BUILD_TYPE=Release \
	    -DPython_EXECUTABLE="$$($(GPU_PY) -c 'import sys; print(sys.executable)')" \
	    -Dpybind11_DIR="$$($(GPU_PY) -m pybind11 --cmakedir)" && \
	  cmake --build build/gpu --parallel && cp build/gpu/_core*.so tokenspeed/scheduler/; }

clean: ## remove .venv, builds and caches (weights stay)
	rm -rf $(VENV) build kernels/build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find tokenspeed kernels tests -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment: each file below says when its step was done

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found. On Debian or Ubuntu:"; \
	  echo "    apt-get install -y python3 python3-venv python3-dev g++"; exit 69; } >&2
	@PYTHONPATH=kernels:. "$(PYTHON)" -P -m tokenspeed.appliance.bootstrap check --cxx "$(CXX)"
	"$(PYTHON)" -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	@$(BOOT) torch
	@touch $@

# Editable: Python changes need no new build; a changed C++ source or pyproject.toml does.
$(VENV)/.ready: $(VENV)/.torch $(SOURCES)
	@echo "building tokenspeed (C++) and installing what it needs"
	@$(PY) -m pip install -qq -e ./kernels -e ".[worker]"
	@touch $@

$(VENV)/.test: $(VENV)/.ready pyproject.toml
	@$(BOOT) check --tests --cxx "$(CXX)"
	@$(BOOT) extra test
	@# Interprets and cross-compiles the GPU kernels; a CUDA build of torch brings its own.
	@$(PY) -c 'import triton' 2>/dev/null || $(PY) -m pip install --quiet --no-deps "triton==3.6.0"
	@touch $@

$(VENV)/.bench: $(VENV)/.ready pyproject.toml
	@$(BOOT) extra bench
	@touch $@

$(VENV)/.dev: $(VENV)/.test pyproject.toml
	@$(BOOT) extra dev
	@touch $@
