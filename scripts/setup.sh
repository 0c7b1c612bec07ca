#!/usr/bin/env bash
# scripts/setup.sh: installs what glade needs, on Debian 12 and Ubuntu 24.04. It can be run again at any time.
#
# System packages come from apt (as root, or through sudo) and only those that are missing. Python packages go to .venv at
# the project's root; the library, the examples and their tests do without them.
source "$(dirname "$0")/common.sh"

packages=(
  cmake ninja-build g++ ccache pkg-config                  # build
  libopenblas-openmp-dev libhdf5-dev zlib1g-dev                       # matrix products, checkpoint files
  libfmt-dev nlohmann-json3-dev libcli11-dev               # messages, model configurations, command lines
  libsentencepiece-dev                                     # tokenizers of published models, for examples/generate
  libgtest-dev libbenchmark-dev                            # tests, benchmarks
  python3 python3-venv python3-dev                         # the Python package, the formatter, the linter
  bible-kjv                                                # the example's training text
)

install_packages() {
  local missing=() package as_root=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "all ${#packages[@]} packages are installed"
    return
  fi
  echo "missing: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup.sh: run it as root, or install sudo: apt-get must install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
}

install_python() {
  if cmp -s scripts/requirements.txt .venv/requirements.txt; then
    echo ".venv is up to date"
    return
  fi
  if python3 -m venv .venv && .venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 2 -r scripts/requirements.txt; then
    cp scripts/requirements.txt .venv/requirements.txt
    .venv/bin/python -m pip --disable-pip-version-check list
    # "import glade" finds the package in the build tree, over the one compiled library (CMake's option GLADE_PYTHON).
    echo "$root/build/python" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/glade.pth"
  else
    echo "setup.sh: PyPI cannot be reached: going on without the formatter, the linter and the tests in Python" >&2
  fi
}

check_cuda() {
  if command -v nvcc >/dev/null; then
    echo "found $(command -v nvcc): glade is built with CUDA"
  else
    echo "no nvcc: going on without CUDA, for the CPU alone"
  fi
}

if ! command -v apt-get >/dev/null; then
  echo "setup.sh: there is no apt-get here; it knows Debian 12 and Ubuntu 24.04. Install by hand: ${packages[*]}" >&2
  exit 1
fi
step "System packages" install_packages
step "Python packages" install_python
step "CUDA" check_cuda
