// Claims: the ledger with verdicts, numbers and figures.

import { get, picture } from "./api.js";
import { format } from "./charts.js";
import { el, message, table } from "./dom.js";

export function claims(main) {
  const place = el("div", {}, message("Reading…"));
  const made = []; // addresses of pictures, given back when the page is left
  main.append(el("h1", {}, "Claims"), place);
  get("claims").then(({ ledgers }) => {
    place.replaceChildren(...ledgers.map((one) => ledger(one, made)));
    if (!ledgers.length) {
      place.append(message("No claims in this folder. Judge the paper’s with: fedtaper reproduce --out reproduced"));
    }
  }, (trouble) => place.replaceChildren(message(trouble.message, "trouble")));
  return () => made.forEach((address) => URL.revokeObjectURL(address));
}

function ledger(one, made) {
  const parts = [el("h2", {}, one.folder)];
  if (one.trouble) parts.push(message(`claims.json is damaged: ${one.trouble}`, "trouble"));
  if (one.command) parts.push(el("p", { class: "muted" }, "Command: ", el("code", {}, one.command)));
  const good = one.claims.filter((claim) => claim.verdict === "reproduced").length;
  if (one.claims.length) parts.push(el("p", {}, `${good} of ${one.claims.length} claims reproduced.`));
  return el("section", {}, parts, one.claims.map((claim) => card(one.folder, claim, made)));
}

function card(folder, claim, made) {
  const kind = claim.verdict === "reproduced" ? "good" : "other";
  const [what, nearest] = claim.beside;
  const figures = el("div", { class: "figures" });
  const rows = claim.numbers.map((n) => [n.name ?? "", format(n.value),
    n.low === null || n.low === undefined ? "" : `${format(n.low)} to ${format(n.high)}`, n.threshold ?? "",
    n.passed ? "yes" : "no"]);
  const more = el("details", { ontoggle: () => more.open && !figures.childElementCount
    && load(folder, claim, figures, made) },
    el("summary", {}, `Numbers and figures of ${claim.id}`),
    rows.length ? table(`Numbers of ${claim.id}`, ["number", "value", "interval", "required", "met"], rows, [1, 2]) : null,
    el("p", {}, el("strong", {}, "Measured: "), claim.measure),
    el("p", {}, el("strong", {}, "Refuted by: "), claim.refuted_by),
    nearest ? el("p", {}, el("strong", {}, `${what}: `), nearest) : null, figures);
  return el("article", { class: "claim" },
    el("h3", {}, `${claim.id} `, el("span", { class: kind }, claim.verdict)),
    el("p", {}, claim.statement), el("p", {}, claim.summary), more);
}

function load(folder, claim, place, made) {
  for (const name of claim.figures) {
    const image = el("img", { alt: `Figure of claim ${claim.id}: ${name.replace(/\.\w+$/, "").replaceAll("-", " ")}` });
    place.append(el("figure", {}, image, el("figcaption", { class: "muted" }, name)));
    picture(folder, name).then((address) => {
      made.push(address);
      image.src = address;
    }, (trouble) => image.replaceWith(message(`${name}: ${trouble.message}`, "trouble")));
  }
}
