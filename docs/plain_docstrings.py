"""Sphinx extension: docstrings here are plain English with `code` and names of pages, and those of the compiled module begin with
pybind11's signatures."""

import re

# What pybind11 and the package say of a type, and what a reader calls it.
SHORTER = [
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r"collections\.abc\.|typing\.|glade\.typing\.", ""),
    (r"glade\._glade\.", "glade."),
    (r"^\(self: [\w.]+(, )?", "("),
]
SIGNATURE = re.compile(r"(?:(\d+)\. )?(\w+)(\(.*\)) -> (.*)$")


def shorten(signature):
    for pattern, replacement in SHORTER:
        signature = re.sub(pattern, replacement, signature)
    return signature


def first_overload(thing):
    """(parameters, result) of the first of several signatures in a docstring of pybind11."""
    documents = [thing.__doc__, getattr(getattr(thing, "__init__", None), "__doc__", None)]
    for document in documents:
        if document and "\nOverloaded function.\n" in document:
            for line in document.splitlines():
                if (found := SIGNATURE.match(line)) and found[1]:
                    return found[3], found[4]
    return None


def process_signature(app, what, name, thing, options, parameters, result):
    if parameters is None:
        return None
    if overload := first_overload(thing):
        parameters, result = overload
    return shorten(parameters), "" if what == "class" else shorten(result or "")


def escape(line):
    """A line of plain text with `code` and pages such as docs/data.md, as reStructuredText."""
    parts = re.split(r"(`+)(.+?)\1", line)
    text = []
    for i in range(0, len(parts), 3):
        text.append(re.sub(r"docs/(\w+)\.md|[\\*_|`]", lambda found: f":doc:`/{found[1]}`" if found[1] else "\\" + found[0], parts[i]))
        if i + 2 < len(parts):
            text.append(f"``{parts[i + 2]}``")
            if i + 3 < len(parts) and re.match(r"\w", parts[i + 3]):
                text.append("\\ ")
    return "".join(text)


def process_docstring(app, what, name, thing, options, lines):
    result, in_example, in_block = [], False, False
    overloads_end = 0  # of the last list of further signatures in result
    for line in lines:
        signature = SIGNATURE.match(line)
        if signature and (signature[1] or signature[2] == "__init__"):
            if signature[1] and signature[1] != "1":
                while result and not result[-1].strip():
                    result.pop()
                if len(result) != overloads_end:
                    result += ["", "Also::", ""]
                result.append(f"    {signature[2]}{shorten(signature[3])} -> {shorten(signature[4])}".replace("glade.", ""))
                overloads_end = len(result)
            continue
        if line == "Overloaded function." or re.fullmatch(r"\w+\(\*args, \*\*kwargs\)", line):
            continue
        if line.lstrip().startswith(">>>"):
            in_example = True
        elif not line.strip():
            in_example = in_block = False
        elif not in_example and line.startswith("    ") and result and not in_block and not result[-1].strip():
            result += ["::", ""]
            in_block = True
        result.append(line if in_example or in_block else escape(line))
    lines[:] = result


def process_bases(app, name, thing, options, bases):
    """Leaves out bases that nobody can name, and shows Python's own as code: glade.ValueError is not Python's ValueError."""
    public = [base for base in bases if base.__module__ != "pybind11_builtins" and not base.__name__.startswith("_")] or [object]
    bases[:] = [f"``{base.__name__}``" if base.__module__ == "builtins" else base for base in public]


def drop_object(app, domain, kind, content):
    """That a class derives from `object` alone says nothing."""
    if content.children and content[0].astext() == "Bases: object":
        content.pop(0)


def setup(app):
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-bases", process_bases)
    app.connect("object-description-transform", drop_object)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
