#!/bin/sh
# Builds chaski, compares GPU and CPU bit by bit, runs the tests of models, caches and running models on the
# GPU, and then measures it: one command for a machine with an NVIDIA GPU and no network.
#
#   tools/test_gpu.sh                 tests and benchmarks, the benchmarks in 8 minutes
#   tools/test_gpu.sh --only-tests    tests alone
#
# It needs Python with numpy, msgspec, jinja2, click, sentencepiece, nanobind, scikit-build-core, cmake, pytest, hypothesis,
# cuda-bindings and NVRTC; it also uses other installed packages, and those in build/packages, where `make
# gpu-packages` puts packages that such machines often lack. PYTHON names an interpreter (.venv/bin/python, or
# python3).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -n "${PYTHON:-}" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python
built="$PWD/build/on-gpu"
"$python" -m pip install --quiet --no-build-isolation --no-deps --upgrade --target "$built" .
# Tests import the package from here, next to the native module.
cp "$built"/chaski/_native*.so chaski/
export PYTHONPATH="$PWD:${PYTHONPATH:-}:$PWD/build/packages" CHASKI_TEST_GPU=1
logs=build/test-gpu && mkdir -p "$logs"

# Runs several test files at a time, since pytest-xdist may be missing. Each prints its last line and its
# failures.
run_tests() {
    printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh -c '
        log=$0/$(echo {} | tr / -).log
        "$1" -m pytest -q -p no:cacheprovider -m "not slow and not oracle" -k "not emulated" {} > "$log" 2>&1
        status=$?
        [ $status = 0 ] || [ $status = 5 ] || { cat "$log"; exit 1; }
        tail -n 1 "$log"' "$logs" "$python"
}

# The comparisons with the CPU's bits come first.
run_tests tests/cuda/test_same_bits.py tests/cuda/test_launches.py tests/cuda/test_adapters.py tests/cuda/test_recurrent.py \
    tests/cuda/test_encoders.py tests/cuda/test_driver.py tests/ml/sharded/test_mixed_nodes.py
"$python" -m tests.cuda.random_batches 100
# The service of models is the same for every backend, and needs packages of the server.
CHASKI_TEST_BACKEND=cuda run_tests $(find tests/ml tests/kvcache tests/model tests/runner tests/mllama tests/gemma4 \
    -name "test_*.py" ! -path "*/sharded/*" ! -path "*/channels/*" | sort)
[ "${1:-}" = --only-tests ] || "$python" -m benchmarks.gpu --minutes 8
