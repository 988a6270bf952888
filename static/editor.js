"use strict";
// Code in the pages' own colours. Without this script the textareas work as they are.

for (const area of document.querySelectorAll("textarea[data-code]")) {
  const mode =
    area.dataset.code === "json" ? { name: "javascript", json: true } : area.dataset.code;
  const editor = CodeMirror.fromTextArea(area, {
    mode,
    lineNumbers: true,
    matchBrackets: true,
    indentUnit: area.dataset.code === "json" ? 2 : 4,
    viewportMargin: Infinity,
    readOnly: area.readOnly,
    extraKeys: {
      Tab: (cm) => cm.execCommand("insertSoftTab"),
      "Shift-Tab": "indentLess",
      Esc: (cm) => cm.getInputField().blur(),
    },
  });
  editor.getInputField().setAttribute("aria-label", area.labels[0]?.textContent || "code");
  editor
    .getInputField()
    .setAttribute("aria-description", "Tab indents. Escape, then Tab, leaves the editor.");
  editor.on("change", () => {
    editor.save();
    area.dispatchEvent(new Event("typed", { bubbles: true }));
  });
}
