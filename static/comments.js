"use strict";
// Suggestions after an @ in a comment. The server says who may be mentioned; without this script a name is typed in full.

{
  // names of its own
  const AT = /(?:^|[^\w@./+-])@([\w.+-]{0,40})$/;
  let asked = 0;

  function wordOf(field) {
    return AT.exec(field.value.slice(0, field.selectionStart))?.[1];
  }
  function listOf(field) {
    return field.closest("form").querySelector(".suggested");
  }

  function closeSuggested(field) {
    listOf(field)?.remove();
    for (const name of ["aria-activedescendant", "aria-controls"]) field.removeAttribute(name);
  }

  async function suggest(field) {
    const word = wordOf(field),
      mine = ++asked;
    if (word === undefined) {
      closeSuggested(field);
      return;
    }
    const url = `${field.closest("[data-people]").dataset.people}?q=${encodeURIComponent(word)}`;
    const answer = await fetch(url).catch(() => null);
    if (mine !== asked || !field.isConnected) return;
    closeSuggested(field);
    const found = answer?.ok ? (await answer.json()).people : [];
    if (mine !== asked || !found.length) return;
    const list = document.createElement("ul");
    list.className = "suggested";
    list.id = "suggested";
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "People");
    found.forEach(({ name, full }, at) => {
      const item = document.createElement("li");
      item.id = `suggested-${at}`;
      item.dataset.name = name;
      item.setAttribute("role", "option");
      item.textContent = full ? `${name} (${full})` : name;
      list.append(item);
    });
    field.after(list);
    field.setAttribute("aria-autocomplete", "list");
    field.setAttribute("aria-controls", "suggested");
    choose(field, 0);
  }

  function choose(field, at) {
    const items = [...listOf(field).children];
    const next = items[(at + items.length) % items.length];
    items.forEach((item) => item.setAttribute("aria-selected", String(item === next)));
    field.setAttribute("aria-activedescendant", next.id);
  }

  function accept(field, item) {
    const word = wordOf(field),
      at = field.selectionStart;
    if (word === undefined) return;
    field.setRangeText(`${item.dataset.name} `, at - word.length, at, "end");
    asked++;
    closeSuggested(field);
    field.focus();
  }

  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-mentions]")) suggest(event.target);
  });
  document.addEventListener(
    "keydown",
    (event) => {
      const field = event.target;
      if (!field.matches?.("[data-mentions]")) return;
      const list = listOf(field);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        field.form.requestSubmit();
        return;
      }
      if (!list) return;
      const at = [...list.children].findIndex(
        (item) => item.getAttribute("aria-selected") === "true",
      );
      if (event.key === "ArrowDown") choose(field, at + 1);
      else if (event.key === "ArrowUp") choose(field, at - 1);
      else if (event.key === "Enter" || event.key === "Tab") accept(field, list.children[at]);
      else if (event.key === "Escape") {
        asked++;
        closeSuggested(field);
      } else return;
      event.preventDefault();
      event.stopImmediatePropagation();
    },
    true,
  );
  document.addEventListener("mousedown", (event) => {
    const item = event.target.closest(".suggested li");
    if (!item) return;
    event.preventDefault();
    accept(item.closest("form").querySelector("[data-mentions]"), item);
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.matches("[data-mentions]")) {
      asked++;
      closeSuggested(event.target);
    }
  });
}
