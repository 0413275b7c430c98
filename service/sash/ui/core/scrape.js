// Reads /metrics, and tells rates and percentiles from two scrapes.

const LINE = /^(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Returns { at, samples: Map of name -> [{ labels, value }] }.
export function parse(text, at) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line[0] === "#" ? null : LINE.exec(line);
    if (found === null) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) {
      labels[name] = value.replace(/\\(.)/g, (_, each) => (each === "n" ? "\n" : each));
    }
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value: Number(found[3].replace("Inf", "Infinity")) });
  }
  return { at, samples };
}

export const valueOf = (scrape, name) => scrape.samples.get(name)?.[0]?.value ?? null;

export function sumOf(scrape, name, holds = () => true) {
  return (scrape.samples.get(name) ?? []).reduce((sum, each) => (holds(each.labels) ? sum + each.value : sum), 0);
}

// Of each value of a label: how often the histogram counted between two scrapes, and at which values.
// A histogram that began anew, because the service did, counts from its beginning.
export function histograms(older, newer, name, label) {
  const cumulative = (scrape) => {
    const found = new Map();
    for (const { labels, value } of scrape?.samples.get(`${name}_bucket`) ?? []) {
      const of = found.get(labels[label]) ?? new Map();
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      of.set(bound, (of.get(bound) ?? 0) + value);
      found.set(labels[label], of);
    }
    return found;
  };
  const before = cumulative(older);
  const made = new Map();
  for (const [which, bounds] of cumulative(newer)) {
    const was = before.get(which);
    const isAnew = was !== undefined && (was.get(Infinity) ?? 0) > (bounds.get(Infinity) ?? 0);
    made.set(
      which,
      [...bounds].sort(([a], [b]) => a - b).map(([at, count]) => [at, count - (isAnew ? 0 : (was?.get(at) ?? 0))]),
    );
  }
  return made;
}

export const totalOf = (buckets) => buckets[buckets.length - 1]?.[1] ?? 0;

// By the buckets, as histogram_quantile does: within a bucket values are taken as evenly spread.
export function percentile(buckets, q) {
  const total = totalOf(buckets);
  if (total === 0) return null;
  let [below, from] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= q * total) {
      return bound === Infinity ? Infinity : from + ((bound - from) * (q * total - below)) / (count - below || 1);
    }
    [below, from] = [count, bound];
  }
  return null;
}
