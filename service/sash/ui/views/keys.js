// The keys of a window: search by part, conditions, groups, and the first by an aggregate.

import * as address from "../core/address.js";
import { Problem, questionOf, windowPath } from "../core/ask.js";
import { el, field, input, replaceKeepingFocus, say, scrolling, select, table, wait } from "../core/dom.js";
import { choices, conditions, grouping } from "../core/forms.js";
import { showProblem } from "../core/problems.js";
import { drawValue, kindOf, textOf } from "../core/values.js";
import { FULL, counts, escaped, keyOf, labelsOf, listed, partsOf, plural } from "../core/words.js";
import { copying } from "./copy.js";
import { isOrdered } from "./series.js";

const PAGE = 50;
const COLUMNS = 5; // aggregates that are shown before somebody chooses

export function keys({ name }) {
  let [spec, controls, told, place, copy, pager] = [];
  let again = null;
  let before = []; // where the pages before this one began

  function mount(root, found, refresh) {
    spec = found.spec;
    again = wait(refresh, 300);
    if (!spec.keyed) {
      root.append(
        el(
          "section",
          { class: "card" },
          el("p", { id: "told" }, "This window has no keys: all its entries are together."),
        ),
      );
      return;
    }
    controls = el("form", { id: "keys-question", role: "search", onsubmit: (event) => event.preventDefault() });
    told = el("p", { class: "note", role: "status", id: "told" });
    place = el("div", {});
    pager = el("div", { class: "row buttons" });
    copy = copying();
    root.append(el("section", { class: "card", "aria-label": "Keys" }, controls, told, place, pager, copy.element));
    fill();
  }

  const change = (members) => {
    before = [];
    address.set({ ...members, position: null });
    again();
  };

  function fill() {
    const labels = labelsOf(spec);
    const finds = labels.map((part) => {
      const made = input(address.get(`find-${part}`), { type: "search", id: `find-${part}`, placeholder: "contains" });
      made.addEventListener("input", () => change({ [`find-${part}`]: made.value }));
      return field(part, made);
    });
    const where = conditions(labels[0], address.all("where"), (given) => change({ where: given }));
    const names = Object.keys(spec.aggregates);
    const top = select([["", "in order of keys"], ["entries", "entries"], ...names], address.get("top"), {
      id: "top",
      onchange: () => change({ top: top.value }),
    });
    const order = select(
      [
        ["desc", "largest first"],
        ["asc", "smallest first"],
      ],
      address.get("order", "desc"),
      { id: "order", onchange: () => change({ order: order.value === "desc" ? "" : order.value }) },
    );
    const text = (id, title, otherwise, more = {}) => {
      const made = input(address.get(id), { id, placeholder: otherwise, ...more });
      made.addEventListener("input", () => change({ [id]: made.value }));
      return field(title, made, { name: id });
    };
    const columns = choices("Columns", names, columnsShown(), (chosen) => {
      address.set({ column: chosen });
      again();
    });
    controls.replaceChildren(
      el("div", { class: "row" }, finds, where),
      el(
        "div",
        { class: "row" },
        grouping(labels, address.all("by"), (by) => change({ by })),
        text("lookback", "Lookback", "everything", { size: 10 }),
        field("Order", top),
        field("Direction", order),
        text("n", "How many", "10", { inputmode: "numeric", size: 5 }),
        text("having", "Having", "count > 10"),
      ),
      columns.element,
    );
  }

  const columnsShown = () => {
    const names = Object.keys(spec.aggregates);
    const asked = address.all("column").filter((each) => names.includes(each));
    if (asked.length > 0) return asked;
    const isGrouped = address.all("by").length > 0;
    return names.filter((each) => !isGrouped || !isOrdered(spec.aggregates[each])).slice(0, COLUMNS);
  };

  // What the page asks for, as members of a question.
  function question() {
    const finds = labelsOf(spec)
      .filter((part) => address.get(`find-${part}`) !== "")
      .map((part) => `${part}=~${JSON.stringify(`(?is).*${escaped(address.get(`find-${part}`))}.*`)}`);
    const top = address.get("top");
    return {
      where: [...finds, ...address.all("where")],
      by: address.all("by"),
      aggregate: columnsShown(),
      lookback: listed(address.get("lookback")).slice(0, 1),
      having: comparisons(address.get("having")),
      ...(top
        ? { top, n: address.get("n", "10"), order: address.get("order", "desc") }
        : { limit: PAGE, position: address.get("position") }),
    };
  }

  async function refresh({ ask, isCurrent }, found) {
    spec = found.spec;
    if (!spec.keyed) return {};
    const asked = question();
    // Pages of single keys are read by their names first: that is quick, however many keys there are.
    const isPlain = asked.by.length === 0 && !asked.top && asked.having.length === 0;
    try {
      const answered = isPlain
        ? await page(ask, asked)
        : await ask(
            windowPath(
              name,
              `/query?${questionOf({ ...asked, all_keys: asked.by.length + asked.where.length === 0 ? "true" : "" })}`,
            ),
          );
      if (!isCurrent()) return {};
      show(answered, asked, found);
      copy.show(spec, { kind: "query", ...asked, position: undefined, where: asked.where });
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      if (isCurrent()) nothing(error);
    }
    return {};
  }

  async function page(ask, { where, aggregate, lookback, position }) {
    const found = await ask(windowPath(name, `/keys?${questionOf({ where, limit: PAGE, position })}`));
    if (found.keys.length === 0) return { answers: [], next: found.next };
    const text = questionOf({ lookback, aggregate });
    for (const key of found.keys) text.append("key", key);
    const { answers } = await ask(windowPath(name, `/query?${text}`));
    return { answers, next: found.next };
  }

  function nothing(problem) {
    say(told, "");
    showProblem(controls, problem, { focused: false });
    place.replaceChildren();
    pager.replaceChildren();
  }

  function show({ answers, next }, asked, found) {
    showProblem(controls, null);
    const labels = asked.by.length > 0 ? asked.by : labelsOf(spec);
    const what = asked.by.length > 0 ? "group" : "key";
    const more = next === undefined ? "" : ", and there are more";
    say(
      told,
      answers.length === 0
        ? "No key fits."
        : `${plural(answers.length, what)}${more} · ${counts.format(found.keys)} keys in the window`,
    );
    const names = columnsShown();
    // Numbers end below the end of their header, and what is drawn begins below its beginning.
    const classOf = (each) =>
      answers.some((answer) => kindOf(answer.aggregates[each], spec.aggregates[each]) === "number") ? "number" : null;
    const heads = [
      ...labels,
      { text: "Entries", class: "number" },
      ...names.map((text) => ({ text, class: classOf(text) })),
      asked.by.length > 0 ? null : "Chart",
    ].filter(Boolean);
    const rows = answers.map((answer) => {
      const values = valuesOf(answer, labels);
      return el(
        "tr",
        {},
        values.map((value, i) =>
          i === 0
            ? el("th", { scope: "row", class: "name" }, linked(answer, asked, value))
            : el("td", { class: "name" }, value === "" ? "(empty)" : value),
        ),
        el("td", { class: "number" }, counts.format(answer.entries)),
        names.map((each) =>
          el(
            "td",
            {
              class: classOf(each),
              title: textOf(answer.aggregates[each], spec.aggregates[each], spec.time_unit, FULL).slice(0, 500),
            },
            drawValue(answer.aggregates[each], spec.aggregates[each], spec.time_unit, { compact: true }),
          ),
        ),
        asked.by.length > 0 ? null : el("td", {}, chartLink(answer, values)),
      );
    });
    const scrolled = place.firstElementChild?.scrollLeft ?? 0;
    replaceKeepingFocus(
      place,
      answers.length === 0
        ? []
        : [
            scrolling(
              "Keys",
              table(asked.by.length > 0 ? `Groups by ${asked.by.join(", ")}` : "Keys", heads, rows, { id: "keys" }),
            ),
          ],
    );
    if (place.firstElementChild) place.firstElementChild.scrollLeft = scrolled;
    const here = address.get("position");
    const to = (position) => {
      address.set({ position });
      again();
    };
    replaceKeepingFocus(
      pager,
      asked.top
        ? []
        : [
            el(
              "button",
              { type: "button", disabled: before.length === 0 && here === "", onclick: () => to(before.pop() ?? "") },
              "Previous",
            ),
            el(
              "button",
              {
                type: "button",
                disabled: next === undefined,
                onclick: () => {
                  before.push(here);
                  to(String(next));
                },
              },
              "Next",
            ),
            asked.by.length > 0 && answers.length > 0
              ? el(
                  "a",
                  {
                    href: address.to({
                      window: name,
                      tab: "explore",
                      by: asked.by,
                      where: asked.where,
                      top: "entries",
                    }),
                  },
                  "Chart these groups",
                )
              : null,
          ].filter(Boolean),
    );
    if (asked.top && asked.by.length > 0)
      pager.replaceChildren(
        el(
          "a",
          {
            href: address.to({
              window: name,
              tab: "explore",
              by: asked.by,
              where: asked.where,
              top: asked.top,
              n: asked.n,
            }),
          },
          "Chart these groups",
        ),
      );
  }

  // A group is named by its parts, and a key by all of them.
  function valuesOf(answer, labels) {
    const of = answer.parts ?? (spec.keys ? {} : { key: answer.key });
    if (spec.keys && !answer.parts) return partsOf(answer.key);
    return labels.map((label) => of[label] ?? answer.key ?? "");
  }

  function linked(answer, asked, value) {
    const text = value === "" ? "(empty)" : value;
    if (asked.by.length === 0) return el("a", { href: address.to({ window: name, key: keyText(answer) }) }, text);
    return el(
      "a",
      {
        href: address.to({
          window: name,
          tab: "keys",
          where: [...asked.where, ...asked.by.map((part) => `${part}=${JSON.stringify(answer.parts[part])}`)],
        }),
        title: "the keys of this group",
      },
      text,
    );
  }

  function chartLink(answer, values) {
    return el(
      "a",
      {
        href: address.to({ window: name, tab: "explore", key: keyText(answer) }),
        "aria-label": `Chart of ${values.join(" ")}`,
      },
      "Chart",
    );
  }

  const keyText = (answer) =>
    answer.key ?? (spec.keys ? keyOf(spec.keys.map((part) => answer.parts[part])) : answer.parts.key);

  return { mount, refresh, readAddress: () => spec?.keyed && fill() };
}

// `mean > 3, count >= 5`
const comparisons = (text) =>
  text
    .split(",")
    .map((each) => each.trim())
    .filter(Boolean);
