"""What every page must stand: it fits on a phone and a screen, a finger hits it, axe-core finds
nothing serious, its main action is reached by Tab; one visit for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import axe_playwright_python
from playwright.sync_api import expect

from tests.amounts import amount

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
THEMES = ("light", "dark")
WORST = ("serious", "critical")
# Nodes that pass are many, and nobody reads them; nor what rules find that are mild wherever they
# find something.
AXE_RUN = (
    "async () => (await axe.run({where}, {{ resultTypes: ['violations'], {rules} }})).violations"
)
EVERYTHING = AXE_RUN.format(
    where="document",
    rules="""rules: Object.fromEntries(axe._audit.rules
      .filter((rule) => ["color-contrast", "link-in-text-block"].includes(rule.id) || ["minor", \
"moderate"].includes(rule.impact))
      .map((rule) => [rule.id, { enabled: false }]))""",
)
LINKS_IN_TEXT = AXE_RUN.format(where="document", rules="runOnly: ['link-in-text-block']")
ALIKE = """(() => {  // What lies under elements that look, up to the page, as one before them \
does, and has none that does not.
  const LOOK = ["color", "backgroundColor", "backgroundImage", "opacity", "fontSize", \
"fontWeight", "textShadow", "filter", "mixBlendMode",
    "position", "visibility", "display"];
  const STATE = ["disabled", "open", "checked", "hidden", "type"];
  const looks = new Map(), alike = new Set();
  const says = (at) => [...at.childNodes].map((node) => node.nodeType === 3 ? node.data : \
"").join("").match(/[\\p{L}\\p{N}]/gu)?.length > 1;
  const look = (at, above) => {  // whether there is something new in it
    const style = getComputedStyle(at), own = [at.tagName, at.getAttribute("class"), \
at.getAttribute("style"), says(at), at.control?.disabled];
    const key = [above, ...own, ...STATE.map((name) => at[name]), ...LOOK.map((name) => \
style[name])].join("|");
    let anew = !looks.has(key);
    if (anew) looks.set(key, looks.size);
    for (const child of at.children) anew = look(child, looks.get(key)) || anew;
    if (!anew) alike.add(at);
    return anew;
  };
  look(document.documentElement, "");
  return [...alike].filter((at) => !alike.has(at.parentElement));
})()"""
CONTRAST = AXE_RUN.format(where=f"{{ exclude: {ALIKE} }}", rules="runOnly: ['color-contrast']")
STICKS_OUT = """() => {  // Names what is wider than the page and lies in nothing that scrolls.
  const page = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= page) return [];
  return [...document.querySelectorAll("main *")].filter((at) => at.getBoundingClientRect().right \
> page && !at.closest(".scroll"))
    .map((at) => at.tagName + "." + at.className).slice(0, \
5).concat(document.documentElement.scrollWidth - page);
}"""
IN_THEME = (
    f"(theme) => {{ document.documentElement.dataset.theme = theme; return ({STICKS_OUT})(); }}"
)
SMALL = """() => [...document.querySelectorAll("a, button, summary, select, input, [role=option], \
[role=tab]")].filter((at) => {
  const box = at.getBoundingClientRect(), style = getComputedStyle(at);
  if (!box.width || !box.height || style.visibility === "hidden" || at.closest("[hidden], .skip, \
.unseen, .CodeMirror, svg")) return false;
  if (at.matches("input") && at.closest("label")) return \
at.closest("label").getBoundingClientRect().height < 23.5 && box.height < 23.5;
  if (style.display === "inline" && [...at.parentElement.childNodes].some((node) => node.nodeType \
=== 3 && node.data.trim().length > 1)) return false;
  return box.height < 23.5 || box.width < 23.5;  // in a sentence a link is as high as its line \
(WCAG 2.5.8)
}).map((at) => `${at.tagName}.${at.className} “${at.textContent.trim().slice(0, 30)}” \
${Math.round(at.getBoundingClientRect().width)}×${Math.round(at.getBoundingClientRect().height)}`).slice(0, 6)"""  # noqa: E501


def settle(page: Any) -> None:
    expect(page.locator('[hx-trigger^="load"].htmx-request')).to_have_count(0)


def faults(page: Any) -> list[str]:
    """What axe-core calls serious or critical on the page as it is."""
    return found_by_axe(page, EVERYTHING) + unreadable(page)


def unreadable(page: Any) -> list[str]:
    """Texts and links that do not stand out, by axe-core. Contrast is measured once for all
    elements that look alike.
    """
    return found_by_axe(page, LINKS_IN_TEXT) + found_by_axe(page, CONTRAST)


def found_by_axe(page: Any, run: str) -> list[str]:
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    return [
        f"{fault['id']}: {node['target']} {node['html'][:160]}"
        for fault in page.evaluate(run)
        if fault["impact"] in WORST
        for node in fault["nodes"][:3]
    ]


def wrong_with(page: Any, address: str, number: int = 0) -> list[str]:
    """Opens the page as a phone, turns the theme, makes it wide: what is wrong with it, a sentence
    each. In the suite axe-core looks at it in one theme, by the page's number; in proof in both.
    """
    looked_at = amount(THEMES[number % 2 :][:1], THEMES)
    page.set_viewport_size({"width": 390, "height": 844})
    answer = page.goto(address)
    assert answer.status == 200, address
    settle(page)
    wrong = [f"too small for a finger: {one}" for one in page.evaluate(SMALL)]
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        for theme in THEMES:
            sticks_out = page.evaluate(f"({IN_THEME})('{theme}')")
            wrong += [f"{width} px, {theme}: sticks out: {one}" for one in sticks_out]
            if width == 1280 and theme in looked_at:
                look = faults if theme == looked_at[0] else unreadable
                wrong += [f"{theme}: {one}" for one in look(page)]
    for box in page.locator(".figure").all():
        expect(box.locator(".main-svg").first).to_be_attached()
    return [f"{address} {one}" for one in wrong]


MOST_TABS = 400
AT_ONCE = 8  # presses of Tab before the page is asked whether the focus was there
LINKS = (
    "() => [...document.querySelectorAll('a[href]')].map((at) => new URL(at.getAttribute('href'),"
    " location).pathname)"
)
WATCH = """() => {  // Remembers whether the focus was on the main action; false where the page \
has none.
  const main = () => [...document.querySelectorAll("main :is(a.btn, button).primary")].find((at) \
=> at.checkVisibility() && !at.disabled && !at.closest("details:not([open])"));
  window.wasThere = false;
  document.addEventListener("focusin", (event) => { window.wasThere ||= event.target === main(); });
  return Boolean(main());
}"""
IN_EDITOR = "() => Boolean(document.activeElement.closest('.CodeMirror'))"


def links(page: Any) -> set[str]:
    return set(page.evaluate(LINKS))


def is_stuck(page: Any) -> bool:
    """Without a mouse: whether Tab never comes to the page's main action."""
    if not page.evaluate(WATCH):
        return False
    editors = page.locator(".CodeMirror").count()
    for number in range(MOST_TABS):
        if editors and page.evaluate(IN_EDITOR):
            page.keyboard.press("Escape")  # Tab indents there, and the field says how to leave it
        page.keyboard.press("Tab")
        if number % AT_ONCE == AT_ONCE - 1 and page.evaluate("window.wasThere"):
            return False
    return True
