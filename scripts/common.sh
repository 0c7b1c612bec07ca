# shellcheck shell=bash
# Sourced by the other scripts: where the project is, what is being done, and how long it took.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
called_from=$PWD
cd "$root"

# Threads that wait sleep instead of spinning: much faster where other programs want the cores too.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# The CUDA toolkit's own installer does not put nvcc on the PATH.
if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
  PATH=$PATH:/usr/local/cuda/bin
fi

# asks_for_help "$@": whether --help or -h is among the arguments.
asks_for_help() { case " $* " in *" --help "* | *" -h "*) ;; *) return 1 ;; esac; }

# help_if_asked "$@": ends a script that is asked for help with what its head says.
help_if_asked() {
  asks_for_help "$@" || return 0
  sed -n '2,/^source/s/^# \{0,1\}//p' "$root/scripts/$(basename "$0")"
  exit
}

# refuse "what is wrong": ends the script, whose arguments are wrong.
refuse() {
  printf '%s: %s (--help says more)\n' "$(basename "$0")" "$*" >&2
  exit 2
}

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

# check "what is done" command...: a step after whose failure the next ones still run. `finish` tells which failed.
failures=()
check() { step "$@" || failures+=("$1"); }

# finish [FOLDER...]: says what failed and, of the build folders' test results, how many tests passed. Its status is the script's.
finish() {
  local folder results=()
  for folder; do results+=("$folder/test-results"); done
  say "All of it took $SECONDS s"
  [ ${#failures[@]} -eq 0 ] || printf 'FAILED: %s\n' "${failures[@]}"
  [ $# -eq 0 ] || python3 scripts/count_tests.py "${results[@]}"
  [ ${#failures[@]} -eq 0 ]
}

# run_tests PRESET FOLDER [ctest options]: the preset's tests, as many programs at a time as there are cores, each with two
# threads; their results are left in FOLDER/test-results.
run_tests() {
  local preset=$1 results=$root/$2/test-results
  shift 2
  mkdir -p "$results"
  OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} GTEST_OUTPUT=json:$results/ \
    ctest --preset "$preset" --parallel "$(nproc)" --output-junit "$results/ctest.xml" "$@"
}

# C++ and CUDA sources of the project.
sources() {
  find core autograd ops nn bindings examples tools benchmarks tests -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) -print | sort
}
