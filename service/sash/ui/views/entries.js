// The entries of a key, the newest first, page by page.
//
// The next page begins at the time of the last entry of this one, and leaves out as many entries of that time as were
// shown: `end` and `skip` in the address. So entries that arrive meanwhile move nothing.

import * as address from "../core/address.js";
import { Problem, questionOf, windowPath } from "../core/ask.js";
import { el, replaceKeepingFocus, say, scrolling, table, wait } from "../core/dom.js";
import { keyField } from "../core/keyfield.js";
import { FULL, counts, numeral, plural } from "../core/words.js";

const PAGE = 50;

export function entries({ name }) {
  let [spec, key, told, place, pager] = [];
  let hasOffered = false;
  let before = []; // where the pages before this one began
  let again = null;

  const move = (to) => {
    address.set({ end: null, skip: null, ...to });
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
    const question = questionOf({
      end: address.get("end"),
      limit: PAGE + skip + 1, // one more says whether there is a next page
      reverse: true,
      times: spec.time_unit === "none" ? null : "iso",
    });
    if (key !== null) question.append("key", address.get("key"));
    try {
      const { bulks } = await ask(windowPath(name, `/entries?${question}`));
      if (isCurrent()) show(bulks.flatMap(rowsOf).slice(skip));
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      if (isCurrent()) nothing(error.message, true);
    }
    return {};
  }

  // A row is [time, value of each column]. Of a window with panes a row is a pane, with how many entries it has.
  const columns = () => (spec.granularity ? ["entries"] : Object.keys(spec.fields ?? { value: "float64" }));
  // A window that has a field named `fields` has its fields beside the time.
  const valuesOf = (bulk) => (spec.granularity || Array.isArray(bulk.fields) ? bulk : bulk.fields);
  const rowsOf = (bulk) => bulk.time.map((time, i) => [time, ...columns().map((each) => valuesOf(bulk)[each][i])]);

  function nothing(text, bad = false) {
    say(told, text);
    told.classList.toggle("bad", bad);
    place.replaceChildren();
    pager.replaceChildren();
    return {};
  }

  function show(found) {
    const rows = found.slice(0, PAGE);
    if (rows.length === 0) nothing("There are no entries.");
    else {
      told.classList.remove("bad");
      const count = spec.granularity ? plural(rows.length, "pane", "panes") : plural(rows.length, "entry", "entries");
      say(told, `${count}, the newest first`);
      const heads = ["Time", ...columns().map((text) => ({ text, class: isNumber(text) ? "number" : null }))];
      const lines = rows.map(([time, ...values]) =>
        el(
          "tr",
          {},
          el(
            "th",
            { scope: "row" },
            typeof time === "number" ? counts.format(time) : time.replace("T", " ").replace(/\.0+Z/, "Z"),
          ),
          values.map((value, i) =>
            el("td", { class: isNumber(columns()[i]) ? "number" : null, title: numeral(value, FULL) }, numeral(value)),
          ),
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
      button("Older", found.length <= PAGE, () => {
        before.push({ end: address.get("end") || null, skip: address.get("skip") || null });
        const last = rows.at(-1)[0];
        const shown = rows.filter(([time]) => time === last).length;
        const more = String(last) === address.get("end") ? Number(address.get("skip")) : 0;
        move({ end: last, skip: shown + more });
      }),
    ]);
  }

  const isNumber = (column) => spec.granularity || !["string", "bool"].includes(spec.fields?.[column]);

  function readAddress() {
    key?.set(address.has("key") ? address.get("key") : null);
  }

  return { mount, refresh, readAddress };
}
