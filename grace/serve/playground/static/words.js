// Branches and steps in words: the tooltip, the status line and the table say the same.

import { count, number, spaced } from "./dom.js";

/** "kept", "kept in vain", "not kept". */
export function fate({ kept, why }) {
  return kept ? (why ? "kept in vain" : "kept") : "not kept";
}

/** The short reason beside a branch: a rule's name, or which of the other two. */
export function reason({ why, refusals }) {
  if (why === "rules") return spaced(Object.keys(refusals.by)[0] ?? "rules");
  return { catalogue: "no such ad", width: "score" }[why] ?? "";
}

/** Why a branch leads nowhere, as a sentence; empty where it leads to ads. */
export function because({ kept, why, refusals }) {
  if (why === null) return "";
  if (why === "catalogue") return "No ad has this prefix.";
  if (why === "width") return "Better branches fill the width.";
  const { num_ads: ads, checked, by } = refusals;
  const rules = Object.entries(by).map(([rule, n]) => `${spaced(rule)} refuses ${number(n)}`);
  if (!rules.length) return "An ad below was resumed since the search.";
  const whom = ads === 1 ? "The ad below may not be shown" : `None of the ${number(ads)} ads below may be shown`;
  const sampled = checked < ads ? ` (of ${number(checked)} that were read)` : "";
  return `${whom}: ${rules.join(", ")}${sampled}.${kept ? " A beam is spent on it all the same." : ""}`;
}

/** What lies below a branch. */
export function below({ ads, examples }) {
  if (!ads) return "";
  const more = ads > examples.length ? ", …" : "";
  return `${count(ads, "ad")}: ${examples.join("; ")}${more}`;
}

export const prefix = ({ prefix: tokens }) => tokens.join(" · ") || "start";

/** Everything about a branch, for the tooltip and screen readers: [heading, ...sentences]. */
export function story(branch) {
  const score = branch.prefix.length ? `, score ${number(branch.score, 2)}` : "";
  return [`${prefix(branch)}: ${fate(branch)}${score}`, because(branch), below(branch)].filter(Boolean);
}

/** What a step did. */
export function stepWords(tree, t) {
  if (!tree.steps.length) return "This user may enter no branch at all. " + because(tree.root);
  if (t === 0) return `The search starts from the empty prefix, above ${count(tree.root.ads, "ad")}. Step on with the arrow keys.`;
  const { entered, kept, in_vain: vain, not_kept: not, refused_by: by, width } = tree.steps[t - 1];
  const inVain = vain.rules + vain.catalogue;
  const rules = Object.entries(by).map(([rule, n]) => `${spaced(rule)} ${number(n)}`).join(", ");
  return [
    `Step ${t} of ${tree.steps.length}: ${count(entered, "beam")} entered, ${number(kept)} of at most ${number(width)} kept`,
    inVain ? `, ${number(inVain)} of them in vain` : "",
    ". ",
    not.rules ? `Rules kept ${count(not.rules, "branch")} out that would have made it. ` : "",
    rules ? `What refused most below a dead end: ${rules}. ` : "",
    not.catalogue ? `${count(not.catalogue, "better branch")} led out of the catalogue. ` : "",
    not.width ? `${count(not.width, "branch")} fell to the width.` : "",
  ].join("").trim();
}
