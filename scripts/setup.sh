#!/usr/bin/env bash
# scripts/setup.sh [train | distributed | test | check | docs]: installs what scripts/train.sh needs, or besides that what training
# on several GPUs or hosts needs, or besides that what the tests need (so without an argument), or besides that what
# scripts/check.sh and the benchmarks need, or what the tests and scripts/docs.sh need. It can be run again at any time.
#
# System packages come from apt (as root, or through sudo) and only those that are missing. Python packages go to .venv at
# the project's root; the library, the examples and their tests do without them.
source "$(dirname "$0")/common.sh"
help_if_asked "$@"
group=${1:-test}

packages=(
  cmake ninja-build g++ ccache                             # build
  libopenblas-openmp-dev libhdf5-dev zlib1g-dev            # matrix products, checkpoint files
  libsleef-dev                                             # mathematical functions of vectors
  libfmt-dev nlohmann-json3-dev libcli11-dev               # messages, model configurations, command lines
  bible-kjv                                                # the example's training text
)
distributed_packages=(
  openmpi-bin libopenmpi-dev                               # starting several processes, and what they exchange on CPUs
)
test_packages=(
  "${distributed_packages[@]}"
  make                                                     # a build of one's own, without Ninja
  libsentencepiece-dev libpcre2-dev                        # tokenizers of published models, for the programs in examples/
  libgtest-dev                                             # tests
  python3 python3-venv python3-dev                         # the Python package
)
requirements=()
case $group in
  train) ;;
  distributed) packages+=("${distributed_packages[@]}") ;;
  test) packages+=("${test_packages[@]}") requirements=(test) ;;
  check) packages+=("${test_packages[@]}" libbenchmark-dev) requirements=(test check) ;;
  docs) packages+=("${test_packages[@]}" doxygen) requirements=(test docs) ;;
  *) refuse "there is no group '$group': train, distributed, test, check, docs" ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
as_root=()
if [ ${#missing[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "setup.sh: there is no apt-get here (it knows Debian and Ubuntu); install by hand: ${missing[*]}" >&2
    exit 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
    if ! command -v sudo >/dev/null || ! { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
      echo "setup.sh: this needs root, run: apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
fi

install_packages() {
  if [ ${#missing[@]} -eq 0 ]; then
    echo "all ${#packages[@]} packages are installed"
    return
  fi
  echo "missing: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
}

# install_python NAME...: what scripts/requirements-NAME.txt lists.
install_python() {
  local name options=()
  for name; do
    cmp -s "scripts/requirements-$name.txt" ".venv/requirements-$name.txt" || options+=(-r "scripts/requirements-$name.txt")
  done
  if [ ${#options[@]} -eq 0 ]; then
    echo ".venv is up to date"
  elif python3 -m venv .venv &&
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 2 "${options[@]}"; then
    for name; do cp "scripts/requirements-$name.txt" .venv/; done
    .venv/bin/python -m pip --disable-pip-version-check list
    # "import glade" finds the package in the build tree, over the one compiled library (CMake's option GLADE_PYTHON).
    echo "$root/build/python" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/glade.pth"
  elif [ "$*" = test ]; then
    echo "setup.sh: PyPI cannot be reached: going on without the tests in Python" >&2
  else
    echo "setup.sh: PyPI cannot be reached: the packages of the group $group are missing" >&2
    return 1
  fi
}

check_cuda() {
  if command -v nvcc >/dev/null; then
    echo "found $(command -v nvcc): glade is built with CUDA"
  else
    echo "no nvcc: going on without CUDA, for the CPU alone"
  fi
}

step "System packages" install_packages
[ ${#requirements[@]} -eq 0 ] || step "Python packages" install_python "${requirements[@]}"
step "CUDA" check_cuda
