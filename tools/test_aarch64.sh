#!/bin/sh
# Builds the kernels for 64-bit ARM with a cross compiler and runs their comparison under qemu: on a processor
# with matrix products of int8 and products of bf16, on one with only the dot product, and on one without. The
# results must also match the machine's own build, if it exists.
set -eu
cd "$(dirname "$0")/.."

compiler=${AARCH64_CXX:-aarch64-linux-gnu-g++}
for tool in cmake "$compiler"; do
    command -v "$tool" > /dev/null && continue
    echo "test-aarch64: skipped, there is no $tool (Debian: apt install cmake g++-aarch64-linux-gnu qemu-user)"
    exit 0
done
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if [ -z "$qemu" ]; then
    echo "test-aarch64: skipped, there is no qemu-aarch64 (Debian: apt install qemu-user)"
    exit 0
fi

cmake -S . -B build/aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_EXE_LINKER_FLAGS=-static \
    -DCHASKI_MODULE=OFF -DCHASKI_COMPARISON=ON > /dev/null
cmake --build build/aarch64 --parallel 2 > /dev/null

out=$(mktemp)
trap 'rm -f "$out"' EXIT

# run COMMAND...: its results must match those of all earlier runs.
digest=
run() {
    "$@" > "$out" || { cat "$out"; exit 1; }
    cat "$out"
    found=$(sed -n 's/^digest //p' "$out")
    if [ -n "$digest" ] && [ "$found" != "$digest" ]; then
        echo "test-aarch64: these bits differ from earlier ones"
        exit 1
    fi
    digest=$found
}

run "$qemu" -cpu max build/aarch64/compare_isas portable neon neon_i8mm
run "$qemu" -cpu neoverse-n1 build/aarch64/compare_isas portable neon
run "$qemu" -cpu cortex-a57 build/aarch64/compare_isas portable
here=build/$(uname -m)/compare_isas
if [ -x "$here" ]; then run "$here"; fi
