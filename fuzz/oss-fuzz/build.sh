#!/bin/bash -eu
# Builds the fuzzers of both languages for OSS-Fuzz, each with its corpus.

pip3 install ".[dev]"
for target in $(python3 -c "from fuzz.targets import NAMES; print(*NAMES)"); do
  # One program for each target, whose name is that of the corpus.
  cat > "fuzz_${target//-/_}.py" <<PROGRAM
import sys

from fuzz.running import feed_atheris, instrumented
from fuzz.targets import target_of

feed_atheris(instrumented(lambda: target_of("$target")), sys.argv)
PROGRAM
  compile_python_fuzzer "fuzz_${target//-/_}.py" --add-data "fuzz:fuzz" --add-data "tests:tests"
  zip -jq "$OUT/fuzz_${target//-/_}_seed_corpus.zip" "fuzz/corpus/$target"/*
done

cmake -S . -B build/oss-fuzz -G Ninja -DCHASKI_MODULE=OFF -DCHASKI_FUZZERS=ON \
  "-DCHASKI_FUZZER_FLAGS=" "-DCHASKI_FUZZER_ENGINE=$LIB_FUZZING_ENGINE"
ninja -C build/oss-fuzz fuzz_elements fuzz_merges fuzz_products
cp build/oss-fuzz/fuzz_{elements,merges,products} "$OUT/"
