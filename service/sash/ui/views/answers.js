// The current answers of one key, or of a window without keys: a column for each lookback, a row for each aggregate.

import * as address from "../core/address.js";
import { Problem, questionOf, windowPath } from "../core/ask.js";
import { announce, el, field, input, replaceKeepingFocus, say, scrolling, table, wait } from "../core/dom.js";
import { keyField } from "../core/keyfield.js";
import { drawValue, textOf } from "../core/values.js";
import { FULL, counts, instant, listed, plural } from "../core/words.js";
import { copying } from "./copy.js";

export function answers({ name }) {
  let [key, lookbacks, told, place, find, copy] = [];
  let spec = null;
  let before = new Map();
  let offeredIn = null;

  function mount(root, found, refresh) {
    spec = found.spec;
    const again = wait(refresh, 250);
    key = spec.keyed
      ? keyField(spec, address.has("key") ? address.get("key") : null, (value) => {
          address.set({ key: value });
          again();
        })
      : null;
    lookbacks = input(address.get("lookbacks", usual(spec)), { id: "lookbacks", placeholder: "5m 1h 1d" });
    lookbacks.addEventListener("input", () => {
      address.set({ lookbacks: lookbacks.value === usual(spec) ? null : lookbacks.value || " " });
      again();
    });
    find = input("", { type: "search", id: "find-aggregate", placeholder: "part of a name" });
    find.addEventListener("input", wait(refresh, 100));
    told = el("p", { class: "note", role: "status", id: "told" });
    place = el("div", { id: "answers-place" });
    copy = copying();
    root.append(
      el(
        "section",
        { class: "card", "aria-label": "Answers" },
        el(
          "form",
          { id: "question", onsubmit: (event) => event.preventDefault() },
          key?.element ?? null,
          field("Lookbacks", lookbacks, {
            wide: true,
            name: "lookback",
            hint:
              spec.time_unit === "none"
                ? "ticks, with spaces between; empty: everything"
                : "durations with spaces between; empty: everything",
          }),
          Object.keys(spec.aggregates).length > 12 ? field("Find aggregates", find) : null,
        ),
        told,
        place,
        copy.element,
      ),
    );
  }

  async function refresh({ ask, isCurrent }, found) {
    spec = found.spec;
    if (key !== null && offeredIn === null) {
      offeredIn = await key.offer().catch(() => null);
      if (!isCurrent()) return {};
      if (offeredIn?.length === 0)
        offeredIn = null; // the first may come at any time
      else if (!address.has("key") && offeredIn !== null) {
        address.set({ key: offeredIn[0] });
        key.set(offeredIn[0]);
      }
    }
    if (spec.keyed && !address.has("key")) return nothing("The window has no keys yet.");
    const question = {
      key: spec.keyed ? address.get("key") : undefined,
      lookback: listed(address.get("lookbacks", usual(spec))),
    };
    try {
      const path = windowPath(name, "/query");
      // A key may be the empty text, which `questionOf` would leave out.
      const text = questionOf({ lookback: question.lookback });
      if (spec.keyed) text.append("key", question.key);
      const answered = await ask(`${path}?${text}`);
      if (!isCurrent()) return {};
      show(answered.answers);
      copy.show(spec, { kind: "query", ...question });
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      if (isCurrent()) nothing(error.message, true);
    }
    return {};
  }

  function nothing(text, bad = false) {
    say(told, text);
    told.classList.toggle("bad", bad);
    lookbacks.setAttribute("aria-invalid", String(bad && /lookback/.test(text)));
    place.replaceChildren();
    before = new Map();
    return {};
  }

  function show(found) {
    told.classList.remove("bad");
    lookbacks.removeAttribute("aria-invalid");
    say(told, found.every((answer) => answer.entries === 0) ? "There are no entries in this time." : "");
    const wanted = find.value.toLowerCase();
    const names = Object.keys(spec.aggregates).filter((each) => each.toLowerCase().includes(wanted));
    const unit = spec.time_unit;
    const now = new Map();
    const heads = [
      "Aggregate",
      ...found.map((answer) => ({
        text: answer.lookback ?? "all",
        title: `${instant(answer.start, unit)} to ${instant(answer.end, unit)}`,
      })),
    ];
    const cell = (title, i, text, drawn = text, full = null) => {
      const id = `${found[i].lookback} ${title}`;
      now.set(id, text);
      const has = before.has(id) && before.get(id) !== text;
      return el("td", { class: has ? "changed" : null, title: full }, drawn);
    };
    const line = (title, texts, about) => el("tr", {}, el("th", { scope: "row", title: about }, title), texts);
    const rows = [
      line(
        "entries",
        found.map((answer, i) => cell("entries", i, counts.format(answer.entries))),
      ),
      line(
        "from",
        found.map((answer) => el("td", { class: "faint" }, instant(answer.start, unit))),
      ),
      line(
        "to",
        found.map((answer) => el("td", { class: "faint" }, instant(answer.end, unit))),
      ),
      ...names.map((title) =>
        line(
          title,
          found.map((answer, i) => {
            const [value, about] = [answer.aggregates[title], spec.aggregates[title]];
            const [drawn, full] = [drawValue(value, about, unit), textOf(value, about, unit, FULL)];
            return cell(title, i, textOf(value, about, unit), opened(drawn, `${title} ${i}`), full.slice(0, 2000));
          }),
          describe(spec.aggregates[title]),
        ),
      ),
    ];
    const scrolled = place.firstElementChild?.scrollLeft ?? 0;
    replaceKeepingFocus(place, [
      scrolling("Answers", table(`Answers of ${name}`, heads, rows, { id: "answers", class: "wide-cells" })),
    ]);
    place.firstElementChild.scrollLeft = scrolled;
    const changed = [...now].filter(([id, text]) => before.has(id) && before.get(id) !== text);
    if (changed.length > 0)
      announce(
        `${plural(changed.length, "answer")} changed: ${changed
          .slice(0, 3)
          .map(([id, text]) => `${id.replace("null", "all")} ${text}`)
          .join("; ")}`,
      );
    before = now;
  }

  // What somebody opened stays open when the answers are drawn anew.
  const open = new Set();
  function opened(drawn, id) {
    for (const [i, each] of [
      ...(drawn.matches("details") ? [drawn] : []),
      ...drawn.querySelectorAll("details"),
    ].entries()) {
      each.open = open.has(`${id} ${i}`);
      each.addEventListener("toggle", () =>
        each.open ? open.add(`${id} ${i}`) : each.isConnected && open.delete(`${id} ${i}`),
      );
    }
    return drawn;
  }

  function readAddress() {
    key?.set(address.has("key") ? address.get("key") : null);
    if (document.activeElement !== lookbacks) lookbacks.value = address.get("lookbacks", usual(spec)).trim();
  }

  return { mount, refresh, readAddress };
}

// Logical time has no minutes.
const usual = (spec) => (spec.time_unit === "none" ? "" : "5m 1h 1d");

const describe = ({ function: name, ...rest }) =>
  [
    name,
    ...Object.entries(rest)
      .filter(([, value]) => value !== null)
      .map(([key, value]) => `${key}: ${JSON.stringify(value)}`),
  ].join(", ");
