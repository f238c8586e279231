// A text field that suggests: the ARIA pattern of an editable combobox with a list.

import { h } from "./dom.js";

const WAIT_MS = 120;

/**
 * Make a finder.
 *   id, label: of its input.
 *   find(text): gives a promise of [{value, title?}].
 *   pick(value, title): called with what was chosen.
 *   free: whether a text that was not found may be chosen, too.
 */
export function finder({ id, label, find, pick, free }) {
  const list = h("ul", { id: `${id}-found`, class: "found", role: "listbox", "aria-label": label, hidden: true });
  const input = h("input", {
    id, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", placeholder: "Find and add…",
    "aria-label": label, "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id,
  });
  let found = [];
  let active = -1;
  let timer = 0;
  let asked = 0;

  function close() {
    clearTimeout(timer);
    asked += 1; // whatever is on its way comes too late
    found = [];
    show();
  }

  function show() {
    active = found.length && !free ? 0 : -1;
    list.replaceChildren(
      ...found.map(({ value, title }, i) =>
        h("li", { id: `${id}-${i}`, role: "option", "aria-selected": "false", onmousedown: (e) => { e.preventDefault(); choose(i); } },
          title ?? value)),
    );
    list.hidden = found.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark();
  }

  function mark() {
    [...list.children].forEach((option, i) => option.setAttribute("aria-selected", String(i === active)));
    if (active < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `${id}-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  }

  function choose(i) {
    const { value, title } = i < 0 ? { value: input.value.trim() } : found[i];
    input.value = "";
    close();
    pick(value, title);
  }

  async function search() {
    const text = input.value.trim();
    const number = ++asked;
    if (!text) return close();
    const values = await find(text).catch(() => []);
    if (number !== asked) return;
    found = values;
    show();
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, WAIT_MS);
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      active = (active + step + found.length) % found.length;
      mark();
    } else if (event.key === "Enter" && input.value.trim()) {
      if (active >= 0 || free) choose(active);
    } else if (event.key === "Escape" && found.length) {
      close();
    } else {
      return;
    }
    event.preventDefault();
  });
  return h("div", { class: "finder" }, input, list);
}
