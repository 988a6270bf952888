"use strict";
document.documentElement.dataset.theme =
  localStorage.getItem("theme") ||
  (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
// Swagger UI puts a link inside the button that opens an operation: a control in a control, which no screen reader can name.
// The button does what the link did, so the link stops being one.
new MutationObserver(() => {
  for (const link of document.querySelectorAll(".opblock-summary-control a[href]"))
    link.removeAttribute("href");
}).observe(document.documentElement, { childList: true, subtree: true });
