#!/usr/bin/env bash
# scripts/check.sh [--changed] [format] [lint] [docs] [kills] [ranks] [sanitize]: what a change must pass besides scripts/test.sh. Without
# a name, all of them, but docs only if its packages are installed, and kills and ranks if their programs are built; --changed lets the
# linter read only what changed (see scripts/lint.sh).
#
#   format    the formatter finds nothing to change
#   lint      clang-tidy, in a build without CUDA and, where nvcc is found, in one with it
#   docs      the documentation site is built without a warning (needs the Python package, which scripts/test.sh builds)
#   kills     training on four processes, of which 20 are killed at random times (needs MPI and what scripts/test.sh builds)
#   ranks     training on 2 and 4 processes in all combinations (needs the same)
#   sanitize  the tests in C++ under AddressSanitizer and UndefinedBehaviorSanitizer, and files damaged at random (tests/fuzz)
source "$(dirname "$0")/common.sh"
help_if_asked "$@"
changed=() checks=()
for argument; do
  case $argument in
    --changed) changed=(--changed) ;;
    format | lint | docs | kills | ranks | sanitize) checks+=("$argument") ;;
    *) refuse "there is no check '$argument': format, lint, docs, kills, ranks, sanitize" ;;
  esac
done
if [ ${#checks[@]} -eq 0 ]; then
  checks=(format lint)
  [ ! -x .venv/bin/sphinx-build ] || ! command -v doxygen >/dev/null || checks+=(docs)
  [ ! -x build/tests/distributed_kills_test ] || checks+=(kills)
  [ ! -x build/tests/distributed_test ] || checks+=(ranks)
  checks+=(sanitize)
fi
builds=()

ranks() {
  GLADE_TEST_MATRIX=1 build/tests/distributed_test --gtest_filter='*Matrix*' &&
    GLADE_TEST_MATRIX=1 build/tests/distributed_programs_test --gtest_filter='*ShareSequences'
}

sanitize() {
  rm -rf build-sanitize/test-results
  step "Configure (sanitize)" cmake --preset sanitize && step "Build (sanitize)" cmake --build --preset sanitize &&
    run_tests sanitize build-sanitize
}

scripts/setup.sh check
for name in "${checks[@]}"; do
  case $name in
    format) check "Formatter" scripts/format.sh --check ;;
    lint) check "Linter" scripts/lint.sh "${changed[@]}" ;;
    docs) check "Documentation" scripts/docs.sh ;;
    kills) check "Kills of random processes" env GLADE_TEST_KILLS=20 build/tests/distributed_kills_test ;;
    ranks) check "Training on several processes" ranks ;;
    sanitize) builds=(build-sanitize) && check "Tests under the sanitizers" sanitize ;;
  esac
done
finish "${builds[@]}"
