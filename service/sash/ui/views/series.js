// Makes of the series of an aggregate the lines of a chart: of numbers, quantiles, M4, histograms. And of all that is
// shown a table, and a file of CSV.

import { ORDERED } from "../core/ask.js";
import { el, scrolling, table } from "../core/dom.js";
import { kindOf, textOf } from "../core/values.js";
import { FULL, instant, numeral, plural } from "../core/words.js";

const ROWS = 100;

// Whether groups have no answer, because their keys have no order between them.
export const isOrdered = (about) => ORDERED.has(about.function);

const M4 = ["max", "min", "last"];
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

// Returns what `Plot.show` takes; or a note, where nothing can be drawn.
export function chartOf(aggregate, about, unit, lines, millisPerX) {
  const { time, width } = lines[0].series;
  const xs = time.map((each) => each + width);
  const values = lines.map((line) => line.series.aggregates[aggregate] ?? []);
  const first =
    values.flat().find((each) => each !== null && each?.length !== 0) ?? values.flat().find((each) => each !== null);
  const isEmpty = lines.every((line) => line.series.entries?.every((each) => each === 0));
  if (first === undefined)
    return { note: isEmpty ? "There are no entries in this time." : "There is no answer in this time.", label: "" };
  // What a value is of: the axis says so.
  const axis = about.function === "count" ? "entries" : (about.field ?? "");
  const chart = { xs, unit, millisPerX, axis };
  const whose = lines.length > 1 ? lines[0].label : ""; // where a chart has room for one line only
  const named = (line, text) => [line.label, text].filter(Boolean).join(" · ") || aggregate;
  const drawn = (made, more = {}) => ({ ...chart, lines: made, label: summary(made), ...more });
  // Of each key so many lines: several keys have a colour each, and its lines differ by dashes.
  const each = (names, valueOf) =>
    lines.flatMap((line, i) =>
      names.map((name, j) => ({
        label: named(line, name),
        ...(lines.length > 1 && names.length > 1 ? { colour: i, dash: j } : {}),
        values: values[i].map((one) => number(one === null ? null : valueOf(one, j))),
      })),
    );
  switch (kindOf(first, about)) {
    case "number": {
      const made = each([""], (one) => one);
      if (made.every((line) => line.values.every((one) => one === null)))
        return { note: `Every answer is ${first}, which has no place in a chart.`, label: "" };
      return drawn(made);
    }
    case "quantiles":
      return drawn(
        each(
          about.q.map((q) => `p${numeral(q * 100, 6)}`),
          (one, j) => one[j],
        ),
      );
    case "m4":
      return drawn(
        each(M4, (one, j) => one[M4[j]]?.value),
        { band: [1, 2] },
      );
    case "histogram": {
      // One map a chart: the first line's.
      const rows = values[0].map((one) => one?.counts ?? null);
      const buckets = plural(rows.filter((one) => one !== null).length, "bucket");
      const label = `histograms of ${buckets} with ${plural(first.counts.length, "bin")}${whose && `, of ${whose}`}`;
      const made = [{ label: aggregate, values: rows.map((one) => (one === null ? null : 0)) }];
      return drawn(made, { of: whose, heat: { bounds: first.bounds, rows }, label });
    }
    case "items": {
      const four = values.flatMap((of) => of.flatMap((one) => (one ?? []).slice(0, 4).map(({ item }) => String(item))));
      const made = [...new Set(four)].slice(0, 8).map((item) => ({
        label: item,
        values: values[0].map((one) =>
          one === null ? null : (one.find((found) => String(found.item) === item)?.count ?? 0),
        ),
      }));
      return drawn(made, { axis: "count", of: whose });
    }
    case "list": // How many there are can be drawn; which they are is in the table.
      return drawn(
        each(["how many"], (one) => one.length),
        { axis: "" },
      );
    case "ranks":
      return drawn(each(["the first"], (one) => one[0]?.value));
    case "object": {
      const names = Object.keys(first).filter(
        (name) => typeof first[name] === "number" && !["start", "end"].includes(name),
      );
      if (names.length > 0) return drawn(each(names, (one, j) => one[names[j]]));
    }
  }
  return { note: "These answers are no numbers; the table has them.", label: "" };
}

function summary(lines) {
  return lines
    .slice(0, 8)
    .map((line) => {
      const there = line.values.filter((each) => each !== null);
      if (there.length === 0) return `${line.label} has no answer`;
      const [low, high] = [there.reduce((a, b) => Math.min(a, b)), there.reduce((a, b) => Math.max(a, b))];
      return `${line.label} from ${numeral(low)} to ${numeral(high)}, newest ${numeral(there[there.length - 1])}`;
    })
    .join("; ");
}

// All that the charts show, the newest first. A panel is { aggregate, about, width, lines }.
export function valuesTable(panels, unit) {
  const times = [...new Set(panels.flatMap(({ lines }) => lines.flatMap(endsOf)))].sort((a, b) => b - a);
  const columns = panels.flatMap(({ title, over, aggregate, about, lines }) =>
    lines.map(({ label, series }) => {
      const at = new Map(endsOf({ series }).map((end, i) => [end, i]));
      return {
        title: title + over,
        about,
        text: [aggregate, label].filter(Boolean).join(" · "),
        of: series.aggregates[aggregate],
        at,
      };
    }),
  );
  const heads = ["Up to", ...columns.map(({ text, title }) => ({ text, title, class: "number" }))];
  const rows = times.slice(0, ROWS).map((end) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, instant(end, unit)),
      columns.map(({ of, at, about }) => {
        const value = at.has(end) ? of[at.get(end)] : null;
        return el("td", { class: "number", title: textOf(value, about, unit, FULL) }, textOf(value, about, unit));
      }),
    ),
  );
  return scrolling("Values", table("Values, the newest first", heads, rows, { class: "dense" }));
}

const endsOf = ({ series }) => series.time.map((each) => each + series.width);

// A line for each bucket of each key or group, with the bucket's ends.
export function csvOf(panels) {
  const names = [...new Set(panels.map(({ aggregate }) => aggregate))];
  const rows = new Map();
  for (const { aggregate, lines } of panels) {
    for (const { label, series } of lines) {
      series.time.forEach((start, i) => {
        const id = JSON.stringify([label, start, series.width]);
        if (!rows.has(id))
          rows.set(id, { label, start, end: start + series.width, entries: series.entries?.[i] ?? "" });
        rows.get(id)[aggregate] = series.aggregates[aggregate][i];
      });
    }
  }
  const cell = (value) => {
    const text =
      value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const heads = ["line", "start", "end", "entries", ...names];
  const lines = [...rows.values()].map((row) => [
    row.label,
    row.start,
    row.end,
    row.entries,
    ...names.map((name) => row[name]),
  ]);
  return [heads, ...lines].map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}
