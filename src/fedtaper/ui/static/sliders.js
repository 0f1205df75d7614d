// The studio's sliders. The state is plain settings, as the server takes them.

import { post } from "./api.js";
import { format } from "./charts.js";
import { el, message } from "./dom.js";

const MODES = { influence: "Influence", steps: "c and delta" };
// [name, label, low, high, step, logarithmic]
const COMMON = [
  ["rounds", "Rounds", 100, 20000, 100, false],
  ["local_steps", "Local steps per round", 1, 50, 1, false],
  ["batch_size", "Batch", 1, 500, 1, false],
  ["sigma_w", "Heterogeneity (spread of the clients’ optima)", 0, 25, 0.5, false],
  ["feature_spread", "Spread of the features", 0.5, 25, 0.5, false],
  ["offset", "Offset of the clock", 0, 100, 1, false],
  ["seed", "Seed", 0, 100, 1, false],
];
const FEWEST = 1;
const MOST = 20;

/** A labelled slider; `set` gets the value while it is dragged. */
function slider(id, label, value, [low, high, step, log], set) {
  const to = log ? Math.log10 : (v) => v;
  const from = log ? (v) => Number((10 ** v).toPrecision(3)) : (v) => v;
  const shown = el("output", { for: id }, format(value));
  const range = el("input", { id, type: "range", min: to(low), max: to(high), step, oninput: () => {
    const now = from(Number(range.value));
    shown.textContent = format(now);
    range.setAttribute("aria-valuetext", format(now));
    set(now);
  } });
  range.value = to(Math.min(high, Math.max(low, value)));
  range.setAttribute("aria-valuetext", format(value));
  return el("div", { class: "slider" }, el("label", { for: id }, label), shown, range);
}

export class Panel {
  constructor(place, offered, state, changed) {
    Object.assign(this, { offered, state });
    this.changed = () => {
      this.preset.value = this.chosen ?? ""; // any other setting is no preset any more
      this.chosen = null;
      document.getElementById("goal-said")?.replaceChildren(); // it was about other settings
      changed();
    };
    this.top = el("div");
    this.each = el("div", { class: "each" });
    this.common = el("div");
    place.append(this.top, el("fieldset", {}, el("legend", {}, "Clients"), this.each),
      el("fieldset", {}, el("legend", {}, "Federation"), this.common));
    this.build();
  }

  settings() {
    const { mode, clients, c, delta, ...rest } = this.state;
    if (mode === "influence") {
      return { mode, ...rest, c: c ?? 0.1, delta: delta ?? 0.76, clients: clients.map(({ p }) => ({ p: p ?? 1 })) };
    }
    return { mode: "steps", ...rest, clients: clients.map(({ c: own, delta: taper }) => ({ c: own, delta: taper })) };
  }

  set(values) {
    Object.assign(this.state, values);
    this.changed();
  }

  build() {
    this.head();
    this.list();
    this.common.replaceChildren(...COMMON.map(([name, label, ...range]) =>
      slider(name, label, this.state[name], range, (value) => this.set({ [name]: value }))));
  }

  head() {
    const names = Object.keys(this.offered.presets);
    const preset = el("select", { id: "preset", onchange: () => {
      this.chosen = preset.value;
      if (preset.value) this.replace(structuredClone(this.offered.presets[preset.value]));
    } }, el("option", { value: "" }, "choose…"), names.map((name) => el("option", { value: name }, name)));
    this.preset = preset;
    const modes = Object.entries(MODES).map(([mode, label]) => {
      const radio = el("input", { type: "radio", name: "mode", value: mode, checked: this.state.mode === mode,
        onchange: () => this.turn(mode) });
      return el("label", { class: "pick" }, radio, label);
    });
    this.top.replaceChildren(
      el("p", { class: "row" }, el("label", { for: "preset" }, "Paper’s case"), preset),
      el("fieldset", { class: "plain row" }, el("legend", {}, "Each client has"), modes),
      slider("count", "Number of clients", this.state.clients.length, [FEWEST, MOST, 1, false], (n) => this.count(n)),
      this.goals());
  }

  /** Other sliders altogether. */
  replace(state) {
    for (const key of Object.keys(this.state)) delete this.state[key];
    Object.assign(this.state, state);
    this.build();
    this.changed();
  }

  goals() {
    if (!this.offered.goals.length) return null;
    const goal = el("select", { id: "goal" }, this.offered.goals.map(([name, text]) => el("option", { value: name }, text)));
    const told = el("div", { "aria-live": "polite" });
    const find = async () => {
      try {
        const found = await post("goal", { goal: goal.value, settings: this.settings() });
        const clients = found.p.map((p) => ({ p }));
        this.replace({ ...this.state, mode: "influence", clients });
        document.getElementById("goal").value = found.goal;
        document.getElementById("goal-said").replaceChildren(...found.said.map((text) => message(text)));
      } catch (trouble) {
        told.replaceChildren(message(trouble.message, "trouble"));
      }
    };
    told.id = "goal-said";
    return el("div", {}, el("p", { class: "row" }, el("label", { for: "goal" }, "Fair by"), goal,
      el("button", { type: "button", onclick: find }, "Find influences")), told);
  }

  /** The other kind of sliders, with what the present ones say; a delta for all is each client's. */
  turn(mode) {
    const { clients } = this.state;
    const rounded = (value) => Number(value.toPrecision(6));
    if (mode === "influence") {
      const first = clients.reduce((best, one) => (one.c > best.c ? one : best));
      Object.assign(this.state, { c: first.c, delta: first.delta });
      this.state.clients = clients.map((one) => ({ ...one, p: rounded(one.c / first.c) }));
    } else {
      const { c = 0.1, delta = 0.76 } = this.state;
      this.state.clients = clients.map((one) =>
        ({ c: rounded(c * (one.p ?? 1)), delta: one.delta ?? delta }));
    }
    this.state.mode = mode;
    this.list();
    this.changed();
  }

  count(n) {
    const { clients } = this.state;
    while (clients.length > n) clients.pop();
    while (clients.length < n) clients.push({ ...clients.at(-1) });
    this.list();
    this.changed();
  }

  list() {
    const { mode, clients } = this.state;
    const put = (one, values) => {
      Object.assign(one, values);
      this.changed();
    };
    if (mode === "influence") {
      const { c = 0.1, delta = 0.76 } = this.state;
      this.each.replaceChildren(
        slider("c", "c of a client with influence 1", c, [0.001, 10, 0.01, true], (value) => this.set({ c: value })),
        slider("delta", "delta of all clients", delta, [0, 1, 0.005, false], (value) => {
          for (const one of clients) delete one.delta; // what each had before counts no more
          this.set({ delta: value });
        }),
        ...clients.map((one, i) => slider(`p-${i}`, `Influence of client ${i}`, one.p ?? 1, [0.001, 1, 0.01, true],
          (p) => put(one, { p }))));
      return;
    }
    this.each.replaceChildren(...clients.map((one, i) => el("div", { class: "pair" },
      slider(`c-${i}`, `c of client ${i}`, one.c, [0.001, 10, 0.01, true], (c) => put(one, { c })),
      slider(`delta-${i}`, `delta of client ${i}`, one.delta, [0, 1, 0.005, false], (delta) => put(one, { delta })))));
  }
}
