"""Sphinx configuration of the documentation site, which `make site` builds.

Sphinx with MyST reads the pages as they are, checks every link and anchor, and takes the Python API from docstrings.
MkDocs has had no release since 2024, and Zensical has not reached version 1.

The source directory is the repository, so that the links between README.md, CONTRIBUTING.md and docs/ are the same in
the site and in the repository. `NAVIGATION` alone decides where a page appears: a page that it does not name is a
warning, and warnings are errors. A link to a file that is not a page of the site leads to the file in the repository.
"""

import shutil
from pathlib import Path

import headrace
import headrace.aio
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/headrace/headrace/blob/main"

NAVIGATION = {
    "README": {
        "": ["docs/README"],
        "Tutorials": ["docs/quickstart"],
        "How-to guides: applications": [
            "docs/guides/command-line",
            "docs/guides/from-a-kafka-client",
            "docs/guides/simple-clients",
            "docs/guides/compacted-topics",
            "docs/guides/tables",
            "docs/guides/schemas",
            "docs/guides/directory",
            "docs/guides/mirror",
            "docs/guides/kinds-of-values",
            "docs/guides/typed-topics",
            "docs/guides/sql",
            "docs/guides/spark",
            "docs/guides/load",
            "docs/guides/jobs",
            "docs/guides/workload-report",
        ],
        "How-to guides: operation": [
            "docs/guides/installing",
            "docs/guides/sizing",
            "docs/guides/security",
            "docs/guides/identity",
            "docs/guides/threat-model",
            "docs/guides/monitoring",
            "docs/guides/tracing",
            "docs/runbooks/README",
            "docs/guides/operations-replicas",
            "docs/guides/operations-groups",
            "docs/guides/upgrading",
            "docs/guides/growing-volumes",
            "docs/guides/replacing-a-broker",
            "docs/guides/replacing-an-etcd-member",
            "docs/guides/disaster-recovery",
            "docs/guides/mirror-deployment",
        ],
        "Reference": ["docs/python/index", "docs/reference/*"],
        "Explanation": [
            "docs/architecture",
            "docs/protocols/storage",
            "docs/protocols/replication",
            "docs/protocols/groups",
            "docs/protocols/metadata",
            "docs/guides/clients-and-failover",
            "docs/performance",
            "docs/paper",
            "docs/decisions/README",
        ],
        "Contributing": [
            "CONTRIBUTING",
            "docs/contributing/map",
            "docs/protocols/rules",
            "docs/protocols/simulation",
            "docs/protocols/chaos",
            "docs/protocols/mutants",
            "CHANGELOG",
            "SECURITY",
        ],
    },
    "docs/runbooks/README": {"": ["docs/runbooks/*"]},
    "docs/decisions/README": {"": ["docs/decisions/*"]},
}
"""For a page: its sections in the sidebar, and the pages of each, in this order."""

project = "headrace"
author = "the headrace authors"
version = release = headrace.__version__

root_doc = "README"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*", "bench", "build", "deploy", "dist", "proto", "sdk", "services", "spark_jobs", "tests"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"headrace {release}"
html_copy_source = False

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "special-members": "__iter__, __aiter__, __await__",
    "exclude-members": "default_code",
}
# In docstrings a name in single backticks is a link if it names a public object, and code if not.
default_role = "py:obj"
# A class of headrace in a signature must be in the reference; classes of other packages and names in text need not be.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!headrace\.).*")]
nitpick_ignore = [("py:class", "headrace.client.producer.futures.AnyFuture")]  # A type variable has no page.
maximum_signature_line_length = 100


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the hidden tables of contents of `NAVIGATION` to a page."""
    for caption, pages in NAVIGATION.get(docname, {}).items():
        options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
        source[0] += "\n".join(["\n", "```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])


def link_to_repository(app: Sphinx, doctree: nodes.document) -> None:
    """Replace each link to a file or folder that is not a page by a link into the repository."""
    folder = Path(doctree["source"]).parent
    links = [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]
    for link in links:
        if link["reftype"] != "myst" or link["refdomain"] == "doc":
            continue
        target = (folder / link["reftarget"]).resolve()
        if target.exists() and ROOT in target.parents:
            uri = f"{REPOSITORY}/{target.relative_to(ROOT).as_posix()}"
            link.replace_self(nodes.reference("", "", *link.children, refuri=uri, internal=False))


def convert_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Convert the sections of a docstring (`Args:`, `Raises:`) to reStructuredText.

    The extension that does the same reads `word: text` in the docstring of an attribute as its type. This does not.
    """
    if lines and lines[0].startswith(("Alias for field number", "Create new instance of")):
        lines.clear()  # Python's own docstrings of named tuples.
    lines[:] = GoogleDocstring(lines, Config(napoleon_use_ivar=True)).lines()


def shorten_signature(app: Sphinx, what: str, name: str, obj: object, *_: object) -> tuple[str, None] | None:
    """Leave out the signature of an error that has the constructor of its base."""
    inherited = isinstance(obj, type) and issubclass(obj, headrace.HeadraceError) and "__init__" not in vars(obj)
    return ("", None) if inherited else None


def copy_home(app: Sphinx, error: Exception | None) -> None:
    """Serve the first page as index.html too, the name that web servers look for."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    for name in headrace.aio.__all__:
        getattr(headrace.aio, name).__name__ = name  # Two have another name where they are defined.
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("doctree-read", link_to_repository, priority=100)
    app.connect("build-finished", copy_home)
