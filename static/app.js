"use strict";
// Theme, keyboard, charts, confirmations. Everything else is the server's.

const root = document.documentElement;
const stored = localStorage.getItem("theme");
if (stored) root.dataset.theme = stored;

const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function drawCharts(scope) {
  if (!window.Plotly) return;
  for (const box of scope.querySelectorAll(".figure[data-figure]")) {
    const source = document.getElementById(box.dataset.figure);
    if (!source) continue;
    const figure = JSON.parse(source.textContent);
    const colour = getComputedStyle(root).getPropertyValue("--text").trim();
    const line = getComputedStyle(root).getPropertyValue("--line").trim();
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { size: 11 } };
    const layout = { ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour, size: 11.5 } };
    for (const name of ["xaxis", "yaxis"]) layout[name] = { ...axis, ...(figure.layout[name] || {}) };
    Plotly.react(box, figure.data, layout, { displayModeBar: false, responsive: true });
  }
}

function fillBars(scope) {
  for (const bar of scope.querySelectorAll(".progress i[data-w]")) bar.style.width = bar.dataset.w + "%";
}

function rows() { return [...document.querySelectorAll("[data-row]")]; }

function move(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("at"));
  const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? 0 : now + by))];
  all.forEach((row) => row.classList.remove("at"));
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
}

function open(selector) {
  const target = document.querySelector(selector);
  if (target) target.click();
  return Boolean(target);
}

let waitingForG = false;
function listenForG(waits) {
  waitingForG = waits;
  root.classList.toggle("going", waits); // shows the letters in the menu
}

document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const help = document.getElementById("help");
  if (event.key === "Escape") { help?.classList.remove("open"); document.activeElement?.blur(); return; }
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (waitingForG) { listenForG(false); open(`[data-go="${CSS.escape(event.key)}"]`); return; }
  if (event.key === "g") { listenForG(true); setTimeout(() => listenForG(false), 1200); return; }
  if (event.key === "?") { help?.classList.toggle("open"); return; }
  if (event.key === "/") { const search = document.querySelector("input[type=search]"); if (search) { event.preventDefault(); search.focus(); } return; }
  if (event.key === "j" && rows().length) { move(1); return; }
  if (event.key === "k" && rows().length) { move(-1); return; }
  if (event.key === "Enter") { document.querySelector("[data-row].at a")?.click(); return; }
  const key = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (key) { event.preventDefault(); key.click(); }
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-confirm]");
  if (button && !window.confirm(button.dataset.confirm)) { event.preventDefault(); event.stopPropagation(); }
  if (event.target.closest("#theme")) {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    drawCharts(document);
  }
  const row = event.target.closest("[data-row]");
  if (row && !event.target.closest("a, button, form, input, select, summary") && !String(getSelection())) row.querySelector("a")?.click();
  if (event.target.closest("#show-help")) document.getElementById("help").classList.add("open");
  else if (event.target.id === "help") event.target.classList.remove("open");
}, true);

document.addEventListener("change", (event) => { if (event.target.closest("form[data-auto]")) event.target.form.requestSubmit(); });
document.addEventListener("DOMContentLoaded", () => {
  fillBars(document);
  drawCharts(document);
  const here = document.querySelector(".side [aria-current]"), side = here?.parentElement;
  if (side && side.scrollWidth > side.clientWidth) side.scrollLeft = here.offsetLeft - side.clientWidth / 2;
});
document.addEventListener("htmx:beforeSwap", (event) => {
  if (window.Plotly) for (const box of event.target.querySelectorAll(".js-plotly-plot")) Plotly.purge(box);
});
// Before the browser paints the new fragment: curves of a running job do not flicker.
document.addEventListener("htmx:afterSwap", () => { fillBars(document); drawCharts(document); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(document));
