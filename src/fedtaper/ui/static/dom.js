// Small helpers to build pages. Text is always set as text, never as HTML.

/** An element with attributes and children; `on...` attributes are listeners, `false` is left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value === "boolean") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** A cell's text without a line break inside w*(p). */
export const whole = (cell) => (typeof cell !== "string" ? cell : cell.split(/(w\*\(p(?:_n)?\)(?:\[\d+\])?)/)
  .map((part, j) => (j % 2 ? el("span", { class: "whole" }, part) : part)));

/** A table: words to the left, columns in `right` to the right, those in `wide` on wide screens. */
export function table(caption, head, rows, right = [], wide = []) {
  const kind = (j) => [right.includes(j) ? "n" : "", wide.includes(j) ? "wide" : ""].join(" ").trim();
  const body = rows.map((row) => el("tr", {}, row.map((cell, j) =>
    j === 0 ? el("th", { scope: "row" }, whole(cell)) : el("td", { class: kind(j) }, cell))));
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "visually-hidden" }, caption),
      el("thead", {}, el("tr", {}, head.map((h, j) => el("th", { scope: "col", class: kind(j) }, whole(h))))),
      el("tbody", {}, body)));
}

/** Say something to people who listen rather than look. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

export function message(text, kind = "note") {
  return el("p", { class: kind, role: kind === "trouble" ? "alert" : "status" }, text);
}

/** How long ago, in one word. */
export function ago(when) {
  const seconds = Date.now() / 1000 - when;
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return "now";
}

/** Run only the latest of many requests: one at a time, those in between are dropped. */
export function latest(work, busy = () => {}) {
  let running = false;
  let next = null;
  return async function ask(...request) {
    next = request;
    if (running) return;
    running = true;
    busy(true);
    while (next) {
      const now = next;
      next = null;
      await work(...now);
    }
    running = false;
    busy(false);
  };
}
