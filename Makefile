# Two commands on a fresh machine: make demo, make test. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test reproduce bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/fedtaper demo

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

reproduce: setup
	$(BIN)/fedtaper reproduce --out reproduced

bench: setup
	$(BIN)/python benchmarks/regression.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
