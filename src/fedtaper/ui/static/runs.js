// Runs: the list, and the curves of those that are chosen, side by side while they grow.

import { get, post } from "./api.js";
import { chart, format } from "./charts.js";
import { ago, el, latest, message, say, table, whole } from "./dom.js";

const LOGARITHMIC = /error|loss|norm|change/;
const chosen = new Set(); // stays when another part of the page is shown
const awaited = new Set(); // chosen before the folder has them: runs that were just started
const SHOWN_INFLUENCE = 4;

export function runs(main, words, known) {
  const id = words.get("id");
  if (id) {
    chosen.clear();
    chosen.add(id);
    if (!known.rows.has(id)) awaited.add(id);
  }
  const page = new RunsPage(main, known);
  return () => page.leave();
}

class RunsPage {
  constructor(main, known) {
    this.known = known;
    this.details = new Map();
    this.charts = new Map();
    this.lines = new Map();
    this.filter = el("input", { type: "search", id: "filter", oninput: () => this.list() });
    this.count = el("span", { class: "muted", role: "status" });
    this.body = el("tbody");
    this.right = el("section", { "aria-label": "Chosen runs" });
    main.append(el("h1", {}, "Runs"), el("div", { class: "runs" }, this.left(), this.right));
    this.changed = (event) => this.rows(event.detail);
    known.addEventListener("rows", this.changed);
    this.fetch = latest(() => this.load());
    this.forget();
    if (!chosen.size && this.sorted()[0]) chosen.add(this.sorted()[0].id);
    this.list();
    this.frame();
    this.fetch();
  }

  leave() {
    this.known.removeEventListener("rows", this.changed);
    this.gone = true;
    for (const one of this.charts.values()) one.destroy();
  }

  left() {
    const head = ["Run", "State", "Round", "Last value", "Age"];
    const wide = ["", "", "wide", "", "wide"];
    return el("section", { class: "runs-list", "aria-label": "All runs" },
      el("p", { class: "row" }, el("label", { for: "filter" }, "Filter"), this.filter, this.count),
      el("div", { class: "table tall", tabindex: "0", role: "region", "aria-label": "List of runs" },
        el("table", {}, el("caption", { class: "visually-hidden" }, "Choose runs to see their curves"),
          el("thead", {}, el("tr", {}, head.map((h, j) =>
            el("th", { scope: "col", class: `${wide[j]} ${j > 1 ? "n" : ""}` }, h)))),
          this.body)));
  }

  sorted() {
    const rows = [...this.known.rows.values()];
    return rows.sort((a, b) => b.live - a.live || b.when - a.when || (a.id < b.id ? -1 : 1));
  }

  list() {
    const wanted = this.filter.value.toLowerCase();
    const rows = this.sorted().filter((row) => `${row.id} ${row.state} ${row.problem}`.toLowerCase().includes(wanted));
    const focused = document.activeElement?.dataset?.run;
    this.lines = new Map(rows.map((row) => [row.id, this.line(row)]));
    this.body.replaceChildren(...this.lines.values());
    if (focused !== undefined) this.lines.get(focused)?.querySelector("input").focus();
    const total = this.known.rows.size;
    this.count.textContent = rows.length === total ? `${total} runs` : `${rows.length} of ${total} runs`;
    if (!total) this.body.append(el("tr", {}, el("td", { colspan: 5 }, "No runs yet. Make one in the studio.")));
  }

  line(row) {
    const box = el("input", { type: "checkbox", "data-run": row.id, checked: chosen.has(row.id),
      onchange: () => this.choose(row.id, box.checked) });
    const failed = this.known.failed[row.id];
    return el("tr", {},
      el("th", { scope: "row" }, el("label", { class: "pick" }, box, el("span", {}, row.id))),
      el("td", {}, state(row, failed)),
      el("td", { class: "n wide" }, progress(row)),
      el("td", { class: "n" }, row.read ? last(row) : "…"),
      el("td", { class: "n wide" }, ago(row.when)));
  }

  choose(id, on) {
    if (on) chosen.add(id);
    else chosen.delete(id);
    this.frame();
    this.fetch();
  }

  /** Rows came: redraw the list if its order may be another one, else only their lines. */
  rows(changed) {
    const moved = [...changed].some((id) => !this.lines.has(id) || !this.known.rows.has(id));
    if (moved || changed.size > 50) this.list();
    else for (const id of changed) this.relist(id);
    this.forget();
    if ([...changed, ...awaited].some((id) => chosen.has(id))) this.fetch();
  }

  /** Chosen runs that are gone are not chosen any more. */
  forget() {
    for (const id of awaited) if (this.known.rows.has(id)) awaited.delete(id);
    for (const id of chosen) if (!this.known.rows.has(id) && !awaited.has(id)) chosen.delete(id);
  }

  relist(id) {
    const focused = document.activeElement?.dataset?.run === id;
    const fresh = this.line(this.known.rows.get(id));
    this.lines.get(id).replaceWith(fresh);
    this.lines.set(id, fresh);
    if (focused) fresh.querySelector("input").focus();
  }

  async load() {
    const ids = [...chosen];
    const found = await Promise.all(ids.map(async (id) => {
      if (awaited.has(id)) return [id, { id, trouble: "", round: [], metrics: {}, influence: null }];
      try {
        return [id, await get("run", { id })];
      } catch (trouble) {
        return [id, { id, trouble: trouble.message, round: [], metrics: {}, influence: null }];
      }
    }));
    if (this.gone) return;
    this.details = new Map(found.filter(([id]) => chosen.has(id)));
    this.draw();
  }

  /** The places that stay while curves grow: heads, charts, tables. */
  frame() {
    const count = chosen.size;
    this.title = el("h2", { id: "chosen" }, count === 1 ? [...chosen][0] : `${count} runs chosen`);
    this.heads = el("div", { class: "heads" });
    this.plots = el("div", { class: "charts" });
    this.after = el("div");
    for (const one of this.charts.values()) one.destroy();
    this.charts.clear();
    this.right.replaceChildren(this.title, this.heads, this.plots, this.after);
    if (!count) this.heads.append(message("Choose a run in the list to see its curves, or several to compare them."));
  }

  draw() {
    this.heads.replaceChildren(...[...this.details.keys()].map((id) => this.head(id)));
    const names = new Set([...this.details.values()].flatMap((one) => Object.keys(one.metrics)));
    for (const name of names) this.plot(`metric ${name}`, this.metric(name));
    const drawn = [...this.details].filter(([, one]) => one.influence).slice(0, SHOWN_INFLUENCE);
    for (const [id, one] of drawn) this.plot(`influence ${id}`, influence(one.influence, this.details.size > 1 ? id : ""));
    if (this.details.size > 1) this.compare(names);
    else if (this.details.size === 1) this.single([...this.details.values()][0]);
  }

  plot(key, spec) {
    if (this.charts.has(key)) return void this.charts.get(key).update(spec);
    const place = el("div", { "data-chart": key });
    this.plots.append(place);
    this.charts.set(key, chart(place, spec));
  }

  metric(name) {
    const series = [];
    [...this.details].forEach(([id, one], number) => {
      const found = one.metrics[name];
      if (found) series.push({ name: id, x: one.round, colour: number, ...found });
    });
    const log = LOGARITHMIC.test(name);
    return { title: this.titles()[name], xlabel: "round", logX: log, logY: log, x: [], series: cut(series, this.known.rows) };
  }

  /** The metrics of the chosen runs in words. */
  titles() {
    return Object.assign({}, ...[...this.details.values()].map((one) => one.titles ?? {}));
  }

  head(id) {
    const row = this.known.rows.get(id);
    const one = this.details.get(id);
    const buttons = [];
    if (row?.live) buttons.push(this.order("Stop", "stop", id));
    else if (row?.state === "unfinished" && !row.own) buttons.push(this.order("Resume", "resume", id));
    if (row && ["finished", "diverged"].includes(row.state)) {
      buttons.push(el("a", { href: `#/audit?${new URLSearchParams({ id })}` }, "Audit"));
    }
    const elsewhere = row?.state === "unfinished" && !row.live && row.own;
    const facts = row ? [`round ${progress(row)}`] : this.known.failed[id] ? [] : ["Starting…"];
    if (row?.clients) facts.push(`${row.clients} ${row.clients === 1 ? "client" : "clients"}`);
    if (row?.seeds > 1) facts.push(`${row.seeds} seeds: median, 10 to 90 %`);
    return el("div", { class: "head" }, this.details.size > 1 ? el("strong", {}, id) : null,
      row ? state(row, this.known.failed[id]) : null, facts.join(" · "), ...buttons,
      elsewhere ? message("Its model and data are code of your own: resume it where it was started, with --resume or resume=True.") : null,
      one.trouble || row?.trouble ? message(one.trouble || row.trouble, "trouble") : null,
      this.known.failed[id] ? message(this.known.failed[id], "trouble") : null);
  }

  order(label, path, id) {
    const button = el("button", { type: "button", "aria-label": `${label} ${id}`, onclick: async () => {
      button.disabled = true;
      say(`${label} ${id}`);
      try {
        await post(path, { id });
      } catch (trouble) {
        button.after(message(trouble.message, "trouble"));
      }
    } }, label);
    return button;
  }

  compare(names) {
    const columns = [...names];
    const rows = [...this.details].map(([id]) => {
      const ends = this.known.rows.get(id)?.ends ?? {};
      return [id, ...columns.map((name) => format(ends[name] ?? null))];
    });
    this.after.replaceChildren(el("h3", {}, "Last values"),
      table("Last values of the chosen runs", ["run", ...columns.map((name) => this.titles()[name])], rows, columns.map((_, j) => j + 1)));
  }

  single(one) {
    const parts = [];
    if (one.influence) {
      const rows = one.influence.groups.map((g) => [g.who, g.taper, format(g.now), format(g.limit)]);
      parts.push(el("h3", {}, "Influence"), table("Influence of each client",
        ["clients", "step size", "at the last round", "in the limit"], rows, [2, 3]));
    }
    if (one.events?.length) {
      parts.push(el("h3", {}, "Events"), table("Events of the federation", ["round", "site", "what", "why"],
        one.events.map((event) => [event.round, event.site || "server", event.kind, event.why])));
    }
    const facts = Object.entries(one.provenance ?? {});
    if (facts.length) parts.push(fold("Provenance", table("Provenance", ["what", "value"], facts)));
    if (one.settings) parts.push(fold("Settings (TOML)", el("pre", { tabindex: "0" }, one.settings)));
    if (one.log) parts.push(fold("Output", el("pre", { tabindex: "0" }, one.log)));
    const open = new Set([...this.after.querySelectorAll("details[open] summary")].map((s) => s.textContent));
    this.after.replaceChildren(...parts);
    for (const details of this.after.querySelectorAll("details")) {
      details.open = open.has(details.querySelector("summary").textContent);
    }
  }
}

const fold = (title, content) => el("details", {}, el("summary", {}, title), content);

/** Runs that diverged leave the chart at 1,000 times what the others reach, if there are others. */
function cut(series, rows) {
  const lost = (one) => rows.get(one.name)?.state === "diverged";
  const others = series.filter((one) => !lost(one)).flatMap((one) => one.values.filter(Number.isFinite));
  if (!others.length) return series;
  const top = 1e3 * others.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return series.map((one) => {
    if (!lost(one)) return one;
    const keep = (values) => values?.map((value) => (Math.abs(value) > top ? null : value));
    return { ...one, values: keep(one.values), ...(one.low ? { low: keep(one.low), high: keep(one.high) } : {}) };
  });
}

function state(row, failed) {
  const text = failed && !row.live ? "failed" : row.state;
  return el("span", { class: `state ${text}` }, text);
}

function progress(row) {
  if (row.round === null) return "–";
  const whole = row.rounds === null || row.rounds === row.round ? "" : ` / ${row.rounds.toLocaleString("en")}`;
  return `${row.round.toLocaleString("en")}${whole}`;
}

function last(row) {
  if (!row.title || row.value === null) return "–";
  return [el("span", { class: "muted small" }, whole(row.title)), " ", format(Number(row.value.toPrecision(3)))];
}

function influence(found, id) {
  const title = id ? `Influence, ${id}` : "Influence";
  const some = found.drawn.map((place) => found.groups[place]);
  const few = some.length < found.groups.length ? `; ${some.length} of ${found.groups.length} drawn` : "";
  const series = some.map((g) => ({ name: g.who, values: g.values }));
  return { title, xlabel: "round", ylabel: `relative to ${found.reference}${few}`, logX: true, x: found.round, series };
}
