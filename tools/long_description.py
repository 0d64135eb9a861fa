"""
Makes the long description of the package from README.md.

A package index shows it without the other files of the tree, so relative links would lead
nowhere. With a base URL they become absolute; without one their text remains.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urljoin

# A block of code, a link or picture, or code in a line, whichever begins first.
_PART: Final = re.compile(
    r"^```.*?^```$|(!?)\[([^\]]*)\]\(([^)\s]+)\)|`[^`\n]*`", re.DOTALL | re.MULTILINE
)
_ABSOLUTE: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def render(readme: str, base: str | None) -> str:
    """
    Return the text with no relative link; code is left as it is.

    Args:
        readme: Markdown.
        base: What relative links are relative to; None: they become plain text, and
            pictures their description.

    Raises:
        ValueError: The base is not the URL of a folder.
    """
    if base is not None and not (_ABSOLUTE.match(base) and base.endswith("/")):
        raise ValueError(
            f"the URL Documentation is {base!r}; allowed is an absolute URL that ends"
            " with a slash: that of the root of the tree"
        )

    def replaced(part: re.Match[str]) -> str:
        picture, text, target = part.groups()
        if target is None or _ABSOLUTE.match(target):
            return part[0]
        if base is not None:
            return f"{picture}[{text}]({urljoin(base, target)})"
        return f"*{text}*" if picture else text

    return _PART.sub(replaced, readme)
