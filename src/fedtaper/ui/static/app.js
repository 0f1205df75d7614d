// The page as a whole: which part is shown, and the stream of what changes in the folder.

import { follow, get, takeToken } from "./api.js";
import { audit } from "./audit.js";
import { themeButton } from "./charts.js";
import { claims } from "./claims.js";
import { el, message, say } from "./dom.js";
import { runs } from "./runs.js";
import { studio } from "./studio.js";

const PAGES = { runs: [runs, "Runs"], studio: [studio, "Studio"], claims: [claims, "Claims"], audit: [audit, "Audit"] };
const main = document.getElementById("main");

/** What is known of the folder's runs; parts of the page listen for "rows". */
export const known = Object.assign(new EventTarget(), { rows: new Map(), failed: {} });
let leave = () => {};

function take({ runs: changed, failed }) {
  for (const [id, row] of Object.entries(changed)) {
    if (row === null) known.rows.delete(id);
    else known.rows.set(id, row);
  }
  known.failed = failed;
  known.dispatchEvent(new CustomEvent("rows", { detail: new Set(Object.keys(changed)) }));
}

function show() {
  if (location.hash.startsWith("#token=")) return void (takeToken(), location.reload());
  const [, name, query] = /^#\/(\w+)(?:\?(.*))?$/.exec(location.hash) ?? [null, "runs", ""];
  const [page, title] = PAGES[name] ?? PAGES.runs;
  leave();
  document.title = `${title} · fedtaper`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.textContent === title) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren();
  leave = page(main, new URLSearchParams(query ?? ""), known) ?? (() => {});
  scrollTo(0, 0);
}

async function start() {
  themeButton(document.getElementById("theme"));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  if (!takeToken()) return void main.append(locked());
  let first;
  try {
    first = await get("runs");
  } catch (trouble) {
    return void main.append(locked(trouble.message));
  }
  const folder = document.getElementById("folder");
  folder.textContent = first.folder;
  folder.title = first.path;
  known.rows = new Map(first.runs.map((row) => [row.id, row]));
  known.failed = first.failed;
  addEventListener("hashchange", () => {
    show();
    main.focus({ preventScroll: true });
  });
  show();
  const lost = el("p", { class: "trouble lost", role: "alert", hidden: true });
  document.body.append(lost);
  await follow(first.version, take, (trouble) => {
    lost.hidden = trouble === null;
    if (trouble) lost.textContent = `No connection: ${trouble.message}. Is fedtaper ui still running?`;
    if (trouble) say(lost.textContent);
  });
}

function locked(why = "") {
  return el("section", {}, el("h1", {}, "This page is locked"),
    message(`Open the address that “fedtaper ui” shows in the terminal: it contains the key. ${why}`, "trouble"));
}

start();
