// A line chart as SVG: one value over time or over logical ticks, with gaps where there is no answer.
//
//   value axis │      ╭─╮            a point stands where its bucket ends
//              │ ─────╯ ╰──  • ───   a lone point between two gaps is a dot
//              └───────────────────
//                time axis

const HEIGHT = 260;
const MARGIN = { top: 12, right: 16, bottom: 26 };
const CHARACTER_WIDTH = 7.2;
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const TIME_STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000],
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 7, 14, 30, 90, 180, 365, 730, 1825, 3650].map((n) => n * DAY),
];

// Where the pointer is: a chart that is drawn anew goes on showing the same place.
let pointedAt = null;

// Draws into an <svg>, whose width is that of its box.
//   xs, ys        n numbers each; ys also null where there is no answer. At least one is none.
//   millisPerX    what one unit of xs is in milliseconds since the Unix epoch; null where xs count something else
//   showValue     writes a value
//   onPoint(i)    is told which point is pointed at, or null
export function drawChart(svg, { xs, ys, millisPerX, showValue, onPoint }) {
  const width = Math.max(svg.clientWidth, 240);
  const there = ys.filter((y) => y !== null);
  const [low, high] = padded(smallest(there), largest(there));
  const values = roundTicks(low, high, 5);
  const left = 12 + CHARACTER_WIDTH * Math.max(...values.map((value) => showValue(value).length));
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const x = (each) => left + ((each - first) / (last - first || 1)) * (width - left - MARGIN.right);
  const y = (each) => HEIGHT - MARGIN.bottom - ((each - low) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom);

  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.replaceChildren();
  for (const value of values) {
    add(svg, "line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: y(value), y2: y(value) });
    add(svg, "text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, showValue(value));
  }
  const room = Math.max(2, Math.floor((width - left) / 110));
  for (const [at, label] of millisPerX === null ? numbersAlong(first, last, room) : timesAlong(first, last, millisPerX, room)) {
    add(svg, "line", { class: "grid", x1: x(at), x2: x(at), y1: HEIGHT - MARGIN.bottom, y2: HEIGHT - MARGIN.bottom + 5 });
    const half = (label.length * CHARACTER_WIDTH) / 2;
    const anchor = x(at) + half > width ? "end" : x(at) - half < 0 ? "start" : "middle";
    add(svg, "text", { class: "tick", x: x(at), y: HEIGHT - 6, "text-anchor": anchor }, label);
  }
  for (const run of runs(ys)) {
    if (run.length === 1) add(svg, "circle", { class: "point", cx: x(xs[run[0]]), cy: y(ys[run[0]]), r: 2 });
    else add(svg, "polyline", { class: "line", points: run.map((i) => `${round(x(xs[i]))},${round(y(ys[i]))}`).join(" ") });
  }
  point(svg, xs, ys, x, y, onPoint);
}

// Shows the point that is pointed at.
function point(svg, xs, ys, x, y, onPoint) {
  const rule = add(svg, "line", { class: "rule", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
  const mark = add(svg, "circle", { class: "mark", r: 4, visibility: "hidden" });
  const showAt = (i) => {
    rule.setAttribute("visibility", i === null ? "hidden" : "visible");
    mark.setAttribute("visibility", i === null || ys[i] === null ? "hidden" : "visible");
    if (i !== null) {
      rule.setAttribute("x1", x(xs[i]));
      rule.setAttribute("x2", x(xs[i]));
      mark.setAttribute("cx", x(xs[i]));
      mark.setAttribute("cy", y(ys[i] ?? 0));
    }
    onPoint(i);
  };
  const showPointed = () => {
    if (pointedAt === null) return showAt(null);
    const from = x(xs[0]);
    const share = (pointedAt - svg.getBoundingClientRect().left - from) / (x(xs[xs.length - 1]) - from || 1);
    showAt(Math.min(xs.length - 1, Math.max(0, Math.round(share * (xs.length - 1)))));
  };
  svg.onpointermove = (event) => {
    pointedAt = event.clientX;
    showPointed();
  };
  svg.onpointerleave = () => {
    pointedAt = null;
    showPointed();
  };
  showPointed();
}

// Indices of neighbours that have answers.
function runs(ys) {
  const found = [];
  let run = [];
  ys.forEach((y, i) => {
    if (y !== null) run.push(i);
    if (run.length > 0 && (y === null || i === ys.length - 1)) {
      found.push(run);
      run = [];
    }
  });
  return found;
}

// Not Math.min(...all): a call takes some ten thousands of arguments only.
const smallest = (all) => all.reduce((a, b) => (b < a ? b : a));
const largest = (all) => all.reduce((a, b) => (b > a ? b : a));

function padded(low, high) {
  if (low === high) return [low - (Math.abs(low) * 0.05 || 1), high + (Math.abs(high) * 0.05 || 1)];
  const pad = (high - low) * 0.05;
  // A count or a sum of what is not negative starts at 0 rather than below it.
  return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
}

// About `count` round numbers between two: 1, 2 or 5 times a power of ten apart.
function roundTicks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function numbersAlong(first, last, room) {
  if (first === last) return [[first, String(first)]];
  return roundTicks(first, last, room).map((at) => [at, String(at)]);
}

function timesAlong(first, last, millisPerX, room) {
  const [from, to] = [first * millisPerX, last * millisPerX];
  const step = TIME_STEPS.find((each) => (to - from) / each <= room) ?? DAY * 365 * Math.ceil((to - from) / (DAY * 365 * room));
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push([at / millisPerX, clock(at, step)]);
  return found.length > 0 ? found : [[first, clock(from, 1)]];
}

function clock(millis, step) {
  const date = new Date(millis);
  if (Number.isNaN(date.getTime())) return String(millis);
  const [day, time] = date.toISOString().replace("Z", "").split("T");
  if (millis % DAY === 0) return day;
  return time.slice(0, step < 1000 ? 12 : step < MINUTE ? 8 : 5);
}

function add(parent, name, attributes, text = null) {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function round(value) {
  return Math.round(value * 100) / 100;
}
