"use strict";
// Theme, keyboard, charts, confirmations. Everything else is the server's.

const root = document.documentElement;
const stored = localStorage.getItem("theme");
if (stored) root.dataset.theme = stored;

const isDark = () =>
  (root.dataset.theme ||
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function drawCharts(scope, drawn = "") {
  if (!window.Plotly) return;
  for (const box of scope.querySelectorAll(`.figure[data-figure]${drawn}`)) {
    const source = document.getElementById(box.dataset.figure);
    if (!source) continue;
    const figure = JSON.parse(source.textContent);
    const colour = getComputedStyle(root).getPropertyValue("--text").trim();
    const line = getComputedStyle(root).getPropertyValue("--line").trim();
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { size: 11 } };
    const layout = {
      ...figure.layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour, size: 11.5 },
    };
    for (const name of ["xaxis", "yaxis"])
      layout[name] = { ...axis, ...(figure.layout[name] || {}) };
    thinTicks(layout.xaxis, box.clientWidth);
    Plotly.react(box, figure.data, layout, { displayModeBar: false, responsive: true });
    if (figure.data.some((trace) => trace.meta?.links) && !box.matches(".leads")) {
      box.classList.add("leads");
      box.on("plotly_click", followPoint);
    }
  }
}

// What a bar or point stands for is a link away: `meta.links` of its trace, queries of this page or
// addresses of this server.
function followPoint({ points: [point] }) {
  const to = point.data.meta?.links[point.pointIndex];
  if (/^(\?|\/(?!\/))/.test(to ?? "")) location.href = to;
}

// Ticks stand apart on a phone too: each needs some 52 pixels, and names beside the chart leave less room for them.
function thinTicks(axis, width) {
  if (typeof axis.dtick !== "number" || typeof axis.range?.[0] !== "string") {
    if (axis.nticks)
      axis.nticks = Math.max(2, Math.min(axis.nticks, Math.floor((width - 130) / 52)));
    return;
  }
  const ticks = (new Date(axis.range[1]) - new Date(axis.range[0])) / axis.dtick;
  axis.dtick *= Math.max(1, Math.ceil((ticks * 52) / Math.max(width - 60, 100)));
}

// The content security policy allows no style attributes: sizes come as data, and only these are set.
const SIZES = [
  ["w", "width", "%"],
  ["left", "left", "%"],
  ["indent", "paddingLeft", "em"],
  ["tall", "height", "px"],
];
function setSizes(element) {
  for (const [name, property, unit] of SIZES)
    if (element.dataset[name] !== undefined) element.style[property] = element.dataset[name] + unit;
}
function setAllSizes(scope) {
  const having = SIZES.map(([name]) => `[data-${name}]`).join();
  for (const element of scope.querySelectorAll(having)) setSizes(element);
}
// Plotly writes style attributes (bold text, bars of colours); as properties they are allowed.
const setPlainAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else setPlainAttribute.call(this, name, value);
};
// Before htmx looks whether it is on the screen.
document.addEventListener("htmx:beforeProcessNode", (event) => setSizes(event.target));

// Long arguments and replies scroll in themselves: the keyboard must reach them in every browser.
function reachScrolling() {
  for (const pre of document.querySelectorAll(".turn pre:not([tabindex])"))
    if (pre.scrollHeight > pre.clientHeight + 1 || pre.scrollWidth > pre.clientWidth + 1)
      pre.tabIndex = 0;
}

function showInTree() {
  document.querySelector(".tree [aria-current]")?.scrollIntoView({ block: "nearest" });
}

function rows() {
  return [...document.querySelectorAll("[data-row], [data-stop], #conversation .turn")];
}

function move(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("at"));
  const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? 0 : now + by))];
  all.forEach((row) => row.classList.remove("at"));
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
  const link = next.querySelector("a");
  if (!link) next.tabIndex = -1;
  (link ?? next).focus({ preventScroll: true }); // a screen reader says where one is, Tab goes on from here
}

// Keys of one letter can be switched off (WCAG 2.1.4); the choice is this browser's, as the theme is.
function singleKeys() {
  return localStorage.getItem("single-keys") !== "off";
}
document.addEventListener("change", (event) => {
  if (event.target.id === "single-keys")
    localStorage.setItem("single-keys", event.target.checked ? "on" : "off");
});

// The keys of this page: what it has, in the words of its own buttons.
function labelOf(element) {
  const copy = element.cloneNode(true);
  for (const kbd of copy.querySelectorAll("kbd")) kbd.remove();
  return (element.getAttribute("aria-label") || element.title || copy.textContent)
    .trim()
    .replace(/\s+/g, " ")
    .replace(/ \(\w+\)$/, "");
}
function keysHere() {
  const list = document.querySelector(".side"),
    here = [];
  if (rows().length) here.push(["j k", "Next, previous row"], ["Enter", "Open the row"]);
  if (document.querySelector("[data-pick]")) here.push(["x", "Select the row"]);
  if (document.querySelector("main input[type=search]")) here.push(["/", "Search this page"]);
  for (const element of document.querySelectorAll("main [data-key]")) {
    const known = here.find(([key]) => key === element.dataset.key);
    if (!known && element.getClientRects().length)
      here.push([element.dataset.key, labelOf(element).slice(0, 80)]);
  }
  const everywhere = document.getElementById("palette")
    ? [["Ctrl K", "Search pages, objects and commands"]]
    : [];
  for (const link of list.querySelectorAll("[data-go]"))
    everywhere.push([`g ${link.dataset.go}`, labelOf(link)]);
  everywhere.push(["Esc", "Close; from a sample back to its list"], ["?", "Show this list"]);
  return [
    ["On this page", here],
    ["Everywhere", everywhere],
  ];
}
function showHelp() {
  const help = document.getElementById("help"),
    box = help?.querySelector(".keys");
  if (!box || help.open) return;
  box.replaceChildren();
  for (const [title, keys] of keysHere()) {
    if (!keys.length) continue;
    const heading = document.createElement("h3"),
      table = document.createElement("dl");
    heading.textContent = title;
    table.className = "kv";
    for (const [key, what] of keys) {
      const dt = document.createElement("dt"),
        dd = document.createElement("dd");
      for (const part of key.split(" ")) {
        const kbd = document.createElement("kbd");
        kbd.textContent = part;
        dt.append(kbd, " ");
      }
      dd.textContent = what;
      table.append(dt, dd);
    }
    box.append(heading, table);
  }
  help.querySelector(".keys-off").hidden = singleKeys();
  help.showModal();
}

// The command palette. What is typed asks the server; an answer that is no longer wanted is cancelled.
let asking = null,
  askTimer = 0;
const paletteBox = () => document.getElementById("palette");
function recentPages() {
  try {
    return JSON.parse(localStorage.getItem(`recent:${paletteBox().dataset.recent}`)) ?? [];
  } catch {
    return [];
  }
}
function rememberPage() {
  if (!paletteBox() || !document.querySelector("main h1")) return;
  const here = {
    url: location.pathname + location.search,
    title: document.title.replace(/ · Flywheel$/, ""),
  };
  const kept = [here, ...recentPages().filter((page) => page.url !== here.url)].slice(0, 20);
  localStorage.setItem(`recent:${paletteBox().dataset.recent}`, JSON.stringify(kept));
}
function forgetPages() {
  for (const key of Object.keys(localStorage))
    if (key.startsWith("recent:")) localStorage.removeItem(key);
}
function openPalette() {
  const box = paletteBox();
  if (!box || box.open) return;
  document.querySelector("dialog[open]")?.close();
  closeMenus();
  box.showModal();
  const field = box.querySelector("input");
  field.value = "";
  askPalette();
  field.focus();
}
async function askPalette() {
  const box = paletteBox(),
    text = box.querySelector("input").value.trim();
  asking?.abort();
  const mine = (asking = new AbortController());
  const answer = await fetch(`${box.dataset.search}?q=${encodeURIComponent(text)}`, {
    signal: mine.signal,
  }).catch(() => null);
  if (asking !== mine) return;
  const said = box.querySelector("[role=status]");
  if (!answer?.ok) {
    if (!mine.signal.aborted) said.textContent = "No answer from the server. Type again to retry.";
    return;
  }
  const html = await answer.text().catch(() => null);
  if (html === null || asking !== mine) return;
  const list = box.querySelector("[role=listbox]");
  list.innerHTML = html; // the server's, escaped there
  showRecent(list, text);
  const options = [...list.querySelectorAll("[role=option]")];
  options.forEach((option, n) => {
    option.id = `option-${n}`;
  });
  said.textContent = `${options.length} result${options.length === 1 ? "" : "s"}`;
  chooseFound(options[0]);
}
function showRecent(list, text) {
  const words = text.toLowerCase().split(/\s+/),
    here = location.pathname + location.search;
  const pages = recentPages()
    .filter(
      (page) => page.url !== here && words.every((word) => page.title.toLowerCase().includes(word)),
    )
    .slice(0, text ? 3 : 6);
  if (!pages.length) return;
  const group = document.createElement("div"),
    title = document.createElement("div");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Recently visited");
  title.className = "group-title";
  title.textContent = "Recently visited";
  title.setAttribute("aria-hidden", "true");
  group.append(title);
  for (const page of pages) {
    const option = document.createElement("a");
    Object.assign(option, { href: page.url, tabIndex: -1 });
    option.setAttribute("role", "option");
    option.innerHTML = '<span class="clip"></span>';
    option.firstChild.textContent = page.title;
    group.append(option);
    for (const same of list.querySelectorAll("[role=option]"))
      if (same.getAttribute("href") === page.url) same.remove();
  }
  list.querySelector(".empty")?.remove();
  list.prepend(group);
}
function chooseFound(option) {
  const box = paletteBox();
  for (const other of box.querySelectorAll("[role=option]"))
    other.setAttribute("aria-selected", String(other === option));
  box.querySelector("input").setAttribute("aria-activedescendant", option?.id ?? "");
  option?.scrollIntoView({ block: "nearest" });
}
document.addEventListener("input", (event) => {
  if (!event.target.closest("#palette")) return;
  clearTimeout(askTimer);
  askTimer = setTimeout(askPalette, 120);
});
document.addEventListener(
  "keydown",
  (event) => {
    if (
      (event.ctrlKey || event.metaKey) &&
      !event.altKey &&
      !event.shiftKey &&
      event.key.toLowerCase() === "k" &&
      paletteBox()
    ) {
      event.preventDefault();
      paletteBox().open ? paletteBox().close() : openPalette();
      return;
    }
    if (!paletteBox()?.open) return;
    const options = [...paletteBox().querySelectorAll("[role=option]")],
      at = options.findIndex((one) => one.getAttribute("aria-selected") === "true");
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8 }[event.key];
    if (to !== undefined && options.length) {
      event.preventDefault();
      chooseFound(
        options[
          event.key.startsWith("Page")
            ? Math.max(0, Math.min(options.length - 1, to))
            : (to + options.length) % options.length
        ],
      );
    } else if (event.key === "Enter" && event.target.matches("#palette input")) {
      event.preventDefault();
      options[at]?.click();
    }
  },
  true,
);
document.addEventListener(
  "close",
  (event) => {
    if (event.target.id === "palette") {
      asking?.abort();
      asking = null;
    }
  },
  true,
);
document.addEventListener("submit", (event) => {
  if (event.target.action?.endsWith("/logout/")) forgetPages();
});

function open(selector) {
  const target = document.querySelector(selector);
  if (target) target.click();
  return Boolean(target);
}

// After “g” a letter goes to a section. By the time of the keys themselves: a page that is busy drawing charts hears both late.
const G_MS = 1200;
let gAt = null,
  gTimer = 0;
function listenForG(at) {
  gAt = at;
  clearTimeout(gTimer);
  if (at !== null) gTimer = setTimeout(() => root.classList.remove("going"), G_MS);
  root.classList.toggle("going", at !== null); // shows the letters in the menu
}

// What is typed while the page is still read is kept, and done once its links and the scripts are there.
let early = [];
addEventListener("DOMContentLoaded", () =>
  setTimeout(() => {
    const kept = early;
    early = null;
    for (const event of kept) onKey(event, true);
  }),
);
document.addEventListener("keydown", (event) => {
  if (early) early.push(event);
  else onKey(event, false);
});

function onKey(event, wasEarly) {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return; // it has its own keys
  const writing =
    /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape") {
    const busy = writing || document.querySelector("details.menu[open], #menu[aria-expanded=true]");
    if (!writing) pickNone();
    closeMenus();
    openMenu(false);
    document.activeElement?.blur();
    if (!busy) open("[data-back]"); // where there is nothing to close: back to the list
    return;
  }
  if (writing || (!singleKeys() && /^.$/.test(event.key))) return;
  const going = gAt !== null && event.timeStamp - gAt < G_MS;
  if (gAt !== null) listenForG(null);
  if (going && open(`[data-go="${CSS.escape(event.key)}"]`)) return;
  if (event.key === "g") {
    listenForG(event.timeStamp);
    return;
  }
  if (going) return;
  if (event.key === "?") {
    showHelp();
    return;
  }
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
    return;
  }
  if (event.key === "j" && rows().length) {
    move(1);
    return;
  }
  if (event.key === "k" && rows().length) {
    move(-1);
    return;
  }
  if (event.key === "x" && document.querySelector("[data-pick]")) {
    pickAt();
    return;
  }
  if (event.key === "Enter") {
    if (!event.target.closest("a, button, summary"))
      document.querySelector("[data-row].at a")?.click();
    return;
  }
  const named = `[data-key="${CSS.escape(event.key)}"]`,
    at = document.querySelector(".at");
  const key = at?.querySelector(named) ?? document.querySelector(named); // of the row that j and k have chosen, where it has one
  if (!key || (wasEarly && key.tagName === "BUTTON")) return; // nobody decides on what they have not seen
  event.preventDefault();
  const row = key.closest("[data-row]");
  if (row) for (const other of rows()) other.classList.toggle("at", other === row);
  key.click();
  if (key.tagName === "SUMMARY" && key.parentElement.open)
    key.parentElement.querySelector("select, textarea, input:not([type=hidden])")?.focus();
}

// In a list of what needs review, a stored decision moves on to the next row.
document.addEventListener("htmx:afterSwap", ({ target, detail }) => {
  const isDecision = detail.requestConfig?.elt.matches("[data-decides-row]");
  if (isDecision && target.closest("[data-row].at") && !target.querySelector("[role=alert]"))
    move(1);
});

// Without a clipboard (a page without HTTPS) the text is selected, for Ctrl-C.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = button.dataset.copy
    ? document.querySelector(button.dataset.copy)
    : button.parentElement.querySelector("pre");
  getSelection().selectAllChildren(source);
  const label = (button.dataset.label ??= button.textContent);
  const copied =
    (await navigator.clipboard?.writeText(source.textContent).then(
      () => true,
      () => false,
    )) ?? document.execCommand("copy");
  button.textContent = copied ? "Copied" : "Press Ctrl-C";
  setTimeout(() => {
    button.textContent = label;
  }, 2500);
});
/* On a phone the cells of a row stand beside each other: those that hold only the template's white space must be empty to be left out. */
function emptyCells(scope) {
  for (const cell of scope.querySelectorAll(".stacked td"))
    if (cell.firstChild && !cell.firstElementChild && !cell.textContent.trim())
      cell.replaceChildren();
}
function addCopyButtons(scope) {
  for (const pre of scope.querySelectorAll("pre.copyable")) {
    if (pre.parentElement.classList.contains("snippet")) continue;
    const box = document.createElement("div"),
      button = document.createElement("button");
    box.className = "snippet";
    Object.assign(button, { type: "button", textContent: "Copy" });
    button.dataset.copy = "";
    button.setAttribute("aria-live", "polite");
    pre.replaceWith(box);
    box.append(pre, button);
  }
}

/* The browser refuses a form with an empty required field and says so: there is nothing to confirm before that. */
function isComplete(button) {
  return (
    button.type !== "submit" ||
    !button.form ||
    button.form.noValidate ||
    button.form.checkValidity()
  );
}

document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest("[data-confirm]");
    if (
      button &&
      isComplete(button) &&
      !window.confirm(button.dataset.confirm.replace(/\s+/g, " ").trim())
    ) {
      event.preventDefault();
      event.stopPropagation();
    }
    if (event.target.closest("#theme")) {
      root.dataset.theme = isDark() ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
      drawCharts(document);
    }
    if (!event.target.closest("details.menu")) closeMenus();
    const cancel = event.target.closest("[data-cancel]"); // of a form that htmx put into the page
    if (cancel) {
      const box = cancel.closest("form").parentElement;
      event.preventDefault();
      box.replaceChildren();
      document.querySelector(`[hx-target="#${box.id}"]`)?.focus();
    }
    if (event.target.closest("[data-pick-none]")) pickNone();
    if (event.target.closest("[data-pick-matching]")) {
      document.getElementById("bulk").elements.all.value = "1";
      showPicked();
    }
    if (event.target.matches("td.pick")) {
      const box = event.target.querySelector("[data-pick]");
      box.checked = !box.checked;
      pickChanged();
    }
    const row = event.target.closest("[data-row]");
    if (
      row &&
      !event.target.closest("a, button, form, input, select, summary, label, td.pick") &&
      !String(getSelection())
    )
      row.querySelector("a")?.click();
    if (event.target.closest("#menu"))
      openMenu(event.target.closest("#menu").getAttribute("aria-expanded") !== "true");
    else if (!event.target.closest(".side")) openMenu(false);
    if (event.target.closest("#show-help")) showHelp();
    if (event.target.closest("[data-palette]")) openPalette();
    if (event.target.matches("dialog[open]")) event.target.close(); // beside it
  },
  true,
);

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick-all]"))
    for (const box of document.querySelectorAll("[data-pick]")) box.checked = event.target.checked;
  if (event.target.matches("[data-pick], [data-pick-all]")) pickChanged();
  if (event.target.closest("[data-columns]")) return; // they have a button
  if (event.target.closest("form[data-auto]")) event.target.form.requestSubmit();
});

// Selection of rows: the form #bulk is shown with their ids.
function picked() {
  return [...document.querySelectorAll("[data-pick]:checked")].map((box) => box.value);
}
function pickChanged() {
  const bulk = document.getElementById("bulk");
  if (bulk?.elements.all) bulk.elements.all.value = "";
  showPicked();
}
function pickNone() {
  for (const box of document.querySelectorAll("[data-pick], [data-pick-all]")) box.checked = false;
  if (document.getElementById("bulk")) pickChanged();
}
function pickAt() {
  if (!document.querySelector("[data-row].at")) move(1);
  const box = document.querySelector("[data-row].at [data-pick]");
  if (box) {
    box.checked = !box.checked;
    pickChanged();
  }
}
function showPicked() {
  const bulk = document.getElementById("bulk");
  if (!bulk) return;
  const ids = picked(),
    all = bulk.elements.all?.value,
    matching = bulk.querySelector("[data-pick-matching]"),
    compare = bulk.querySelector("[data-compare]");
  const runs = bulk.querySelector("[data-compare-runs]");
  bulk.hidden = !ids.length;
  if (bulk.elements.ids) bulk.elements.ids.value = ids.join(",");
  bulk.querySelector("[data-picked]").textContent = all
    ? matching.dataset.text
    : `${ids.length} selected`;
  if (runs) {
    runs.hidden = ids.length < 2;
    runs.href = `${runs.dataset.compareRuns}?${ids.map((id) => `run=${id}`).join("&")}`;
  }
  if (matching) matching.hidden = Boolean(all);
  if (compare) {
    compare.hidden = Boolean(all) || ids.length !== 2;
    compare.href = `${compare.dataset.compare}?a=${ids[1]}&b=${ids[0]}`; // the older one first
  }
  for (const box of document.querySelectorAll("[data-pick]"))
    box.closest("tr").classList.toggle("picked", box.checked);
}

document.addEventListener(
  "toggle",
  (event) => {
    if (event.target.matches("details.menu[open]"))
      event.target.querySelector("form.panel input:not([type=hidden])")?.focus();
    if (event.target.matches("details[open]:has(pre)")) reachScrolling();
    // Sent with the form, so that the answer, which replaces it, has the same parts open.
    if (event.target.matches("details[data-keep]"))
      event.target.querySelector("[name=open]").disabled = !event.target.open;
  },
  true,
);
// Whoever opens it is going to write; one that came open leaves the keys to the page.
document.addEventListener("click", (event) => {
  const box = event.target.closest("details.writes > summary")?.parentElement;
  if (box && !box.open) setTimeout(() => box.querySelector("textarea").focus());
});
function closeMenus() {
  for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
}
function openMenu(on) {
  document.getElementById("menu")?.setAttribute("aria-expanded", String(on));
} // a phone's: the places of the project

// Leaving the field of a scrubber is what goes there.
document.addEventListener("submit", (event) => {
  if (!event.target.closest("[data-scrubber]")) return;
  event.preventDefault();
  document.activeElement.blur();
});
// A form that keeps the URL short: what is empty, or the usual, is not sent; neither by the browser nor by htmx.
document.addEventListener("formdata", ({ target: form, formData }) => {
  if (!form.matches("[data-tidy]")) return;
  const menu = form.elements.cols?.closest("[data-columns]");
  if (menu) {
    const keys = [...menu.querySelectorAll(":checked")].map((box) => box.value).join(",");
    formData.set("cols", keys === menu.dataset.columns ? "" : keys);
  }
  for (const name of new Set(formData.keys())) {
    const values = formData.getAll(name).filter((value) => value !== "");
    formData.delete(name);
    for (const value of values) formData.append(name, value);
  }
});
addEventListener("pageshow", showPicked);

// A long run: parts are loaded when they come into view; a step is found by going to its part first.
function waitingAt(index) {
  return [...document.querySelectorAll(".part.waiting")]
    .filter((part) => Number(part.dataset.part) <= index)
    .at(-1);
}
function gone(element) {
  const until = Date.now() + 10000;
  return new Promise((done) =>
    (function look() {
      if (!element.isConnected || Date.now() > until) done();
      else setTimeout(look, 40);
    })(),
  );
}
async function goTo(index) {
  // A reply stands with its call, which may be in the part before: hence the second try.
  for (let tries = 0; tries < 2 && !document.getElementById(`m${index}`); tries++) {
    const part = waitingAt(index);
    if (!part) break;
    part.scrollIntoView();
    await gone(part);
  }
  const target = document.getElementById(`m${index}`);
  if (!target) return;
  for (let outer = target.closest("details"); outer; outer = outer.parentElement.closest("details"))
    outer.open = true;
  document.querySelectorAll(".found").forEach((other) => other.classList.remove("found"));
  target.classList.add("found");
  const turn = target.closest(".turn"),
    shown = turn && turn.offsetHeight < innerHeight ? turn : target; // a reply with its call
  shown.scrollIntoView();
  requestAnimationFrame(() => shown.scrollIntoView()); // once more, when what is above has its height
}
function goToHash() {
  const step = /^#m(\d+)$/.exec(location.hash),
    row = document.getElementById(location.hash.slice(1));
  if (step) goTo(step[1]);
  if (!row?.matches("[data-row]")) return;
  for (const other of rows()) other.classList.toggle("at", other === row); // j and k go on from there
}
addEventListener("hashchange", goToHash);
function followScroll() {
  const scrubber = document.querySelector("[data-scrubber]");
  if (!scrubber) return;
  const [number, range] = scrubber.querySelectorAll("input");
  range.addEventListener("input", () => {
    number.value = range.value;
  });
  for (const field of [number, range])
    field.addEventListener("change", () => {
      field.blur();
      goTo(field.value);
    });
  let due = 0;
  addEventListener(
    "scroll",
    () => {
      if (due) return;
      due = setTimeout(() => {
        due = 0;
        const box = document.getElementById("conversation").getBoundingClientRect();
        const seen = document
          .elementFromPoint(box.left + box.width / 2, 90)
          ?.closest("[data-m], [data-part]");
        const index = seen?.dataset.m ?? seen?.dataset.part;
        if (index !== undefined && !scrubber.contains(document.activeElement))
          number.value = range.value = index;
      }, 120);
    },
    { passive: true },
  );
}
document.addEventListener("DOMContentLoaded", () => {
  rememberPage();
  const letters = document.getElementById("single-keys");
  if (letters) letters.checked = singleKeys();
  setAllSizes(document);
  emptyCells(document);
  addCopyButtons(document);
  drawCharts(document);
  showInTree();
  reachScrolling();
  followScroll();
  const toDecide = document.querySelector("[data-row] [data-decides-row]");
  toDecide?.closest("[data-row]").classList.add("at"); // a key decides on what is marked
  goToHash();
  for (const here of document.querySelectorAll(".tabs > [aria-current]")) {
    const tabs = here.parentElement;
    if (tabs.scrollWidth > tabs.clientWidth)
      tabs.scrollLeft = here.offsetLeft - tabs.offsetLeft - tabs.clientWidth / 3;
  }
});
document.addEventListener("htmx:beforeSwap", (event) => {
  if (window.Plotly)
    for (const box of event.target.querySelectorAll(".js-plotly-plot")) Plotly.purge(box);
});
// A page that is to be loaded again asks for nothing more: each further answer would begin the loading anew, and on a busy server it never ended.
let leaving = false;
document.addEventListener("htmx:beforeOnLoad", (event) => {
  if (leaving) event.preventDefault();
  leaving ||= event.detail.xhr.getResponseHeader("HX-Refresh") === "true";
});
document.addEventListener("htmx:beforeRequest", (event) => {
  if (leaving) event.preventDefault();
});
// A part that follows a worker is not replaced while somebody writes in it, and keeps the row that j and k have chosen.
const followedPart = (element) =>
  element.matches?.("[data-follows]") &&
  element.closest(element.dataset.follows || element.getAttribute("hx-target"));
document.addEventListener("htmx:beforeRequest", (event) => {
  const part = followedPart(event.target);
  const isWritten = (field) =>
    field === document.activeElement ||
    (field.matches("[type=checkbox]")
      ? field.checked !== field.defaultChecked
      : field.type !== "hidden" && field.value !== field.defaultValue);
  if (part && [...part.querySelectorAll("input, textarea")].some(isWritten)) event.preventDefault();
});
let rowAt = "";
document.addEventListener("htmx:beforeSwap", (event) => {
  const part = followedPart(event.detail.requestConfig?.elt ?? event.target);
  rowAt = part ? (part.querySelector("[data-row].at")?.id ?? "") : "";
});
document.addEventListener("htmx:afterSwap", ({ detail }) => {
  const isFollowed = detail.requestConfig?.elt.matches("[data-follows]");
  if (isFollowed && rowAt && !document.querySelector("[data-row].at"))
    document.getElementById(rowAt)?.classList.add("at");
});
// The live tail keeps its newest rows.
document.addEventListener("htmx:oobAfterSwap", () => {
  const tail = document.getElementById("tail");
  while (tail && tail.rows.length > Number(tail.dataset.most)) tail.deleteRow(-1);
});
// Before the browser paints the new fragment: curves of a running job do not flicker.
for (const swapped of ["htmx:afterSwap", "htmx:oobAfterSwap"])
  document.addEventListener(swapped, () => {
    setAllSizes(document);
    emptyCells(document);
    addCopyButtons(document);
    drawCharts(document, ":not(.js-plotly-plot)");
    showInTree();
    reachScrolling();
  });
// A fragment that says whether something may start switches its buttons.
document.addEventListener("htmx:afterSwap", () => {
  for (const state of document.querySelectorAll("[data-disables]"))
    document.querySelector(state.dataset.disables).disabled = state.dataset.off === "1";
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(document));

// Triage. The next case is fetched before it is asked for, and shown while the decision is still on its way; the
// server's answer then has the counts alone, or another case where it knows better.
let ahead = null,
  decided = null;
async function lookAhead() {
  const mark = document.getElementById("ahead");
  ahead = null;
  if (!mark) return;
  const answer = await fetch(mark.dataset.ahead, { headers: { "HX-Request": "true" } }).catch(
    () => null,
  );
  if (answer?.status !== 200 || document.getElementById("ahead") !== mark) return;
  const found = { pk: answer.headers.get("X-Case"), html: await answer.text() };
  // Near the end of the queue the server may still give the case whose decision is on its way.
  if (document.getElementById("ahead") === mark && found.pk !== decided) ahead = found;
}
function markQuotes() {
  if (!window.CSS?.highlights) return;
  const found = [];
  for (const item of document.querySelectorAll("[data-quote]")) {
    const part = item.dataset.quote.split(" … ")[0].trim(),
      place = document.getElementById(`m${item.dataset.index}`);
    if (!part || !place) continue;
    const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const at = node.data.indexOf(part);
      if (at < 0) continue;
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, at + part.length);
      found.push(range);
      break;
    }
  }
  CSS.highlights.set("quote", new Highlight(...found));
}
function showCase() {
  const blamed = document.querySelector(".talk .turn.blamed");
  if (innerWidth > 820 && blamed) {
    scrollTo(0, 0);
    const { top, bottom } = blamed.getBoundingClientRect();
    if (bottom > innerHeight)
      scrollTo(0, Math.max(0, bottom - top > innerHeight ? top - 58 : bottom - innerHeight + 24));
  } else if (document.querySelector("[data-case]")) scrollTo(0, 0);
  markQuotes();
}
// Similar failures that the same decision is for.
function together() {
  return [...document.querySelectorAll("[name=also]")];
}
function showTogether() {
  const said = document.getElementById("together"),
    n = together().filter((box) => box.checked).length;
  if (!said) return;
  said.hidden = !n;
  said.textContent = `Your decision is for ${n + 1}: this one and ${n === 1 ? "the similar one" : `the ${n} similar ones`} chosen below.`;
}
document.addEventListener("change", (event) => {
  if (event.target.matches("[name=also]")) showTogether();
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-choose-all]")) return;
  const boxes = together(),
    on = boxes.some((box) => !box.checked);
  for (const box of boxes) box.checked = on;
  showTogether();
});
// “Blame this step”: htmx does not send the value of a button outside its form. Enter in the field clicks the first of them.
document.addEventListener("click", (event) => {
  const field = document.getElementById("blame-number");
  if (event.target.matches("[form=blame]") && document.activeElement !== field)
    field.value = event.target.value;
});
document.addEventListener("DOMContentLoaded", () => {
  if (document.getElementById("triage")) {
    showCase();
    lookAhead();
  }
});
document.addEventListener("htmx:configRequest", (event) => {
  if (!event.target.matches("[data-decide]")) return;
  if (together().some((box) => box.checked)) ahead = null; // the next case may be one of them: the server says which is next
  if (ahead) event.detail.parameters.set("ahead", ahead.pk);
});
document.addEventListener("htmx:beforeSend", (event) => {
  if (event.target.id === "blame") document.activeElement?.blur(); // the next letter is a key again
  if (!event.target.matches("[data-decide]")) return;
  decided = event.target.closest("[data-case]").dataset.case;
  if (!ahead) return;
  const { html } = ahead;
  ahead = null;
  htmx.swap("#triage", html, { swapStyle: "innerHTML", settleDelay: 0 });
  showCase();
});
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id === "ahead") lookAhead(); // the counts alone have come
  if (event.target.id === "triage") {
    showCase();
    lookAhead();
  }
});
document.addEventListener(
  "keydown",
  (event) => {
    // In an open menu a digit is the menu's.
    const writing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    const button = document.querySelector(
      `details.menu[open] [data-menu-key="${CSS.escape(event.key)}"]`,
    );
    if (!button || writing || event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    button.click();
  },
  true,
);
