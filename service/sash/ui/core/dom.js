// Makes and changes elements. Texts are written as text, never as markup.

export const byId = (id) => document.getElementById(id);

// el("button", { class: "link", onclick: go, "aria-label": "Go" }, "Go", other)
export function el(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return dress(document.createElementNS("http" + "://www.w3.org/2000/svg", tag), attributes, children);
}

function dress(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

let numbered = 0;

// A label with its control. `hint` says more, and a problem of this field is written below it.
export function field(text, control, { hint, name, wide = false } = {}) {
  const id = control.id || `control-${++numbered}`;
  control.id = id;
  if (name !== undefined) control.dataset.field = name;
  const made = el("div", { class: wide ? "field wide" : "field" }, el("label", { for: id }, text), control);
  if (hint) {
    made.append(el("p", { class: "hint", id: `${id}-hint` }, hint));
    control.setAttribute("aria-describedby", `${id}-hint`);
  }
  return made;
}

export function input(value = "", attributes = {}) {
  return el("input", { autocomplete: "off", spellcheck: "false", value, ...attributes });
}

export function select(options, value, attributes = {}) {
  const made = el(
    "select",
    attributes,
    options.map((each) => {
      const [name, text] = Array.isArray(each) ? each : [each, each];
      return el("option", { value: name }, text);
    }),
  );
  made.value = value;
  return made;
}

// Again and again the same: a screen reader reads only what is new.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Says something to a screen reader, at most once in ten seconds, because answers change all the time.
let said = -Infinity;
export function announce(text, { now = false } = {}) {
  if (!now && performance.now() - said < 10_000) return;
  said = performance.now();
  say(byId("announcer"), text);
}

// Puts elements into a place in which somebody may be at one of them: the focus goes to the one of the same name.
export function replaceKeepingFocus(place, children) {
  const focused = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  place.replaceChildren(...children);
  if (focused === null) return;
  [...place.querySelectorAll("a, button, input, select, summary")].find((each) => nameOf(each) === focused)?.focus();
}

const nameOf = (element) => `${element.tagName} ${element.getAttribute("aria-label") ?? element.textContent}`;

export function table(caption, heads, rows, attributes = {}) {
  const titles = heads.map((head) => (typeof head === "string" ? { text: head } : head));
  return el(
    "table",
    attributes,
    el("caption", { class: "unseen" }, caption),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        titles.map(({ text, ...more }) => el("th", { scope: "col", ...more }, text)),
      ),
    ),
    el("tbody", {}, rows),
  );
}

// A part of the page that scrolls sideways, also by keyboard.
export const scrolling = (label, ...children) =>
  el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, a table` }, ...children);

export function wait(callback, ms = 250) {
  let timer = null;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...given), ms);
  };
}

// A line without axes; null is a gap. One `of` so many values begins at 0 and ends at the right: the newest are there.
export function sparkline(values, { width = 120, height = 28, label, of = null } = {}) {
  const there = values.filter((each) => typeof each === "number" && Number.isFinite(each));
  const low = there.reduce((a, b) => Math.min(a, b), of === null ? Infinity : 0);
  const high = there.reduce((a, b) => Math.max(a, b), -Infinity);
  const step = (width - 4) / Math.max(1, (of ?? values.length) - 1);
  const first = of === null ? 2 : width - 2 - (values.length - 1) * step;
  const runs = [[]];
  values.forEach((each, i) => {
    if (typeof each !== "number" || !Number.isFinite(each)) runs.push([]);
    else {
      const y = height - 3 - ((each - low) / (high - low || 1)) * (height - 6);
      runs[runs.length - 1].push(`${(first + i * step).toFixed(1)},${y.toFixed(1)}`);
    }
  });
  const lines = runs
    .filter((run) => run.length > 0)
    .flatMap((run) => {
      const points = run.length === 1 ? `${run[0]} ${run[0]}` : run.join(" ");
      const line = svg("polyline", { class: "line", points });
      if (of === null) return [line];
      return [
        svg("polygon", { class: "area", points: `${first},${height - 3} ${points} ${width - 2},${height - 3}` }),
        line,
      ];
    });
  const about = label === undefined ? { "aria-hidden": "true" } : { role: "img", "aria-label": label };
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, ...about }, lines);
}
