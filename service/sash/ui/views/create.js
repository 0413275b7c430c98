// A new window, from a form or from YAML. What the service refuses is written at the field, or at the line.

import * as address from "../core/address.js";
import { Problem, ask } from "../core/ask.js";
import { byId, el, field, input, say, select } from "../core/dom.js";
import { showProblem } from "../core/problems.js";
import { lineOf, yamlOf } from "../core/yaml.js";

const OPTIONS = {
  quantile: "q: [0.5, 0.95, 0.99]",
  histogram: "bounds: [0, 10, 100]",
  largest: "n: 10",
  smallest: "n: 10",
  frequent_items: "limit: 10",
};
const EXAMPLE = `name: requests
time_unit: ms
keys: [region, endpoint]
fields: {latency: float64}
aggregates:
  count: {function: count}
  mean:  {function: mean, field: latency}
  tail:  {function: quantile, field: latency, q: [0.5, 0.95, 0.99]}
slide: {max_age: 1h}
`;

export function open() {
  let [form, yaml, told, byForm, byYaml, fields, aggregates, functions, text] = [];
  let may = true;

  function mount(root) {
    const like = sessionStorage.getItem("sash-like");
    sessionStorage.removeItem("sash-like");
    const tab = (id, title) =>
      el("button", { type: "button", id: `by-${id}`, "aria-pressed": "false", onclick: () => choose(id) }, title);
    told = el("p", { class: "note", role: "status", id: "created" });
    root.append(
      el("h2", {}, "New window"),
      el(
        "div",
        { class: "segments", role: "group", "aria-label": "How to say it" },
        tab("form", "Form"),
        tab("yaml", "YAML"),
      ),
      told,
      (byForm = form = specForm()),
      (byYaml = yaml = yamlForm()),
    );
    if (like !== null) text.value = like;
    choose(like !== null || address.get("create") === "yaml" ? "yaml" : "form");
  }

  function choose(which) {
    byForm.hidden = which !== "form";
    byYaml.hidden = which !== "yaml";
    byId("by-form").setAttribute("aria-pressed", String(which === "form"));
    byId("by-yaml").setAttribute("aria-pressed", String(which === "yaml"));
    address.set({ create: which === "yaml" ? "yaml" : " " });
  }

  function specForm() {
    fields = el("div", { class: "list" });
    aggregates = el("div", { class: "list" });
    const name = input("", { id: "name", required: true, placeholder: "requests" });
    const unit = select(["us", "ms", "s", "ns", ["none", "none (logical time)"]], "ms", { id: "unit" });
    const keyed = select(
      [
        ["none", "no keys"],
        ["one", "one text"],
        ["parts", "parts"],
      ],
      "none",
      { id: "keyed" },
    );
    const parts = input("", { id: "parts", placeholder: "airport, carrier" });
    const partsField = field("Parts of a key", parts, { name: "keys", hint: "names, with commas between" });
    partsField.hidden = true;
    keyed.addEventListener("change", () => (partsField.hidden = keyed.value !== "parts"));
    const more = {
      "slide.max_age": ["Keep for", "1h", "a duration or ticks; empty: for ever"],
      "slide.max_count": ["Keep at most", "", "entries of a key"],
      history: ["History", "", "keep older entries for the past, for so long"],
      granularity: ["Granularity", "", "fold entries into panes of this length"],
      idle_expiry: ["Forget idle keys after", "", "a duration such as 30d"],
    };
    const others = Object.entries(more).map(([id, [title, value, hint]]) =>
      field(title, input(value, { id: `spec-${id}` }), { name: id, hint }),
    );
    const durability = select([["", "as the service stores"], "sync", "interval", "memory"], "", { id: "durability" });
    const made = el(
      "form",
      {
        class: "card",
        id: "create-form",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          post(made, specOf(), "application/json");
        },
      },
      el(
        "div",
        { class: "row" },
        field("Name", name, { name: "name" }),
        field("Unit of time", unit, { name: "time_unit" }),
        field("Keys", keyed, { name: "keyed" }),
        partsField,
      ),
      el(
        "fieldset",
        { class: "part" },
        el("legend", {}, "Fields"),
        fields,
        el(
          "button",
          { type: "button", onclick: () => addField("", "float64").querySelector("input").focus() },
          "Add a field",
        ),
      ),
      el(
        "fieldset",
        { class: "part" },
        el("legend", {}, "Aggregates"),
        (functions = el("datalist", { id: "functions" })),
        aggregates,
        el(
          "button",
          { type: "button", onclick: () => addAggregate("", "", "", "").querySelector("input").focus() },
          "Add an aggregate",
        ),
      ),
      el(
        "fieldset",
        { class: "part" },
        el("legend", {}, "Slide and storage"),
        el("div", { class: "row" }, others, field("Durability", durability, { name: "durability" })),
      ),
      el(
        "div",
        { class: "row" },
        el("button", { class: "main" }, "Create"),
        el(
          "button",
          {
            type: "button",
            id: "as-yaml",
            onclick: () => {
              text.value = yamlOf(specOf());
              choose("yaml");
            },
          },
          "Show as YAML",
        ),
      ),
    );
    addField("value", "float64");
    addAggregate("count", "count", "", "");
    addAggregate("mean", "mean", "value", "");
    const cells = (list) =>
      [...list.children].map((row) => [...row.querySelectorAll("input, select")].map((each) => each.value.trim()));
    function specOf() {
      const spec = { name: name.value.trim(), time_unit: unit.value };
      if (keyed.value === "one") spec.keyed = true;
      if (keyed.value === "parts")
        spec.keys = parts.value
          .split(",")
          .map((each) => each.trim())
          .filter(Boolean);
      spec.fields = Object.fromEntries(cells(fields).filter(([each]) => each !== ""));
      spec.aggregates = Object.fromEntries(
        cells(aggregates)
          .filter(([each, what]) => each !== "" || what !== "")
          .map(([each, what, of, options]) => [
            each,
            { function: what, ...(of === "" ? {} : { field: of }), ...optionsOf(options) },
          ]),
      );
      for (const [id] of Object.entries(more)) {
        const value = byId(`spec-${id}`)?.value.trim();
        if (!value) continue;
        const [group, member] = id.includes(".") ? id.split(".") : [null, id];
        const said = /^\d+$/.test(value) ? Number(value) : value;
        if (group === null) spec[member] = value;
        else spec[group] = { ...spec[group], [member]: said };
      }
      if (durability.value !== "") spec.durability = durability.value;
      return spec;
    }
    return made;
  }

  // A row of the form; its controls are called by the path that the service gives in an error.
  function row(list, controls, group) {
    const [first] = controls;
    const made = el(
      "div",
      { class: "row" },
      controls.map(([title, control]) => field(title, control)),
      el(
        "button",
        { type: "button", class: "remove", "aria-label": "Remove this row", onclick: () => made.remove() },
        "×",
      ),
    );
    const rename = () =>
      controls.forEach(
        ([, control, member]) =>
          (control.dataset.field = [group, first[1].value.trim(), member].filter(Boolean).join(".")),
      );
    first[1].addEventListener("input", rename);
    rename();
    list.append(made);
    return made;
  }

  const addField = (name, type) =>
    row(
      fields,
      [
        ["Name", input(name), ""],
        ["Type", select(["float64", "int64", "string", "bool"], type), "type"],
      ],
      "fields",
    );

  function addAggregate(name, what, of, options) {
    const how = input(what, { list: "functions" });
    const rest = input(options, { placeholder: "q: 0.95" });
    how.addEventListener("change", () => {
      if (rest.value === "") rest.value = OPTIONS[how.value] ?? "";
    });
    return row(
      aggregates,
      [
        ["Name", input(name), ""],
        ["Function", how, "function"],
        ["Field", input(of), "field"],
        ["Options", rest, "options"],
      ],
      "aggregates",
    );
  }

  function yamlForm() {
    text = el("textarea", { id: "yaml", rows: 16, spellcheck: "false", class: "code" });
    text.value = EXAMPLE;
    const made = el(
      "form",
      {
        class: "card",
        id: "create-yaml",
        onsubmit: (event) => {
          event.preventDefault();
          post(made, text.value, "application/yaml");
        },
      },
      field("Spec", text, { wide: true, name: "yaml" }),
      el("div", { class: "row" }, el("button", { class: "main" }, "Create")),
    );
    return made;
  }

  async function post(which, body, type) {
    showProblem(which, null);
    if (!may) return say(told, "This token may not create windows: that needs the role admin.");
    const button = which.querySelector("button.main");
    button.disabled = true;
    try {
      const made = await ask("/v1/windows", { method: "POST", body, type });
      address.go({ window: made.spec.name, tab: "send" });
    } catch (error) {
      if (!(error instanceof Problem)) return showProblem(which, error);
      if (which === yaml) return showAtLine(error);
      // An option of an aggregate is in one control with the others.
      const path = (error.field ?? "").split(".");
      const known = [...form.querySelectorAll("[data-field]")].map((each) => each.dataset.field);
      if (path[0] === "aggregates" && path.length > 2 && !known.includes(error.field))
        error.field = [...path.slice(0, 2), "options"].join(".");
      showProblem(which, error);
    } finally {
      button.disabled = false;
    }
  }

  function showAtLine(error) {
    const given = /line (\d+)/.exec(error.message);
    const lines = text.value.split("\n");
    const from = given ? lines.slice(0, Number(given[1]) - 1).reduce((sum, line) => sum + line.length + 1, 0) : 0;
    const found = given
      ? { line: Number(given[1]), from, to: from + (lines[Number(given[1]) - 1]?.length ?? 0) }
      : error.field
        ? lineOf(text.value, error.field)
        : null;
    const told_ = found === null || given ? error.message : `line ${found.line}: ${error.message}`;
    showProblem(yaml, new Problem(told_, { field: "yaml" }));
    if (found !== null) {
      text.focus();
      text.setSelectionRange(found.from, found.to);
      text.scrollTop = ((found.line - 4) * text.scrollHeight) / lines.length;
    }
  }

  function refresh({ caller }) {
    may = caller.role === "admin";
    functions.replaceChildren(...caller.functions.map((each) => el("option", { value: each })));
    say(told, may ? "" : "This token may not create windows: that needs the role admin.");
    return {};
  }

  return { mount, refresh };
}

// `q: [0.5, 0.9], k: 100` as members: values as JSON where they are, else as texts.
export function optionsOf(text) {
  const found = {};
  for (const [, name, value] of text.matchAll(/([\w-]+)\s*:\s*(\[[^\]]*\]|\{[^}]*\}|"[^"]*"|[^,]*)/g)) {
    const plain = value.trim();
    try {
      found[name] = JSON.parse(plain);
    } catch {
      found[name] = /^\[.*\]$/.test(plain)
        ? plain
            .slice(1, -1)
            .split(",")
            .map((each) => each.trim())
            .filter(Boolean)
        : plain;
    }
  }
  return found;
}
