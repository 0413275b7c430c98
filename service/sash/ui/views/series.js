// Makes of the series of an aggregate the lines of a chart: of numbers, quantiles, M4, histograms. And of all that is
// shown a table, and a file of CSV.

import { ORDERED } from "../core/ask.js";
import { el, scrolling, table } from "../core/dom.js";
import { FULL, kindOf, textOf } from "../core/values.js";
import { instant, numeral, plural } from "../core/words.js";

const ROWS = 100;

// Whether groups have no answer, because their keys have no order between them.
export const isOrdered = (about) => ORDERED.has(about.function);

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
  const kind = kindOf(first, about);
  if (kind === "number") {
    const drawn = lines.map((line, i) => ({ label: named(line, ""), values: values[i].map(number) }));
    if (drawn.every((line) => line.values.every((each) => each === null)))
      return { note: `Every answer is ${first}, which has no place in a chart.`, label: "" };
    return { ...chart, lines: drawn, label: summary(drawn) };
  }
  if (kind === "quantiles") {
    const drawn = lines.flatMap((line, i) =>
      about.q.map((q, j) => ({
        label: named(line, `p${numeral(q * 100, 6)}`),
        dash: i,
        values: values[i].map((each) => number(each?.[j] ?? null)),
      })),
    );
    return { ...chart, lines: drawn, label: summary(drawn) };
  }
  if (kind === "m4") {
    const of = (line, i, which) => ({
      label: named(line, which),
      values: values[i].map((each) => number(each?.[which]?.value ?? null)),
    });
    const drawn = lines.flatMap((line, i) => ["max", "min", "last"].map((which) => of(line, i, which)));
    return { ...chart, lines: drawn, band: [1, 2], label: summary(drawn) };
  }
  if (kind === "histogram") {
    // One map a chart: the first line's.
    const rows = values[0].map((each) => each?.counts ?? null);
    const buckets = plural(rows.filter((each) => each !== null).length, "bucket");
    const label = `histograms of ${buckets} with ${plural(first.counts.length, "bin")}${whose && `, of ${whose}`}`;
    return {
      ...chart,
      of: whose,
      lines: [{ label: aggregate, values: rows.map((each) => (each === null ? null : 0)) }],
      heat: { bounds: first.bounds, rows },
      label,
    };
  }
  if (kind === "items" || kind === "list") {
    // How many there are can be drawn; which they are is in the table.
    if (kind === "items") {
      const names = [
        ...new Set(
          values.flatMap((of) => of.flatMap((each) => (each ?? []).slice(0, 4).map(({ item }) => String(item)))),
        ),
      ].slice(0, 8);
      const drawn = names.map((item) => ({
        label: item,
        values: values[0].map((each) =>
          each === null ? null : (each.find((one) => String(one.item) === item)?.count ?? 0),
        ),
      }));
      return { ...chart, axis: "count", of: whose, lines: drawn, label: summary(drawn) };
    }
    const drawn = lines.map((line, i) => ({
      label: named(line, "how many"),
      values: values[i].map((each) => (each === null ? null : each.length)),
    }));
    return { ...chart, lines: drawn, label: summary(drawn) };
  }
  if (kind === "ranks") {
    const drawn = lines.map((line, i) => ({
      label: named(line, "the first"),
      values: values[i].map((each) => number(each?.[0]?.value ?? null)),
    }));
    return { ...chart, lines: drawn, label: summary(drawn) };
  }
  if (kind === "object") {
    const names = Object.keys(first).filter(
      (each) => typeof first[each] === "number" && !["start", "end"].includes(each),
    );
    if (names.length > 0) {
      const drawn = lines.flatMap((line, i) =>
        names.map((each) => ({
          label: named(line, each),
          values: values[i].map((one) => number(one?.[each] ?? null)),
        })),
      );
      return { ...chart, lines: drawn, label: summary(drawn) };
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
  const columns = panels.flatMap(({ title, aggregate, about, lines }) =>
    lines.map(({ label, series }) => {
      const at = new Map(endsOf({ series }).map((end, i) => [end, i]));
      return {
        title,
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
