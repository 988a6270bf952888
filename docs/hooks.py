"""What the site does with the pages beyond MkDocs: the pages themselves stay readable as files.

- A picture that is an SVG is put into the page, where its colours follow light and dark; a
  screenshot opens in full size.
- A link to a file of the repository outside docs/ becomes the file's name, since the site is read
  without the repository.
- `docs/x.md` in code becomes a link.
- A page that would fetch something from elsewhere fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

DOCS = Path(__file__).parent
OUTSIDE = re.compile(r"\[(?:[^\]]+)\]\(\.\./(?P<path>(?:bench|clients)/[^)#]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"(?<!\[)`?docs/(?P<name>[a-z-]+)\.md`?(?!\])")
SVG = re.compile(r'<img alt="(?P<alt>[^"]*)" src="[^"]*img/(?P<name>[a-z-]+\.svg)" ?/?>')
SCREENSHOT = re.compile(r'<img alt="[^"]*" src="(?P<address>[^"]+\.webp)" ?/?>')
FETCHED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]+>")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if "/" in page.file.src_uri:
        return markdown
    lines = OUTSIDE.sub(r"`\g<path>`", markdown).split("\n")
    return "\n".join(
        line if line.startswith("    ") else NAMED.sub(link, line) for line in lines
    )  # indented: code


def link(match: re.Match[str]) -> str:
    name = match["name"]
    return f"[{name}.md]({name}.md)" if (DOCS / f"{name}.md").exists() else match[0]


def on_page_content(html: str, **_: Any) -> str:
    return SCREENSHOT.sub(r'<a href="\g<address>">\g<0></a>', SVG.sub(inline, html))


def inline(match: re.Match[str]) -> str:
    svg = (DOCS / "img" / match["name"]).read_text(encoding="utf-8")
    return (
        "<div"
        f' class="diagram-box">{svg.replace("<svg ", f"""<svg role="img" aria-label="{match["alt"]}" """, 1)}</div>'  # noqa: E501
    )


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches from elsewhere: {found[0]}")
    return output
