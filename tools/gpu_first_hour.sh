#!/bin/bash
# Answers the most urgent questions on a lent NVIDIA GPU in about 12 minutes, the most important first:
# whether the kernels have the processor's bits (it stops if not), what compute-sanitizer says of one launch of
# each kernel, how long launches and tensor instructions take, where the time of a prompt and of a step goes,
# `benchmarks.gpu`, variants in turns, and the profiler on the three largest kernels.
#
#   tools/gpu_first_hour.sh --prepare    before, without a GPU: compiles the kernels into build/first-hour
#   tools/gpu_first_hour.sh              on the GPU; carry build/first-hour there
#   tools/gpu_first_hour.sh --dry        without a GPU: the same parts on the emulated device
#
# Carried machine code is used if the same version of the compiler is installed there. Output also goes to
# build/first-hour/logs, or to the folder OUT. PYTHON names an interpreter (.venv/bin/python, or python3).
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -n "${PYTHON:-}" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python
device=cuda
patience=1  # the host compiles and computes slowly
[ "${1:-}" != --dry ] || { device=cuda-emulated && patience=10; }
out=${OUT:-build/first-hour/logs}
mkdir -p "$out" build/first-hour/cache
export XDG_CACHE_HOME="$PWD/build/first-hour/cache" PYTHONPATH="$PWD:${PYTHONPATH:-}:$PWD/build/packages"

if [ "${1:-}" = --prepare ]; then
    exec "$python" -m benchmarks.gpu_first prepare
fi

# part NAME SECONDS COMMAND...: runs a part within its time. Its output is shown and kept.
part() {
    local name=$1 seconds=$2 began=$SECONDS
    shift 2
    echo "== $name"
    timeout $((patience * seconds)) "$@" 2>&1 | tee "$out/$name.log"
    local status=${PIPESTATUS[0]}
    [ "$status" = 0 ] || echo "$name: FAILED with status $status"
    echo "   ($((SECONDS - began)) s)"
    return "$status"
}

skip() {
    echo "== $1: skipped, $2" | tee "$out/$1.log"
}

first() {
    "$python" -m benchmarks.gpu_first "$@" --device "$device"
}
export -f first
export python device

part bits 180 bash -c "first bits" || { echo "stopped: the bits differ, or the device does not work"; exit 1; }

if [ "$device" != cuda ]; then
    skip sanitizer "there is no GPU"
elif command -v compute-sanitizer > /dev/null; then
    part sanitizer 120 compute-sanitizer --error-exitcode 1 "$python" -m benchmarks.gpu_first variants
else
    skip sanitizer "compute-sanitizer is not installed"
fi

part micro 60 bash -c "first micro"
part timeline 60 bash -c "first timeline"

if [ "$device" = cuda ]; then
    part benchmark 270 "$python" -m benchmarks.gpu --minutes 4
else
    part benchmark 270 "$python" -m benchmarks.gpu --quick --shape llama-tiny --device cpu --threads 1 \
        --out "$out/benchmark"
fi

part variants 60 bash -c "first variants"

if [ "$device" != cuda ]; then
    skip profiler "there is no GPU"
elif command -v ncu > /dev/null; then
    part profiler 90 ncu --set basic --launch-count 3 --kernel-name regex:'matmul|matmul_many|attention' \
        "$python" -m benchmarks.gpu_first variants
else
    skip profiler "ncu is not installed"
fi
echo "all parts: $SECONDS s"
