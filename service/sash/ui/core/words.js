// Writes numbers, instants and durations, and reads durations.

import { Problem } from "./ask.js";

export const counts = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const MILLISECONDS = { ns: 1e-6, us: 1e-3, ms: 1, s: 1000 };
const DURATIONS = { ...MILLISECONDS, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

export const FULL = 17; // digits that tell every float64 from every other

// Integers in full, other numbers to so many digits, but never less than their integer: 1.235, 12,346, and 1e-9 rather
// than a row of zeros.
export function numeral(value, digits = 4) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  if (Number.isSafeInteger(value)) return counts.format(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  const shown = size >= 1e15 ? digits : Math.max(digits, Math.floor(Math.log10(size || 1)) + 1);
  const rounded = Number(value.toPrecision(shown));
  if (size !== 0 && (size < 1e-6 || size >= 1e15)) return rounded.toExponential();
  return rounded.toLocaleString("en", { maximumSignificantDigits: shown });
}

export const compact = (value) => (Math.abs(value) < 10_000 ? numeral(value, 4) : short.format(value));

export function rate(value) {
  if (value === null) return "–";
  return value === 0 ? "0" : value < 0.01 ? "<0.01" : compact(Number(value.toPrecision(3)));
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, count < 1 ? 0 : Math.floor(Math.log2(count) / 10));
  return `${numeral(Number((count / 1024 ** power).toPrecision(3)))} ${units[power]}`;
}

export function seconds(value) {
  if (value === null || Number.isNaN(value)) return "–";
  if (value === Infinity) return "> 2.5 s";
  const [scale, unit] = value < 0.995e-3 ? [1e6, "µs"] : value < 0.995 ? [1e3, "ms"] : [1, "s"];
  return `${numeral(Number((value * scale).toPrecision(2)))} ${unit}`;
}

export const plural = (count, one, many = `${one}s`) => `${counts.format(count)} ${count === 1 ? one : many}`;

// In UTC, which the Z says.
export function instant(ticks, unit) {
  if (ticks === null || ticks === undefined) return "–";
  const date = new Date(Number(ticks) * (MILLISECONDS[unit] ?? NaN));
  return Number.isNaN(date.getTime())
    ? numeral(Number(ticks))
    : date.toISOString().replace("T", " ").replace(".000Z", "Z");
}

// An instant that somebody wrote, in ticks: digits as they are, because nanoseconds are more than a number holds
// exactly; ISO 8601 in milliseconds and finer; else null.
export function ticksText(text, unit) {
  const plain = text.trim();
  if (/^-?\d{1,19}$/.test(plain)) return plain;
  const found = /^(.*?\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?$/.exec(plain.replace(" ", "T"));
  const millis = found === null ? NaN : Date.parse(`${found[1]}${found[3] ?? (found[1].includes("T") ? "Z" : "")}`);
  if (Number.isNaN(millis) || !(unit in MILLISECONDS)) return null;
  const nanos = BigInt(millis) * 1_000_000n + BigInt((found[2] ?? "").padEnd(9, "0"));
  return String(nanos / BigInt(Math.round(MILLISECONDS[unit] * 1e6)));
}

// JSON of a body with a time: one in digits is written as the number that it is.
export function withTime(time, body) {
  const rest = JSON.stringify(body).slice(1);
  return `{"time":${/^-?\d+$/.test(time) ? BigInt(time) : JSON.stringify(time)}${rest === "}" ? "" : ","}${rest}`;
}

// How long ago; null ahead of now, and where the unit is no time.
export function ago(ticks, unit) {
  const millis = Date.now() - Number(ticks) * (MILLISECONDS[unit] ?? NaN);
  if (ticks === null || !(millis >= 0)) return null;
  for (const suffix of ["d", "h", "m", "s"]) {
    if (millis >= DURATIONS[suffix]) return `${counts.format(Math.floor(millis / DURATIONS[suffix]))} ${suffix} ago`;
  }
  return "now";
}

// A duration, or a number of ticks, in ticks.
export function ticksOf(text, unit, name) {
  const plain = String(text).trim();
  if (/^\d+$/.test(plain) && Number(plain) > 0) return Number(plain);
  const parts = [...plain.matchAll(/(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d|w)/g)];
  if (unit === "none" || parts.length === 0 || parts.map((part) => part[0]).join("") !== plain) {
    const form = unit === "none" ? "a number of ticks (1000)" : "a duration (90s, 1h30m) or ticks";
    throw new Problem(`${name}: write ${form}.`, { field: name });
  }
  const millis = parts.reduce((sum, [, number, suffix]) => sum + Number(number) * DURATIONS[suffix], 0);
  return Math.max(1, Math.round(millis / MILLISECONDS[unit]));
}

// Ticks as a duration: 90000 ms is 1m30s.
export function durationOf(ticks, unit) {
  if (!(unit in MILLISECONDS)) return String(ticks);
  let left = Math.round(ticks * MILLISECONDS[unit] * 1e6);
  const parts = [];
  for (const suffix of ["d", "h", "m", "s", "ms", "us", "ns"]) {
    const size = DURATIONS[suffix] * 1e6;
    if (left >= size) parts.push(`${Math.floor(left / size)}${suffix}`);
    left %= size;
  }
  return parts.slice(0, 3).join("") || "0";
}

export const listed = (text) =>
  String(text)
    .split(/[\s,]+/)
    .filter(Boolean);

// The parts of a key that is written as one text: `|` between them, and `\` before one of a value.
export function partsOf(key) {
  const found = [""];
  for (let i = 0; i < key.length; i++) {
    if (key[i] === "\\" && i + 1 < key.length) found[found.length - 1] += key[++i];
    else if (key[i] === "|") found.push("");
    else found[found.length - 1] += key[i];
  }
  return found;
}

export const keyOf = (values) => values.map((value) => value.replace(/[\\|]/g, "\\$&")).join("|");

// A value in a condition, such as `carrier="A, B"`.
export const quoted = (value) => (/^[\w.:/@-]+$/.test(value) ? value : JSON.stringify(value));
export const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");

// The names by which questions select and group keys: the parts, or `key` where a key is one text.
export const labelsOf = (spec) => spec.keys ?? (spec.keyed ? ["key"] : []);
