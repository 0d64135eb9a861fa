"""Links between the documents lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from support.tables import rows

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "bench/README.md", ROOT / "tests/README.md"]
DOCUMENTS += [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))
CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a document, as GitHub makes them."""
    text = CODE_BLOCK.sub("", path.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@rows(*DOCUMENTS)
def test_links_lead_to_existing_files_and_headings(path: Path) -> None:
    """Of a link to a heading, both parts exist; links to other sites are not opened."""
    text = CODE_BLOCK.sub("", path.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_every_document_is_linked_from_another() -> None:
    """A reader who begins at README.md can find every page."""
    linked = {
        (path.parent / target.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)\s]+\.md[^)\s]*)\)", path.read_text())
    }
    assert {
        path.name for path in DOCUMENTS[1:] if path.resolve() not in linked
    } == set()
