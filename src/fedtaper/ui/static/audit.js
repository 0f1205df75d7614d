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
    el("p", {}, "Does every client contribute as it declared? Judged from what the server saw during a finished run."),
    el("p", { class: "row" }, el("label", { for: "audited" }, "Run"), pick), place);
  if (!runs.length) return void place.append(message("No finished run in this folder."));
  if (words.get("id") && known.rows.has(words.get("id"))) pick.value = words.get("id");
  look(pick.value, place);
}

let asked = 0; // the newest question: the answer to an older one comes too late

async function look(id, place) {
  const mine = (asked += 1);
  place.replaceChildren(message("Auditing…"));
  let found;
  try {
    found = await get("audit", { id });
  } catch (trouble) {
    if (mine === asked) place.replaceChildren(message(trouble.message, "trouble"));
    return;
  }
  if (mine !== asked) return;
  const accused = found.accused.length;
  const { unknown, head } = found;
  const all = found.rows.length;
  const whose = accused === 1 ? "does not do what it declared" : "do not do what they declared";
  const first = accused ? `${accused} of ${all} clients ${whose}.`
    : unknown === all ? "" : "Nobody is accused.";
  const rest = unknown ? `For ${unknown} of ${all} clients this run cannot tell.` : "";
  const words = [first, rest].filter(Boolean).join(" ");
  say(words);
  if (!accused) head.pop(); // nobody is accused since some round
  const rows = found.rows.map((row) => head.map((_, j) => (j === 1 ? verdict(row[j]) : row[j])));
  const graphs = el("div", { class: "charts" });
  place.replaceChildren(el("p", {}, el("strong", {}, words)), el("h2", {}, "Verdicts"), el("p", {}, found.title),
    table("Verdicts", head, rows, [2, 3, 4, 5, 6], [2, 4, 6]), ...found.remarks.map((text) => el("p", {}, text)),
    el("h2", {}, "Evidence over the rounds"),
    el("p", { class: "muted" }, "Dashed: the taper that a client declared. Line and band: the estimate and its interval, after each look."),
    graphs, el("p", { class: "muted" }, found.caveat));
  const known = found.evidence.filter((one) => one.delta.some((value) => value !== null));
  if (!known.length) return void graphs.replaceWith(message("These updates contain no evidence about how fast a client tapers."));
  known.sort((one, other) => other.accused - one.accused);
  known.slice(0, SHOWN).forEach((one) => evidence(one, graphs));
  if (known.length > SHOWN) graphs.after(message(`The first ${SHOWN} of ${known.length} clients are drawn.`));
}

const SHOWN = 12;

function evidence(one, graphs) {
  const place = el("div", { "data-client": one.who });
  const since = one.since === null ? "" : `, since round ${one.since}`;
  const first = one.delta.findIndex((value) => value !== null); // no estimate is drawn before it
  const [round, delta, low, high] = [one.round, one.delta, one.low, one.high].map((all) => all.slice(first));
  const gap = delta.includes(null) ? el("p", { class: "small muted" }, "Gaps in the line: looks that gave no estimate.") : null;
  graphs.append(el("div", {}, place, el("p", { class: "small" }, one.sentence), gap ?? ""));
  chart(place, { title: `${one.who}: ${one.verdict}${since}`, xlabel: "round", ylabel: "taper (delta)", logX: true,
    x: round, series: [
      { name: "declared", values: round.map(() => one.declared), style: "dashed", colour: 6 },
      { name: "estimate", values: delta, low, high, colour: one.accused ? 1 : 0 },
    ] });
}

function verdict(text) {
  const kind = text === "as declared" ? "good" : text.startsWith("cannot") ? "muted" : "other";
  return el("span", { class: kind }, text);
}
