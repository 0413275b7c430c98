// All windows, and how the service is: rates, memory, the tier, latencies.
//
// Rates are differences of two answers of this view; nothing is stored in the service for them.

import * as address from "../core/address.js";
import { Problem, Unauthenticated } from "../core/ask.js";
import {
  announce,
  el,
  input,
  replaceKeepingFocus,
  say,
  scrolling,
  select,
  sparkline,
  table,
  wait,
} from "../core/dom.js";
import { ago, bytes, compact, counts, instant, plural, rate, seconds } from "../core/words.js";

const LINE = /^(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const KEPT = 60; // samples of each rate
const DRAWN = 30; // of these, in a line: a minute, usually
const SMOOTHED = 5; // samples that a rate is the mean of
const ROWS = 50; // windows that are shown before somebody asks for more
const TAKEN = 10; // take-overs that are shown
const RATES = ["inserted", "late", "evicted", "duplicates", "ahead"];
const ORDERS = [
  ["name", "by name"],
  ["inserted", "by entries a second"],
  ["late", "by late entries"],
  ["entries", "by size"],
  ["newest", "by newest entry"],
];

export function open() {
  let [tiles, list, processes, latencies, note, more] = [];
  let rows = ROWS;
  const samples = new Map(); // of each window, and of "" for all: { at, counts, rates: { inserted: [...] } }
  const scrapes = [];
  let windows = [];
  let mayScrape = true;
  let topology = null; // which process has which shard
  const owners = new Map(); // of each shard, as it was last seen
  const taken = []; // { shard, from, to, at }, the newest first

  function mount(place) {
    tiles = el("div", { class: "tiles", id: "tiles" });
    note = el("p", { class: "faint", id: "found", role: "status" });
    mayScrape = true;
    list = el("div", {});
    latencies = el("div", {});
    more = el(
      "button",
      {
        type: "button",
        id: "more",
        hidden: true,
        onclick: () => {
          rows *= 4;
          show();
        },
      },
      "Show more windows",
    );
    const find = input(address.get("find"), {
      type: "search",
      id: "find",
      "aria-label": "Find",
      placeholder: "find a name",
    });
    find.addEventListener(
      "input",
      wait(() => {
        address.set({ find: find.value });
        rows = ROWS;
        show();
      }, 100),
    );
    const order = select(ORDERS, address.get("order", "name"), {
      "aria-label": "Order by",
      onchange: () => {
        address.set({ order: order.value === "name" ? "" : order.value });
        show();
      },
    });
    place.append(
      el(
        "section",
        { "aria-labelledby": "service-title" },
        el("h2", { id: "service-title", class: "unseen" }, "Service"),
        tiles,
      ),
      el(
        "section",
        { "aria-labelledby": "windows-title" },
        el(
          "div",
          { class: "head" },
          el("h2", { id: "windows-title" }, "Windows"),
          note,
          el("form", { role: "search", onsubmit: (event) => event.preventDefault() }, find, order),
        ),
        list,
        more,
      ),
      (processes = el("section", { class: "card", "aria-labelledby": "processes-title", hidden: true })),
      el(
        "section",
        { class: "card", "aria-labelledby": "latency-title" },
        el("h2", { id: "latency-title" }, "Operations"),
        latencies,
      ),
    );
  }

  async function refresh({ ask, isCurrent }) {
    const [listed, scraped, shared] = await Promise.all([ask("/v1/windows"), scrape(ask), askTopology(ask)]);
    if (!isCurrent()) return {};
    [windows, topology] = [listed.windows, shared];
    measure(windows);
    compare();
    if (scraped !== null) scrapes.push(scraped);
    if (scrapes.length > KEPT) scrapes.shift();
    show();
    return { status: plural(windows.length, "window") };
  }

  async function scrape(ask) {
    if (!mayScrape) return null;
    try {
      return parse(await ask("/metrics"), performance.now());
    } catch (error) {
      // A token may see some windows, and not the metrics, which are of all.
      if (error instanceof Problem && error.status === 403) mayScrape = false; // each refusal is in the audit log
      if (error instanceof Problem && !(error instanceof Unauthenticated)) return null;
      throw error;
    }
  }

  async function askTopology(ask) {
    if (!mayScrape) return null;
    try {
      return await ask("/v1/topology");
    } catch (error) {
      if (error instanceof Problem && !(error instanceof Unauthenticated)) return null;
      throw error;
    }
  }

  function measure(found) {
    const at = performance.now();
    const all = { counts: Object.fromEntries(RATES.map((name) => [name, 0])) };
    for (const each of found) for (const name of RATES) all.counts[name] += each.counts[name];
    for (const [name, now] of [["", all.counts], ...found.map((each) => [each.spec.name, each.counts])]) {
      const before = samples.get(name);
      const kept = before?.rates ?? Object.fromEntries(RATES.map((each) => [each, []]));
      if (before !== undefined && at > before.at) {
        for (const each of RATES) {
          kept[each].push(Math.max(0, ((now[each] - before.counts[each]) * 1000) / (at - before.at)));
          if (kept[each].length > KEPT) kept[each].shift();
        }
      }
      samples.set(name, { at, counts: now, rates: kept });
    }
    const names = new Set(found.map((each) => each.spec.name));
    for (const name of samples.keys()) if (name !== "" && !names.has(name)) samples.delete(name);
  }

  // What a process took over, from another one or from none, since this view was opened.
  function compare() {
    for (const { number, shards, up } of topology?.processes ?? []) {
      for (const shard of up ? shards : []) {
        const from = owners.get(shard);
        if (from !== undefined && from !== number) taken.unshift({ shard, from, to: number, at: new Date() });
        owners.set(shard, number);
      }
    }
    taken.splice(TAKEN);
  }

  // Over a few answers, so that figures can be read.
  function rateOf(name, which) {
    const lately = samples.get(name)?.rates[which].slice(-SMOOTHED) ?? [];
    return lately.length === 0 ? null : lately.reduce((sum, each) => sum + each, 0) / lately.length;
  }

  function show() {
    showTiles();
    showWindows();
    showProcesses();
    showLatencies();
  }

  const aSecond = (which) => (rateOf("", which) === null ? "–" : `${rate(rateOf("", which))}/s`);

  function showTiles() {
    const now = scrapes.at(-1);
    const drawn = [
      tile("Inserted", aSecond("inserted"), {
        line: samples.get("")?.rates.inserted,
        note: `${compact(samples.get("")?.counts.inserted ?? 0)} since the start`,
      }),
      tile("Late", aSecond("late"), {
        line: samples.get("")?.rates.late,
        note: `${compact(samples.get("")?.counts.late ?? 0)} since the start`,
        bad: rateOf("", "late") > 0,
      }),
    ];
    if (now !== undefined) drawn.push(memoryTile(now), tierTile(now), loopTile(), shardsTile(), refusedTile());
    replaceKeepingFocus(tiles, drawn.filter(Boolean));
  }

  function memoryTile(now) {
    const limit = valueOf(now, "sash_memory_limit_bytes");
    const used = sumOf(now, "sash_memory_bytes");
    return limit === null ? null : tile("Memory", bytes(used), { share: used / limit, note: `of ${bytes(limit)}` });
  }

  function tierTile(now) {
    const up = now.samples.get("sash_tier_up")?.[0];
    if (up === undefined) return tile("Tier", "none", { note: "windows are in memory only" });
    const [used, limit] = [valueOf(now, "sash_tier_used_bytes"), valueOf(now, "sash_tier_limit_bytes")];
    const waiting = valueOf(now, "sash_tier_pending_bytes");
    const state = up.value === 1 ? (used === null ? "up" : bytes(used)) : "takes no writes";
    const about = [up.labels.tier, limit === null ? "" : `of ${bytes(limit)}`, waiting ? `${bytes(waiting)} wait` : ""];
    return tile("Tier", state, {
      share: limit ? used / limit : null,
      bad: up.value !== 1,
      note: about.filter(Boolean).join(", "),
    });
  }

  // How long one operation keeps all others waiting.
  function loopTile() {
    const all = new Map();
    for (const buckets of histograms(earlier(), scrapes.at(-1), "sash_loop_held_seconds", "operation").values())
      for (const [bound, count] of buckets) all.set(bound, (all.get(bound) ?? 0) + count);
    const held = [...all].sort(([a], [b]) => a - b);
    if (totalOf(held) === 0) return null;
    return tile("Loop held, p99", seconds(percentile(held, 0.99)), { note: `p50 ${seconds(percentile(held, 0.5))}` });
  }

  function shardsTile() {
    if (topology === null || topology.shards === 1) return null;
    const up = topology.processes.filter((each) => each.up);
    const away = topology.shards - up.reduce((sum, each) => sum + each.shards.length, 0);
    return tile("Shards", counts.format(topology.shards), {
      note: away > 0 ? `${counts.format(away)} without a process` : `in ${plural(up.length, "process", "processes")}`,
      bad: away > 0,
    });
  }

  function refusedTile() {
    const [older, now] = [scrapes[0], scrapes.at(-1)];
    const refused = sumOf(now, "sash_requests_rejected_total");
    const recent = older === now ? 0 : Math.max(0, refused - sumOf(older, "sash_requests_rejected_total"));
    return tile("Refused requests", compact(refused), {
      note: recent > 0 ? `${compact(recent)} in the last minutes` : "none just now",
      bad: recent > 0,
    });
  }

  // About a minute ago, so that percentiles are of what happens now; the first time, since the start.
  const earlier = () => (scrapes.length > 1 ? scrapes[Math.max(0, scrapes.length - 31)] : undefined);

  function showWindows() {
    const wanted = address.get("find").toLowerCase();
    const order = address.get("order", "name");
    const found = windows.filter((each) => each.spec.name.toLowerCase().includes(wanted));
    const orders = {
      inserted: (each) => -(rateOf(each.spec.name, "inserted") ?? 0),
      late: (each) => -each.counts.late,
      entries: (each) => -each.entries,
      newest: (each) =>
        -(each.newest ?? -Infinity) * ({ ns: 1e-6, us: 1e-3, ms: 1, s: 1000 }[each.spec.time_unit] ?? 1e-12),
    };
    const by = Object.hasOwn(orders, order) ? orders[order] : undefined;
    if (by !== undefined) found.sort((a, b) => by(a) - by(b));
    const shown = found.slice(0, rows);
    more.hidden = shown.length === found.length;
    say(
      note,
      windows.length === 0
        ? ""
        : found.length === 0
          ? "No name contains this."
          : wanted || !more.hidden
            ? `${counts.format(shown.length)} of ${plural(found.length, "window")}`
            : "",
    );
    note.hidden = note.textContent === "";
    if (windows.length === 0) {
      replaceKeepingFocus(list, [
        el(
          "p",
          { id: "no-windows" },
          "There is no window yet. ",
          el("a", { href: "#create" }, "Create one"),
          ", or run ",
          el("code", {}, "sash create SPEC.yaml"),
          ".",
        ),
      ]);
      return;
    }
    replaceKeepingFocus(list, [el("ul", { class: "cards", id: "windows" }, shown.map(card))]);
    const worst = shown.filter((each) => each.problem).map((each) => each.spec.name);
    if (worst.length > 0) announce(`not served: ${worst.join(", ")}`);
  }

  function card({ spec, entries, keys, counts: of, newest, durability, problem }) {
    const [inserted, late] = [rateOf(spec.name, "inserted"), rateOf(spec.name, "late")];
    const lately = samples.get(spec.name)?.rates.inserted ?? [];
    const lag = ago(newest, spec.time_unit) ?? instant(newest, spec.time_unit);
    const facts = [
      ["Entries", counts.format(entries)],
      spec.keyed ? ["Keys", counts.format(keys)] : null,
      ["Late", late > 0 ? `${counts.format(of.late)} (${rate(late)}/s)` : counts.format(of.late), late > 0],
      of.duplicates > 0 ? ["Duplicates", counts.format(of.duplicates)] : null,
      of.ahead > 0 ? ["Too far ahead", counts.format(of.ahead)] : null,
      ["Evicted", counts.format(of.evicted)],
      ["Newest", lag, false, instant(newest, spec.time_unit)],
    ].filter(Boolean);
    return el(
      "li",
      { class: problem ? "card window danger" : "card window" },
      el(
        "div",
        { class: "head" },
        el("h3", {}, el("a", { href: address.to({ window: spec.name }) }, spec.name)),
        el("span", { class: problem ? "badge bad" : "badge" }, problem ? "not served" : durability),
      ),
      problem ? el("p", { class: "problem" }, problem) : null,
      el(
        "div",
        { class: "flow" },
        el("p", { class: "value" }, inserted === null ? "–" : rate(inserted), el("small", {}, " inserted/s")),
        lately.some(Boolean) ? sparkline(lately.slice(-DRAWN), { width: 150, height: 32, of: DRAWN }) : null,
      ),
      el(
        "dl",
        { class: "facts" },
        facts.map(([title, text, bad, about]) =>
          el("div", {}, el("dt", {}, title), el("dd", { class: bad ? "bad" : null, title: about }, text)),
        ),
      ),
    );
  }

  function showProcesses() {
    processes.hidden = topology === null || topology.shards === 1;
    if (processes.hidden) return;
    const sum = (sizes, what) => sizes.reduce((all, each) => all + each[what], 0);
    const rows = topology.processes.map(({ number, up, address: where, shards, sizes = [] }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, String(number)),
        el("td", { class: up ? null : "bad" }, up ? "up" : "down"),
        el("td", {}, where || "–"),
        el("td", { class: "name" }, spansOf(shards) || "–"),
        el("td", { class: "number" }, counts.format(sum(sizes, "entries"))),
        el("td", { class: "number" }, bytes(sum(sizes, "pending_bytes"))),
      ),
    );
    const heads = [
      ...["Process", "State", "Address", "Shards"],
      ...["Entries", "Waiting"].map((text) => ({ text, class: "number" })),
    ];
    const lines = taken.map(({ shard, from, to, at }) =>
      el("li", {}, `${at.toISOString().slice(11, 19)}Z: shard ${shard} went from process ${from} to ${to}`),
    );
    replaceKeepingFocus(processes, [
      el("h2", { id: "processes-title" }, "Processes"),
      scrolling("Processes", table("Processes", heads, rows, { id: "processes" })),
      el(
        "p",
        { class: "faint" },
        lines.length === 0 ? "No shard was taken over since this view was opened." : "Taken over:",
      ),
      ...(lines.length === 0 ? [] : [el("ul", { id: "taken" }, lines)]),
    ]);
  }

  function showLatencies() {
    const now = scrapes.at(-1);
    if (now === undefined) {
      replaceKeepingFocus(latencies, [
        el("p", { class: "faint" }, "Figures of the service need a token that may read every window."),
      ]);
      return;
    }
    const older = earlier();
    const made = [...histograms(older, now, "sash_operation_seconds", "operation")]
      .map(([operation, buckets]) => ({ operation, buckets, calls: totalOf(buckets) }))
      .filter(({ calls }) => calls > 0)
      .sort((a, b) => b.calls - a.calls)
      .map(({ operation, buckets, calls }) => {
        const failed = sumOf(now, "sash_operation_errors_total", (labels) => labels.operation === operation);
        const cells = [
          compact(calls),
          older === undefined ? "–" : rate((calls * 1000) / (now.at - older.at)),
          ...[0.5, 0.9, 0.99].map((q) => seconds(percentile(buckets, q))),
          compact(failed),
        ];
        return el(
          "tr",
          {},
          el("th", { scope: "row" }, operation),
          cells.map((text, i) => el("td", { class: i === 5 && failed > 0 ? "number bad" : "number" }, text)),
        );
      });
    const heads = [
      "Operation",
      ...["Calls", "Calls/s", "p50", "p90", "p99", "Errors"].map((text) => ({ text, class: "number" })),
    ];
    const about = older === undefined ? "since the service started" : "of the last minute";
    replaceKeepingFocus(latencies, [
      el(
        "p",
        { class: "faint" },
        made.length === 0 ? "No calls just now." : `Calls and latencies ${about}, errors since the start.`,
      ),
      ...(made.length === 0 ? [] : [scrolling("Operations", table("Operations", heads, made, { id: "latencies" }))]),
    ]);
  }

  return { mount, refresh, readAddress: () => show() };
}

function tile(title, value, { note, line, share = null, bad = false } = {}) {
  return el(
    "div",
    { class: bad ? "tile bad" : "tile" },
    el("h3", {}, title),
    el(
      "div",
      { class: "flow" },
      el("p", { class: "value" }, value),
      line?.some(Boolean) ? sparkline(line.slice(-DRAWN), { width: 90, of: DRAWN }) : null,
    ),
    share === null
      ? null
      : el("meter", {
          min: 0,
          max: 1,
          low: 0.7,
          high: 0.9,
          optimum: 0,
          value: Math.min(1, share),
          "aria-label": `${title}: ${Math.round(share * 100)} % used`,
        }),
    note ? el("p", { class: "faint" }, note) : null,
  );
}

// 0–3, 7: numbers in order, as spans.
function spansOf(numbers) {
  const spans = [];
  for (const each of [...numbers].sort((a, b) => a - b)) {
    const last = spans.at(-1);
    if (last?.[1] === each - 1) last[1] = each;
    else spans.push([each, each]);
  }
  return spans.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ");
}

// Reads what /metrics says: { at, samples: Map of name -> [{ labels, value }] }.
function parse(text, at) {
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

const valueOf = (scrape, name) => scrape.samples.get(name)?.[0]?.value ?? null;

function sumOf(scrape, name, holds = () => true) {
  return (scrape.samples.get(name) ?? []).reduce((sum, each) => (holds(each.labels) ? sum + each.value : sum), 0);
}

// Of each value of a label: how often the histogram counted between two scrapes, and at which values.
// A histogram that began anew, because the service did, counts from its beginning.
function histograms(older, newer, name, label) {
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

const totalOf = (buckets) => buckets[buckets.length - 1]?.[1] ?? 0;

// By the buckets, as histogram_quantile does: within a bucket values are taken as evenly spread.
function percentile(buckets, q) {
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
