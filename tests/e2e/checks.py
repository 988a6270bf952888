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
PHONE = 390
WIDTHS = (PHONE, 1280)
LOOKED_AT = 16  # of so many pages, one by axe-core in the suite
WORST = ("serious", "critical")
# Nodes that pass are many, and nobody reads them; nor what rules find that are mild wherever they
# find something.
AXE_RUN = (
    "async () => (await axe.run({where}, {{ resultTypes: ['violations'], {rules} }})).violations"
)
EVERYTHING = AXE_RUN.format(
    where="document",
    rules="""rules: Object.fromEntries(axe._audit.rules
      .filter((rule) => rule.id === "color-contrast" || ["minor", "moderate"].includes(rule.impact))
      .map((rule) => [rule.id, { enabled: false }]))""",
)
LINKS_IN_TEXT = AXE_RUN.format(where="document", rules="runOnly: ['link-in-text-block']")
ALIKE = """(() => {  // What lies under elements that look, up to the page, as one before them \
does, on this page or on one that the tab has shown, and has none that does not.
  const LOOK = ["color", "backgroundColor", "backgroundImage", "opacity", "fontSize", \
"fontWeight", "textShadow", "filter", "mixBlendMode",
    "position", "visibility", "display"];
  const STATE = ["disabled", "open", "checked", "hidden", "type"];
  const tab = location.origin === "null" ? {} : sessionStorage;
  const looks = new Set(JSON.parse(tab.looks ?? "[]")), alike = new Set();
  const says = (at) => [...at.childNodes].map((node) => node.nodeType === 3 ? node.data : \
"").join("").match(/[\\p{L}\\p{N}]/gu)?.length > 1;
  const digest = (text) => {  // of 53 bits
    let a = 0xdeadbeef, b = 0x41c6ce57;
    for (let at = 0; at < text.length; at++) {
      a = Math.imul(a ^ text.charCodeAt(at), 2654435761);
      b = Math.imul(b ^ text.charCodeAt(at), 1597334677);
    }
    return (b & 0x1fffff) * 0x100000000 + (a >>> 0);
  };
  const look = (at, above) => {  // whether there is something new in it
    const style = getComputedStyle(at), own = [at.tagName, at.getAttribute("class"), \
at.getAttribute("style"), says(at), at.control?.disabled];
    const key = digest([above, ...own, ...STATE.map((name) => at[name]), ...LOOK.map((name) => \
style[name])].join("|"));
    let anew = !looks.has(key);
    looks.add(key);
    for (const child of at.children) anew = look(child, key) || anew;
    if (!anew) alike.add(at);
    return anew;
  };
  look(document.documentElement, "");
  tab.looks = JSON.stringify([...looks]);
  return [...alike].filter((at) => !alike.has(at.parentElement));
})()"""
CONTRAST = f"""async () => {{
  const exclude = {ALIKE};
  if (exclude.includes(document.documentElement)) return [];  // axe-core wants something to look at
  return await ({AXE_RUN.format(where="{ exclude }", rules="runOnly: ['color-contrast']")})();
}}"""
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
    return found_by_axe(page, EVERYTHING) + found_by_axe(page, CONTRAST)


def unreadable(page: Any) -> list[str]:
    """Texts and links that do not stand out, by axe-core. Contrast is measured once for all
    elements that look alike, here and on the pages that the tab has shown before.
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
    """Opens the page as the window is, a phone's or a wide one, and makes it the other: what is
    wrong with it, a sentence each. In the suite it is looked at in one theme, by the page's number,
    and by axe-core at every sixteenth number; in proof in both.
    """
    looked_at = amount(THEMES[number // LOOKED_AT % 2 :][:1], THEMES)
    answer = page.goto(address)
    assert answer.status == 200, address
    settle(page)
    wrong = []
    for width in sorted(WIDTHS, key=lambda width: width != page.viewport_size["width"]):
        if width != page.viewport_size["width"]:
            page.set_viewport_size({"width": width, "height": 844})
        if width == PHONE:
            wrong += [f"too small for a finger: {one}" for one in page.evaluate(SMALL)]
        for theme in looked_at:
            sticks_out = page.evaluate(f"({IN_THEME})('{theme}')")
            wrong += [f"{width} px, {theme}: sticks out: {one}" for one in sticks_out]
            if width != PHONE and (number % LOOKED_AT == 0 or amount(False, True)):
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
AT_SKIP = "() => document.activeElement.matches('.skip')"
IN_EDITOR = "() => Boolean(document.activeElement.closest('.CodeMirror'))"


def links(page: Any) -> set[str]:
    return set(page.evaluate(LINKS))


def is_stuck(page: Any) -> bool:
    """Without a mouse: whether Tab never comes to the page's main action. In the suite past the
    menu, by the link for that; in proof through it.
    """
    if not page.evaluate(WATCH):
        return False
    page.keyboard.press("Tab")
    if amount(True, False) and page.evaluate(AT_SKIP):
        page.keyboard.press("Enter")
    editors = page.locator(".CodeMirror").count()
    for number in range(MOST_TABS):
        if editors and page.evaluate(IN_EDITOR):
            page.keyboard.press("Escape")  # Tab indents there, and the field says how to leave it
        page.keyboard.press("Tab")
        if number % AT_ONCE == AT_ONCE - 1 and page.evaluate("window.wasThere"):
            return False
    return True
