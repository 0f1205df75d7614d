// Audit: the verdict on each client of a run, and how its evidence grew.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { el, message, say, table } from "./dom.js";

export function audit(main, words, known) {
  const runs = [...known.rows.values()].filter((row) => ["finished", "diverged"].includes(row.state));
  runs.sort((a, b) => b.when - a.when);
  const place = el("div");
  const pick = el("select", { id: "audited", onchange: () => look(pick.value, place) },
    runs.map((row) => el("option", { value: row.id }, row.id)));
  main.append(el("h1", {}, "Audit"),
    el("p", {}, "Does every client contribute as it declared? From what the server saw of a finished run."),
    el("p", { class: "row" }, el("label", { for: "audited" }, "Run"), pick), place);
  if (!runs.length) return void place.append(message("No finished run in this folder."));
  if (words.get("id") && known.rows.has(words.get("id"))) pick.value = words.get("id");
  look(pick.value, place);
}

async function look(id, place) {
  place.replaceChildren(message("Auditing…"));
  let found;
  try {
    found = await get("audit", { id });
  } catch (trouble) {
    return void place.replaceChildren(message(trouble.message, "trouble"));
  }
  const accused = found.accused.length;
  const words = accused ? `${accused} of ${found.rows.length} clients do not do what they declared.`
    : "Nobody is accused.";
  say(words);
  const rows = found.rows.map((row) => row.map((cell, j) => (j === 1 ? verdict(cell) : cell)));
  const graph = el("div", { class: "charts" });
  place.replaceChildren(el("p", {}, el("strong", {}, words)), el("h2", {}, "Verdicts"), el("p", {}, found.title),
    table("Verdicts", found.head, rows, [2, 3, 4, 5, 6], [6]), ...found.remarks.map((text) => el("p", {}, text)),
    el("h2", {}, "Evidence over the rounds"), graph, el("p", { class: "muted" }, found.caveat));
  const named = (who) => (/^\d+$/.test(who) ? `client ${who}` : who); // sites may have names
  const shown = found.evidence.map((values, i) => ({ name: named(found.rows[i][0]), values }));
  const some = shown.some((one) => one.values.some((value) => value !== null));
  if (!some) return void graph.replaceWith(message("These updates hold no evidence about how fast a client tapers."));
  const inner = el("div");
  graph.append(inner);
  chart(inner, { title: "evidence that a client tapers faster", xlabel: "round", logX: true,
    ylabel: "standard errors (below 0: slower)", x: found.round, series: shown });
}

function verdict(text) {
  const kind = text === "as declared" ? "good" : text.startsWith("cannot") ? "muted" : "other";
  return el("span", { class: kind }, text);
}
