#!/usr/bin/env bash
# scripts/lint.sh [--changed | FILE.cpp...]: clang-tidy, with the checks of .clang-tidy, over the CPU sources of the library,
# the examples and the tools, as they are built without CUDA and, where nvcc is found, with it.
#
# --changed takes the files that changed since the branch left main, on main those of the last 20 commits, and all of them
# where git cannot tell; a header stands for one source that includes it.
source "$(dirname "$0")/common.sh"
help_if_asked "$@"

all_files() { sources | grep -E '^(core|autograd|ops|nn|examples|tools)/.*\.cpp$'; }

changed_files() {
  local base='' branch file
  for branch in origin/main main; do
    [ -n "$base" ] || base=$(git merge-base HEAD "$branch" 2>/dev/null) || true
  done
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse --verify --quiet HEAD~20) || { all_files && return; }
  fi
  { git diff --name-only --diff-filter=d "$base" && git ls-files --others --exclude-standard; } | while read -r file; do
    case $file in
      *.cpp) printf '%s\n' "$file" ;;
      *.h) if [ -e "${file%.h}.cpp" ]; then printf '%s\n' "${file%.h}.cpp"; else
             all_files | xargs grep -lE "#include [<\"](glade/)?${file#examples/}[>\"]" | sed -n 1p || true
           fi ;;
    esac
  done | sort -u | comm -12 - <(all_files)
}

# lint CUDA file...: as built with -DGLADE_CUDA=CUDA. The folder is configured, not built.
lint() {
  local build=build-lint/$1
  shift
  cmake -S . -B "$build" -G Ninja -DGLADE_CUDA="${build#*/}" -DGLADE_TESTS=OFF --log-level=WARNING >/dev/null &&
    cmake --build "$build" --target generated/kernel_hash.h >/dev/null || return
  # GCC's omp.h, alone (beside it lie intrinsics that clang cannot read), and without the attribute clang does not know.
  mkdir -p "$build/omp" && cp "$(g++ -print-file-name=include/omp.h)" "$build/omp/" || return
  echo "$# files, GLADE_CUDA=${build#*/}"
  printf '%s\n' "$@" | xargs -d '\n' -P "$(nproc)" -n 1 .venv/bin/clang-tidy -p "$build" --quiet --extra-arg=-isystem"$root/$build/omp" \
    '--extra-arg=-D__malloc__(...)=' --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-error
}

case ${1:-} in
  '') mapfile -t files < <(all_files) ;;
  --changed) mapfile -t files < <(changed_files) ;;
  -*) refuse "it takes --changed or files, not '$1'" ;;
  *) files=("$@") ;;
esac
status=0
[ ${#files[@]} -eq 0 ] || lint OFF "${files[@]}" || status=1
# Only what asks for the macro, or dispatches to kernels, reads differently with CUDA.
mapfile -t files < <(printf '%s\n' "${files[@]}" | xargs -r grep -lE 'GLADE_WITH_CUDA|core/dispatch\.h')
if command -v nvcc >/dev/null && [ ${#files[@]} -gt 0 ]; then
  lint ON "${files[@]}" || status=1
fi
exit $status
