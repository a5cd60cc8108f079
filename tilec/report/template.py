"""The templates of pages. Jinja2 fills them; without it, an error names the command that installs it."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from tilec.core.diagnostics import CallError
from tilec.process.printable import printable

if TYPE_CHECKING:
    import jinja2


def fill(template: str, /, **values: object) -> str:
    """The template of this name with these values. All texts are escaped, and what would steer a
    reader's eyes, such as marks of direction, is shown as escapes. Raises CallError where Jinja2 is not installed."""
    return printable(environment().get_template(f"{template}.html").render(values))


def environment() -> jinja2.Environment:
    """Finds templates in this package. Styles and scripts are put into the page as they are."""
    try:
        import jinja2
    except ImportError:
        raise CallError("reports take Jinja2, which is not installed", hint='pip install "tilec[report]"') from None
    folder = resources.files(__package__) / "templates"

    def asis(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda file: (folder / file).read_text(encoding="utf-8")), autoescape=True,
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    made.globals["asis"] = asis
    made.filters["percent"] = lambda share: f"{share:.0%}" if share >= 0.01 or not share else "<1%"
    return made
