#!/usr/bin/env bash
# scripts/lint.sh [FILE.cpp...]: clang-tidy, with the checks of .clang-tidy, over the CPU sources of the library and the
# examples, or over the files given. Needs a configured build/.
source "$(dirname "$0")/common.sh"
files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(sources | grep -E '^(core|autograd|ops|nn|examples|tools)/.*\.cpp$')

# GCC's omp.h, alone (beside it lie intrinsics that clang cannot read), and without the attribute clang does not know.
mkdir -p build/lint
cp "$(g++ -print-file-name=include/omp.h)" build/lint/

printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 .venv/bin/clang-tidy -p build --quiet \
  --extra-arg=-isystem"$root/build/lint" '--extra-arg=-D__malloc__(...)=' --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-error
