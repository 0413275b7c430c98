// Makes of the series of an aggregate the lines of a chart: of numbers, quantiles, M4, histograms.

import { el, scrolling, table } from "../core/dom.js";
import { kindOf, textOf } from "../core/values.js";
import { counts, instant, numeral, plural } from "../core/words.js";

const ROWS = 100;

const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

// Returns what `Plot.show` takes; or a note, where nothing can be drawn.
export function chartOf(aggregate, spec, lines, millisPerX) {
  const about = spec.aggregates[aggregate];
  const unit = spec.time_unit;
  const { time, width } = lines[0].series;
  const xs = time.map((each) => each + width);
  const values = lines.map((line) => line.series.aggregates[aggregate] ?? []);
  const first =
    values.flat().find((each) => each !== null && each?.length !== 0) ?? values.flat().find((each) => each !== null);
  const isEmpty = lines.every((line) => line.series.entries.every((each) => each === 0));
  if (first === undefined)
    return { note: isEmpty ? "There are no entries in this time." : "There is no answer in this time.", label: "" };
  const chart = { xs, unit, millisPerX };
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
    const whose = lines.length > 1 ? `, of ${lines[0].label}` : "";
    const label = `histograms of ${buckets} with ${plural(first.counts.length, "bin")}${whose}`;
    return {
      ...chart,
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
      return { ...chart, lines: drawn, label: summary(drawn) };
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

// The newest first.
export function valuesTable(aggregate, spec, lines) {
  const about = spec.aggregates[aggregate];
  const { time, width } = lines[0].series;
  const shown = time
    .map((_, i) => i)
    .reverse()
    .slice(0, ROWS);
  const heads = [
    "From",
    "To",
    ...lines.flatMap((line) => [
      { text: line.label || aggregate, class: "number" },
      { text: "Entries", class: "number" },
    ]),
  ];
  const rows = shown.map((i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, instant(time[i], spec.time_unit)),
      el("td", {}, instant(time[i] + width, spec.time_unit)),
      lines.flatMap(({ series }) => [
        el("td", { class: "number" }, textOf(series.aggregates[aggregate][i], about, spec.time_unit)),
        el("td", { class: "number" }, counts.format(series.entries[i])),
      ]),
    ),
  );
  return scrolling(`Values of ${aggregate}`, table(`Values of ${aggregate}, the newest first`, heads, rows));
}
