#!/bin/sh
# Builds chaski and compares its GPU with its CPU, bit by bit, and then measures the GPU: on a machine that has an
# NVIDIA GPU, Python with numpy, jinja2, regex, sentencepiece, click, nanobind, scikit-build-core, cmake, pytest,
# pytest-xdist, hypothesis, cuda-bindings and NVRTC, and no network. Other packages are taken from PYTHONPATH.
#
#   tools/test_gpu.sh                 tests and benchmarks
#   tools/test_gpu.sh --only-tests    tests alone
set -eu
cd "$(dirname "$0")/.."
python3 -m pip install --quiet --no-build-isolation --no-deps --upgrade --target build/on-gpu .
# Tests import the package from here, and the native module lies beside it.
cp build/on-gpu/chaski/_native*.so chaski/
export CHASKI_TEST_GPU=1 PYTHONPATH="$PWD:${PYTHONPATH:-}"
python3 -m pytest -p no:benchmark -p no:cacheprovider -n 12 -k "not emulated" tests/cuda/test_same_bits.py \
    tests/cuda/test_adapters.py tests/cuda/test_recurrent.py tests/cuda/test_encoders.py
python3 -m tests.cuda.random_batches 100
[ "${1:-}" = --only-tests ] || python3 -m benchmarks.gpu
