"""Sphinx configuration."""

import os
import re

import skcfl

project = "skcfl"
author = "skcfl developers"
copyright = "skcfl developers"
release = skcfl.__version__
version = ".".join(release.split(".")[:2])

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
]

templates_path = ["_templates"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {
    "description": "Clustered federated learning behind the scikit-learn API",
    "fixed_sidebar": True,
    "page_width": "1080px",
}
html_sidebars = {"**": ["about.html", "navigation.html", "searchbox.html"]}
html_static_path = []

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
add_function_parentheses = False
# The class template lists the members; numpydoc would list them a second time.
numpydoc_show_class_members = False

# The documentation builds without a network. With one, SKCFL_DOC_ONLINE=1 links the names of
# other packages to their documentation.
intersphinx_mapping = {}
if os.environ.get("SKCFL_DOC_ONLINE"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "scipy": ("https://docs.scipy.org/doc/scipy", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
    }


def escape_fitted_names(app, what, name, obj, options, lines):
    """Shapes such as ``(n_clusters_, n_params)`` are no references to a target "n_clusters"."""
    for i, line in enumerate(lines):
        head, colon, kind = line.partition(" : ")
        if colon and not line.startswith(" "):
            lines[i] = head + colon + re.sub(r"(?<=\w)_(?=[,) ])", r"\\_", kind)


def setup(app):
    """Escape before numpydoc, which connects at priority 500, reads the docstring."""
    app.connect("autodoc-process-docstring", escape_fitted_names, priority=400)
