# One command each: `make demo`, `make test`. Everything lands in .venv/ and artefacts/; nothing else is touched.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
QUIET := --quiet --disable-pip-version-check
PIP := $(BIN)/python -m pip install $(QUIET) -c constraints.txt
# bytecode is written when a module is first imported: most of what is installed never is
export PIP_COMPILE := 0
# where it is set, each of the thousand processes that the tests start would compile all of ours again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-test setup-benchmarks bench-field demo test tests test-full test-torch test-images gpu-check lint docs site clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.core  ## the daemon, the CLI with its live screen and the demo: no torch, no test tools

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	@test -x $(BIN)/pip || $(PYTHON) -m pip --python $(BIN)/python install $(QUIET) pip 2> /dev/null || $(BIN)/python -m ensurepip
	$(PIP) -e '.[top]'
	@$(BIN)/python -c 'import examples.demo.__main__'
	@touch $@

setup-test: $(VENV)/.test  ## the same with what the tests need, and Debian packages where we may install them
	@.ci/debian-packages

$(VENV)/.test: $(VENV)/.core
	$(PIP) -e '.[test,docs,kernels,cute,llm,language,loops,mcp,fleet,rl,spans,top]'
	@touch $@

setup-benchmarks: $(VENV)/.test  ## the same with the peers that benchmarks/ compares with
	$(PIP) -e '.[test,docs,kernels,cute,llm,language,loops,mcp,fleet,rl,spans,top,benchmarks]'

demo: $(VENV)/.core  ## four simulated nodes, real faults; ONCE=1 runs unattended, SEED=n redraws the faults
	@$(BIN)/python -m examples.demo $(if $(ONCE),--once) $(if $(SEED),--seed $(SEED)) $(if $(SLACK),--slack) $(ARGS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup-test  ## what every merge must pass: lint, which keeps one core busy, beside the tests
	@$(MAKE) --no-print-directory -j2 lint tests

bench-field: setup-test  ## 500 drawn faults of every public kind through the daemon; SEED=n draws others
	$(BIN)/python -m benchmarks.field drawn --draws 500 --seed $(or $(SEED),1)

# a third worker for two cores: tests wait for processes of their own and for disks
tests: setup-test
	$(BIN)/python -m pytest -m 'not full' -n 3 --dist worksteal $(ARGS)

test-full: setup-test  ## soak, storm, seed sweeps and the heaviest of the rest
	$(BIN)/python -m pytest -m full -n 3 --dist worksteal $(ARGS)

TORCH ?= 2.11.0
OTHER := $(VENV)/torch-$(TORCH)
test-torch: setup-test  ## the file for jobs with another torch and its Triton: make test-torch TORCH=2.10.0
	@test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)' 'numpy<2.4'
	@ours=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  theirs=$$($(OTHER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  echo "import site; site.addsitedir('$$ours')" > $$theirs/zz-rest.pth
	$(OTHER)/bin/python -m pytest tests/kernels/apply/test_apply*.py -n 2 --dist worksteal $(ARGS)

test-images: setup-test  ## the container images are built in a chroot and started: minutes, as root on Debian
	NIGHTSHIFT_IMAGES=1 $(BIN)/python -m pytest tests/test_images.py -m full -n 0 $(ARGS)

gpu-check: setup-benchmarks  ## one GPU, nine minutes: families, known-good kernels, exploits and a model, judged
	$(BIN)/python -m benchmarks.kernels_gpu_check $(ARGS)

docs: $(VENV)/.core  ## writes docs/reference from the code
	$(BIN)/python docs/generate.py

site: setup-test  ## the documentation as a site, in artefacts/site
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) artefacts build *.egg-info
