// Charts over time, by uPlot: lines with gaps, bands, and maps of histograms.
//
//   a point stands where its bucket ends        drag: zoom        ← → Home End: read the points by keyboard
//
// All charts of a view share one cursor. Colours come from the style sheet. Pointing at a line of a legend shows that
// line alone.

import { el, say } from "./dom.js";
import { FULL, compact, counts, instant, numeral } from "./words.js";

// Absent where the service was installed without the packages of the page; values then stand in tables only.
const uPlot = await import("../packages/uPlot.esm.js").then(
  (found) => found.default,
  () => null,
);
export const canDraw = uPlot !== null;
if (canDraw) document.head.append(el("link", { rel: "stylesheet", href: "/ui/packages/uPlot.css" }));

const COLOURS = 8;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
// Between the numbers of an axis of whole numbers.
const WHOLE = [1, 2, 5]
  .flatMap((each) => Array.from({ length: 15 }, (_, power) => each * 10 ** power))
  .sort((a, b) => a - b);

// A canvas knows no `light-dark()`, so an element tells what the colour is now.
const probe = document.body.appendChild(el("span", { hidden: true }));
function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
const scheme = matchMedia("(prefers-color-scheme: dark)");

export class Plot {
  // `onZoom(from, to)` is told what was selected, in the units of `xs`; `sync` names the charts with one cursor.
  constructor({ onZoom, sync }) {
    this.onZoom = onZoom;
    this.sync = sync;
    this.canvas = el("div", { class: "plot", tabindex: "0", role: "img", onkeydown: (event) => this.read(event) });
    this.legend = el("ul", { class: "legend", onmouseleave: () => this.drawn?.setSeries(null, { focus: true }) });
    this.reading = el("p", { class: "reading", "aria-live": "polite" });
    this.element = el("div", {}, this.canvas, el("div", { class: "under" }, this.legend, this.reading));
    this.drawn = null;
    this.signature = null;
    this.isInSight = false;
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(this.canvas);
    this.seen = new IntersectionObserver(
      ([entry]) => {
        this.isInSight = entry.isIntersecting;
        if (this.isInSight && this.waiting) this.show(this.waiting);
      },
      { rootMargin: "200px" },
    );
    this.seen.observe(this.canvas);
    this.themed = () => {
      this.signature = null;
      if (this.given) this.show(this.given);
    };
    scheme.addEventListener("change", this.themed);
  }

  // chart: { label, axis, xs, unit, millisPerX, lines: [{ label, values, dash? }],
  //          band?: [upper, lower], heat?: { bounds, rows } }; `axis` is what a value is of
  show(chart) {
    this.waiting = chart;
    if (!canDraw || !this.isInSight || this.canvas.clientWidth === 0) return;
    this.waiting = null;
    this.given = chart;
    const scale = chart.millisPerX === null ? 1 : chart.millisPerX / 1000;
    const data = [chart.xs.map((x) => x * scale), ...chart.lines.map((line) => line.values)];
    const signature = JSON.stringify([
      chart.axis,
      chart.lines.map((line) => line.label),
      chart.band,
      chart.millisPerX,
      chart.heat?.bounds,
    ]);
    this.canvas.setAttribute("aria-label", chart.label);
    if (this.drawn !== null && signature === this.signature) {
      this.drawn.setData(data);
    } else {
      this.drawn?.destroy();
      this.signature = signature;
      this.drawn = new uPlot(this.options(chart, scale), data, this.canvas);
      this.fit();
    }
    this.showLegend(null);
  }

  options(chart, scale) {
    const [text, grid] = [colour("--faint"), colour("--line")];
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const isTime = chart.millisPerX !== null;
    const bounds = chart.heat?.bounds;
    return {
      width: Math.max(200, this.canvas.clientWidth),
      height: this.canvas.clientHeight,
      legend: { show: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      fmtDate: (template) =>
        uPlot.fmtDate(
          template
            .replace("{M}/{D}/{YY}", "{YYYY}-{MM}-{DD}")
            .replace("{M}/{D}", "{MM}-{DD}")
            .replace("{h}:{mm}{aa}", "{HH}:{mm}")
            .replace("{h}{aa}", "{HH}:00"),
        ),
      focus: { alpha: 0.2 },
      cursor: {
        sync: { key: this.sync, setSeries: false },
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
      },
      scales: {
        x: { time: isTime },
        y: { range: bounds ? [0, bounds.length + 1] : (_, low, high) => padded(low, high) },
      },
      axes: [
        { ...axis, space: 70, ...(isTime ? {} : { values: (_, at) => at.map((each) => compact(each)) }) },
        {
          ...axis,
          ...(chart.axis ? { label: chart.axis, labelFont: font, labelSize: 20 } : {}),
          ...(chart.lines.every(({ values }) => values.every((each) => each === null || Number.isInteger(each))) &&
          !bounds
            ? { incrs: WHOLE }
            : {}),
          size: (_, labels) => 18 + 7 * Math.max(2, ...(labels ?? []).map((each) => String(each ?? "").length)),
          ...(bounds
            ? { splits: () => bounds.map((_, i) => i + 1), values: (_, at) => thinned(bounds, at) }
            : { values: (_, at) => marks(at) }),
        },
      ],
      series: [{}, ...chart.lines.map((line, i) => this.series(chart, line, i))],
      bands: chart.band ? [{ series: chart.band, fill: `color-mix(in srgb, ${colour("--c1")} 18%, transparent)` }] : [],
      hooks: {
        setCursor: [(drawn) => this.showLegend(drawn.cursor.idx)],
        setSelect: [
          (drawn) => {
            if (drawn.select.width < 4) return;
            const at = (left) => drawn.posToVal(left, "x") / scale;
            const [from, to] = [at(drawn.select.left), at(drawn.select.left + drawn.select.width)];
            drawn.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            this.onZoom(Math.floor(from), Math.ceil(to));
          },
        ],
        drawClear: bounds ? [(drawn) => this.heat(drawn)] : [],
      },
    };
  }

  series(chart, line, i) {
    const isEdge = chart.band?.includes(i + 1);
    return {
      label: line.label,
      stroke: colour(colourOf(line, i)),
      width: isEdge ? 0.75 : 1.6,
      dash: dashOf(line, i),
      points: { show: true, size: 4, filter: alone },
      spanGaps: false,
      show: !chart.heat,
    };
  }

  // A histogram for each bucket of time: the more of its values a bin has, the darker it is.
  heat(drawn) {
    const { heat, xs, millisPerX } = this.given;
    const scale = millisPerX === null ? 1 : millisPerX / 1000;
    const { ctx } = drawn;
    const across =
      xs.length > 1
        ? Math.abs(drawn.valToPos(xs[1] * scale, "x", true) - drawn.valToPos(xs[0] * scale, "x", true))
        : 20;
    ctx.save();
    ctx.beginPath();
    ctx.rect(drawn.bbox.left, drawn.bbox.top, drawn.bbox.width, drawn.bbox.height);
    ctx.clip();
    ctx.fillStyle = colour("--c1");
    heat.rows.forEach((counts_, i) => {
      if (counts_ === null) return;
      const most = Math.max(1, ...counts_);
      const right = Math.round(drawn.valToPos(xs[i] * scale, "x", true));
      const left = Math.round(right - across);
      counts_.forEach((count, bin) => {
        if (count === 0) return;
        ctx.globalAlpha = 0.12 + 0.88 * (count / most);
        const top = drawn.valToPos(bin + 1, "y", true);
        ctx.fillRect(left, top, right - left, drawn.valToPos(bin, "y", true) - top);
      });
    });
    ctx.restore();
  }

  showLegend(at) {
    const { lines, xs, unit, heat, band } = this.given;
    const i = at ?? xs.length - 1;
    const entries = lines.map((line, n) => ({ line, n })).filter(() => !heat);
    if (this.legend.children.length !== entries.length || this.legendOf !== this.signature) {
      this.legendOf = this.signature;
      this.legend.replaceChildren(
        ...entries.map(({ line, n }) => {
          const swatch = el("i", { "aria-hidden": "true" });
          const kind = ["solid", "dashed", "dotted", "dashed"][DASHES.indexOf(dashOf(line, n))];
          swatch.style.borderTop = `${band?.includes(n + 1) ? 1 : 3}px ${kind} var(${colourOf(line, n)})`;
          const alone = () => this.drawn?.setSeries(n + 1, { focus: true });
          return el("li", { onmouseenter: alone }, swatch, el("span", {}, line.label), el("b", {}));
        }),
      );
    }
    entries.forEach(({ line }, n) => {
      const figure = this.legend.children[n].lastChild;
      say(figure, numeral(line.values[i] ?? null));
      figure.title = numeral(line.values[i] ?? null, FULL);
    });
    const most = heat?.rows[i] ? ` · ${counts.format(heat.rows[i].reduce((sum, each) => sum + each, 0))} values` : "";
    this.when = `${instant(xs[i], unit)}${most}`;
    if (document.activeElement !== this.canvas || at === null) this.reading.setAttribute("aria-live", "off");
    say(this.reading, at === null ? `newest: ${this.when}` : this.when);
  }

  // Moves the cursor by keyboard; the reading is spoken then, with its values.
  read(event) {
    if (this.drawn === null || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const last = this.given.xs.length - 1;
    const now = this.drawn.cursor.idx ?? last + (event.key === "ArrowLeft" ? 1 : 0);
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    const i = Math.max(0, Math.min(last, next));
    this.drawn.setCursor({ left: this.drawn.valToPos(this.drawn.data[0][i], "x"), top: 10 });
    this.reading.setAttribute("aria-live", "polite");
    const values = this.given.lines.slice(0, 8).map((line) => `${line.label} ${numeral(line.values[i] ?? null)}`);
    say(this.reading, [this.when, ...values].join(", "));
  }

  fit() {
    const width = this.canvas.clientWidth;
    if (this.waiting && this.isInSight) this.show(this.waiting);
    else if (this.drawn !== null && width > 0 && this.drawn.width !== width)
      this.drawn.setSize({ width, height: this.canvas.clientHeight });
  }

  destroy() {
    scheme.removeEventListener("change", this.themed);
    this.resized.disconnect();
    this.seen.disconnect();
    this.drawn?.destroy();
    this.drawn = null;
  }
}

// As many lines as there are colours differ by these; a line may say which colour and dash it has.
const colourOf = (line, i) => `--c${((line.colour ?? i) % COLOURS) + 1}`;
const dashOf = (line, i) => DASHES[(line.dash ?? Math.floor(i / COLOURS)) % DASHES.length];

// The numbers of an axis, short where they still differ.
function marks(at) {
  const texts = at.map((each) => compact(each));
  return new Set(texts).size === texts.length ? texts : at.map((each) => numeral(each, 6));
}

// Points that no line reaches are dots; where there are few of them, all are.
function alone(drawn, of) {
  const values = drawn.data[of];
  if (values.length < 40) return null;
  return values.flatMap((each, i) =>
    each !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? [i] : [],
  );
}

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.05, high + Math.abs(high) * 0.05];
  const pad = (high - low) * 0.06;
  // A count, or a sum of what is not negative, starts at 0 rather than below it.
  return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
}

// Bounds stand between bins, and only some of them have room for their number.
function thinned(bounds, at) {
  const each = Math.ceil(bounds.length / 8);
  return at.map((_, i) => (i % each === 0 ? numeral(bounds[i], 4) : ""));
}
