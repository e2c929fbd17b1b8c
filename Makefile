# One command from a bare machine: `make quickstart` or `make test`. Needs Python 3.11 or newer, nothing else.

PYTHON ?= python3
BIN := .venv/bin
# Modules are compiled once, also where the surroundings say that Python writes none of it: each of the many processes of the
# tests would compile this project anew, and pytest the tests, which takes most of the time until the first one.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup quickstart queue board test test-all test-tools torture format docs clean

setup: .venv/ready

.venv/ready: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "skewbench needs Python 3.11 or newer, but $(PYTHON) is %d.%d; set PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.5"
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@touch $@

quickstart: setup
	$(BIN)/python -m bench run --grid quickstart

# The long trials of docs/examples/queue.yaml, one core, lowest priority; after an interruption it continues.
QUEUE ?= $(HOME)/skewbench-queue
queue: setup
	$(BIN)/python -m tests.support.trial_queue $(QUEUE) --data-dir $${SKEWBENCH_DATA:-$(QUEUE)/data}

# Reports of all results in docs/examples, and docs/examples/board.md: after results have come in.
board: setup
	$(BIN)/python -m bench board docs/examples

# Five minutes on two cores.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(MKDOCS)
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal

# Before a change is merged: also the tests marked slow, with those of one file together, because they share a session of Ray.
test-all: test
	$(BIN)/python -m pytest -m "slow and not torture" -n 2 --dist loadfile

# The manual as a site, site/index.html. The variable silences an advertisement.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: setup
	$(MKDOCS)

# Programs that tests of pages, of LaTeX and of the script for Slurm need, from Debian's packages.
# Without them those tests are skipped, saying so; with CI=true they fail. Each step gets ten minutes: what is cut off while it
# installs leaves packages half configured.
TOOLS := chromium chromium-driver shellcheck texlive-latex-base texlive-latex-recommended
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
APT := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20

test-tools:
	@command -v chromium && command -v chromedriver && command -v shellcheck && command -v pdflatex && kpsewhich booktabs.sty || { \
	command -v apt-get > /dev/null || { echo "There is no apt-get here; install what Debian calls $(TOOLS)." >&2; exit 1; }; \
	timeout 600 $(APT) update && timeout 600 $(APT) install -y --no-install-recommends --download-only $(TOOLS) && \
	timeout 600 $(APT) install -y --no-install-recommends $(TOOLS); }

# Kills the driver of a grid ten times, and a worker until its run is given up; some minutes.
torture: setup
	$(BIN)/python -m pytest -m torture

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv
