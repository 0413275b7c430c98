// Live charts: one for each aggregate and width, side by side, with a line for each key or group.
//
//   span    live: the last hour, say, up to the newest entry; or from … to, after a zoom
//   lines   up to eight keys; or the groups of `by`, `where` and `top`

import * as address from "../core/address.js";
import { Problem, questionOf, windowPath } from "../core/ask.js";
import { byId, el, field, input, replaceKeepingFocus, say, select, wait } from "../core/dom.js";
import { chips, choices, conditions } from "../core/forms.js";
import { keyField } from "../core/keyfield.js";
import { Plot, canDraw } from "../core/plot.js";
import { MILLISECONDS, counts, durationOf, instant, labelsOf, listed, partsOf, ticksOf } from "../core/words.js";
import { copying } from "./copy.js";
import { chartOf, valuesTable } from "./series.js";

const POINTS = 240;
const POINTS_MAX = 5000;
const KEYS_MAX = 8;
const USUAL = 4; // charts that are drawn before somebody chooses

export function charts({ name }) {
  let [spec, controls, told, grid, span, copy, key, keyList] = [];
  let panels = new Map();
  let shown = null; // the span of the charts: { from, to }
  let again = null;
  let hasOffered = false;

  function mount(root, found, refresh) {
    spec = found.spec;
    again = wait(refresh, 250);
    root.append(
      el(
        "section",
        { class: "card", "aria-label": "Charts" },
        (controls = el("form", { id: "chart-question", onsubmit: (event) => event.preventDefault() })),
      ),
      (told = el("p", { class: "note", role: "status", id: "chart-told" })),
      (grid = el("div", { class: "charts", id: "charts" })),
    );
    copy = copying();
    root.append(el("section", { class: "card", "aria-label": "Copy" }, copy.element));
    fill();
  }

  function fill() {
    const text = (id, title, value, hint, more = {}) => {
      const made = input(value, { id, ...more });
      made.addEventListener("input", () => {
        address.set({ [id]: made.value });
        again();
      });
      return field(title, made, { hint, name: id });
    };
    const logical = spec.time_unit === "none";
    const chosen = choices("Aggregates", Object.keys(spec.aggregates), aggregates(), (names) => {
      address.set({ aggregate: names });
      again();
    });
    const lines = [];
    if (spec.keyed) {
      key = keyField(spec, null, () => {}, "add-key");
      keyList = chips("Keys", (keys) => {
        address.set({ key: keys });
        again();
      });
      keyList.set(address.all("key"));
      const add = el(
        "button",
        {
          type: "button",
          id: "add",
          onclick: () => {
            const value = key.get();
            if (value === null || address.all("key").includes(value)) return;
            if (address.all("key").length >= KEYS_MAX) return say(told, `There is room for ${KEYS_MAX} keys.`);
            address.set({ key: [...address.all("key"), value] });
            keyList.set(address.all("key"));
            key.set(null);
            again();
          },
        },
        "Add the key",
      );
      const group = select(
        [["", "keys"], ...labelsOf(spec).map((part) => [part, `groups by ${part}`])],
        address.get("by"),
        {
          id: "by",
          onchange: () => {
            address.set({ by: group.value });
            toggle();
            again();
          },
        },
      );
      const top = select([["", "all"], ["entries", "entries"], ...Object.keys(spec.aggregates)], address.get("top"), {
        id: "top",
        onchange: () => {
          address.set({ top: group.value && top.value });
          again();
        },
      });
      const keysBox = el("div", { class: "row" }, key.element, add, keyList.element);
      const groupBox = el(
        "div",
        { class: "row" },
        field("The first by", top, { name: "top" }),
        text("n", "How many", address.get("n", "5"), null, { inputmode: "numeric", size: 4 }),
        conditions(labelsOf(spec)[0], address.all("where"), (given) => {
          address.set({ where: given });
          again();
        }),
      );
      const toggle = () => {
        keysBox.hidden = group.value !== "";
        groupBox.hidden = group.value === "";
      };
      lines.push(el("div", { class: "row" }, field("Lines are", group, { name: "by" }), keysBox, groupBox));
      toggle();
    }
    span = el(
      "div",
      { class: "row buttons", role: "group", "aria-label": "Span" },
      ...[
        ["Earlier", "←", -0.5, 1],
        ["Later", "→", 0.5, 1],
        ["Zoom in", "+", 0, 0.5],
        ["Zoom out", "−", 0, 2],
      ].map(([title, sign, move, scale]) =>
        el("button", { type: "button", "aria-label": title, title, onclick: () => zoom(move, scale) }, sign),
      ),
      el(
        "button",
        {
          type: "button",
          id: "live",
          onclick: () => {
            address.set({ from: null, to: null });
            again();
          },
        },
        "Live",
      ),
      el("span", { class: "faint", id: "span" }),
    );
    controls.replaceChildren(
      chosen.element,
      ...lines,
      el(
        "div",
        { class: "row" },
        text("last", "Last", address.get("last"), null, { placeholder: usualSpan(), size: 8 }),
        text("width", "Each point over", address.get("width"), "several lookbacks give charts side by side", {
          placeholder: logical ? "as the step" : "as the step, or 5m 1h",
        }),
        text("step", "Step", address.get("step"), null, { placeholder: "by the span", size: 10 }),
      ),
      span,
    );
  }

  const aggregates = () => {
    const names = Object.keys(spec.aggregates);
    const asked = address.all("aggregate").filter((each) => names.includes(each));
    return asked.length > 0 ? asked : names.slice(0, USUAL);
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

  function zoomTo(from, to) {
    address.set({ from: String(BigInt(Math.round(from))), to: String(BigInt(Math.round(to))) });
    again();
  }

  // Such that the last bucket ends with the newest entry (or now, where that is the window's clock), and none is cut.
  function plan(found) {
    const unit = spec.time_unit;
    const isFixed = address.has("from") && address.has("to");
    const now = spec.slide?.clock === "wall" ? Math.floor(Date.now() / MILLISECONDS[unit]) : found.newest;
    const to = isFixed ? Number(address.get("to")) : now + 1;
    const length = isFixed
      ? to - Number(address.get("from"))
      : ticksOf(address.get("last") || usualSpan(), unit, "last");
    if (!(length > 0 && length < Infinity)) throw new Problem("from must be before to", { field: "last" });
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

  async function refresh({ ask, isCurrent }, found) {
    spec = found.spec;
    if (found.newest === null) return nothing("The window has no entries.");
    try {
      if (spec.keyed && !hasOffered) {
        hasOffered = true;
        const keys = await key.offer().catch(() => []);
        if (!isCurrent()) {
          hasOffered = false;
          return {};
        }
        if (address.all("key").length === 0 && address.get("by") === "" && keys.length > 0) {
          address.set({ key: [keys[0]] });
          keyList.set(address.all("key"));
        }
      }
      if (spec.keyed && address.get("by") === "" && address.all("key").length === 0)
        return nothing("Add a key, or choose groups.");
      const how = plan(found);
      const answered = await Promise.all(how.widths.map((width) => lines(ask, how, width)));
      if (!isCurrent()) return {};
      shown = { from: how.to - how.length, to: how.to };
      show(how, answered);
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      if (isCurrent()) nothing(error.message, true, error.field);
    }
    return {};
  }

  // The series of all lines, each with a bucket of this width at each point.
  async function lines(ask, { to, points, step }, width) {
    const start = to - width - (points - 1) * step;
    // Ticks of nanoseconds are beyond what a number holds exactly; a chart is not hurt by the last digits.
    const whole = (number) => BigInt(Math.round(number)).toString();
    const question = { start: whole(start), end: whole(to - width + 1), step: whole(step), width: whole(width) };
    const path = windowPath(name, "/series");
    if (!spec.keyed) return [{ label: "", series: await ask(`${path}?${questionOf(question)}`) }];
    if (address.get("by") !== "") {
      const [top, by, where] = [address.get("top"), address.all("by"), address.all("where")];
      const first = top ? { top, n: address.get("n", "5") } : { limit: 2 * KEYS_MAX };
      const { groups, time, width: over } = await ask(`${path}?${questionOf({ ...question, by, where, ...first })}`);
      return groups.slice(0, 2 * KEYS_MAX).map((series) => ({
        label: Object.values(series.parts ?? {}).join(" · "),
        series: { ...series, time, width: over },
      }));
    }
    return Promise.all(
      address
        .all("key")
        .slice(0, KEYS_MAX)
        .map(async (each) => ({
          label: spec.keys ? partsOf(each).join(" · ") : each,
          series: await ask(`${path}?${questionOf({ ...question, key: each })}`),
        })),
    );
  }

  function nothing(text, bad = false, wrong = null) {
    say(told, text);
    told.classList.toggle("bad", bad);
    for (const id of ["last", "width", "step", "where", "n"])
      byId(id)?.setAttribute("aria-invalid", String(wrong === id));
    empty();
    return {};
  }

  function empty() {
    for (const panel of panels.values()) panel.plot.destroy();
    panels = new Map();
    grid.replaceChildren();
  }

  function show(how, answered) {
    nothingWrong();
    const unit = spec.time_unit;
    say(byId("span"), `${instant(shown.from, unit)} to ${instant(shown.to - 1, unit)}${how.isLive ? ", live" : ""}`);
    byId("live").setAttribute("aria-pressed", String(how.isLive));
    const wanted = aggregates().flatMap((aggregate) =>
      how.widths.map((width, i) => ({ id: `${aggregate} ${width}`, aggregate, width, lines: answered[i] })),
    );
    if (answered.every((lines) => lines.length === 0)) return nothing("No group has entries in this time.");
    if ([...panels.keys()].join() !== wanted.map(({ id }) => id).join()) {
      empty();
      panels = new Map(wanted.map((each) => [each.id, panel(each)]));
      grid.replaceChildren(...[...panels.values()].map(({ element }) => element));
    }
    for (const each of wanted) {
      const { plot, note, values } = panels.get(each.id);
      const chart = chartOf(each.aggregate, spec, each.lines, MILLISECONDS[unit] ?? null);
      chart.label = `${each.aggregate} of ${name}: ${chart.label}`;
      say(note, chart.note ?? (canDraw ? "" : "Charts need the package uPlot, which this installation lacks."));
      note.hidden = note.textContent === "";
      plot.element.hidden = chart.note !== undefined || !canDraw;
      if (!plot.element.hidden) plot.show(chart);
      if (values.open || (!canDraw && chart.note === undefined)) {
        values.open = true;
        fillValues(values, each);
      }
    }
    const grouped = {
      by: address.all("by"),
      where: address.all("where"),
      top: address.get("top"),
      n: address.get("n", "5"),
    };
    copy.show(spec, {
      kind: "series",
      ...(address.get("by") !== "" ? grouped : spec.keyed ? { key: address.all("key")[0] } : {}),
      start: Math.round(shown.from),
      end: Math.round(shown.to),
      step: durationOf(how.step, unit),
      width: durationOf(how.widths[0], unit),
      aggregate: aggregates()[0],
    });
  }

  function nothingWrong() {
    say(told, "");
    told.classList.remove("bad");
    for (const id of ["last", "width", "step", "where", "n"]) byId(id)?.removeAttribute("aria-invalid");
  }

  function panel({ aggregate, width, lines }) {
    const plot = new Plot({ onZoom: zoomTo, sync: `charts of ${name}` });
    const values = el("details", { class: "more" }, el("summary", {}, "Values as a table"), el("div", {}));
    values.addEventListener("toggle", () => values.open && again());
    const note = el("p", { class: "faint", hidden: true });
    const title = `${aggregate} · each point over ${durationOf(width, spec.time_unit)}`;
    return {
      plot,
      note,
      values,
      lines,
      element: el("figure", { class: "card" }, el("figcaption", {}, el("h3", {}, title)), plot.element, note, values),
    };
  }

  function fillValues(values, { aggregate, lines }) {
    replaceKeepingFocus(values.lastChild, [valuesTable(aggregate, spec, lines)]);
  }

  return { mount, refresh, unmount: empty, readAddress: () => fill() };
}
