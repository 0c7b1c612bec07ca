#!/usr/bin/env bash
# scripts/docs.sh: builds the documentation site into build/docs (open build/docs/index.html): the pages in docs/, the C++
# reference from the public headers, and the Python reference from the package that scripts/test.sh has built. Every warning
# is an error: a link or an anchor that is not there, a name without a page, a page that is in no table of contents.
source "$(dirname "$0")/common.sh"
help_if_asked "$@"
[ $# -eq 0 ] || refuse "it takes no arguments, not '$*'"

# The headers that glade.h lists, as XML in build/doxygen.
read_headers() {
  local headers
  headers=$(sed -n 's,^#include <glade/\(.*\)>,\1,p' glade.h | tr '\n' ' ')
  rm -rf build/doxygen && mkdir -p build/doxygen && { cat docs/Doxyfile && echo "INPUT = $headers"; } | doxygen -
}

write_pages() {
  rm -rf build/docs
  .venv/bin/python -m sphinx --quiet --fail-on-warning --keep-going -b html -d build/doxygen/doctrees docs build/docs
}

scripts/setup.sh docs
if ! .venv/bin/python -c 'import glade'; then
  echo "docs.sh: the Python package is not built; run scripts/test.sh first, or cmake --build build --target _glade" >&2
  exit 1
fi
step "C++ headers" read_headers
step "Pages" write_pages
echo "The site is build/docs/index.html"
