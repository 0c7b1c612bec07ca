"""The pages: their links and anchors, and that nothing public is missing from them. scripts/docs.sh builds them."""

import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import glade

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SOURCES = ["core", "autograd", "ops", "nn", "bindings", "examples", "tools", "benchmarks"]


def without_code(text):
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """What the headings of a page are called in links, on GitHub and on the site."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        while name in found:
            stem, _, number = name.rpartition("-")
            name = f"{stem}-{int(number) + 1}" if number.isdigit() and stem in found else f"{name}-1"
        found.add(name)
    for included in re.findall(r"^```\{include\} (.*)$", page.read_text(), re.MULTILINE):
        found |= anchors(page.parent / included)
    return found


def broken_links(page):
    """The relative links of a page whose file or anchor is not there."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            yield target


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A title, here\n[a](#a-title-here) [b](#nowhere) [c](page.md#a-title-here) [d](none.md) [e](https://x.y) `[f](g)`\n")
    assert list(broken_links(page)) == ["#nowhere", "none.md"]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    assert list(broken_links(page)) == []


FOLDERS = "core autograd ops nn bindings examples tools benchmarks tests scripts docs cmake licenses".split()


def files_that_are_not_there(page):
    """Files and folders of the repository that a page names, with wildcards and {h,cpp}, and that are not there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./*{{}},-]*)`", text):
        choices = re.search(r"\{(.*)\}", name)
        for choice in choices[1].split(",") if choices else [""]:
            pattern = name.replace(choices[0], choice) if choices else name
            if not any(any(ROOT.glob(pattern.rstrip("/") + end)) for end in ("", ".py", ".cpp")):
                yield pattern


def test_a_file_that_is_not_there_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`core/tensor.{h,cpp}` `core/none.{h,cpp}` `ops/` `ops/nothing/` `examples/train_lm` `a/b.h` `nn/*.h`\n```\n`nn/none`\n```\n")
    assert list(files_that_are_not_there(page)) == ["core/none.h", "core/none.cpp", "ops/nothing/"]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")], ids=lambda page: page.name)
def test_files_that_pages_name_are_there(page):
    assert list(files_that_are_not_there(page)) == []


def test_what_pages_include_is_there():
    found = 0
    for page in PAGES:
        for path, options in re.findall(r"^```\{include\} (.*)\n((?::.*\n)*)", page.read_text(), re.MULTILINE):
            text = (page.parent / path).read_text()
            for marker in re.findall(r'^:[a-z-]+: "(.*)"$', options, re.MULTILINE):
                assert text.count(marker.replace("\\n", "\n")) == 1, (page, marker)
                found += 1
    assert found > 4


def test_every_page_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for contents in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for entry in contents.split():
                if not entry.startswith(":"):
                    listed |= set(page.parent.glob(f"{entry}.md"))
    assert listed ^ set(PAGES) == set()


def test_every_public_header_is_on_a_page(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from header_pages import headers_of_pages

    pages = headers_of_pages()
    assert None not in pages
    assert "nn/optim/adamw.h" in pages["optim"] and "nn/linear.h" in pages["nn"]


def test_every_public_module_is_on_a_page():
    modules = {module.name for module in pkgutil.walk_packages(glade.__path__, "glade.", onerror=lambda name: None) if "._" not in module.name}
    described = {name for page in PAGES for name in re.findall(r"^\.\. automodule:: (.*)$", page.read_text(), re.MULTILINE)}
    assert described ^ (modules | {"glade"}) == set()


def variables_read():
    """Environment variables that the sources read. A source may look one up through a helper, so all names in it count."""
    names = set()
    for folder in SOURCES:
        for source in (ROOT / folder).rglob("*"):
            if source.suffix in {".h", ".cpp", ".cuh", ".cu", ".py"} and re.search(r"getenv\(|os\.environ", text := source.read_text()):
                names |= set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|HOME)"', text))
    for test in (ROOT / "tests").rglob("*.cpp"):
        names |= set(re.findall(r'getenv\("(\w+)"\)', test.read_text()))
    for script in (ROOT / "scripts").glob("*.sh"):
        names |= set(re.findall(r"\$\{([A-Z][A-Z0-9_]+):?-", script.read_text()))
    return names


def test_every_environment_variable_is_on_its_page():
    rows = re.findall(r"^\| (`[^|]*) \|", (DOCS / "environment.md").read_text(), re.MULTILINE)
    described = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert set(described) ^ variables_read() == set()


def test_citations_name_this_version():
    assert f"\nversion: {glade.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{glade.__version__}}}" in (DOCS / "cite.md").read_text()


def test_pictures_are_those_that_the_script_draws_and_shown():
    pictures = runpy.run_path(str(DOCS / "pictures" / "draw.py"))["PICTURES"]
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(pictures)
    text = "".join(page.read_text() for page in PAGES)
    for name, draw in pictures.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == draw(), "run docs/pictures/draw.py"
        assert f"(pictures/{name}.svg)" in text
