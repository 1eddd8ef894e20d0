#!/bin/sh
# Compares the kernels for AVX-512 and AMX with the others on any processor with AVX2: they are compiled from
# their sources, with a model of their instructions. Their results must match portable code and the machine's
# own build, if it exists. The instructions themselves are not tested.
set -eu
cd "$(dirname "$0")/.."

build=build/avx512-model
cmake -S . -B "$build" -DCHASKI_AVX512_MODEL=ON -DCHASKI_MODULE=OFF -DCHASKI_COMPARISON=ON \
    -DCHASKI_COMPARISON_FOLDER="$PWD/$build" > /dev/null
cmake --build "$build" --parallel 2 > "$build/log" || { cat "$build/log"; exit 1; }

modelled=$("$build/compare_isas") || { echo "$modelled"; exit 1; }
echo "$modelled"
case $modelled in
    *amx*) ;;
    *) echo "test-avx512: this processor has no AVX2"; exit 1 ;;
esac
here=build/$(uname -m)/compare_isas
if [ -x "$here" ] && [ "$("$here" | tail -1)" != "$(echo "$modelled" | tail -1)" ]; then
    echo "test-avx512: these bits differ from those of $here"
    exit 1
fi
