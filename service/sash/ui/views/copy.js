// The question of a view as text for a shell, for Python, for PromQL and for Spark. A part of it may come from an
// address that somebody else made: everything in it is quoted, or is a number.

import { byId, el, say } from "../core/dom.js";
import { grpcPort, questionOf, token, windowPath } from "../core/ask.js";
import { labelsOf, partsOf } from "../core/words.js";

const TITLES = { curl: "curl", python: "Python", promql: "PromQL", spark: "SQL of Spark" };

export function copying() {
  const boxes = Object.fromEntries(
    Object.keys(TITLES).map((kind) => [
      kind,
      el("pre", { tabindex: "0", id: `copy-${kind}`, "aria-label": `The question as ${TITLES[kind]}` }),
    ]),
  );
  const rows = Object.entries(TITLES).map(([kind, title]) =>
    el(
      "div",
      { class: "copied" },
      el(
        "div",
        { class: "head" },
        el("h3", {}, title),
        el(
          "button",
          { type: "button", "aria-label": `Copy as ${title}`, onclick: (event) => copy(boxes[kind], event.target) },
          "Copy",
        ),
      ),
      boxes[kind],
    ),
  );
  const element = el("details", { class: "copy" }, el("summary", {}, "Copy this question"), rows);
  // Texts that the view has itself; what it has not is left out.
  const tell = (texts) =>
    Object.entries(boxes).forEach(([kind, box]) => {
      say(box, texts[kind] ?? "");
      box.parentElement.hidden = box.textContent === "";
    });
  const show = (spec, question) =>
    tell({
      curl: curlOf(spec, question),
      python: pythonOf(spec, question),
      promql: promqlOf(spec, question),
      spark: sparkOf(spec, question),
    });
  return { element, show, say: tell };
}

async function copy(box, button) {
  const text = box.textContent;
  try {
    await navigator.clipboard.writeText(text);
    say(byId("announcer"), "copied");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  } catch {
    // Without TLS a browser may refuse the clipboard: the text is selected, so that one key copies it.
    getSelection().selectAllChildren(box);
    button.textContent = "Press Ctrl+C";
  }
}

const members = (question) =>
  Object.fromEntries(
    Object.entries(question).filter(
      ([name, value]) =>
        name !== "kind" && value !== undefined && value !== "" && !(Array.isArray(value) && value.length === 0),
    ),
  );

const inShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curlOf(spec, question) {
  const { n, ...rest } = members(question);
  const asked = questionOf({ ...rest, ...(rest.top ? { n } : {}) });
  if (question.key === "") asked.append("key", "");
  const login = token.get() === null ? "" : ` -H "Authorization: Bearer $SASH_TOKEN"`;
  return `curl -s${login} ${inShell(`${location.origin}${windowPath(spec.name, `/${question.kind}`)}?${asked}`)}`;
}

// A text, a list or a number as Python writes it.
const inPython = (value) =>
  Array.isArray(value)
    ? `[${value.map(inPython).join(", ")}]`
    : typeof value === "string"
      ? JSON.stringify(value)
      : String(value);

function keyInPython(spec, key) {
  if (!spec.keys) return inPython(key);
  const values = partsOf(key);
  return `{${spec.keys.map((part, i) => `${inPython(part)}: ${inPython(values[i] ?? "")}`).join(", ")}}`;
}

export function pythonOf(spec, question) {
  const {
    kind,
    key,
    lookback = [],
    by = [],
    where = [],
    having = [],
    top,
    n,
    order,
    start,
    end,
    step,
    width,
    limit,
    aggregate = [],
  } = question;
  const given = [];
  if (kind === "series")
    given.push(
      inPython(start),
      inPython(end),
      `step=${inPython(step)}`,
      ...(width && width !== step ? [`width=${inPython(width)}`] : []),
    );
  if (aggregate.length > 0) given.push(`aggregates=${inPython(aggregate)}`);
  const isGrouped = by.length > 0 || where.length > 0 || Boolean(top);
  if (kind === "query" && lookback.length > 0) given.push(`lookbacks=${inPython(lookback)}`);
  if (key !== undefined && !isGrouped) given.push(`key=${keyInPython(spec, key)}`);
  if (where.length > 0) given.push(`where=${inPython(where)}`);
  if (by.length > 0) given.push(`by=${inPython(by)}`);
  if (top) given.push(`top=${inPython(top)}`, `n=${Number(n)}`, ...(order === "asc" ? [`order="asc"`] : []));
  if (having.length > 0) given.push(`having=${inPython(having)}`);
  if (limit) given.push(`limit=${limit}`);
  const method = kind === "series" ? (isGrouped ? "series_groups" : "series") : "query";
  const login = token.get() === null ? "" : ", token=TOKEN";
  return [
    "from sash_client import Client",
    "",
    `with Client("${location.hostname}:${grpcPort.get()}"${login}) as sash:`,
    `    window = sash.window(${inPython(spec.name)})`,
    `    found = window.${method}(${given.join(", ")})`,
    "    print(found)",
  ].join("\n");
}

// What PromQL cannot say is said in a comment.
export function promqlOf(
  spec,
  { kind, key, lookback = [], by = [], where = [], top, n = 10, order, aggregate = [], width },
) {
  if (spec.time_unit === "none") return "# Windows without a unit of time have no metrics.";
  const names = kind === "series" ? aggregate.slice(0, 1) : Object.keys(spec.aggregates).slice(0, 3);
  const matchers = [];
  if (key !== undefined && by.length === 0 && where.length === 0 && !top) {
    const values = spec.keys ? partsOf(key) : [key];
    labelsOf(spec).forEach((part, i) => matchers.push(`${part}=${JSON.stringify(values[i] ?? "")}`));
  }
  for (const condition of where) {
    const found = /^\s*([\w.-]+)\s*(=~|!~|!=|=)\s*(.*?)\s*$/.exec(condition);
    if (found) matchers.push(`${found[1]}${found[2]}${found[3].startsWith('"') ? found[3] : JSON.stringify(found[3])}`);
    else matchers.push(...inList(condition));
  }
  const lines = names.flatMap((name) =>
    (kind === "series" ? [width] : lookback.length > 0 ? lookback : [null]).map((each) => {
      const all = each ? [...matchers, `__lookback__=${JSON.stringify(each)}`] : matchers;
      const metric = `${spec.name}:${name}`;
      const plain = /^[A-Za-z_:][\w:]*$/.test(metric);
      const selector = plain
        ? `${metric}${all.length > 0 ? `{${all.join(", ")}}` : ""}`
        : `{${[`__name__=${JSON.stringify(metric)}`, ...all].join(", ")}}`;
      const grouped = by.length > 0 ? `sum by (${by.join(", ")}) (${selector})` : selector;
      return top === name ? `${order === "asc" ? "bottomk" : "topk"}(${Number(n)}, ${grouped})` : grouped;
    }),
  );
  if (by.length > 0)
    lines.unshift("# PromQL groups the keys' answers: sum fits counts and sums; Sash folds the entries of each group.");
  return lines.join("\n");
}

const inSql = (text) => `'${String(text).replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
const nameInSql = (text) => `\`${text.replaceAll("`", "``")}\``;

// A window as a view of Spark, which the data source `sash` reads. The view's rows have a column for each part.
export function sparkOf(
  spec,
  { kind, key, lookback = [], by = [], where = [], aggregate = [], start, end, step, width },
) {
  const isSeries = kind === "series";
  const options = {
    target: `${location.hostname}:${grpcPort.get()}`,
    window: spec.name,
    what: isSeries ? "series" : "answers",
    ...(isSeries ? { start, end, step, width } : { lookback: lookback.join(",") }),
    aggregates: aggregate.join(","),
    ...(key && by.length === 0 && !key.includes(",") ? { keys: key } : {}),
  };
  const pairs = Object.entries(options).filter(([, value]) => value !== "" && value !== undefined);
  const lines = [
    `CREATE OR REPLACE TEMPORARY VIEW ${nameInSql(spec.name)} USING sash OPTIONS (`,
    pairs.map(([name, value]) => `  ${name} ${inSql(value)}`).join(",\n"),
    ");",
    `SELECT * FROM ${nameInSql(spec.name)};`,
  ];
  if (by.length > 0 || where.length > 0)
    lines.unshift(
      "-- The view has a row for each key: Sash folds the entries of a group, which SQL cannot do with answers.",
    );
  return lines.join("\n");
}

// `carrier in (AA, B6)` as a regular expression.
function inList(condition) {
  const found = /^\s*([\w.-]+)\s+(not\s+)?in\s*\((.*)\)\s*$/.exec(condition);
  if (!found) return [];
  const values = found[3].split(",").map((each) =>
    each
      .trim()
      .replace(/^"|"$/g, "")
      .replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"),
  );
  return [`${found[1]}${found[2] ? "!~" : "=~"}${JSON.stringify(values.join("|"))}`];
}
