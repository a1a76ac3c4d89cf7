"""Sphinx: `sphinx-build -W -b html python/docs OUT`, with the package installed."""

import importlib.util

import sparsimd

project = "sparsimd"
copyright = "the sparsimd authors"
version = release = sparsimd.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.doctest", "numpydoc"]
autosummary_generate = True
# Not `sparsimd.csr` and `sparsimd.CSR`: some file systems take these names for one.
autosummary_filename_map = {"sparsimd.CSR": "sparsimd.CSR-class"}
# Their operators have pages where they are not installed, too.
autodoc_mock_imports = [name for name in ("torch", "torch_geometric") if importlib.util.find_spec(name) is None]
# Attributes are described in the classes' own text.
numpydoc_show_class_members = False
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]
# The longer one that is usual runs into the names beside it.
html_title = "sparsimd"
html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
# Pages without pages below them need no list of those.
html_sidebars = {"index": [], "guide": []}
html_show_sourcelink = False
doctest_global_setup = "import numpy as np\nimport sparsimd as ss"
