# Every target sets up what it needs. Variables:
#   ORT=openvino|cpu|gpu   which build of ONNX Runtime .venv holds; they exclude each other
#   PYTHON=python3         the interpreter that .venv is made from (3.11 or newer)
#   MODELS="NAME ..."      what `make models` fetches; --all for every model
#   PYTEST_ARGS=...        handed to pytest
#   ARGS=...               handed to the demo or the benchmark

SHELL := /bin/sh
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help
.PHONY: help venv models demo test test-slow test-webgpu test-cuda-standin test-gpu check bench clean
.DELETE_ON_ERROR:
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python

# onnxruntime-openvino is published for x86-64 Linux and for Python up to 3.13.
HAS_OPENVINO = [ "$$(uname -sm)" = "Linux x86_64" ] && \
	$$([ -x $(VENV_PYTHON) ] && echo $(VENV_PYTHON) || echo "$(PYTHON)") \
	-c 'import sys; sys.exit(sys.version_info >= (3, 14))' 2>/dev/null
ifndef ORT
ORT := $(shell if nvidia-smi -L >/dev/null 2>&1; then echo gpu; elif $(HAS_OPENVINO); then echo openvino; else echo cpu; fi)
endif

BUILD_openvino := onnxruntime-openvino
BUILD_cpu := onnxruntime
BUILD_gpu := onnxruntime-gpu
BUILD := $(BUILD_$(ORT))
ifeq ($(BUILD),)
$(error ORT=$(ORT) names no build of ONNX Runtime: use ORT=openvino, ORT=cpu or ORT=gpu)
endif
STAMP := .venv/.installed-$(ORT)

help: ## lists the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@sed -n '/^#   /s/^# //p' $(MAKEFILE_LIST)
	@echo "  Here and now: ORT=$(ORT)"

venv: $(STAMP) ## makes .venv with the project and one build of ONNX Runtime (ORT=openvino|cpu|gpu)

# Stamps go before anything changes, so that whatever breaks halfway is done again. Without this build's stamp
# no build in .venv can be trusted: they share one folder, and taking one out damages another.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, and '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there):" \
			"name another with PYTHON=..." >&2; exit 1; }
	@[ -x .venv/bin/pip ] || $(PYTHON) -m venv .venv || { \
		echo "$(PYTHON) could not make .venv (see above): on Debian and Ubuntu, install python3-venv first" >&2; exit 1; }
	@[ -e $@ ] || { rm -f .venv/.installed-*; \
		$(VENV_PYTHON) -m pip uninstall --yes -qq onnxruntime onnxruntime-gpu onnxruntime-openvino; }
	@rm -f .venv/.installed-*
	@echo "Installing the project with $(BUILD) into .venv" >&2
	@$(VENV_PYTHON) -m pip install --quiet --upgrade --editable '.[dev,$(ORT)]' $(BUILD)
	@touch $@

models: venv ## fetches the real models into .models (MODELS="NAME ..." or MODELS=--all)
	@$(VENV_PYTHON) tools/fetch_models.py $(MODELS)

.PHONY: default-models
default-models: venv
	@$(VENV_PYTHON) tools/fetch_models.py >/dev/null

demo: default-models ## tunes real models and shows what was found
	@$(VENV_PYTHON) tools/demo.py $(ARGS)

test: default-models ## runs the quick tests
	$(VENV_PYTHON) -m pytest -q -m "not slow and not gpu and not standin and not webgpu" $(PYTEST_ARGS)

test-slow: default-models ## runs the slow tests
	$(VENV_PYTHON) -m pytest -q -m "slow and not gpu and not standin and not webgpu" $(PYTEST_ARGS) || [ $$? -eq 5 ]  # 5: none selected

test-webgpu: ## tests the WebGPU provider on a Vulkan device in software (.venv-webgpu)
	@$(PYTHON) tests/lanes.py webgpu $(PYTEST_ARGS)

test-cuda-standin: ## tests the CUDA provider without a GPU, on a stand-in for one (.venv-standin)
	@$(PYTHON) tests/lanes.py standin $(PYTEST_ARGS)

test-gpu: ## tests on an NVIDIA GPU and shows a table of speeds (.venv-gpu)
	@$(PYTHON) tests/lanes.py gpu $(PYTEST_ARGS)

check: venv ## lints, checks the format and the types
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy

bench: default-models ## measures what a tuned session costs beside the session it replaces
	@$(VENV_PYTHON) tools/bench_overhead.py $(ARGS)

clean: ## removes .venv, caches and build outputs; the models stay
	rm -rf .venv .venv-standin .venv-gpu .venv-webgpu .swiftshader .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist out *.egg-info
	find . -name __pycache__ -type d -not -path './.models/*' -prune -exec rm -rf {} +
