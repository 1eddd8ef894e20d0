#!/bin/sh
# Compares the kernels for AVX-VNNI with the others on any processor with AVX2: the set `avx2` is compiled
# from their sources, with a model of their two instructions. Its results must match portable code and the
# machine's own build, if it exists. The instructions themselves are not tested.
set -eu
cd "$(dirname "$0")/.."

build=build/avx-vnni
CXXFLAGS="-include $PWD/native/tests/avx_vnni_model.h" cmake -S . -B "$build" \
    -DCHASKI_MODULE=OFF -DCHASKI_COMPARISON=ON -DCHASKI_COMPARISON_FOLDER="$PWD/$build" > /dev/null
cmake --build "$build" --parallel 2 > /dev/null

modelled=$("$build/compare_isas") || { echo "$modelled"; exit 1; }
echo "$modelled"
case $modelled in
    *avx2*) ;;
    *) echo "test-avx-vnni: this processor has no AVX2"; exit 1 ;;
esac
here=build/$(uname -m)/compare_isas
if [ -x "$here" ] && [ "$("$here" | tail -1)" != "$(echo "$modelled" | tail -1)" ]; then
    echo "test-avx-vnni: these bits differ from those of $here"
    exit 1
fi
