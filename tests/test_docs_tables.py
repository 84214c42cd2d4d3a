"""Each table of the pages is one block: a blank line would end it, and its rows become text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_of_a_table_follow_its_head(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    blocks = [block for block in re.split(r"\n\s*\n", text) if block.lstrip().startswith("|")]
    broken = [block for block in blocks if not re.match(r"\|.*\|\n\|[-:| ]+\|\n\|", block.lstrip())]
    assert broken == []


def test_each_proposal_has_its_release() -> None:
    page = (ROOT / "docs/kips.md").read_text(encoding="utf-8")
    items = re.findall(r"^\* (\d[^:]*):", page, re.M)
    assert len(items) > 40
    assert [item for item in items if not re.fullmatch(r"(\d+ \([^)]+\)(, |$))+", item)] == []


def test_llms_txt_names_each_page() -> None:
    text = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    named = set(re.findall(r"\(([\w/-]+)\.html\)", text))
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    of_the_project = {"index", "changelog", "contributing", "licences", "security-policy"}
    assert pages - named <= of_the_project
    for name in named - pages:
        assert (ROOT / "docs" / f"{name}.rst").exists(), name
