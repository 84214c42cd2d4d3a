"""The configuration of the documentation site (Sphinx, MyST, Furo); ``make docs`` builds it."""

from __future__ import annotations

import builtins
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

from trikafka._version import VERSION

HERE = Path(__file__).parent

project = "trikafka"
author = copyright = "the trikafka maintainers"
version = release = VERSION

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_site"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

# API reference. Members stand in the order of the source, where related calls are together. Types
# are in the signatures, in their short form: the modules that define them are private.
# The methods that every tuple, integer, dictionary or exception has are left out.
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "inherited-members": "tuple,int,str,Enum,dict,BaseException,Protocol",
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

# Links to Trio's and Python's documentation. Their inventories are made here, of the names in
# outside.txt, because a build must not need the network.
_ADDRESSES = {
    "python": "https://docs.python.org/3",
    "trio": "https://trio.readthedocs.io/en/stable",
}


def _inventory(project: str) -> str:
    """Write an inventory in Sphinx's format (version 2) to a temporary folder; return its path."""
    lines = [
        f"{name} py:{role} 1 {page}.html#$ -"
        for found, role, page, *names in map(str.split, _OUTSIDE_NAMES)
        if found == project
        for name in names
    ]
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    path = Path(tempfile.mkdtemp()) / f"{project}.inv"
    path.write_bytes(head.encode() + zlib.compress("\n".join([*lines, ""]).encode()))
    return str(path)


_OUTSIDE_NAMES = [
    line for line in (HERE / "outside.txt").read_text().splitlines() if not line.startswith("#")
]
intersphinx_mapping = {
    project: (address, _inventory(project)) for project, address in _ADDRESSES.items()
}

html_theme = "furo"
html_title = f"trikafka {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_theme_options = {"top_of_page_buttons": []}

#: Files outside this folder that a page links to, and the pages that show them.
_PAGES = {
    "../README.md": "quickstart.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../plugins/trikafka-broker/README.md": "broker.md",
    "../plugins/trikafka-broker": "broker.md",
}
_OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)#]*)(#[^)]*)?\)")
#: A link whose words are a file's name: the site has pages, not files.
_FILE_NAME = re.compile(r"\[([\w-]+)\.md\]\(")
#: A block in fences, with its language. One without would be coloured as Python.
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _inside(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn a page for a code host into one of the site, in place.

    On a code host, links that leave this folder lead to files of the repository. Here they lead to
    the page with the same text; where there is none, the words remain without a link.
    """

    def instead(found: re.Match[str]) -> str:
        words, target, anchor = found.groups()
        page = _PAGES.get(target.rstrip("/"))
        return f"[{words}]({page}{anchor or ''})" if page else words

    text = _OUTSIDE.sub(instead, source[0])
    text = _FILE_NAME.sub(lambda found: f"[{found[1].replace('-', ' ').lower()}](", text)
    if (HERE / f"{name}.md").exists():
        text = _FENCED.sub(lambda block: f"```{block[1] or 'text'}\n{block[2]}```", text)
    source[0] = text


#: Sections of docstrings become lists of fields; attributes too, not entries of their own.
_SECTIONS = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)


def _google(
    app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """Turn a docstring's sections into fields.

    The extension for this reads a property's docstring as "type: text". Here the type is in the
    signature, and a colon is a colon.
    """
    kind = "method" if what in ("property", "attribute", "data") else what
    lines[:] = GoogleDocstring(lines, _SECTIONS, app, kind, name, thing, options).lines()


def _exact_builtins(app: Sphinx, tree: nodes.document) -> None:
    """Let ``bytes`` in a signature be the built-in type, not an attribute of that name."""
    for reference in tree.findall(pending_xref):
        if hasattr(builtins, reference.get("reftarget", "")):
            reference.attributes.pop("refspecific", None)


def setup(app: Sphinx) -> None:
    app.connect("source-read", _inside)
    app.connect("autodoc-process-docstring", _google)
    app.connect("doctree-read", _exact_builtins)
