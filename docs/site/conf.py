"""Sphinx's settings for the documentation site. build.py copies this file next to the pages."""
import logging

project = "tilegrad"
extensions = ["myst_parser", "breathe"]
breathe_projects = {"tilegrad": "../doxygen/xml"}
breathe_default_project = "tilegrad"
primary_domain = "cpp"
highlight_language = "none"
html_theme = "furo"
html_title = "tilegrad"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 4  # headings have the same anchors as on GitHub
nitpicky = False
smartquotes = False  # true would replace -- by a dash


class OncePerNamespace(logging.Filter):
    """Drops Sphinx's warnings about repeated namespaces. Every header opens the same namespaces."""

    def filter(self, record):
        return "Duplicate C++ declaration" not in record.getMessage()


def setup(app):
    for handler in logging.getLogger("sphinx").handlers:
        handler.addFilter(OncePerNamespace())
