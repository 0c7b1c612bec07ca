"""Everything public has a docstring, and the examples in docstrings and guides run."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import glade

ROOT = Path(__file__).parents[2]
# Public modules, whose docstrings are read. glade.torch needs PyTorch, glade.hdf5 and glade.inspect h5py.
MODULES = ["glade", "glade.nn._containers"]
MODULES += [module.name for module in pkgutil.walk_packages(glade.__path__, "glade.") if "._" not in module.name and module.name != "glade.torch"]


def public(owner):
    names = getattr(owner, "__all__", None) or [name for name in vars(owner) if not name.startswith("_")]
    return {name: getattr(owner, name) for name in names if not inspect.ismodule(getattr(owner, name))}


def documented_things():
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        yield module_name, module
        for name, value in public(module).items():
            if isinstance(value, glade.DType) or not getattr(value, "__module__", "").startswith("glade"):
                continue
            yield f"{module_name}.{name}", value
            if inspect.isclass(value):
                for member, item in public(value).items():
                    if not isinstance(item, glade.DType):
                        yield f"{module_name}.{name}.{member}", item


def own_words(thing):
    """The docstring without the signatures that pybind11 puts in front."""
    return re.sub(r"^(\d+\. )?\w+\(.*\) -> .*$|^Overloaded function\.$", "", inspect.getdoc(thing) or "", flags=re.MULTILINE).strip()


def test_everything_public_has_a_docstring():
    exceptions = {"glade.typing.ArrayLike", "glade.typing.SupportsDLPack"}
    silent = sorted({name for name, thing in documented_things() if name not in exceptions and len(own_words(thing)) < 5})
    assert silent == []


SOURCES = [path for path in sorted((ROOT / "bindings" / "glade").rglob("*.py")) if path.name == "__init__.py" or not path.name.startswith("_")]


def silent_in(body, prefix=""):
    """The names without a docstring in Python's own sources, which may be in no `__all__` or need a package that is not here."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from silent_in(node.body, f"{prefix}{node.name}.")


def test_a_name_without_a_docstring_is_found():
    source = 'def f():\n    """What."""\ndef g():\n    pass\nclass A:\n    """What."""\n    def h(self):\n        pass\n    def _i(self):\n        pass\n'
    assert list(silent_in(ast.parse(source).body)) == ["g", "A.h"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "bindings")))
def test_sources_have_docstrings(path):
    assert list(silent_in(ast.parse(path.read_text()).body)) == []


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    glade.manual_seed(0)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


GUIDES = ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")) if "```python\n" in page.read_text())]


def test_guides_are_found():
    assert {"README.md", "docs/python.md", "docs/other_programs.md", "docs/using_linear_attention.md"} <= set(GUIDES)


@pytest.mark.parametrize("guide", GUIDES)
def test_guides(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(ROOT / "tests")  # whose models are opened
    source = (ROOT / guide).read_text()
    blocks = [part.split("```")[0] for part in source.split("```python\n")[1:]]
    assert blocks
    names = {}
    for block in blocks:  # in order, like a reader would type them
        exec(compile(block, guide, "exec"), names)  # noqa: S102
