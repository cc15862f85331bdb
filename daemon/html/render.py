"""Pages from the templates in this folder: one self-contained HTML file each, with the style in it.

Promise: every value is escaped, so that no name can become markup; a value that a template names and nobody gives is an
error. Limit: needs jinja2; import it only where a page is written.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: str, **values: object) -> str:
    """The page of a template in templates/."""
    return _environment().get_template(f"templates/{template}").render(values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
