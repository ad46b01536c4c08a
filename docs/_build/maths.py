"""Formulas in LaTeX become MathML, which browsers draw by themselves: no script, no font, no
network.
"""

import html
import logging
import re

from latex2mathml.converter import convert

log = logging.getLogger("mkdocs.plugins.maths")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FETCHED = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(https?:)?//|<link\b[^>]*rel="(?:stylesheet|preload)"[^>]*href="(https?:)?//')


def on_page_content(content, page, config, files):
    """Every formula of a page."""
    return FORMULA.sub(_mathml, content)


def _mathml(found):
    formula = html.unescape(found[3])
    if found[1] == "span":
        return convert(formula)
    return f'<div class="formula">{convert(formula, display="block")}</div>'


def on_post_page(output, page, config):
    """A page that fetches anything from elsewhere is a warning, and so an error of a strict
    build.
    """
    if FETCHED.search(output):
        log.warning("%s loads something from another site", page.file.src_uri)
    return output
