// A list of values that can be taken away: one stop of the Tab key, arrows move inside.

import { h } from "./dom.js";

/**
 * Make the list.
 *   label: of the list.
 *   items: [{text, title?}], as shown.
 *   remove(i): called with the number of the one to take away.
 */
export function chips({ label, items, remove }) {
  const list = h("ul", { class: "chips", "aria-label": label });
  list.append(
    ...items.map(({ text }, i) =>
      h("li", { class: "chip" },
        h("span", { title: text }, text),
        h("button", { type: "button", "aria-label": `Remove ${text}`, tabindex: i === 0 ? "0" : "-1", onclick: () => remove(i) }, "×"))),
  );
  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (event.key === "Delete" && at >= 0) remove(at);
    else if (to !== undefined && buttons[to]) {
      buttons[at]?.setAttribute("tabindex", "-1");
      buttons[to].setAttribute("tabindex", "0");
      buttons[to].focus();
    } else return;
    event.preventDefault();
  });
  return list;
}
