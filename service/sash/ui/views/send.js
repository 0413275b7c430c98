// Sends entries: one from a form, several as lines or CSV, or made-up ones to try a window with.

import * as address from "../core/address.js";
import { Problem, windowPath } from "../core/ask.js";
import { el, field, input, say, select } from "../core/dom.js";
import { keyField } from "../core/keyfield.js";
import { showProblem } from "../core/problems.js";
import { MILLISECONDS, counts, partsOf, ticksOf, ticksText, withTime } from "../core/words.js";

const MADE_MAX = 10_000;

export function send({ name }) {
  let [spec, told, one, many, made] = [];
  let refresh = null;
  let ask = null;
  let newest = null;

  function mount(root, found, again, context) {
    spec = found.spec;
    refresh = again;
    ask = context.ask;
    newest = found.newest;
    told = el("p", { class: "note", role: "status", id: "sent" });
    if (context.caller.role === "read") {
      root.append(
        el(
          "section",
          { class: "card" },
          el("p", { id: "told" }, "This token may read only. Sending entries needs the right write."),
        ),
      );
      return;
    }
    one = entryForm();
    many = linesForm();
    made = sampleForm();
    root.append(told, one, many, made);
  }

  // Sends by a call of its own: the refresh of the page must not stop a write.
  async function post(form, rest, body, type) {
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      const found = await ask(windowPath(name, rest), { method: "POST", body, type, signal: null });
      showProblem(form, null);
      told.classList.remove("bad");
      const parts = ["inserted", "history", "late", "duplicates", "ahead", "evicted"].filter(
        (each) => found[each] || each === "inserted",
      );
      say(told, `${parts.map((each) => `${counts.format(found[each])} ${each}`).join(", ")}; ${found.durability}`);
      refresh();
    } catch (error) {
      told.classList.add("bad");
      say(told, error.message);
      showProblem(form, error);
    } finally {
      button.disabled = false;
    }
  }

  function entryForm() {
    const time = input("", { id: "time", placeholder: "now" });
    const key = spec.keyed
      ? keyField(spec, address.has("key") ? address.get("key") : null, () => {}, "sent-key")
      : null;
    key?.offer().catch(() => {});
    const boxes = Object.entries(spec.fields).map(([each, type]) => ({
      each,
      type,
      box:
        type === "bool"
          ? select([...(mayBeNull(each) ? [["", "null"]] : []), "true", "false"], "true")
          : input("", { inputmode: type === "string" ? null : "decimal" }),
    }));
    const form = el(
      "form",
      {
        class: "card",
        id: "one",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const at =
            time.value.trim() === "" ? String(BigInt(nowIn())) : (ticksText(time.value, spec.time_unit) ?? time.value);
          const body = key === null ? {} : keyMembers(key.get() ?? "");
          const values = Object.fromEntries(
            boxes.map(({ each, type, box }) => [
              each,
              mayBeNull(each) && type !== "string" && box.value.trim() === "" ? null : valueOf(box.value, type),
            ]),
          );
          Object.assign(body, "fields" in spec.fields ? values : { fields: values });
          post(form, "/insert", withTime(at, body));
        },
      },
      el("h3", {}, "One entry"),
      el(
        "div",
        { class: "row" },
        field("Time", time, {
          name: "time",
          hint:
            spec.time_unit === "none"
              ? "ticks; empty: one after the newest"
              : `ticks (${spec.time_unit}), or ISO 8601; empty: now`,
        }),
        key?.element ?? null,
        boxes.map(({ each, type, box }) =>
          field(`${each} (${type}${mayBeNull(each) ? ", may be null" : ""})`, box, { name: each }),
        ),
      ),
      el("div", { class: "row" }, el("button", { class: "main" }, "Insert")),
    );
    return form;
  }

  const mayBeNull = (name) => (spec.nullable ?? []).includes(name);
  const keyMembers = (key) => ({
    key: spec.keys ? Object.fromEntries(spec.keys.map((part, i) => [part, partsOf(key)[i] ?? ""])) : key,
  });
  const nowIn = () =>
    spec.time_unit === "none" ? (newest ?? 0) + 1 : Math.floor(Date.now() / MILLISECONDS[spec.time_unit]);
  // What is no number goes as it is, so that the service says so, and names the field.
  const valueOf = (text, type) =>
    type === "string"
      ? text
      : type === "bool"
        ? text === "true"
        : text.trim() === "" || Number.isNaN(Number(text))
          ? text
          : Number(text);

  function linesForm() {
    const columns = ["time", ...(spec.keys ?? (spec.keyed ? ["key"] : [])), ...Object.keys(spec.fields)];
    const kind = select(
      [
        ["text/csv", "CSV, with names in the first line"],
        ["application/x-ndjson", "NDJSON, an object on each line"],
      ],
      "text/csv",
      { id: "kind" },
    );
    const box = el("textarea", { id: "lines", rows: 6, spellcheck: "false", required: true });
    box.value = `${columns.join(",")}\n`;
    const form = el(
      "form",
      {
        class: "card",
        id: "many",
        onsubmit: (event) => {
          event.preventDefault();
          post(form, "/bulk-insert", box.value, kind.value);
        },
      },
      el("h3", {}, "Several entries"),
      el(
        "div",
        { class: "row" },
        field("Format", kind),
        field("Lines", box, { wide: true, name: "lines", hint: `columns: ${columns.join(", ")}` }),
      ),
      el("div", { class: "row" }, el("button", { class: "main" }, "Insert these lines")),
    );
    return form;
  }

  // A walk for numbers, some words for texts: enough to see what a window does.
  function sampleForm() {
    const logical = spec.time_unit === "none";
    const count = input("100", { id: "made-count", inputmode: "numeric", size: 6 });
    const over = input(logical ? "1000" : "10m", { id: "made-over", size: 8 });
    const keysBox = spec.keyed ? input("3", { id: "made-keys", inputmode: "numeric", size: 4 }) : null;
    const form = el(
      "form",
      {
        class: "card",
        id: "made",
        onsubmit: (event) => {
          event.preventDefault();
          const n = Number(count.value);
          if (!(Number.isInteger(n) && n >= 1 && n <= MADE_MAX))
            return showProblem(
              form,
              new Problem(`made-count: write a number from 1 to ${counts.format(MADE_MAX)}`, { field: "made-count" }),
            );
          let span;
          try {
            span = ticksOf(over.value, spec.time_unit, "made-over");
          } catch (error) {
            return showProblem(form, error);
          }
          return post(form, "/bulk-insert", sample(n, span, Math.max(1, Number(keysBox?.value) || 1)));
        },
      },
      el("h3", {}, "Test entries"),
      el("p", { class: "faint" }, "Made-up entries, to see what a window answers. They are entries like all others."),
      el(
        "div",
        { class: "row" },
        field("How many", count, { name: "made-count" }),
        field("Over the last", over, { name: "made-over" }),
        keysBox ? field("Keys", keysBox) : null,
      ),
      el("div", { class: "row" }, el("button", { class: "main" }, "Send test entries")),
    );
    return form;
  }

  function sample(n, span, keyCount) {
    const end = spec.time_unit === "none" ? (newest ?? 0) + span : nowIn();
    const rows = Array.from({ length: n }, (_, i) => i);
    const body = { time: rows.map((i) => end - Math.floor((span * (n - 1 - i)) / n)) };
    const pick = (i, words) => words[i % words.length];
    if (spec.keys)
      body.key = Object.fromEntries(
        spec.keys.map((part, p) => [
          part,
          rows.map((i) => `${part}-${(p === 0 ? i : Math.floor(i / (p + 1))) % keyCount}`),
        ]),
      );
    else if (spec.keyed) body.key = rows.map((i) => `test-${i % keyCount}`);
    const fields = Object.fromEntries(
      Object.entries(spec.fields).map(([each, type]) => {
        let walk = 50;
        const next = (i) => {
          walk += (Math.random() - 0.5) * 8 + Math.sin(i / 15);
          return type === "int64" ? Math.round(walk) : Number(walk.toFixed(3));
        };
        return [
          each,
          rows.map((i) =>
            type === "string"
              ? pick(Math.floor(Math.random() * 4), ["red", "green", "blue", "grey"])
              : type === "bool"
                ? Math.random() < 0.5
                : next(i),
          ),
        ];
      }),
    );
    return { ...body, fields };
  }

  return {
    mount,
    refresh: (context, found) => {
      ask = context.ask;
      newest = found.newest;
    },
  };
}
