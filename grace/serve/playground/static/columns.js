// One column a matching mode: where SIDs and ads went, beams, milliseconds, and the ads.

import { bar, count, h, number, spaced } from "./dom.js";

const SIDS = [["generated_sids", "generated"], ["catalog_sids", "in catalogue"], ["eligible_sids", "eligible"]];
const ADS = [["expanded_ads", "expanded"], ["eligible_ads", "eligible"]];

/** Draw columns: `compared` as the API says it, `hue(rule)` a class name. */
export function columns(box, compared, hue) {
  const good = compared.columns.filter((column) => !column.error);
  const most = {
    sids: Math.max(1, ...good.map(({ funnel }) => funnel.generated_sids)),
    ads: Math.max(1, ...good.map(({ funnel }) => funnel.expanded_ads)),
    beams: Math.max(1, ...good.flatMap(({ steps }) => steps.map(({ live }) => live))),
    ms: Math.max(...good.map(({ stages_ms }) => total(stages_ms))),
  };
  const stages = [...new Set(good.flatMap(({ stages_ms }) => Object.keys(stages_ms)))];
  const seen = new Map();
  for (const { ads } of good) for (const { ad_id } of ads) seen.set(ad_id, (seen.get(ad_id) ?? 0) + 1);
  const wide = matchMedia("(min-width: 821px)").matches; // on a phone one list at a time is enough
  const isOnly = (ad) => good.length > 1 && seen.get(ad.ad_id) < good.length;
  box.replaceChildren(...compared.columns.map((column, i) => one(column, { most, stages, isOnly, hue }, wide || i === 0)));
  box.onpointerover = box.onpointerout = (event) => {
    const id = event.type === "pointerover" ? event.target.closest?.("[data-ad]")?.dataset.ad : undefined;
    for (const ad of box.querySelectorAll("[data-ad]")) ad.classList.toggle("same", ad.dataset.ad === id);
  };
}

/** What the comparison says, in a sentence or two. */
export function verdict({ columns: all }) {
  const good = all.filter((column) => !column.error);
  if (!good.length) return "No mode has an answer.";
  const said = good.map(({ matching, funnel }) => `${number(funnel.eligible_ads)} with ${matching}`);
  return `Eligible ads found with the same beams: ${said.join(", ")}.`;
}

const total = (stages) => Object.values(stages).reduce((sum, ms) => sum + ms, 0);

function one(column, shared, open) {
  const title = h("h3", {}, column.matching, column.served ? h("small", {}, "as served") : null);
  if (column.error) {
    return h("section", { class: "column", "aria-label": column.matching }, title,
      h("p", { class: "empty" }, `No answer: ${column.error.field}: ${column.error.message}`));
  }
  return h("section", { class: column.served ? "column served" : "column", "aria-label": column.matching },
    title, sids(column, shared), filtered(column, shared), beams(column, shared), latencies(column, shared), ads(column, shared, open));
}

const row = (name, parts, value) =>
  h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, bar(parts)), h("td", { class: "number" }, value));

function sids({ funnel: counts }, { most }) {
  return h("table", { class: "bars" }, h("caption", {}, "SIDs"),
    h("tbody", {}, SIDS.map(([key, name]) => row(name, [{ share: counts[key] / most.sids }], number(counts[key])))));
}

function filtered({ funnel: counts }, { most, hue }) {
  const dropped = Object.entries(counts.dropped).filter(([, n]) => n);
  const refused = dropped.map(([rule, n]) => ({ share: n / most.ads, rule: hue(rule) }));
  return h("div", {},
    h("table", { class: "bars" }, h("caption", {}, "Ads on these SIDs"),
      h("tbody", {},
        ADS.map(([key, name]) => row(name, [{ share: counts[key] / most.ads }], number(counts[key]))),
        row("refused", refused, number(counts.expanded_ads - counts.eligible_ads)))),
    h("ul", { class: "why", "aria-label": "Ads refused, by the first rule that does" },
      dropped.map(([rule, n]) => h("li", { class: `dot ${hue(rule)}` }, `${spaced(rule)} ${number(n)}`))));
}

function beams({ steps }, { most }) {
  return h("table", { class: "bars" }, h("caption", {}, "Beams entering a step"),
    h("tbody", {}, steps.map(({ live, wasted }, t) =>
      row(`step ${t + 1}`, [{ share: (live - wasted) / most.beams }, { share: wasted / most.beams, rule: "rule-other" }],
        wasted ? `${number(wasted)} in vain` : number(live)))));
}

function latencies({ stages_ms: stages }, { most, stages: names }) {
  return h("table", { class: "bars" }, h("caption", {}, "Milliseconds"),
    h("tbody", {},
      names.map((name) => row(spaced(name), [{ share: (stages[name] ?? 0) / most.ms }], name in stages ? number(stages[name], 2) : "–")),
      row("all", [{ share: total(stages) / most.ms }], number(total(stages), 2))));
}

function ads({ ads: found, funnel: counts }, { isOnly, hue }, open) {
  if (!found.length) return h("p", { class: "empty" }, "No ad: this user may see none of what was found.");
  return h("details", { open },
    h("summary", {}, `${count(found.length, "ad")} of ${number(counts.eligible_ads)}, by score`),
    h("ol", { class: "ads" }, found.map((ad, i) =>
      h("li", { class: isOnly(ad) ? "only" : null, "data-ad": ad.ad_id },
        h("span", { class: "number" }, `${i + 1}`),
        h("span", { class: "title" }, ad.title ?? `ad ${ad.ad_id}`, isOnly(ad) ? h("small", {}, " not in all") : null),
        h("span", { class: "number", title: `SID ${ad.sid.join(" · ")}` }, number(ad.score, 2)),
        ad.rules.length
          ? h("ul", { "aria-label": "Rules" }, ad.rules.map(({ rule, words }) =>
              h("li", {}, h("b", { class: hue(rule) }, spaced(rule)), " ", words)))
          : h("ul", {}, h("li", {}, "for anybody"))))));
}
