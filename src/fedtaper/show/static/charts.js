// One chart for the report and the live page, around uPlot (vendor/uPlot.iife.min.js, loaded
// before this module as a classic script).
//
//   chart(parent, {title, xlabel, ylabel, logX, logY, x, series: [{name, values, ...}]})
//
// A series may have `x` of its own, `low` and `high` (a band), `style` ("solid", "dashed",
// "dotted"), `colour` (a number in the palette), `width` and `hidden`. Numbers that are missing
// are null. Hover (or the arrow keys) reads values, dragging zooms, a double click (or Escape)
// shows everything again, a click on a name in the legend hides its curve.

export const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };
const PALETTE = 7; // --series-0 to --series-6 in style.css: Okabe and Ito's colours
const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

/** A number for people: four digits, powers of ten where it is very large or small. */
export function format(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return power(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
}

function power(value) {
  const [front, exponent] = value.toExponential(2).split("e");
  const raised = [...String(Number(exponent))].map((c) => SUPERSCRIPT[c]).join("");
  const shown = String(Number(front));
  return (shown === "1" ? "" : shown === "-1" ? "-" : `${shown}·`) + `10${raised}`;
}

/** Ticks of a log axis: decades where there are many, 1-2-5 where few, even steps within one. */
export function logTicks(min, max) {
  const decades = Math.log10(max) - Math.log10(min);
  if (decades < 0.8) return evenTicks(min, max);
  const out = [];
  const factors = decades < 2.5 ? [1, 2, 5] : [1];
  const every = [1, 2, 3, 5, 10, 20, 50, 100].find((step) => step >= decades / 8);
  for (let e = Math.floor(Math.log10(min)); e <= Math.ceil(Math.log10(max)); e += 1) {
    if (e % every !== 0) continue;
    for (const factor of factors) {
      const at = Number(`${factor}e${e}`);
      if (at >= min * 0.9999 && at <= max * 1.0001) out.push(at);
    }
  }
  return out;
}

function evenTicks(min, max) {
  const rough = (max - min) / 7;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * base).find((s) => s >= rough);
  const out = [];
  for (let k = Math.ceil(min / step); k * step <= max; k += 1) {
    out.push(Number((k * step).toPrecision(10)));
  }
  return out;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Colour and dash of a curve: seven colours, then the same dashed, then dotted. */
function look(series, number) {
  const at = series.colour ?? number;
  const styles = Object.keys(DASHES);
  const style = series.style ?? styles[Math.floor(at / PALETTE) % styles.length];
  return { colour: css(`--series-${at % PALETTE}`), dash: DASHES[style], style, slot: at % PALETTE };
}

/** The curves as uPlot wants them: one x for all; on log axes only what is above zero. */
function columns(spec, logX, logY) {
  const clean = (values, log) =>
    values.map((v) => (v === null || !Number.isFinite(v) || (log && v <= 0) ? null : v));
  const tables = spec.series.map((one) => {
    const x = one.x ?? spec.x;
    const keep = x.map((v) => !logX || v > 0);
    const pick = (values) => clean(values.filter((_, j) => keep[j]), logY);
    const table = [x.filter((_, j) => keep[j]), pick(one.values)];
    if (one.low) table.push(pick(one.high), pick(one.low));
    return table;
  });
  if (!tables.length) return [[], []];
  if (!spec.series.some((one) => one.x)) {
    return [tables[0][0], ...tables.flatMap((table) => table.slice(1))];
  }
  return globalThis.uPlot.join(tables);
}

function padded(min, max, log) {
  if (min === null || max === null) return log ? [1, 10] : [0, 1];
  if (log) {
    if (min === max) return [min / 2, max * 2];
    const room = 10 ** ((Math.log10(max) - Math.log10(min)) * 0.04);
    return [min / room, Math.min(max * room, 1e308)];
  }
  if (min === max) return max > 0 ? [0, 1.25 * max] : [min - 1, max + 1];
  const room = (max - min) * 0.06;
  return [min >= 0 && min < 0.3 * max ? 0 : min - room, max + room];
}

class Chart {
  constructor(parent, spec) {
    this.spec = { series: [], ...spec };
    this.log = { x: Boolean(spec.logX), y: Boolean(spec.logY) };
    this.hidden = new Set(this.spec.series.filter((s) => s.hidden).map((s) => s.name));
    this.box = make("figure", { class: "chart" });
    this.head = make("figcaption", {}, make("span", { class: "chart-title" }, spec.title ?? ""));
    this.head.append((this.tools = make("span", { class: "chart-tools" })));
    this.unit = make("div", { class: "chart-unit", "aria-hidden": "true" }, spec.ylabel ?? "");
    this.plot = make("div", { class: "chart-plot", tabindex: "0", role: "group" });
    this.legend = make("ul", { class: "legend" });
    this.said = make("div", { class: "visually-hidden", "aria-live": "polite" });
    this.box.append(this.head, this.unit, this.plot, this.legend, this.said);
    parent.append(this.box);
    this.buttons();
    this.keys();
    this.draw();
    this.sized = new ResizeObserver(() => this.resize());
    this.sized.observe(this.plot);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.draw(this.zoom());
    this.dark.addEventListener("change", this.repaint);
    addEventListener("themechange", this.repaint);
  }

  buttons() {
    for (const axis of ["x", "y"]) {
      const button = make("button", { type: "button", "aria-pressed": String(this.log[axis]) });
      button.textContent = `log ${axis}`;
      button.title = `Switch the ${axis} axis between linear and logarithmic`;
      button.addEventListener("click", () => {
        this.log[axis] = !this.log[axis];
        button.setAttribute("aria-pressed", String(this.log[axis]));
        this.draw();
      });
      this.tools.append(button);
    }
    const all = make("button", { type: "button", title: "Show everything again (Escape)" }, "reset");
    all.addEventListener("click", () => this.draw());
    this.tools.append(all);
  }

  keys() {
    this.plot.addEventListener("keydown", (event) => {
      const u = this.u;
      const last = u.data[0].length - 1;
      const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10 }[event.key];
      const at = u.cursor.idx ?? 0;
      if (event.key === "Escape") this.draw();
      else if (event.key === "Home" || event.key === "End") this.point(event.key === "Home" ? 0 : last);
      else if (step !== undefined) this.point(Math.max(0, Math.min(last, at + step)));
      else if (event.key === "+" || event.key === "-") this.magnify(event.key === "+" ? 0.5 : 2);
      else return;
      event.preventDefault();
    });
  }

  point(index) {
    this.u.setCursor({ left: this.u.valToPos(this.u.data[0][index], "x"), top: this.u.over.clientHeight / 2 });
    const values = [...this.legend.querySelectorAll("li")].map((li) => li.textContent);
    this.said.textContent = `${this.spec.xlabel ?? "x"} ${format(this.u.data[0][index])}: ${values.join(", ")}`;
  }

  magnify(factor) {
    const { min, max } = this.u.scales.x;
    const [to, from] = this.log.x ? [Math.log, Math.exp] : [(v) => v, (v) => v];
    const middle = to(this.u.data[0][this.u.cursor.idx ?? Math.floor(this.u.data[0].length / 2)]);
    const half = ((to(max) - to(min)) / 2) * factor;
    this.u.setScale("x", { min: from(middle - half), max: from(middle + half) });
  }

  /** What is zoomed in on, or null. */
  zoom() {
    if (!this.u || !this.zoomed) return null;
    return { x: { ...this.u.scales.x }, y: { ...this.u.scales.y } };
  }

  axis(which, label) {
    const log = this.log[which];
    const line = { stroke: css("--grid"), width: 1 };
    const made = {
      stroke: css("--muted"), font: `12px ${css("--font")}`, labelFont: `12px ${css("--font")}`,
      grid: line, ticks: { ...line, size: 4 }, gap: 4,
      values: (u, splits) => splits.map((v) => (v === null ? "" : format(v))),
    };
    const whole = which === "x" && this.spec.series.every((one) => (one.x ?? this.spec.x).every(Number.isInteger));
    if (log) {
      made.splits = (u, i, min, max) => logTicks(min, max).filter((v) => !whole || Number.isInteger(v));
      made.filter = (u, splits) => splits; made.incrs = (u, i, min, max) => [Math.max(5, max - min)]; // beyond 1e16
    }
    if (!log && whole) {
      made.incrs = [...Array(12).keys()].flatMap((e) => [1, 2, 5].map((f) => f * 10 ** e));
    }
    if (which === "x") return { ...made, label, labelSize: 20, labelGap: 0, size: 30, space: 56 };
    const widest = (u, values) => Math.max(0, ...(values ?? []).map((v) => v.length)) * 6.6 + 14;
    return { ...made, size: widest, space: 32 };
  }

  curves() {
    const out = [{}];
    const bands = [];
    this.rows = [];
    this.spec.series.forEach((one, number) => {
      const { colour, dash } = look(one, number);
      const show = !this.hidden.has(one.name);
      const few = (one.x ?? this.spec.x ?? []).length <= (one.style ? 1 : 12) || one.values.filter(Number.isFinite).length === 1;
      this.rows.push({ first: out.length, count: one.low ? 3 : 1 });
      out.push({ label: one.name, stroke: colour, width: one.width ?? 1.75, dash, show, pxAlign: 0,
        points: { show: few, size: 6, fill: colour } });
      if (one.low) {
        const edge = { stroke: "transparent", width: 0, points: { show: false }, show };
        out.push({ ...edge }, { ...edge });
        bands.push({ series: [out.length - 2, out.length - 1], fill: `${colour}2e` });
      }
    });
    return { out, bands };
  }

  draw(zoom = null) {
    const { out, bands } = this.curves();
    const scale = (which) => ({
      time: false, distr: this.log[which] ? 3 : 1,
      range: (u, min, max) => (which === "y" || min === null ? padded(min, max, this.log[which])
        : u.data[0].length > 1 ? [min, max] : padded(u.data[0][0], u.data[0][0], this.log.x)), // one round
    });
    const data = columns(this.spec, this.log.x, this.log.y);
    const options = {
      ...this.size(), series: out, bands, padding: [8, 24, 0, 0],
      scales: { x: scale("x"), y: scale("y") },
      axes: [this.axis("x", this.spec.xlabel), this.axis("y")],
      legend: { show: false }, focus: { alpha: 0.25 },
      cursor: { drag: { x: true, y: true, uni: 24 }, points: { size: 7 } },
      hooks: {
        setCursor: [(u) => this.read(u)],
        setSelect: [(u) => { if (u.select.width > 0) this.zoomed = true; }],
      },
    };
    this.zoomed = zoom !== null;
    this.u?.destroy();
    this.u = new globalThis.uPlot(options, data, this.plot);
    this.u.over.addEventListener("dblclick", () => { this.zoomed = false; });
    if (zoom) for (const key of ["x", "y"]) this.u.setScale(key, zoom[key]);
    this.plot.setAttribute("aria-label", this.words());
    this.list();
  }

  words() {
    const names = this.spec.series.map((one) => {
      const last = one.values.findLast((v) => v !== null);
      return `${one.name} ends at ${format(last)}`;
    });
    const shown = names.length > 8 ? [...names.slice(0, 8), `and ${names.length - 8} more`] : names;
    const what = [this.spec.title, this.spec.ylabel].filter(Boolean).join(", ");
    return `Chart: ${what} by ${this.spec.xlabel ?? "x"}. ${shown.join("; ")}. Arrow keys read values.`;
  }

  list() {
    this.legend.replaceChildren();
    this.spec.series.forEach((one, number) => {
      const { style, slot } = look(one, number);
      const swatch = make("span", { class: `swatch ${style} colour-${slot}`, "aria-hidden": "true" });
      const value = make("span", { class: "value" });
      const button = make("button", { type: "button", title: "Hide or show this curve",
        "aria-pressed": String(!this.hidden.has(one.name)) }, swatch, one.name);
      button.addEventListener("click", () => this.toggle(number, button));
      button.addEventListener("mouseenter", () => this.u.setSeries(this.rows[number].first, { focus: true }));
      button.addEventListener("mouseleave", () => this.u.setSeries(null, { focus: true }));
      this.legend.append(make("li", {}, button, value));
    });
    this.read(this.u);
  }

  toggle(number, button) {
    const { name } = this.spec.series[number];
    const show = this.hidden.has(name);
    if (show) this.hidden.delete(name);
    else this.hidden.add(name);
    button.setAttribute("aria-pressed", String(show));
    const { first, count } = this.rows[number];
    for (let j = 0; j < count; j += 1) this.u.setSeries(first + j, { show });
  }

  /** The values under the cursor, or the last ones, beside the names. */
  read(u) {
    if (!u || !this.legend.children.length) return;
    const at = u.cursor.idx ?? u.data[0].length - 1;
    this.rows.forEach(({ first }, number) => {
      const values = u.data[first] ?? [];
      let j = at;
      while (j > 0 && values[j] === undefined) j -= 1; // this curve has no point just here
      this.legend.children[number].querySelector(".value").textContent = format(values[j]);
    });
    const x = u.cursor.idx == null ? "" : `${this.spec.xlabel ?? "x"} ${format(u.data[0][at])}`;
    this.unit.textContent = [this.spec.ylabel, x].filter(Boolean).join(" · ");
  }

  size() {
    const width = Math.max(200, Math.floor(this.plot.clientWidth) || 320);
    return { width, height: this.spec.height ?? (width < 420 ? 230 : 270) };
  }

  resize() {
    const { width, height } = this.size();
    if (this.u && width !== this.u.width) this.u.setSize({ width, height });
  }

  /** Other curves in the same chart; what is zoomed, hidden and logarithmic stays. */
  update(spec) {
    this.spec = { ...this.spec, ...spec };
    const same = this.spec.series.length === this.rows.length
      && this.spec.series.every((one, j) => this.u.series[this.rows[j].first].label === one.name
        && (one.low ? 3 : 1) === this.rows[j].count);
    if (!same) return void this.draw(this.zoom());
    this.u.setData(columns(this.spec, this.log.x, this.log.y), !this.zoomed);
    if (this.zoomed) this.u.redraw();
    this.read(this.u);
  }

  destroy() {
    this.sized.disconnect();
    this.dark.removeEventListener("change", this.repaint);
    removeEventListener("themechange", this.repaint);
    this.u.destroy();
    this.box.remove();
  }
}

export const chart = (parent, spec) => new Chart(parent, spec);

/** Make a button switch between light and dark, starting from what the reader's system says. */
export function themeButton(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const say = () => (button.textContent = dark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    say();
    dispatchEvent(new Event("themechange"));
  });
  system.addEventListener("change", say);
  say();
}
