// Draws an answer: numbers as text, and what has parts as a small picture with its numbers.
//
//   histogram        bars with their bounds          quantiles       a row for each q, and a strip of dots
//   m4               first, last, least, greatest    frequent_items  a bar for each item
//   lists            a line, or what they hold       sketches        how large they are

import { el, sparkline, svg } from "./dom.js";
import { counts, instant, numeral, plural } from "./words.js";

const BLOBS = new Set(["bloom", "count_min", "theta_sketch", "naive_bayes"]);
const SHOWN = 12;
const SHOWN_COMPACT = 3;

// One of: none, number, text, histogram, m4, items, ranks, quantiles, list, blob, object
export function kindOf(value, about = {}) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number" || ["NaN", "Infinity", "-Infinity"].includes(value)) return "number";
  if (BLOBS.has(about.function)) return "blob";
  if (typeof value !== "object") return "text";
  if (Array.isArray(value)) {
    if (value.length > 0 && value.every((each) => each && typeof each === "object" && "item" in each)) return "items";
    if (value.length > 0 && value.every((each) => each && typeof each === "object" && "returned" in each))
      return "ranks";
    return Array.isArray(about.q) && about.q.length === value.length ? "quantiles" : "list";
  }
  if ("bounds" in value && "counts" in value) return "histogram";
  if ("first" in value && "last" in value && "min" in value && "max" in value) return "m4";
  return "object";
}

// In a few words, for a title, a table of a series or a screen reader.
export function textOf(value, about = {}, unit = "none", digits = undefined) {
  switch (kindOf(value, about)) {
    case "none":
      return "–";
    case "number":
      return numeral(value, digits);
    case "text":
      return String(value);
    case "blob":
      return `sketch of ${counts.format(bytesOf(value))} bytes`;
    case "histogram":
      return `${plural(total(value.counts), "value")} in ${plural(value.counts.length, "bin")}`;
    case "m4":
      return ["first", "last", "min", "max"].map((name) => `${name} ${numeral(value[name].value, digits)}`).join(", ");
    case "items":
      return value.map((each) => `${plainText(each.item)} ${counts.format(each.count)}`).join(", ");
    case "ranks":
      return value.map((each) => numeral(each.value, digits)).join(", ");
    case "quantiles":
      return value.map((each, i) => `${percentOf(about.q[i])} ${plainText(each, unit, digits)}`).join(", ");
    case "list":
      return value.length === 0
        ? "nothing"
        : `${plural(value.length, "value")}: ${value
            .slice(0, SHOWN)
            .map((each) => plainText(each, unit, digits))
            .join(", ")}`;
    default:
      return plainText(value, unit, digits);
  }
}

// As an element. `about` is the aggregate's spec, and `unit` the window's; in a table of many keys it is `compact`.
export function drawValue(value, about = {}, unit = "none", { compact = false } = {}) {
  const shown = compact ? SHOWN_COMPACT : SHOWN;
  switch (kindOf(value, about)) {
    case "none":
      return el("span", { class: "none" }, "–");
    case "number":
      return el("span", { class: "figure" }, numeral(value));
    case "text":
      return textValue(String(value));
    case "blob":
      return el("span", { class: "faint" }, textOf(value, about));
    case "histogram":
      return histogram(value);
    case "m4":
      return m4(value, unit);
    case "items":
      return items(value, shown);
    case "ranks":
      return ranks(value, about, unit, shown);
    case "quantiles":
      return quantiles(value, about.q, shown);
    case "list":
      return list(value, unit, shown);
    default:
      return members(value, unit);
  }
}

const bytesOf = (base64) => Math.floor((String(base64).replace(/=+$/, "").length * 3) / 4);
const total = (numbers) => numbers.reduce((sum, each) => sum + each, 0);
const percentOf = (q) => `p${numeral(q * 100, 6)}`;

function plainText(value, unit = "none", digits = undefined) {
  if (value === null) return "none";
  if (typeof value === "number") return numeral(value, digits);
  if (typeof value !== "object") return String(value);
  if (Array.isArray(value)) return value.map((each) => plainText(each, unit, digits)).join(", ");
  return Object.entries(value)
    .map(([name, each]) => `${name} ${member(name, each, unit, digits)}`)
    .join(", ");
}

// Of an object with times, such as a run: these are instants.
const member = (name, value, unit, digits) =>
  ["start", "end", "time"].includes(name) && Number.isInteger(value)
    ? instant(value, unit)
    : plainText(value, unit, digits);

function textValue(text) {
  if (text.length <= 80) return el("span", {}, text);
  return el("details", { class: "more" }, el("summary", {}, `${text.slice(0, 60)}…`), el("p", {}, text));
}

// Bars in the least space: the numbers are in a table that opens.
function histogram({ bounds, counts: found, nan }) {
  const most = Math.max(1, ...found);
  const [width, height] = [Math.max(90, Math.min(260, found.length * 18)), 44];
  const each = width / found.length;
  const name = (i) =>
    i === 0
      ? `< ${numeral(bounds[0])}`
      : i === bounds.length
        ? `≥ ${numeral(bounds[i - 1])}`
        : `${numeral(bounds[i - 1])} to ${numeral(bounds[i])}`;
  const bars = found.map((count, i) => {
    const tall = (count / most) * (height - 2);
    return svg(
      "rect",
      { x: i * each + 0.5, y: height - tall, width: Math.max(1, each - 1), height: tall, class: "bar" },
      svg("title", {}, `${name(i)}: ${counts.format(count)}`),
    );
  });
  const rows = found.map((count, i) => [name(i), counts.format(count)]);
  if (nan) rows.push(["NaN", counts.format(nan)]);
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `histogram of ${plural(total(found), "value")}`,
    },
    bars,
    svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "grid" }),
  );
  return el(
    "div",
    { class: "drawn" },
    picture,
    el(
      "div",
      { class: "ends faint" },
      el("span", {}, numeral(bounds[0], 4)),
      el("span", {}, numeral(bounds[bounds.length - 1], 4)),
    ),
    numbers(rows),
  );
}

function m4(value, unit) {
  const points = ["first", "min", "max", "last"].map((name) => ({ name, ...value[name] }));
  const sorted = [...points].sort((a, b) => a.time - b.time);
  const ys = points.map((point) => point.value).filter((each) => typeof each === "number");
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const [from, to] = [sorted[0].time, sorted[3].time];
  const x = (time) => 5 + ((time - from) / (to - from || 1)) * 110;
  const y = (each) => 39 - ((each - low) / (high - low || 1)) * 34;
  const at = sorted.filter((point) => typeof point.value === "number");
  const picture = svg(
    "svg",
    { viewBox: "0 0 120 44", width: 120, height: 44, role: "img", "aria-label": textOf(value) },
    svg("polyline", { class: "line", points: at.map((point) => `${x(point.time)},${y(point.value)}`).join(" ") }),
    at.map((point) =>
      svg(
        "circle",
        { class: "dot", cx: x(point.time), cy: y(point.value), r: 2.5 },
        svg("title", {}, `${point.name}: ${numeral(point.value)} at ${instant(point.time, unit)}`),
      ),
    ),
  );
  return el(
    "div",
    { class: "drawn" },
    picture,
    numbers(points.map((point) => [point.name, numeral(point.value), instant(point.time, unit)])),
  );
}

// What does not fit stands in a part that opens.
function opening(element, rest) {
  return rest.length === 0
    ? null
    : el("details", { class: "more" }, el("summary", {}, `${counts.format(rest.length)} more`), element(rest));
}

function items(found, shown) {
  const most = Math.max(1, ...found.map((each) => each.count));
  const row = ({ item, count, lower, upper }) => {
    const bar = el("i", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${(count / most) * 100}%`;
    const about =
      lower === upper || lower === undefined ? null : `from ${counts.format(lower)} to ${counts.format(upper)}`;
    return el(
      "li",
      {},
      el("span", { class: "item", title: plainText(item) }, plainText(item) === "" ? "(empty)" : plainText(item)),
      el("span", { class: "shares" }, bar),
      el("span", { class: "figure", title: about }, `${about ? "~" : ""}${counts.format(count)}`),
    );
  };
  const rows = (some) => el("ol", { class: "items" }, some.map(row));
  return el("div", { class: "drawn" }, rows(found.slice(0, shown)), opening(rows, found.slice(shown)));
}

// The largest or the smallest, with what each returns: its time, unless the spec says a field.
function ranks(found, about, unit, shown) {
  const what = (each) => (about.returns ? plainText(each.returned) : instant(each.returned, unit));
  const rows = (some) =>
    el(
      "table",
      { class: "small" },
      el(
        "tbody",
        {},
        some.map((each) =>
          el("tr", {}, el("td", { class: "number" }, numeral(each.value)), el("td", { class: "faint" }, what(each))),
        ),
      ),
    );
  return el("div", { class: "drawn" }, rows(found.slice(0, shown)), opening(rows, found.slice(shown)));
}

function quantiles(found, qs, shown) {
  const ys = found.filter((each) => typeof each === "number");
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const strip =
    ys.length < 2
      ? null
      : svg(
          "svg",
          {
            viewBox: "0 0 160 16",
            width: 160,
            height: 16,
            role: "img",
            "aria-label": `from ${numeral(low)} to ${numeral(high)}`,
          },
          svg("line", { x1: 6, x2: 154, y1: 8, y2: 8, class: "grid" }),
          found.map((each, i) =>
            typeof each === "number"
              ? svg(
                  "circle",
                  { class: "dot", cx: 6 + ((each - low) / (high - low || 1)) * 148, cy: 8, r: 4 },
                  svg("title", {}, `${percentOf(qs[i])}: ${numeral(each)}`),
                )
              : null,
          ),
        );
  const pairs = found.map((each, i) =>
    el("div", {}, el("dt", {}, percentOf(qs[i])), el("dd", {}, each === null ? "–" : plainText(each))),
  );
  const some = (few) => el("dl", { class: "pairs" }, few);
  return el("div", { class: "drawn" }, strip, some(pairs.slice(0, shown)), opening(some, pairs.slice(shown)));
}

function list(found, unit, shown) {
  if (found.length === 0) return el("span", { class: "faint" }, "nothing");
  const isOfNumbers = found.length > 3 && found.every((each) => typeof each === "number");
  const first = isOfNumbers ? Math.min(6, shown) : shown;
  const some = (few) =>
    el(
      "ul",
      { class: "chips" },
      few.slice(0, 1000).map((each) => el("li", {}, plainText(each, unit))),
    );
  return el(
    "div",
    { class: "drawn" },
    isOfNumbers ? sparkline(found) : null,
    some(found.slice(0, first)),
    opening(some, found.slice(first)),
  );
}

function members(value, unit) {
  const pairs = Object.entries(value).map(([name, each]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, member(name, each, unit))),
  );
  return el("div", { class: "drawn" }, el("dl", { class: "pairs" }, pairs));
}

const numbers = (rows) =>
  el(
    "details",
    { class: "more" },
    el("summary", {}, "numbers"),
    el(
      "table",
      { class: "small" },
      el(
        "tbody",
        {},
        rows.map(([name, ...cells]) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, name),
            cells.map((each) => el("td", { class: "number" }, each)),
          ),
        ),
      ),
    ),
  );
