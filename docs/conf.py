"""The documentation, made by ``sphinx-build -W --keep-going docs site``: pages, and the reference from docstrings."""

from importlib.metadata import version as version_of

project, author = "dpdl", "the dpdl authors"
version = release = version_of("dpdl")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["theorems/*"]
html_theme = "furo"
html_title = "dpdl"
html_static_path, html_css_files = ["static"], ["site.css"]
html_copy_source = html_show_sourcelink = False
html_show_copyright = False
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_typehints = "none"  # the docstrings say what arguments are
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
add_module_names = False
suppress_warnings = ["ref.python"]  # attributes of the same name, n_states for instance, in several classes
python_use_unqualified_type_names = True
