#!/usr/bin/env bash
# scripts/check.sh [--changed] [format] [lint] [sanitize]: what a change must pass besides scripts/test.sh. All three without
# a name; --changed lets the linter read only what changed (see scripts/lint.sh).
#
#   format    the formatter finds nothing to change
#   lint      clang-tidy, in a build without CUDA and, where nvcc is found, in one with it
#   sanitize  the tests in C++ under AddressSanitizer and UndefinedBehaviorSanitizer, and files damaged at random (tests/fuzz)
source "$(dirname "$0")/common.sh"
changed=() checks=()
for argument; do
  case $argument in
    --changed) changed=(--changed) ;;
    format | lint | sanitize) checks+=("$argument") ;;
    *) echo "check.sh: there is no check '$argument': format, lint, sanitize" >&2; exit 2 ;;
  esac
done
[ ${#checks[@]} -gt 0 ] || checks=(format lint sanitize)
builds=()

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
    sanitize) builds=(build-sanitize) && check "Tests under the sanitizers" sanitize ;;
  esac
done
finish "${builds[@]}"
