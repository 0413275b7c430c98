// The entries of a key, the newest first, page by page.
//
// The next page begins at the time of the last entry of this one, and leaves out as many entries of that time as were
// shown: `end` and `skip` in the address. So entries that arrive meanwhile move nothing.
//
// Of a window with `known`, what was retracted or corrected stands between them, and all have a mark:
//
//   12:03  7  arrival 5   corrected         12:01  9  arrival 6   out of order: 12:03 came before
//   12:03  4  arrival 2   until 5           12:00  1  arrival 1   retracted: nothing came in its place

import * as address from "../core/address.js";
import { Problem, questionOf, windowPath } from "../core/ask.js";
import { el, replaceKeepingFocus, say, scrolling, table, wait } from "../core/dom.js";
import { keyField } from "../core/keyfield.js";
import { FULL, counts, numeral, plural } from "../core/words.js";

const PAGE = 50;
const GONE = 500; // of what was retracted or corrected

export function entries({ name }) {
  let [spec, key, told, place, pager] = [];
  let hasOffered = false;
  let before = []; // where the pages before this one began
  let again = null;

  const move = (to) => {
    address.set({ end: null, skip: null, low: null, ...to });
    again();
  };

  function mount(root, found, refresh) {
    spec = found.spec;
    again = wait(refresh, 200);
    const changed = (value) => {
      before = [];
      address.set({ key: value });
      move({});
    };
    key = spec.keyed ? keyField(spec, address.has("key") ? address.get("key") : null, changed) : null;
    told = el("p", { class: "note", role: "status", id: "told" });
    place = el("div", {});
    pager = el("div", { class: "row buttons" });
    root.append(el("section", { class: "card", "aria-label": "Entries" }, key?.element ?? null, told, place, pager));
  }

  async function refresh({ ask, isCurrent }) {
    if (key !== null && !hasOffered) {
      const offered = await key.offer().catch(() => []);
      if (!isCurrent()) return {};
      hasOffered = offered.length > 0;
      if (hasOffered && !address.has("key")) {
        address.set({ key: offered[0] });
        key.set(offered[0]);
      }
    }
    if (key !== null && !address.has("key")) return nothing("The window has no keys yet.");
    const skip = Math.max(0, Number(address.get("skip")) || 0);
    const read = async (more) => {
      const question = questionOf({
        end: address.get("end"),
        reverse: true,
        times: spec.time_unit === "none" ? null : "iso",
        ...more,
      });
      if (key !== null) question.append("key", address.get("key"));
      const { bulks } = await ask(windowPath(name, `/entries?${question}`));
      return bulks.flatMap(rowsOf);
    };
    try {
      // One more says whether there is a next page.
      const found = (await read({ limit: PAGE + skip + 1, known: spec.known && "kept" })).slice(skip);
      const isLast = found.length <= PAGE;
      const rows = found.slice(0, PAGE);
      const gone =
        spec.known && isCurrent()
          ? await read({ limit: GONE, known: "removed", start: isLast ? null : rows.at(-1).time })
          : [];
      if (isCurrent())
        show(
          rows,
          gone.filter(({ time }) => String(time) !== address.get("end")),
          isLast,
        );
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      if (isCurrent()) nothing(error.message, true);
    }
    return {};
  }

  // Of a window with panes a row is a pane, with how many entries it has.
  const columns = () => (spec.granularity ? ["entries"] : Object.keys(spec.fields ?? { value: "float64" }));
  // A window that has a field named `fields` has its fields beside the time.
  const valuesOf = (bulk) => (spec.granularity || Array.isArray(bulk.fields) ? bulk : bulk.fields);
  const rowsOf = (bulk) =>
    bulk.time.map((time, i) => {
      const value = (column) => valuesOf(bulk)[column]?.[i];
      const numbers = { arrival: value("arrival!"), placed: value("placed!"), removed: value("removed!") };
      return { time, values: columns().map(value), ...numbers };
    });

  // The rows and what is no more, the newest first, each with what is known of it; and the lowest number of them.
  function marked(rows, gone) {
    const followed = new Map(gone.map((each) => [each.removed, each]));
    const there = new Set([...rows, ...gone].map(({ arrival }) => arrival));
    const order = ({ time }) => (typeof time === "number" ? time : time.replace("Z", ""));
    const all = [...rows, ...gone].sort((a, b) => (order(a) < order(b) ? 1 : order(a) > order(b) ? -1 : 0));
    let low = Number(address.get("low")) || Infinity; // of newer pages
    const seen = all.map((row) => {
      const first = row.placed ?? followed.get(row.arrival)?.placed ?? row.arrival;
      const isGone = row.removed !== undefined;
      const marks = [
        isGone ? (there.has(row.removed) ? "until corrected" : "retracted") : "",
        followed.has(row.arrival) && !isGone ? "corrected" : "",
        first > low ? "out of order" : "",
      ];
      low = Math.min(low, first);
      return { ...row, mark: marks.filter(Boolean).join(", ") };
    });
    return { seen, low };
  }

  function nothing(text, bad = false) {
    say(told, text);
    told.classList.toggle("bad", bad);
    place.replaceChildren();
    pager.replaceChildren();
    return {};
  }

  function show(rows, gone, isLast) {
    const { seen, low } = spec.known ? marked(rows, gone) : { seen: rows };
    if (seen.length === 0) nothing("There are no entries.");
    else {
      told.classList.remove("bad");
      const count = spec.granularity ? plural(rows.length, "pane", "panes") : plural(rows.length, "entry", "entries");
      const more = gone.length > 0 ? `, and ${counts.format(gone.length)} that were retracted or corrected` : "";
      say(told, `${count}, the newest first${more}`);
      const heads = [
        "Time",
        ...columns().map((text) => ({ text, class: isNumber(text) ? "number" : null })),
        ...(spec.known ? [{ text: "Arrival", class: "number" }, "Known"] : []),
      ];
      const lines = seen.map(({ time, values, arrival, removed, mark }) =>
        el(
          "tr",
          { class: removed === undefined ? null : "gone" },
          el(
            "th",
            { scope: "row" },
            typeof time === "number" ? counts.format(time) : time.replace("T", " ").replace(/\.0+Z/, "Z"),
          ),
          values.map((value, i) =>
            el("td", { class: isNumber(columns()[i]) ? "number" : null, title: numeral(value, FULL) }, numeral(value)),
          ),
          spec.known
            ? [
                el("td", { class: "number" }, counts.format(arrival)),
                el("td", {}, mark && el("span", { class: "badge" }, mark)),
              ]
            : [],
        ),
      );
      replaceKeepingFocus(place, [
        scrolling("Entries", table("Entries, the newest first", heads, lines, { id: "entries", class: "dense" })),
      ]);
    }
    const isFirst = !address.has("end");
    const button = (title, disabled, onclick) => el("button", { type: "button", disabled, onclick }, title);
    replaceKeepingFocus(pager, [
      button("Newest", isFirst, () => {
        before = [];
        move({});
      }),
      button("Newer", before.length === 0, () => move(before.pop())),
      button("Older", isLast, () => {
        before.push(Object.fromEntries(["end", "skip", "low"].map((each) => [each, address.get(each) || null])));
        const last = rows.at(-1).time;
        const shown = rows.filter(({ time }) => time === last).length;
        const more = String(last) === address.get("end") ? Number(address.get("skip")) : 0;
        move({ end: last, skip: shown + more, low });
      }),
    ]);
  }

  const isNumber = (column) => spec.granularity || !["string", "bool"].includes(spec.fields?.[column]);

  function readAddress() {
    key?.set(address.has("key") ? address.get("key") : null);
  }

  return { mount, refresh, readAddress };
}
