// One view to ask a window: charts, their values as a table, files of them, and the question as a program.
//
//   span    live: the last hour, say, up to the newest entry; or from … to, after a zoom
//   lines   up to eight keys; or the groups of `by`, `where` and `top`; or the series of an expression of PromQL

import * as address from "../core/address.js";
import { Problem, download, questionOf, windowPath } from "../core/ask.js";
import { byId, el, field, input, replaceKeepingFocus, say, select, wait } from "../core/dom.js";
import { chips, choices, conditions, grouping } from "../core/forms.js";
import { keyField } from "../core/keyfield.js";
import { Plot, canDraw } from "../core/plot.js";
import { showProblem } from "../core/problems.js";
import {
  MILLISECONDS,
  counts,
  durationOf,
  instant,
  labelsOf,
  listed,
  partsOf,
  ticksOf,
  ticksText,
} from "../core/words.js";
import { copying, promqlOf } from "./copy.js";
import { expressionBox, seriesOf } from "./expression.js";
import { chartOf, csvOf, isOrdered, valuesTable } from "./series.js";

const POINTS = 240;
const POINTS_MAX = 5000;
const KEYS_MAX = 8;
const USUAL = 4; // charts that are drawn before somebody chooses
const PRESETS = ["15m", "1h", "6h", "1d", "7d"];

export function explore({ name }) {
  let [spec, controls, told, grid, below, values, copy, key, keyList, expression] = [];
  let panels = new Map();
  let shown = null; // the span of the charts: { from, to }
  let answered = []; // what the charts show: { aggregate, width, lines, question } for each
  let again = null;
  let hasOffered = false;
  let unread = null; // what is wrong with a box whose text is not in the address

  const change = (members) => {
    unread = null;
    address.set(members);
    again();
  };
  const isPromql = () => address.get("lang") === "promql" && spec.time_unit !== "none";

  function mount(root, found, refresh) {
    spec = found.spec;
    again = wait(refresh, 250);
    controls = el("form", { id: "chart-question", onsubmit: (event) => event.preventDefault() });
    told = el("p", { class: "note", role: "status", id: "chart-told" });
    grid = el("div", { class: "charts", id: "charts" });
    values = el("div", { id: "values" });
    copy = copying();
    below = [
      el(
        "section",
        { class: "card", "aria-label": "Values" },
        el(
          "div",
          { class: "head" },
          el("h3", {}, "Values"),
          el("div", { class: "segments", role: "group", "aria-label": "Save" }, ["CSV", "JSON", "Arrow"].map(exporter)),
        ),
        values,
      ),
      el("section", { class: "card", "aria-label": "Copy" }, copy.element),
    ];
    root.append(el("section", { class: "card", "aria-label": "Question" }, controls, told), grid, ...below);
    empty();
    fill();
  }

  const exporter = (kind) =>
    el(
      "button",
      {
        type: "button",
        id: `export-${kind.toLowerCase()}`,
        "aria-label": `Save as ${kind}`,
        onclick: () => save(kind),
      },
      kind,
    );

  function fill() {
    const text = (id, title, hint, more = {}) => {
      const made = input(address.get(id, id === "n" ? "5" : ""), { id, ...more });
      made.addEventListener("input", () => change({ [id]: made.value }));
      return field(title, made, { hint, name: id });
    };
    const language = isPromql() ? "promql" : "";
    const languages = [
      ["", "Form"],
      ["promql", "PromQL"],
    ].map(([id, title]) =>
      el(
        "button",
        {
          type: "button",
          id: `ask-${id || "choose"}`,
          "aria-pressed": String(language === id),
          onclick: () => speak(id),
        },
        title,
      ),
    );
    controls.replaceChildren(
      el(
        "div",
        { class: "row" },
        windowField(),
        spec.time_unit === "none"
          ? null
          : el("div", { class: "segments", role: "group", "aria-label": "How to ask" }, languages),
        isPromql()
          ? null
          : text("width", "Each point over", null, {
              placeholder: spec.time_unit === "none" ? "as the step" : "as the step, or 5m 1h",
              title: "A lookback, such as 1h. Several lookbacks give charts side by side.",
              size: 19,
            }),
        text("step", "Step", null, { placeholder: "by the span", size: 9 }),
        isPromql()
          ? null
          : choices("Aggregates", Object.keys(spec.aggregates), aggregates(), (names) => change({ aggregate: names }))
              .element,
      ),
      isPromql() ? (expression = expressionBox(change)).element : linesRow(text),
      el(
        "div",
        { class: "row" },
        text("last", "Last", null, { placeholder: usualSpan(), size: 6 }),
        presets(),
        instantField("from", "From"),
        instantField("to", "To"),
        moves(),
        el("p", { class: "faint", id: "span" }),
      ),
    );
  }

  // PromQL begins with what was chosen.
  function speak(language) {
    const asked =
      language === "" || address.get("expr") !== "" ? {} : { expr: promqlOf(spec, asText()).replace(/^#.*\n/, "") };
    address.set({ lang: language, ...asked });
    fill();
    again();
  }

  function windowField() {
    const offered = el("datalist", { id: "windows-offered" });
    const made = input(name, { id: "window", list: "windows-offered" });
    made.addEventListener(
      "change",
      () => made.value !== "" && address.go({ window: made.value, tab: "explore", last: address.get("last") || null }),
    );
    made.addEventListener("focus", () => offerWindows(offered), { once: true });
    return el("div", {}, field("Window", made), offered);
  }

  let offerWindows = () => {};

  // Which keys or groups are drawn.
  function linesRow(text) {
    if (!spec.keyed) return "";
    key = keyField(spec, null, () => {}, "add-key");
    keyList = chips("Keys", (keys) => change({ key: keys }));
    keyList.set(address.all("key"));
    const add = el("button", { type: "button", id: "add", onclick: addKey }, "Add the key");
    const top = select([["", "all"], ["entries", "entries"], ...Object.keys(spec.aggregates)], address.get("top"), {
      id: "top",
      onchange: () => change({ top: top.value }),
    });
    const keysBox = el("div", { class: "row" }, key.element, add, keyList.element);
    const groupBox = el(
      "div",
      { class: "row wide" },
      field("The first by", top, { name: "top" }),
      text("n", "How many", null, { inputmode: "numeric", size: 4 }),
      conditions(labelsOf(spec)[0], address.all("where"), (given) => change({ where: given })),
    );
    const toggle = () => {
      keysBox.hidden = address.has("by");
      groupBox.hidden = !address.has("by");
    };
    const groups = grouping(labelsOf(spec), address.all("by"), (by) => {
      change(by.length > 0 ? { by } : { by, top: null });
      toggle();
    });
    toggle();
    return el("div", { class: "row" }, groups, keysBox, groupBox);
  }

  function addKey() {
    const [value, held] = [key.get(), address.all("key")];
    if (value === null || held.includes(value)) return;
    if (held.length >= KEYS_MAX) return say(told, `There is room for ${KEYS_MAX} keys.`);
    keyList.set([...held, value]);
    key.set(null);
    change({ key: [...held, value] });
  }

  const live = (last) => {
    for (const id of ["from", "to"]) byId(id).value = "";
    byId("last").value = last;
    change({ last, from: null, to: null });
  };

  function presets() {
    const all = spec.time_unit === "none" ? ["100", "1000", "10000"] : [...PRESETS, "today"];
    return el(
      "div",
      { class: "segments", role: "group", "aria-label": "Spans" },
      all.map((last) => el("button", { type: "button", "data-last": last, onclick: () => live(last) }, last)),
      el("button", { type: "button", id: "live", onclick: () => live(address.get("last")) }, "Live"),
    );
  }

  function instantField(id, title) {
    const made = input("", { id, size: 24 });
    made.addEventListener("change", () => {
      if (made.value === "") return live(address.get("last"));
      const at = ticksText(made.value, spec.time_unit);
      if (at === null) {
        unread = new Problem("Write an instant, such as 2026-05-31 12:00 (UTC), or ticks.", { field: id });
        return wrong(unread);
      }
      const now = (end) => address.get(end) || (shown === null ? null : whole(shown[end]));
      return change({ from: now("from"), to: now("to"), [id]: at });
    });
    return field(title, made, { name: id });
  }

  // In the boxes stands what is shown: as values where it is fixed, else as what one could write.
  function showSpan(isLive) {
    for (const [id, at] of [
      ["from", shown.from],
      ["to", isLive ? shown.to - 1 : shown.to],
    ]) {
      const text = spec.time_unit === "none" ? String(at) : instant(at, spec.time_unit);
      byId(id).placeholder = text;
      if (document.activeElement !== byId(id)) byId(id).value = isLive ? "" : text;
    }
    say(byId("span"), isLive ? "" : durationOf(shown.to - shown.from, spec.time_unit));
    const last = isLive ? address.get("last") || usualSpan() : null;
    byId("live").setAttribute("aria-pressed", String(isLive));
    for (const each of controls.querySelectorAll("[data-last]"))
      each.setAttribute("aria-pressed", String(each.dataset.last === last));
  }

  const moves = () =>
    el(
      "div",
      { class: "segments", role: "group", "aria-label": "Span" },
      [
        ["Earlier", "←", -0.5, 1],
        ["Later", "→", 0.5, 1],
        ["Zoom in", "+", 0, 0.5],
        ["Zoom out", "−", 0, 2],
      ].map(([title, sign, move, scale]) =>
        el("button", { type: "button", "aria-label": title, title, onclick: () => zoom(move, scale) }, sign),
      ),
    );

  const aggregates = () => {
    const names = Object.keys(spec.aggregates);
    const asked = address.all("aggregate").filter((each) => names.includes(each));
    if (asked.length > 0) return asked;
    // Keys have no order between them, so groups have no answer where an aggregate needs it.
    const together = !address.has("by") ? names : names.filter((each) => !isOrdered(spec.aggregates[each]));
    return together.slice(0, USUAL);
  };
  const usualSpan = () =>
    spec.time_unit === "none"
      ? "1000"
      : typeof spec.slide?.max_age === "string" && /[a-z]/.test(spec.slide.max_age)
        ? spec.slide.max_age
        : "1h";

  // Moves by a share of the span, or makes it longer or shorter, around its middle.
  function zoom(move, scale) {
    if (shown === null) return;
    const length = shown.to - shown.from;
    const middle = (shown.from + shown.to) / 2 + move * length;
    const half = Math.max(1, (length * scale) / 2);
    zoomTo(Math.floor(middle - half), Math.ceil(middle + half));
  }

  const whole = (number) => BigInt(Math.round(number)).toString();
  const zoomTo = (from, to) => change({ from: whole(from), to: whole(to) });

  // Such that the last bucket ends with the newest entry (or now, where that is the window's clock), and none is cut.
  function plan(found) {
    const unit = spec.time_unit;
    const isFixed = address.has("from") && address.has("to");
    const now = spec.slide?.clock === "wall" ? Math.floor(Date.now() / MILLISECONDS[unit]) : found.newest;
    const to = isFixed ? Number(address.get("to")) : now + 1;
    const length = isFixed ? to - Number(address.get("from")) : lengthOf(address.get("last") || usualSpan(), to);
    if (!(length > 0 && length < Infinity)) throw new Problem("from must be before to", { field: "from" });
    const step =
      address.get("step") === "" ? Math.max(1, Math.ceil(length / POINTS)) : ticksOf(address.get("step"), unit, "step");
    const points = Math.ceil(length / step);
    if (points > POINTS_MAX) {
      throw new Problem(
        `That is ${counts.format(points)} points; choose a longer step. (limit: ${counts.format(POINTS_MAX)})`,
        { field: "step" },
      );
    }
    const widths = listed(address.get("width")).map((each) => ticksOf(each, unit, "width"));
    return { to, length, step, points, widths: widths.length > 0 ? widths : [step], isLive: !isFixed };
  }

  // Today is the day of the newest entry, in UTC.
  function lengthOf(last, to) {
    if (last !== "today" || spec.time_unit === "none") return ticksOf(last, spec.time_unit, "last");
    const day = 86_400_000 / MILLISECONDS[spec.time_unit];
    return ((to - 1) % day) + 1;
  }

  async function refresh({ ask, isCurrent }, found) {
    spec = found.spec;
    offerWindows = async (offered) => {
      const { windows } = await ask("/v1/windows");
      offered.replaceChildren(...windows.map((each) => el("option", { value: each.spec.name })));
    };
    if (found.newest === null) return nothing("The window has no entries.");
    try {
      if (spec.keyed && !hasOffered && !isPromql()) {
        const offered = await key.offer().catch(() => []);
        if (!isCurrent()) return {};
        hasOffered = offered.length > 0;
        if (offered.length > 0 && address.all("key").length === 0 && !address.has("by")) {
          address.set({ key: offered[0] });
          keyList.set(address.all("key"));
        }
      }
      if (unread !== null) throw unread;
      const how = plan(found);
      shown = { from: how.to - how.length, to: how.to };
      if (isPromql()) return await showExpression(ask, isCurrent, how);
      if (spec.keyed && !address.has("by") && address.all("key").length === 0)
        return nothing("Add a key, or choose groups.");
      const asked = how.widths.map((width) => questions(how, width));
      const series = await Promise.all(asked.map((some) => Promise.all(some.map((each) => linesOf(ask, each)))));
      if (!isCurrent()) return {};
      show(
        how,
        aggregates().flatMap((aggregate) =>
          how.widths.map((width, i) => ({
            id: `${aggregate} ${width}`,
            title: aggregate,
            over: ` · each point over ${durationOf(width, spec.time_unit)}`,
            aggregate,
            about: spec.aggregates[aggregate],
            width,
            lines: series[i].flat(),
            questions: asked[i],
          })),
        ),
      );
      copy.show(spec, asText());
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      if (isCurrent()) wrong(error);
    }
    return {};
  }

  // One for each key; or one for all groups, or for a window without keys.
  function questions({ to, step, points }, width) {
    const start = to - width - (points - 1) * step;
    const asked = {
      start: whole(start),
      end: whole(to - width + 1),
      step: whole(step),
      width: whole(width),
      aggregate: aggregates(),
    };
    if (!spec.keyed) return [{ label: "", asked }];
    if (!address.has("by"))
      return address
        .all("key")
        .slice(0, KEYS_MAX)
        .map((each) => ({ label: spec.keys ? partsOf(each).join(" · ") : each, asked, key: each }));
    const top = address.get("top");
    const first = top ? { top, n: address.get("n", "5") } : { limit: 2 * KEYS_MAX };
    return [{ label: null, asked: { ...asked, by: address.all("by"), where: address.all("where"), ...first } }];
  }

  function pathOf({ asked, key: one }) {
    const text = questionOf(asked);
    if (one !== undefined) text.append("key", one); // also the empty text
    return windowPath(name, `/series?${text}`);
  }

  async function linesOf(ask, question) {
    const found = await ask(pathOf(question));
    if (question.label !== null) return [{ label: question.label, series: found }];
    return found.groups.slice(0, 2 * KEYS_MAX).map((series) => ({
      label: Object.values(series.parts ?? {}).join(" · "),
      series: { ...series, time: found.time, width: found.width },
    }));
  }

  async function showExpression(ask, isCurrent, how) {
    await expression.offer(ask);
    const found = await seriesOf(ask, address.get("expr"), how, MILLISECONDS[spec.time_unit], KEYS_MAX * 2);
    if (!isCurrent()) return {};
    if (found.lines.length === 0) return nothing(found.note);
    show(how, [
      { id: "expr", title: "PromQL", over: "", aggregate: "value", about: {}, width: 0, ...found, questions: [] },
    ]);
    if (found.note) say(told, found.note);
    copy.say({ promql: address.get("expr"), curl: found.curl });
    return {};
  }

  function nothing(text) {
    showProblem(controls, null);
    say(told, text);
    empty();
    return {};
  }

  // What was shown before stays, faded, until the question is right.
  function wrong(problem) {
    say(told, "");
    showProblem(controls, problem, { focused: false });
    fade(true);
  }

  function fade(isOld) {
    for (const each of [grid, ...below]) each.classList.toggle("stale", isOld);
  }

  function empty() {
    for (const panel of panels.values()) panel.plot.destroy();
    panels = new Map();
    answered = [];
    grid.replaceChildren();
    values.replaceChildren();
    for (const each of below) each.hidden = true;
  }

  function show(how, wanted) {
    const unit = spec.time_unit;
    showSpan(how.isLive);
    if (wanted.every(({ lines }) => lines.length === 0)) return nothing("No group has entries in this time.");
    showProblem(controls, null);
    say(told, "");
    fade(false);
    for (const each of below) each.hidden = false;
    byId("export-arrow").hidden = isPromql(); // whose answers are not Arrow
    answered = wanted;
    if ([...panels.keys()].join() !== wanted.map(({ id }) => id).join()) {
      for (const panel of panels.values()) panel.plot.destroy();
      panels = new Map(wanted.map((each) => [each.id, panelOf()]));
      grid.dataset.columns = wanted.length === 4 ? 2 : Math.min(3, wanted.length);
      grid.replaceChildren(...[...panels.values()].map(({ element }) => element));
    }
    for (const each of wanted) {
      const { plot, note, title } = panels.get(each.id);
      const chart = chartOf(each.aggregate, each.about, unit, each.lines, MILLISECONDS[unit] ?? null);
      chart.label = `${each.aggregate} of ${name}: ${chart.label}`;
      say(title.firstChild, each.title);
      say(title.lastChild, chart.of ? `${each.over} · ${chart.of}` : each.over);
      say(note, chart.note ?? (canDraw ? "" : "Charts need the package uPlot, which this installation lacks."));
      note.hidden = note.textContent === "";
      plot.element.hidden = chart.note !== undefined || !canDraw;
      if (!plot.element.hidden) plot.show(chart);
    }
    const scrolled = values.firstElementChild?.scrollLeft ?? 0;
    replaceKeepingFocus(values, [valuesTable(wanted, unit)]);
    values.firstElementChild.scrollLeft = scrolled;
  }

  function panelOf() {
    const plot = new Plot({ onZoom: zoomTo, sync: `charts of ${name}` });
    const note = el("p", { class: "faint", hidden: true });
    const title = el("h3", {}, el("span", {}), el("span", { class: "faint" }));
    return {
      plot,
      note,
      title,
      element: el("figure", { class: "card" }, el("figcaption", {}, title), plot.element, note),
    };
  }

  // The question as what `copy.js` writes.
  function asText() {
    const how = shown ?? { from: 0, to: 1 };
    const step =
      address.get("step") || durationOf(Math.max(1, Math.ceil((how.to - how.from) / POINTS)), spec.time_unit);
    const by = address.all("by");
    const grouped = { by, where: address.all("where"), top: address.get("top"), n: address.get("n", "5") };
    return {
      kind: "series",
      ...(by.length > 0 ? grouped : spec.keyed ? { key: address.all("key")[0] } : {}),
      start: Math.round(how.from),
      end: Math.round(how.to),
      step,
      width: listed(address.get("width"))[0] ?? step,
      aggregate: aggregates(),
    };
  }

  async function save(kind) {
    if (answered.length === 0) return;
    const file = `${name}.${kind.toLowerCase()}`;
    const asked = [...new Set(answered.flatMap((each) => each.questions))];
    try {
      if (kind === "CSV") await download(csvOf(answered), file, "text/csv");
      else if (kind === "JSON")
        await download(
          JSON.stringify(
            answered.map(({ questions: _, ...rest }) => rest),
            null,
            1,
          ),
          file,
          "application/json",
        );
      else
        for (const [i, each] of asked.entries())
          await download(
            { path: pathOf(each) },
            asked.length > 1 ? `${name}-${i + 1}.arrow` : file,
            "application/vnd.apache.arrow.stream",
          );
    } catch (error) {
      wrong(error);
    }
  }

  return { mount, refresh, unmount: empty, readAddress: () => fill() };
}
