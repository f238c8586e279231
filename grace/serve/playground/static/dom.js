// Elements and numbers, without a framework.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make an element: attributes, `on…` listeners, children (elements, texts, lists of them). */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same of an SVG. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

export const $ = (id) => document.getElementById(id);

/** "1,682", or with digits "4.20". */
export function number(value, digits = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** "1 ad", "2 ads". */
export function count(value, word) {
  return `${number(value)} ${word}${value === 1 ? "" : /(s|x|ch|sh)$/.test(word) ? "es" : "s"}`;
}

/** A name of the API as people write it: "bid_off" is "bid off". */
export const spaced = (name) => name.replaceAll("_", " ");

/** A bar whose parts are shares of a whole: [{share, rule?}]. */
export function bar(parts) {
  const pieces = parts.map(({ share, rule }) => {
    const piece = h("i", { class: rule === undefined ? null : rule });
    piece.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`; // no inline style: the CSP forbids it
    return piece;
  });
  return h("div", { class: "bar", "aria-hidden": "true" }, pieces);
}
