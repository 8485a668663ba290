"""How the documentation is built.

From the root of a checkout::

    python -m sphinx -W --keep-going -b html docs docs/_build/html

``-D sphinx_gallery_conf.plot_gallery=0``, without ``-W``, does not run the examples: their pages
then show code alone.
"""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from sphinx.util import logging

import conehoyer

HERE = Path(__file__).parent

project = "conehoyer"
copyright = "the conehoyer developers"
author = "The conehoyer developers"
version = release = conehoyer.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.extlinks",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
# It brings MathJax along, so that formulas are set without a network too.  Without it the
# reader's browser fetches MathJax.
if importlib.util.find_spec("sphinx-mathjax-offline"):
    extensions.append("sphinx-mathjax-offline")
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "autolink"  # `project_cai` is a link where it names something, else italic
nitpicky = True
trim_doctest_flags = True
extlinks = {"doi": ("https://doi.org/%s", "doi:%s")}

# --- API reference -------------------------------------------------------------------

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings give the types
numpydoc_show_class_members = False
numpydoc_validation_checks = {
    "all",  # but for:
    "ES01",  # no extended summary
    "SA01",  # no See Also section
}
# Properties need no example of their own: the class has one.
numpydoc_validation_exclude = {
    r"BlockPattern\.(grid|kept|n_blocks)$",
    r"BlockSparseLinear\.(block_shape|weight)$",
    r"BlockSparse\.(T|block_shape|density|dtype|n_blocks|nbytes|shape)$",
}
# The info classes are made by the library: their attributes are described, not the call.
numpydoc_validation_overrides = {"PR01": [r"\n\s*Attributes\n\s*-----"]}

# --- gallery -------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"[/\\]plot_",
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("conehoyer",),
    "reference_url": {"conehoyer": None},
    "backreferences_dir": "reference/generated/backreferences",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,
}

# --- HTML ----------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "conehoyer"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {
    "logo": {"text": "conehoyer"},
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
html_sidebars = {
    name: [] for name in ("index", "install", "performance", "threads", "troubleshooting")
}
html_sidebars |= {name: [] for name in ("whats_new", "contributing")}

# --- links to other projects ---------------------------------------------------------

OTHERS = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "scipy": "https://docs.scipy.org/doc/scipy",
    "numba": "https://numba.readthedocs.io/en/stable",
}


def inventory(name):
    """The list of what another project documents: fetched, from an earlier build, or None."""
    kept = HERE / "_build" / "inventories" / f"{name}.inv"
    try:
        request = Request(f"{OTHERS[name]}/objects.inv", headers={"User-Agent": "sphinx"})
        with urlopen(request, timeout=5) as answer:
            content = answer.read()
        if content.startswith(b"# Sphinx inventory"):
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(content)
    except (OSError, HTTPException):
        pass
    return str(kept) if kept.exists() else None


# Offline, names of other projects are text without a link, and no warning says so.
with ThreadPoolExecutor() as pool:
    inventories = dict(zip(OTHERS, pool.map(inventory, OTHERS), strict=True))
intersphinx_mapping = {
    name: (OTHERS[name], path) for name, path in inventories.items() if path is not None
}
nitpick_ignore_regex = [
    ("py:.*", rf"{name}\..*") for name, path in inventories.items() if path is None
]
if inventories["python"] is None:
    nitpick_ignore_regex.append(("py:.*", rf"({'|'.join(sys.stdlib_module_names)})(\..*)?"))


# --- completeness --------------------------------------------------------------------


def every_name_has_a_page(app, env):
    """Warn of public names that the API reference leaves out."""
    documented = {entry[0] for entry in env.get_domain("py").get_objects()}
    for name in conehoyer.__all__:
        if f"conehoyer.{name}" not in documented:
            logging.getLogger(__name__).warning("conehoyer.%s is missing in reference/", name)


def setup(app):
    """Connect the check above."""
    app.connect("env-check-consistency", every_name_has_a_page)
