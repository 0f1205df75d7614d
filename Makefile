# Two commands on a fresh machine: make demo, make test. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-flower reproduce bench clean

setup: .venv/dev

# the package alone is light: a first look need not wait for what the tests want
.venv/base: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/dev: .venv/base constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/base
	$(BIN)/fedtaper demo

test: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto

# whole federations of processes, and their faults: about ten minutes
test-flower: .venv/dev
	$(BIN)/pytest -n 2 -m federation tests

reproduce: .venv/base
	$(BIN)/fedtaper reproduce --out reproduced

bench: .venv/base
	$(BIN)/python benchmarks/regression.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
