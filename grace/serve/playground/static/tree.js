// The beam tree as a drawing that grows step by step.

import { h, s } from "./dom.js";
import { HALF, layout, ROW } from "./layout.js";
import { fate, reason, story } from "./words.js";

const BESIDE = 600; // pixels of width from which a tooltip stands beside its branch, not below

export class TreeView {
  /**
   * box: where it is drawn.
   * hue(rule): the class of a rule's colour.
   * step(by): called when an arrow key asks for another step.
   */
  constructor(box, hue, step) {
    this.hue = hue;
    this.tip = h("div", { class: "tip", role: "tooltip", hidden: true });
    this.list = h("div", { tabindex: "0", role: "listbox", "aria-label": "Branches of this step; up and down to walk through them, left and right for another step" });
    box.replaceChildren(this.list, this.tip);
    this.list.addEventListener("keydown", (event) => this.key(event, step));
    this.list.addEventListener("blur", () => this.activate(null));
    this.list.addEventListener("pointerover", (event) => this.hover(event));
    this.list.addEventListener("pointerleave", () => this.activate(null));
    // A phone turned round, a window made wider: lines and labels move, text keeps its size.
    new ResizeObserver(() => this.tree && this.list.clientWidth !== this.width && this.draw()).observe(this.list);
  }

  /** Show a tree at a step: 0 is the root alone. */
  show(tree, t) {
    [this.tree, this.t] = [tree, t];
    this.draw();
  }

  /** Move to another step of the same tree. */
  move(t) {
    this.t = t;
    this.activate(null);
    for (const [node, group, link] of this.drawn) {
      this.dress(node, group, link);
    }
  }

  draw() {
    this.width = this.list.clientWidth;
    const { nodes, columns, height } = layout(this.tree, this.width);
    const byId = new Map(nodes.map((node) => [node.id, node]));
    this.drawn = nodes.map((node) => [node, this.node(node), node.parent === null ? null : link(byId.get(node.parent), node)]);
    const axis = columns.map((x, depth) => s("text", { class: "axis", x, y: 14, "text-anchor": "middle", "aria-hidden": "true" }, depth ? `step ${depth}` : "start"));
    const svg = s("svg", { viewBox: `0 0 ${this.width} ${height}`, height, role: "none" }, axis,
      s("g", { role: "none", "aria-hidden": "true" }, this.drawn.map(([, , line]) => line)),
      s("g", { role: "none" }, this.drawn.map(([, group]) => group)));
    this.list.replaceChildren(svg);
    this.move(this.t);
  }

  node(node) {
    const { branch, x, y, room } = node;
    const kind = branch.why && branch.kept ? "in-vain" : branch.kept ? "" : `off ${branch.why}`;
    const hue = branch.why === "rules" ? this.hue(Object.keys(branch.refusals.by)[0]) : "rule-other";
    const radius = branch.why === "rules" ? 2 : HALF.y; // ruled out is square, whoever sees no colours
    const rect = (grow, name) => s("rect", { class: name, x: x - HALF.x - grow, y: y - HALF.y - grow, width: 2 * (HALF.x + grow), height: 2 * (HALF.y + grow), rx: radius + grow });
    const last = node.depth === this.tree.steps.length;
    const text = last && branch.kept && !branch.why ? branch.examples.join("; ") : reason(branch);
    return s("g", { id: `branch-${node.id || "root"}`, "data-id": node.id, class: `node ${kind} ${hue}` },
      rect(3, "halo"), rect(0, null),
      s("text", { class: "token", x, y: y + 4 }, node.depth ? String(branch.prefix.at(-1)) : "•"),
      branch.why ? s("path", { class: "strike", d: `M${x - HALF.x + 3} ${y}H${x + HALF.x - 3}` }) : null,
      s("text", { class: "label", x: x + HALF.x + 5, y: y + 4 }, shortened(text, room)));
  }

  /** Say what a branch is at this step: to come, of this step, or of one before. */
  dress(node, group, line) {
    const place = node.depth > this.t ? "later" : node.depth === this.t ? "now" : "past";
    for (const element of [group, line]) {
      if (!element) continue;
      element.classList.remove("later", "now", "past");
      element.classList.add(place);
    }
    line?.classList.add("link", ...(node.branch.kept ? (node.branch.why ? ["in-vain", ...hueOf(group)] : []) : ["off"]));
    if (place === "now") {
      group.setAttribute("role", "option");
      group.setAttribute("aria-selected", "false");
      group.setAttribute("aria-label", story(node.branch).join(" "));
      group.removeAttribute("aria-hidden");
    } else {
      for (const name of ["role", "aria-selected", "aria-label"]) group.removeAttribute(name);
      group.setAttribute("aria-hidden", "true");
    }
  }

  key(event, step) {
    const turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (turn) step(turn);
    else if (by) {
      const now = this.drawn.filter(([node]) => node.depth === this.t).sort(([a], [b]) => a.y - b.y);
      const at = now.findIndex(([node]) => node === this.active);
      this.activate(now[at < 0 ? (by > 0 ? 0 : now.length - 1) : (at + by + now.length) % now.length], true);
    } else if (event.key === "Escape") this.activate(null);
    else return;
    event.preventDefault();
  }

  hover(event) {
    const id = event.target.closest?.("[data-id]")?.dataset.id;
    this.activate(this.drawn?.find(([node]) => node.id === id) ?? null);
  }

  /** Point at a branch, with its story beside it; null for none. */
  activate(entry, byKey = false) {
    for (const group of this.list.querySelectorAll(".active")) {
      group.classList.remove("active");
      if (group.hasAttribute("role")) group.setAttribute("aria-selected", "false");
    }
    this.active = entry?.[0] ?? null;
    this.tip.hidden = !entry;
    if (!entry) return this.list.removeAttribute("aria-activedescendant");
    const [node, group] = entry;
    group.classList.add("active");
    if (byKey) {
      group.setAttribute("aria-selected", "true");
      this.list.setAttribute("aria-activedescendant", group.id);
      group.scrollIntoView({ block: "nearest" });
    }
    const [heading, ...rest] = story(node.branch);
    this.tip.replaceChildren(h("b", {}, heading), ...rest.map((line) => h("div", {}, line)));
    this.tip.style.left = this.tip.style.top = "0"; // its size must not depend on where it was
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const within = (place, most) => Math.max(4, Math.min(place, most));
    const after = node.x + HALF.x + 66; // past a rule's name
    const before = node.x - HALF.x - 10 - width;
    const fits = node.y + ROW + height < this.list.clientHeight + ROW;
    const [left, top] = this.width > BESIDE
      ? [after + width < this.width ? after : before, node.y - height / 2]
      : [node.x, fits ? node.y + ROW : node.y - ROW / 2 - height];
    this.tip.style.left = `${within(left, this.width - width - 4)}px`;
    this.tip.style.top = `${within(top, Math.max(this.list.clientHeight - height, top - ROW))}px`;
  }
}

const hueOf = (group) => [...group.classList].filter((name) => name.startsWith("rule-"));

function link(from, to) {
  const [x1, x2] = [from.x + HALF.x, to.x - HALF.x];
  const middle = (x1 + x2) / 2;
  return s("path", { d: `M${x1} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${x2} ${to.y}` });
}

function shortened(text, room) {
  const most = Math.floor(room / 5.7); // letters of 11 px are about that wide
  if (most < 3) return "";
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}

/** The legend: the same shapes as in the tree. */
export function legend(list, rules, hue) {
  const sample = (kind, name, rx) =>
    s("svg", { width: 22, height: 14, "aria-hidden": "true" },
      s("g", { class: `node ${kind} ${name}` }, s("rect", { x: 1.5, y: 1.5, width: 19, height: 11, rx }),
        kind ? s("path", { class: "strike", d: "M5 7H17" }) : null));
  const entry = (svg, text) => h("li", {}, svg, text);
  list.replaceChildren(
    entry(sample("", "", 6), "kept"),
    entry(sample("in-vain", "rule-other", 2), "kept in vain"),
    entry(sample("off", "rule-other", 2), "not kept: rules refuse all below"),
    entry(sample("off catalogue", "rule-other", 6), "outside the catalogue"),
    entry(sample("off width", "rule-other", 6), "score too low"),
    ...rules.map((rule) => h("li", { class: `dot ${hue(rule)}` }, rule)));
}

/** The table that says what the drawing shows of a step. */
export function branchTable(table, branches) {
  const cells = ({ prefix, score, ...branch }) => [
    h("th", { scope: "row" }, prefix.join(" · ") || "start"),
    h("td", { class: "number" }, prefix.length ? score.toFixed(2) : ""),
    h("td", {}, fate(branch)),
    h("td", {}, story({ prefix, score, ...branch }).slice(1).join(" ")),
  ];
  table.replaceChildren(
    h("thead", {}, h("tr", {}, ["Prefix", "Score", "Fate", "Why, and what is below"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, branches.map((branch) => h("tr", {}, cells(branch)))));
}
