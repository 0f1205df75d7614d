// Studio: sliders on the left; what they come to, computed by the library, on the right.

import { get, post } from "./api.js";
import { chart, format } from "./charts.js";
import { el, latest, message, say, table } from "./dom.js";
import { Panel } from "./sliders.js";

let kept = null; // the sliders' state stays when another part of the page is shown

export function studio(main) {
  const page = new StudioPage(main);
  page.start();
  return () => page.leave();
}

class StudioPage {
  constructor(main) {
    this.charts = new Map();
    this.left = el("section", { class: "controls", "aria-label": "Settings" });
    this.right = el("section", { class: "drawn", "aria-label": "Results" });
    main.append(el("h1", {}, "Studio"), el("p", { class: "muted" },
      "Linear regression with the paper’s data. Every number is computed by the library as you drag."),
      el("div", { class: "studio" }, this.left, this.right));
  }

  async start() {
    let offered;
    try {
      offered = await get("studio");
    } catch (trouble) {
      return void this.right.append(message(trouble.message, "trouble"));
    }
    this.ask = latest(() => this.draw(), (busy) => this.right.setAttribute("aria-busy", String(busy)));
    kept ??= structuredClone(Object.values(offered.presets)[0]);
    this.panel = new Panel(this.left, offered, kept, () => this.ask());
    this.left.append(this.out());
    this.frame();
    this.ask();
  }

  leave() {
    for (const one of this.charts.values()) one.destroy();
    this.gone = true;
  }

  /** Copying it and running it. */
  out() {
    this.name = el("input", { id: "run-name", value: "studio", autocomplete: "off", spellcheck: "false" });
    this.seeds = el("input", { id: "run-seeds", type: "number", min: "1", max: "1000", placeholder: "one" });
    this.told = el("div", { "aria-live": "polite" });
    this.source = el("pre", { tabindex: "0", "aria-label": "The experiment as text" });
    const copy = (kind, label) => el("button", { type: "button", onclick: () => this.copy(kind, label) }, `Copy as ${label}`);
    return el("fieldset", {}, el("legend", {}, "Export and run"),
      el("p", { class: "row" }, copy("toml", "TOML"), copy("python", "Python")),
      el("details", {}, el("summary", {}, "Show the text"), this.source),
      el("p", { class: "row" }, el("label", { for: "run-name" }, "Name"), this.name),
      el("p", { class: "row" }, el("label", { for: "run-seeds" }, "Seeds"), this.seeds,
        el("button", { type: "button", class: "main", onclick: () => this.run() }, "Run it")),
      this.told);
  }

  async copy(kind, label) {
    const text = this.found?.recipe[kind];
    if (!text) return;
    this.source.textContent = text;
    try {
      await navigator.clipboard.writeText(text);
      this.told.replaceChildren(message(`Copied as ${label}.`));
    } catch {
      this.source.closest("details").open = true;
      this.told.replaceChildren(message("The browser does not allow this page to copy: the text is shown above."));
    }
  }

  async run() {
    try {
      const words = { name: this.name.value, settings: this.panel.settings() };
      if (this.seeds.value) words.seeds = Number(this.seeds.value);
      const { id } = await post("start", words);
      const link = el("a", { href: `#/runs?${new URLSearchParams({ id })}` }, id);
      this.told.replaceChildren(el("p", { class: "note" }, "Running as ", link, "."));
    } catch (trouble) {
      this.told.replaceChildren(message(trouble.message, "trouble"));
    }
  }

  frame() {
    this.speed = el("p", { class: "muted small" });
    this.notes = el("div");
    this.ends = el("div", { id: "ends" });
    this.plots = el("div", { class: "charts" });
    this.clients = el("div", { id: "clients" });
    this.right.append(this.plots, this.notes, this.ends, el("h2", {}, "Clients"), this.clients, this.speed);
  }

  async draw() {
    const began = performance.now();
    let found;
    try {
      found = await post("draw", this.panel.settings());
    } catch (trouble) {
      return void this.notes.replaceChildren(message(trouble.message, "trouble"));
    }
    if (this.gone) return;
    this.found = found;
    this.source.textContent = found.recipe.toml;
    this.notes.replaceChildren(...found.notes.map((text) => message(text)));
    this.ends.replaceChildren(ends(found));
    this.clients.replaceChildren(clients(found.table));
    this.plot("influence", influence(found.influence));
    this.plot("distance", distance(found.distance));
    this.plot("model", model(found.model));
    this.speed.textContent = `Drawn in ${Math.round(performance.now() - began)} ms.`;
    say(`Distance to the equilibrium ${format(found.end.error ?? null)}`);
  }

  plot(key, spec) {
    if (this.charts.has(key)) return void this.charts.get(key).update(spec);
    const place = el("div", { "data-chart": key });
    this.plots.append(place);
    this.charts.set(key, chart(place, spec));
  }
}

const vector = (values) => (values ? `(${values.map((v) => format(v)).join(", ")})` : "–");

function ends(found) {
  const { end, equilibrium } = found;
  const rows = [
    ["Equilibrium of the influences at the last round, w*(p_n)", vector(equilibrium.now)],
    ["Equilibrium of the limit, w*(p)", vector(equilibrium.limit)],
    ["The ODE at the last round", vector(end.ode)],
    ["A fresh simulation at the last round", vector(end.model)],
    ["Its distance to w*(p_n)", format(end.error ?? null)],
    ["Its distance to w*(p)", format(end.error_limit ?? null)],
  ];
  const band = found.intervals;
  band?.low.forEach((low, j) => rows.push([
    `${Math.round(band.level * 100)} % interval for w*(p_n)[${j}], from the simulation`,
    `${format(low)} to ${format(band.high[j])}`]));
  return table("Where the model ends", [`At n = ${end.n.toLocaleString("en")}`, "value"], rows, [1]);
}

function clients(rows) {
  const head = ["client", "c", "delta", "influence now", "share", "in the limit", "loss at w*(p_n)"];
  return table("Clients", head, rows.map((row) => [`client ${row.client}`, format(row.c), format(row.delta),
    format(row.now), `${format(row.share * 100)} %`, format(row.limit), format(row.loss)]),
    [1, 2, 3, 4, 5, 6], [1, 2]);
}

function influence(found) {
  const series = found.groups.map((g) => ({ name: g.who, values: g.values }));
  return { title: "Influence p_n", xlabel: `n (the run ends at ${found.horizon.toLocaleString("en")})`,
    ylabel: "relative to the client with the most influence in the limit", logX: true, x: found.n, series };
}

function distance(found) {
  const looks = { run: ["simulation to w*(p_n)", 0, "solid"], limit: ["simulation to w*(p)", 1, "solid"],
    ode: ["ODE to w*(p_n)", 2, "dashed"] };
  const series = Object.entries(looks).filter(([key]) => found[key]).map(([key, [name, colour, style]]) =>
    ({ name, x: found[key].round, values: found[key].values, colour, style }));
  return { title: "Distance to the optimum", xlabel: "round", logX: true, logY: true, x: [], series };
}

function model(found) {
  const series = [];
  for (let j = 0; j < found.coordinates; j += 1) {
    if (found.run) series.push({ name: `w[${j}], simulation`, x: found.run.round, values: found.run.w[j], colour: j });
    if (found.ode) {
      series.push({ name: `w[${j}], ODE`, x: found.ode.round, values: found.ode.w[j], colour: j, style: "dashed",
        low: found.ode.low?.[j], high: found.ode.high?.[j] });
    }
  }
  return { title: "Shared model", xlabel: "round", logX: true, x: [], series };
}
