// Controls that choose several things.

import { el, field, input } from "./dom.js";

// Boxes to check, in a part that opens; from a dozen on with a search.
export function choices(title, names, chosen, changed) {
  const boxes = names.map((name) => {
    const box = el("input", { type: "checkbox", value: name });
    box.checked = chosen.includes(name);
    return { name, box, element: el("label", { class: "check" }, box, el("span", {}, name)) };
  });
  const summary = el("summary", {});
  const tell = () => {
    const found = boxes.filter(({ box }) => box.checked).map(({ name }) => name);
    const named = found.length > 6 ? `${found.slice(0, 5).join(", ")} and ${found.length - 5} more` : found.join(", ");
    summary.textContent = `${title}: ${named || "none"}`;
    return found;
  };
  for (const { box } of boxes) box.addEventListener("change", () => changed(tell()));
  tell();
  const find = input("", { type: "search", "aria-label": `Find ${title.toLowerCase()}`, placeholder: "find" });
  find.addEventListener("input", () => {
    for (const { name, element } of boxes) element.hidden = !name.toLowerCase().includes(find.value.toLowerCase());
  });
  const all = (checked) =>
    el(
      "button",
      {
        type: "button",
        onclick: () => {
          for (const { box, element } of boxes) if (!element.hidden) box.checked = checked;
          changed(tell());
        },
      },
      checked ? "All" : "None",
    );
  const tools = names.length > 12 ? el("div", { class: "row" }, find, all(true), all(false)) : null;
  return {
    element: el(
      "details",
      { class: "choices" },
      summary,
      tools,
      el(
        "div",
        { class: "checks" },
        boxes.map(({ element }) => element),
      ),
    ),
  };
}

// The parts of keys that groups agree in.
export function grouping(parts, chosen, changed) {
  const boxes = parts.map((part) => {
    const box = el("input", { type: "checkbox", value: part });
    box.checked = chosen.includes(part);
    box.addEventListener("change", () => changed(boxes.filter((each) => each.checked).map((each) => each.value)));
    return box;
  });
  return el(
    "fieldset",
    { class: "checks" },
    el("legend", {}, "Group by"),
    boxes.map((box) => el("label", { class: "check" }, box, el("span", {}, box.value))),
  );
}

// Things that were added, each with a button that takes it away.
export function chips(title, changed) {
  const element = el("ul", { class: "chips", "aria-label": title });
  let held = [];
  const set = (values) => {
    held = values;
    element.replaceChildren(
      ...values.map((value) =>
        el(
          "li",
          {},
          el("span", {}, value === "" ? "(empty)" : value),
          el(
            "button",
            {
              type: "button",
              "aria-label": `Remove ${value}`,
              onclick: () => {
                set(held.filter((each) => each !== value));
                changed(held);
              },
            },
            "×",
          ),
        ),
      ),
    );
  };
  return { element, set };
}

// Conditions on the parts of keys, one on each line.
export function conditions(part, given, changed) {
  const made = el("textarea", {
    id: "where",
    rows: 2,
    spellcheck: "false",
    placeholder: `${part} in (a, b)\n${part}!~x.*`,
  });
  made.value = given.join("\n");
  made.addEventListener("input", () =>
    changed(
      made.value
        .split("\n")
        .map((each) => each.trim())
        .filter(Boolean),
    ),
  );
  return field("Where", made, { wide: true, name: "where", hint: "a condition on each line; all must hold" });
}
