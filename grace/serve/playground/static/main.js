// The page: who asks, what every mode returns, how the tree grew.

import { get, inTurn, post, useToken } from "./api.js";
import { columns, verdict } from "./columns.js";
import { $, count, h, number, spaced } from "./dom.js";
import { Person } from "./person.js";
import { branchTable, legend, TreeView } from "./tree.js";
import { stepWords } from "./words.js";

const FIRST_MODES = ["exact", "bitmask+bloom", "valid", "off"];
const STATES = ["paused", "bid_off", "window"]; // reasons that every catalogue has; attributes follow

const page = { schema: null, person: null, trees: new Map(), tree: null, asked: 0 };

function hue(rule) {
  const rules = [...STATES, ...page.schema.attributes.map(({ name }) => name)];
  const at = rules.indexOf(rule);
  return at < 0 ? "rule-other" : `rule-${at % 8}`;
}

/** Run something that may fail; say what is wrong where everybody sees it. */
async function attempt(work) {
  $("problem").hidden = true;
  page.person?.blame(null);
  try {
    await work();
    $("token").hidden = true;
  } catch (problem) {
    if (problem.status === undefined) console.error(problem);
    $("problem").textContent = problem.status === undefined ? "Something on this page broke. Reload it." : problem.message;
    $("problem").hidden = false;
    $("token").hidden = ![401, 403].includes(problem.status);
    page.person?.blame(problem.field);
    if (problem.field) $("editor").open = true;
  }
}

async function start() {
  page.schema = await get("schema");
  const { ads, sids, version, served, attributes } = page.schema;
  $("about").textContent = `${count(ads, "ad")} on ${count(sids, "SID")}, version ${version}, served with ${served} matching.`;
  page.person = new Person($("fields"), page.schema, edited);
  page.view = new TreeView($("tree"), hue, (by) => step(Number($("step").value) + by));
  legend($("legend"), [...STATES, ...attributes.map(({ name }) => name)].map(spaced), (rule) => hue(rule.replaceAll(" ", "_")));
  drawModes();
  const { people } = await get("people");
  $("examples").hidden = people.length === 0;
  $("example").replaceChildren(...people.map((label, i) => h("option", { value: i }, label)));
  $("editor").open = matchMedia("(min-width: 821px)").matches || people.length === 0;
  $("compare").disabled = false;
  if (people.length) return pick(0);
  await page.person.load({ attributes: {}, features: {} });
  edited(false);
  await compare();
}

function drawModes() {
  const { modes, served } = page.schema;
  const order = [...new Set([served, ...FIRST_MODES, ...modes])].filter((mode) => modes.includes(mode));
  $("modes").append(...order.map((mode) =>
    h("label", {}, h("input", { type: "checkbox", name: "mode", value: mode, checked: mode === served || FIRST_MODES.includes(mode), onchange: () => attempt(compare) }), mode)));
}

const chosenModes = () => [...$("modes").querySelectorAll(":checked")].map(({ value }) => value);

async function pick(i) {
  $("example").value = i;
  await page.person.load(await get(`people/${i}`));
  edited(false);
  await compare();
}

function edited(stale = true) {
  $("stale").hidden = !stale;
  $("json").textContent = JSON.stringify(page.person.request, null, 1);
}

async function compare() {
  const number = ++page.asked;
  const request = structuredClone(page.person.request);
  const modes = chosenModes();
  $("columns").setAttribute("aria-busy", "true");
  try {
    if (!modes.length) return $("columns").replaceChildren(h("p", { class: "empty" }, "Choose a mode."));
    const body = { request: { ...request, top_k: Number($("top-k").value) }, modes };
    const compared = await inTurn(() => (number === page.asked ? post("compare", body) : null));
    if (number !== page.asked) return; // somebody has asked for something else since
    $("stale").hidden = true;
    columns($("columns"), compared, hue);
    $("verdict").textContent = verdict(compared);
    page.trees.clear();
    page.compared = request;
    drawTreeModes(modes);
    await grow();
  } finally {
    if (number === page.asked) $("columns").setAttribute("aria-busy", "false");
  }
}

function drawTreeModes(modes) {
  const before = $("tree-modes").querySelector(":checked")?.value;
  const chosen = modes.includes(before) ? before : modes[0];
  $("tree-modes").replaceChildren($("tree-modes").firstElementChild, ...modes.map((mode) =>
    h("label", {}, h("input", { type: "radio", name: "tree-mode", value: mode, checked: mode === chosen, onchange: () => attempt(grow) }), mode)));
}

async function grow() {
  const mode = $("tree-modes").querySelector(":checked").value;
  const number = page.asked;
  if (!page.trees.has(mode)) {
    $("tree").setAttribute("aria-busy", "true");
    const body = { request: page.compared, mode };
    const ask = () => (number === page.asked ? post("tree", body) : null);
    const tree = await inTurn(ask).finally(() => $("tree").removeAttribute("aria-busy"));
    if (number !== page.asked) return;
    page.trees.set(mode, tree);
    if (mode !== $("tree-modes").querySelector(":checked").value) return;
  }
  // Whoever looked at the whole tree before sees the whole of the next.
  const whole = !page.tree || Number($("step").value) === page.tree.steps.length;
  page.tree = page.trees.get(mode);
  const last = page.tree.steps.length;
  $("step").max = last;
  if (whole) $("step").value = last;
  page.view.show(page.tree, Number($("step").value));
  step(Number($("step").value));
}

function step(t) {
  if (!page.tree) return;
  const last = page.tree.steps.length;
  const now = Math.max(0, Math.min(last, t));
  $("step").value = now;
  $("step").setAttribute("aria-valuetext", now ? `step ${now} of ${last}` : "start");
  $("back").disabled = now === 0;
  $("forth").disabled = now === last;
  page.view.move(now);
  $("told").textContent = stepWords(page.tree, now);
  branchTable($("branches"), now ? page.tree.steps[now - 1].branches : [page.tree.root]);
}

$("person").addEventListener("submit", (event) => { event.preventDefault(); attempt(compare); });
$("example").addEventListener("change", () => attempt(() => pick(Number($("example").value))));
$("another").addEventListener("click", () => attempt(() => pick(Math.floor(Math.random() * $("example").length))));
$("top-k").addEventListener("change", () => attempt(compare));
$("step").addEventListener("input", () => step(Number($("step").value)));
$("back").addEventListener("click", () => step(Number($("step").value) - 1));
$("forth").addEventListener("click", () => step(Number($("step").value) + 1));
$("token").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token-text").value);
  attempt(page.schema ? compare : start);
});

attempt(start);
