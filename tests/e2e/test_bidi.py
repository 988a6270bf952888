"""Where text of others stands on a page it may reverse itself, and nothing around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders

PLACES = """texts => texts.map(text => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const at = walker.currentNode.data.indexOf(text)
    if (at < 0) continue
    const range = document.createRange()
    range.setStart(walker.currentNode, at)
    range.setEnd(walker.currentNode, at + 1)
    return range.getBoundingClientRect().left
  }
})"""


def test_an_override_ends_with_its_element(browser: Any) -> None:
    style = Path(finders.find("app.css")).read_text()
    page = browser.new_page()
    page.set_content(
        f"<style>{style}</style><p>Run <a>\u202egnp.exe</a> by <b>\u2067Ada</b> deleted"
        " <code>\u061c42</code> today</p>"
    )
    texts = ["Run", " by", "Ada", "deleted", "42", "today"]
    places = page.evaluate(PLACES, texts)
    page.close()
    assert places == sorted(places), dict(zip(texts, places, strict=True))
