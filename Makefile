# Two commands on a fresh machine: make demo, make test. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: setup demo lint test docs test-flower test-gpu test-timed test-oldest check-dependencies torture mutants coverage reproduce bench clean

setup: .venv/dev

# the package alone is light: a first look need not wait for what the tests want
.venv/base: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) --editable .
	touch $@

.venv/dev: .venv/base constraints.txt
	$(INSTALL) --editable '.[all]' --group dev
	touch $@

demo: .venv/base
	$(BIN)/fedtaper demo

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/repo-review .

# Pages are tested in Chromium: one that is here, else Debian's, else Playwright's own. Without
# any of them these tests are skipped.
.venv/browser: .venv/dev
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || apt-get install --yes -qq chromium >/dev/null 2>&1 \
	  || timeout 300 $(BIN)/playwright install chromium >/dev/null 2>&1 \
	  || echo "No Chromium could be installed: the tests of pages are skipped."
	@touch $@

test: lint .venv/browser
	$(BIN)/pytest -n auto

# the site: docs/_build/html/index.html; a warning is an error, and so is a link that leads nowhere
docs: .venv/dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/pages docs docs/_build/html
	$(BIN)/pytest -n 0 tests/test_docs_links.py
	@echo "docs/_build/html/index.html"

# whole federations of processes, and their faults: about ten minutes
test-flower: .venv/dev
	$(BIN)/pytest -n 2 -m federation tests

# the CUDA engine against the CPU engine: skipped where there is no GPU. Most of it is compiling,
# so eight processes share the GPU: a minute and a half instead of ten
test-gpu: .venv/dev
	$(BIN)/pytest -n 8 -m gpu tests/test_gpu.py

# kills, faults of the disk, fuzzed files, folders, calls and commands: about an hour on a quiet
# core. make torture SHARE=0.1 is a tenth of it.
SHARE ?= 1
torture: .venv/dev
	cd tests && ../$(BIN)/python -m torture $(SHARE)

# the base package with the oldest versions that it declares, in an environment of its own
test-oldest:
	$(PYTHON) -m venv .venv/oldest
	.venv/oldest/bin/python -m pip install --quiet --constraint constraints-min.txt . pytest \
	  pytest-xdist hypothesis
	.venv/oldest/bin/python -m pytest -n 0 -o addopts= -q tests/test_by_value.py tests/test_clock.py \
	  tests/test_schedules_and_influence.py tests/test_linear.py tests/test_rules.py

# do versions fit together, and can every dependency be used under its licence?
check-dependencies: .venv/dev
	$(BIN)/python -m pip check
	$(BIN)/python benchmarks/licences.py --check

# would the tests notice a changed sign, limit or constant? A sample of mutants, a few hours
mutants: .venv/dev
	$(BIN)/python benchmarks/mutants.py

# what the live page costs: on a quiet machine
test-timed: .venv/browser
	$(BIN)/pytest -m timed tests

# lines and branches, whole studies included: about half an hour
coverage: .venv/browser
	$(BIN)/pytest -n auto -m 'not federation and not timed and not gpu' --cov --cov-report=term

reproduce: .venv/base
	$(BIN)/fedtaper reproduce --out reproduced

bench: .venv/base
	$(BIN)/python benchmarks/regression.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
