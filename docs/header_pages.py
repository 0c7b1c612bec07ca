"""Sphinx extension: a page says `<!-- headers: ops/ nn/optim/ -->`, and the public headers that begin so follow in its place.

A header that several pages ask for goes to the one that says most of its path.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUEST = re.compile(r"^<!-- headers: (.*) -->$", re.MULTILINE)


def headers_of_pages():
    """{page: headers}, with those that no page asks for under None."""
    requests = {}
    for page in sorted(ROOT.glob("docs/api/cpp/*.md")):
        for prefixes in REQUEST.findall(page.read_text()):
            requests |= dict.fromkeys(prefixes.split(), page.stem)
    pages = {}
    for header in re.findall(r"^#include <glade/(.*)>$", (ROOT / "glade.h").read_text(), re.MULTILINE):
        best = max(filter(header.startswith, requests), key=len, default=None)
        pages.setdefault(requests.get(best), []).append(header)
    return pages


def expand(app, name, source):
    if name.startswith("api/cpp/"):
        headers = app.glade_headers.get(Path(name).name, [])
        text = "\n".join(f"## `{header}`\n```{{doxygenfile}} {header}\n```\n" for header in headers)
        source[0] = REQUEST.sub(lambda request: text, source[0])


def read_requests(app):
    from sphinx.util import logging  # here, so that the tests can import this file without Sphinx

    app.glade_headers = headers_of_pages()
    for header in app.glade_headers.get(None, []):
        logging.getLogger(__name__).warning("docs/api/cpp: no page asks for the public header %s", header)


def setup(app):
    app.connect("builder-inited", read_requests)
    app.connect("source-read", expand)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
