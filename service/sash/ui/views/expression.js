// A box for an expression of PromQL: names are offered as somebody types, and what is wrong is said below it.

import * as address from "../core/address.js";
import { questionOf } from "../core/ask.js";
import { el, field } from "../core/dom.js";

const OFFERED = 8;
const FUNCTIONS = [
  "abs",
  "avg by",
  "avg_over_time",
  "bottomk",
  "count by",
  "max by",
  "max_over_time",
  "min by",
  "sum by",
  "topk",
];
const WORD = /[\w:.]+$/;

export function expressionBox(change) {
  const box = el("textarea", { id: "expr", rows: 3, spellcheck: "false", placeholder: 'delays:mean{airport="JFK"}' });
  box.value = address.get("expr");
  const offers = el("div", { class: "row offers", role: "group", "aria-label": "Names that fit" });
  let names = null;

  box.addEventListener("input", () => {
    change({ expr: box.value });
    const word = WORD.exec(box.value.slice(0, box.selectionStart))?.[0] ?? "";
    const fits = [...(names ?? []), ...FUNCTIONS].filter((each) => each.includes(word) && each !== word);
    offers.replaceChildren(
      ...(word === "" ? [] : fits.slice(0, OFFERED)).map((each) =>
        el("button", { type: "button", onclick: () => take(each) }, each),
      ),
    );
  });

  function take(name) {
    const [before, after] = [box.value.slice(0, box.selectionStart), box.value.slice(box.selectionStart)];
    box.value = before.replace(WORD, "") + name + after;
    offers.replaceChildren();
    box.focus();
    box.selectionStart = box.selectionEnd = box.value.length - after.length;
    change({ expr: box.value });
  }

  // The names of metrics, once.
  async function offer(ask) {
    names ??= (await ask("/prometheus/api/v1/label/__name__/values")).data;
  }
  const hint = 'windows are metrics: window:aggregate{part="value", __lookback__="1h"}';
  return { element: el("div", {}, field("Expression", box, { wide: true, name: "query", hint }), offers), offer };
}

// The lines of an expression over a span: { lines, note, curl }. `millis` is how long a tick is.
export async function seriesOf(ask, query, { to, length, step }, millis, linesMax) {
  if (query.trim() === "") return { lines: [], note: "Write an expression." };
  const seconds = (ticks) => (ticks * millis) / 1000;
  const every = Math.max(0.001, seconds(step));
  const end = seconds(to - 1);
  const asked = questionOf({ query, start: end - seconds(length) + every, end, step: every });
  const path = `/prometheus/api/v1/query_range?${asked}`;
  const { data } = await ask(path).catch((error) => {
    if (error.name !== "AbortError" && error.status === 400) {
      error.field = "query"; // the only one that somebody wrote
      error.message = error.message.replace(/^invalid parameter "query": /, "");
    }
    throw error;
  });
  const times = [...new Set(data.result.flatMap(({ values }) => values.map(([at]) => at)))].sort((a, b) => a - b);
  const place = new Map(times.map((at, i) => [at, i]));
  const lines = data.result.slice(0, linesMax).map(({ metric, values }) => {
    const found = new Array(times.length).fill(null);
    for (const [at, value] of values) found[place.get(at)] = Number(value);
    const { __name__: name = "", ...labels } = metric;
    const label = [name, ...Object.values(labels)].filter(Boolean).join(" · ") || "value";
    const time = times.map((at) => Math.round((at * 1000) / millis));
    return { label, series: { time, width: 0, aggregates: { value: found } } };
  });
  const left = data.result.length - lines.length;
  const note =
    lines.length === 0 ? "Nothing fits this expression." : left > 0 ? `${left} more series are not drawn.` : "";
  return { lines, note, curl: `curl -s '${location.origin}${path.replaceAll("'", "%27")}'` };
}
