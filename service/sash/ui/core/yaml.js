// Writes plain values as YAML, and finds the line of a path in a text.

const PLAIN = /^([A-Za-z_][\w.-]*|(\d+(ns|us|ms|s|m|h|d|w))+)$/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off"]);

const scalar = (value) =>
  typeof value === "string"
    ? PLAIN.test(value) && !WORDS.has(value.toLowerCase())
      ? value
      : JSON.stringify(value)
    : JSON.stringify(value);

const inLine = (value) => {
  if (Array.isArray(value)) return `[${value.map(inLine).join(", ")}]`;
  if (value !== null && typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, each]) => `${scalar(name)}: ${inLine(each)}`)
      .join(", ")}}`;
  return scalar(value);
};

// A spec as people write it: a line for each aggregate, and defaults left out.
export function yamlOf(spec) {
  const lines = [];
  const defaults = { out_of_order: "allow", late: "drop", equal_times: "keep", clock: "event" };
  for (const [name, value] of Object.entries(spec)) {
    if (value === null || (name === "keyed" && (value === false || spec.keys))) continue;
    if (["aggregates", "fields"].includes(name)) {
      lines.push(
        `${name}:`,
        ...Object.entries(value).map(([each, about]) => `  ${scalar(each)}: ${inLine(withoutNulls(about))}`),
      );
    } else if (["slide", "order"].includes(name)) {
      const said = Object.entries(withoutNulls(value)).filter(([each, about]) => about !== defaults[each]);
      if (said.length > 0) lines.push(`${name}: ${inLine(Object.fromEntries(said))}`);
    } else {
      lines.push(`${name}: ${inLine(value)}`);
    }
  }
  return `${lines.join("\n")}\n`;
}

const withoutNulls = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).filter(([, each]) => each !== null))
    : value;

// Where a path such as `aggregates.p95.q` stands in a text: { line, from, to }, as far as its names can be found.
export function lineOf(text, path) {
  const lines = text.split("\n");
  let found = null;
  let start = 0;
  for (const name of path.split(".")) {
    const at = lines.findIndex(
      (line, i) =>
        i >= start && new RegExp(`(^|[\\s{,"'-])${name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")}["']?\\s*:`).test(line),
    );
    if (at < 0) break;
    [found, start] = [at, at];
  }
  if (found === null) return null;
  const from = lines.slice(0, found).reduce((sum, line) => sum + line.length + 1, 0);
  return { line: found + 1, from, to: from + lines[found].length };
}
