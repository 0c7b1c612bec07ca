# shellcheck shell=bash
# Sourced by the other scripts: where the project is, what is being done, and how long it took.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
called_from=$PWD
cd "$root"

# ccache: the same object files for every clone of the project, wherever it lies.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

# Threads that wait sleep instead of spinning: much faster where other programs want the cores too.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# The CUDA toolkit's own installer does not put nvcc on the PATH.
if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
  PATH=$PATH:/usr/local/cuda/bin
fi

say() { printf '\n== %s\n' "$*"; }

# step "what is done" command...: runs the command, says before what it does and after how long it took.
step() {
  local what=$1 begin=$SECONDS status=0
  shift
  say "$what"
  "$@" || status=$?
  if [ "$status" -eq 0 ]; then
    printf '== %s: done in %d s\n' "$what" $((SECONDS - begin))
  else
    printf '== %s: FAILED (exit code %d) after %d s\n' "$what" "$status" $((SECONDS - begin)) >&2
  fi
  return "$status"
}

# C++ and CUDA sources of the project.
sources() {
  find core autograd ops nn bindings examples tools benchmarks tests -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) -print | sort
}
