#!/usr/bin/env bash
# scripts/test.sh [ctest options]: set-up, build, all tests in C++ and Python. Ends with the number of tests that passed,
# failed and were skipped. What a change must pass besides is in scripts/check.sh.
#
#   scripts/test.sh -R matmul           only the test programs whose name contains "matmul", and the tests in Python
#   GLADE_CMAKE_OPTIONS="-DX=Y ..." ... more options for CMake
source "$(dirname "$0")/common.sh"
help_if_asked "$@"
read -ra cmake_options <<<"${GLADE_CMAKE_OPTIONS:-}"

rm -rf build/test-results
scripts/setup.sh test
python=OFF
[ ! -x .venv/bin/pytest ] || python=ON
step "Configure" cmake --preset release -DGLADE_PYTHON=$python "${cmake_options[@]}"
step "Build" cmake --build --preset release
check "Tests (C++)" run_tests release build "$@"
if [ $python = ON ]; then
  check "Tests (Python)" .venv/bin/python -m pytest -q tests/python --junit-xml build/test-results/pytest.xml
fi
finish build
