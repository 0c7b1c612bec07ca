#!/usr/bin/env bash
# scripts/format.sh [--check]: formats all C++ and CUDA sources, or only says which are not formatted.
source "$(dirname "$0")/common.sh"
help_if_asked "$@"
case $* in
  '') mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  *) refuse "it takes --check or nothing, not '$*'" ;;
esac
sources | xargs .venv/bin/clang-format "${mode[@]}"
