"""The documentation site: scripts/docs.sh builds it from these pages, the Python package and Doxygen's XML of the public headers."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import glade  # noqa: E402

project = "glade"
author = "the developers of glade"
release = version = glade.__version__
html_title = f"glade {version}"
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
pygments_dark_style = "a11y-high-contrast-dark"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None

extensions = ["myst_parser", "sphinx.ext.autodoc", "breathe", "header_pages", "plain_docstrings"]
exclude_patterns = ["Doxyfile"]
nitpicky = True

myst_enable_extensions = ["smartquotes"]
myst_heading_anchors = 4
smartquotes = False

# Docstrings of the compiled module carry their signatures; plain_docstrings.py shortens the types in them.
autodoc_mock_imports = ["torch"]
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "both"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

DOXYGEN = Path(__file__).parents[1] / "build" / "doxygen" / "xml"
breathe_projects = {"glade": str(DOXYGEN)}
breathe_default_project = "glade"
breathe_default_members = ("members", "undoc-members")
breathe_show_include = False
# Every header opens the namespaces anew.
suppress_warnings = ["duplicate_declaration.cpp"]
cpp_maximum_signature_line_length = 100
highlight_language = "none"
primary_domain = None

# Names of the languages' own libraries and of packages beside glade: the site has no page for them.
nitpick_ignore_regex = [
    (r"cpp:.*", r"(std|Args|cuda\w*)(::.*)?|u?int\d+_t|size_t"),
    # Classes that no public header defines, and a type that depends on T.
    (r"cpp:.*", r"State|Shards|ComputeType<T>::type"),
    (r"py:.*", r"(numpy|np|torch|h5py|collections|typing|os|contextlib|pathlib|enum)\..*"),
]


def tidy_doxygen():
    """Doxygen's index names headers without their folders, although several have the same name: Breathe finds them by these names.
    Its XML has what is private and the macros of the headers' own, which Breathe would show."""
    index = ElementTree.parse(DOXYGEN / "index.xml")
    for entry in index.iterfind("compound"):
        path = DOXYGEN / f"{entry.get('refid')}.xml"
        compound = ElementTree.parse(path)
        if entry.get("kind") == "file":
            entry.find("name").text = compound.find("compounddef/location").get("file")
        for parent in list(compound.iter()):
            for child in list(parent):
                kind = child.get("kind", "")
                if child.get("prot") == "private" or kind.startswith("private") or kind == "define":
                    parent.remove(child)
        compound.write(path, encoding="utf-8", xml_declaration=True)
    index.write(DOXYGEN / "index.xml", encoding="utf-8", xml_declaration=True)


tidy_doxygen()
