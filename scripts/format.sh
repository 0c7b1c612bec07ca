#!/usr/bin/env bash
# scripts/format.sh [--check]: formats all C++ and CUDA sources, or only says which are not formatted.
source "$(dirname "$0")/common.sh"
mode=(-i)
[ "${1:-}" != --check ] || mode=(--dry-run -Werror)
sources | xargs .venv/bin/clang-format "${mode[@]}"
