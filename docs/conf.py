"""The site of the documents: ``python -m sphinx -W -n --keep-going -b html docs build/docs``, without a network."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "extensions")]

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
release = version = _PROJECT["version"]
copyright = "Apache License 2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "public", "repository"]
html_math_renderer = "mathml"
exclude_patterns = ["README.md", "generated", "extensions"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}
smartquotes = False  # a dash for two hyphens would spoil options
pygments_style, pygments_dark_style = "tango", "monokai"
