#!/usr/bin/env bash
# scripts/test.sh [ctest options]: set-up, build, formatter, linter, all tests, then the tests again under
# AddressSanitizer and UndefinedBehaviorSanitizer. Ends with the number of tests that passed, failed and were skipped.
#
#   scripts/test.sh -R matmul           only the test programs whose name contains "matmul"
#   GLADE_SKIP_SANITIZE=1 ...           without the second round
#   GLADE_SKIP_LINT=1 ...               without the linter
#   GLADE_CMAKE_OPTIONS="-DX=Y ..." ... more options for CMake
source "$(dirname "$0")/common.sh"
read -ra cmake_options <<<"${GLADE_CMAKE_OPTIONS:-}"
ctest_options=("$@")
failures=()

# run_tests <preset> <build folder>: the preset's tests; their results are left in <build folder>/test-results.
run_tests() {
  local results=$root/$2/test-results
  mkdir -p "$results"
  GTEST_OUTPUT=json:$results/ ctest --preset "$1" --output-junit "$results/ctest.xml" "${ctest_options[@]}"
}

# check "what" command...: a step after whose failure the others still run.
check() { step "$@" || failures+=("$1"); }

rm -rf build/test-results build-sanitize/test-results
scripts/setup.sh
python=OFF
[ ! -x .venv/bin/pytest ] || python=ON
step "Configure (release)" cmake --preset release -DGLADE_PYTHON=$python "${cmake_options[@]}"
step "Build (release)" cmake --build --preset release
if [ -x .venv/bin/clang-format ]; then
  check "Formatter" scripts/format.sh --check
  [ -n "${GLADE_SKIP_LINT:-}" ] || check "Linter" scripts/lint.sh
fi
check "Tests (release)" run_tests release build
if [ $python = ON ]; then
  check "Tests (Python)" .venv/bin/pytest -q tests/python --junit-xml build/test-results/pytest.xml
fi
if [ -z "${GLADE_SKIP_SANITIZE:-}" ]; then
  step "Configure (sanitize)" cmake --preset sanitize "${cmake_options[@]}" -DGLADE_CUDA=OFF -DGLADE_BENCHMARKS=OFF
  step "Build (sanitize)" cmake --build --preset sanitize
  check "Tests (sanitize)" run_tests sanitize build-sanitize
fi

say "All of it took $SECONDS s"
if [ ${#failures[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failures[@]}"
fi
python3 scripts/count_tests.py build/test-results build-sanitize/test-results
[ ${#failures[@]} -eq 0 ]
