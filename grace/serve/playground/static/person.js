// The user as a form: one field for each thing that rules or the model ask of a request.

import { get, post } from "./api.js";
import { chips } from "./chips.js";
import { count, h, number, spaced } from "./dom.js";
import { finder } from "./finder.js";

const SHOWN = 12; // events of a history, the newest; a button shows more

/** One form field per name; an attribute and a feature of the same name are edited together. */
function fieldsOf(schema) {
  const fields = new Map();
  for (const attribute of schema.attributes) fields.set(attribute.name, { name: attribute.name, attribute });
  for (const feature of schema.features ?? []) {
    fields.set(feature.name, { name: feature.name, ...fields.get(feature.name), feature });
  }
  return [...fields.values()];
}

/** Steps of a path from its first: "US/MN/city:X" asks for "US" and "US/MN", too. */
function withParents(value) {
  const steps = value.split("/");
  return steps.map((_, i) => steps.slice(0, i + 1).join("/"));
}

const uses = ({ attribute, feature }) =>
  attribute && feature ? "rules and model" : attribute ? "rules" : "model";

export class Person {
  /**
   * box: where fields are drawn.
   * schema: of the API.
   * changed(): called after each edit.
   */
  constructor(box, schema, changed) {
    this.box = box;
    this.fields = fieldsOf(schema);
    this.changed = changed;
    this.titles = new Map();
    this.request = { attributes: {}, features: {} };
  }

  /** Take over a request and draw it. */
  async load(request) {
    this.request = structuredClone(request);
    this.shown = SHOWN;
    const { attributes, features } = this.request;
    const history = this.fields.find(({ feature }) => feature?.kind === "sequence");
    // Where a set of ads says no more than the history does, one list is edited for both.
    this.linked = this.fields.find(
      ({ name, attribute, feature }) =>
        history && !feature && attribute?.are_ads &&
        sameIds(attributes[name], (features[history.name] ?? []).map((event) => event.ad_id)),
    );
    await this.learnTitles(this.adIds());
    this.draw();
  }

  adIds() {
    const { attributes, features } = this.request;
    return this.fields.flatMap(({ name, attribute, feature }) => [
      ...(attribute?.are_ads ? attributes[name] ?? [] : []),
      ...(feature?.kind === "sequence" ? (features[name] ?? []).map((event) => event.ad_id) : []),
    ]);
  }

  async learnTitles(adIds) {
    const missing = [...new Set(adIds)].filter((id) => !this.titles.has(String(id)));
    if (!missing.length) return;
    const { titles } = await post("titles", { ad_ids: missing });
    missing.forEach((id, i) => this.titles.set(String(id), titles[i] ?? `ad ${id}`));
  }

  draw() {
    const drawn = this.fields.filter((field) => field !== this.linked).map((field) => this.field(field));
    this.box.replaceChildren(...drawn, this.time());
  }

  /** Mark the field that an error names, such as "attributes.age"; null for none. */
  blame(path) {
    const name = path?.split(/[.[]/).find((part) => !["attributes", "features"].includes(part));
    for (const field of this.box.children) field.classList.toggle("wrong", field.dataset.name === name);
  }

  redraw(field, focus) {
    const old = [...this.box.children].find((child) => child.dataset.name === field.name);
    const fresh = this.field(field);
    old.replaceWith(fresh);
    fresh.querySelector(focus)?.focus();
    this.changed();
  }

  set({ name, attribute, feature }, value) {
    if (attribute) this.request.attributes[name] = value;
    if (feature) this.request.features[name] = value;
  }

  value({ name, attribute }) {
    return (attribute ? this.request.attributes : this.request.features)[name] ?? null;
  }

  field(field) {
    const kind = field.attribute?.kind ?? field.feature.kind;
    const draw = { range: "numberField", numeric: "numberField", categorical: "choiceField", set: "setField", bag: "setField", sequence: "historyField" }[kind];
    const box = this[draw](field, `field-${field.name}`);
    box.dataset.name = field.name;
    return box;
  }

  labelled(field, id, control) {
    return h("div", { class: "field" }, h("label", { for: id }, spaced(field.name), " ", h("small", {}, uses(field))), control);
  }

  numberField(field, id) {
    const input = h("input", { id, type: "number", step: "any", value: this.value(field), placeholder: "unknown",
      oninput: () => { this.set(field, input.value === "" ? null : Number(input.value)); this.changed(); } });
    return this.labelled(field, id, input);
  }

  choiceField(field, id) {
    const known = [...new Set([...(field.attribute?.values ?? []), ...(field.feature?.values ?? [])])];
    const value = this.value(field);
    if (value !== null && !known.includes(String(value))) known.push(String(value));
    const select = h("select", { id, onchange: () => { this.set(field, select.value || null); this.changed(); } },
      h("option", { value: "" }, "unknown"),
      known.map((one) => h("option", { value: one, selected: one === String(value) }, one)));
    return this.labelled(field, id, select);
  }

  setField(field, id) {
    const values = [].concat(this.value(field) ?? []);
    const { attribute, feature } = field;
    const change = (next, focus) => { this.set(field, next.length ? next : null); this.redraw(field, focus); };
    const find = attribute
      ? async (text) => (await get("values", { attribute: field.name, text })).values
      : async (text) => feature.values.filter((v) => v.includes(text)).slice(0, 20).map((value) => ({ value }));
    const pick = (value, title) => {
      if (title) this.titles.set(value, title);
      change([...new Set([...values, ...(attribute?.are_ads || !attribute ? [value] : withParents(value))])], `#${CSS.escape(id)}`);
    };
    return h("div", { class: "field" },
      h("span", { class: "label" }, spaced(field.name), " ", h("small", {}, uses(field))),
      values.length
        ? chips({
            label: spaced(field.name),
            items: values.map((value) => ({ text: attribute?.are_ads ? this.titles.get(String(value)) : String(value) })),
            remove: (i) => change(values.filter((v) => v !== values[i] && !String(v).startsWith(`${values[i]}/`)), "button, input"),
          })
        : h("p", { class: "quiet" }, "unknown: only ads without a rule on it accept"),
      finder({ id, label: `Add to ${spaced(field.name)}`, find, pick, free: !attribute?.are_ads }));
  }

  historyField(field, id) {
    const events = this.value(field) ?? [];
    const older = Math.max(0, events.length - this.shown);
    const newest = events.map((event, i) => ({ event, i })).slice(older).reverse();
    const actions = field.feature.actions ?? [];
    const change = (next, focus) => { this.set(field, next); this.follow(next); this.redraw(field, focus); };
    const action = h("select", { "aria-label": "What was done" },
      actions.map((one) => h("option", { selected: one === actions.at(-1) }, one)));
    const pick = (ad_id, title) => {
      this.titles.set(String(ad_id), title);
      change([...events, actions.length ? { ad_id, action: action.value } : { ad_id }], `#${CSS.escape(id)}`);
    };
    const note = this.linked ? `, also sent as ${spaced(this.linked.name)}` : "";
    return h("div", { class: "field" },
      h("span", { class: "label" }, spaced(field.name), " ", h("small", {}, `${uses(field)}: newest first${note}`)),
      h("p", { class: "quiet" }, events.length ? `${count(events.length, "event")}; the model reads the last ${number(field.feature.max_length)}` : "no events"),
      chips({
        label: spaced(field.name),
        items: newest.map(({ event }) => ({ text: [this.titles.get(String(event.ad_id)), event.action && spaced(event.action)].filter(Boolean).join(" · ") })),
        remove: (at) => change(events.filter((_, i) => i !== newest[at].i), "button, input"),
      }),
      older ? h("button", { type: "button", onclick: () => { this.shown *= 3; this.redraw(field, "button"); } }, `Show older (${number(older)})`) : null,
      finder({ id, label: `Add to ${spaced(field.name)}`, pick,
        find: async (text) => (await get("items", { text })).items.map(({ ad_id, title }) => ({ value: ad_id, title })) }),
      actions.length ? action : null);
  }

  /** Keep the set that goes with the history. */
  follow(events) {
    if (this.linked) this.request.attributes[this.linked.name] = [...new Set(events.map((event) => String(event.ad_id)))];
  }

  time() {
    const input = h("input", { id: "field-at", value: this.request.at, placeholder: "now", spellcheck: "false",
      oninput: () => { this.request.at = input.value.trim() || undefined; this.changed(); } });
    const box = h("div", { class: "field" }, h("label", { for: "field-at" }, "time ", h("small", {}, "rules: ISO 8601 with a zone")), input);
    box.dataset.name = "at";
    return box;
  }
}

function sameIds(values, adIds) {
  const [one, other] = [new Set((values ?? []).map(String)), new Set(adIds.map(String))];
  return one.size > 0 && one.size === other.size && [...one].every((id) => other.has(id));
}
