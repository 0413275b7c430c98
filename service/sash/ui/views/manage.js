// The spec of a window, and for admins: evict entries, delete the window.

import * as address from "../core/address.js";
import { Problem, windowPath } from "../core/ask.js";
import { el, field, input, say } from "../core/dom.js";
import { keyField } from "../core/keyfield.js";
import { showProblem } from "../core/problems.js";
import { yamlOf } from "../core/yaml.js";
import { instant, plural, ticksText, withTime } from "../core/words.js";

export function manage({ name }) {
  let [spec, told, ask, refresh, text, newest] = [];

  function mount(root, found, again, context) {
    spec = found.spec;
    newest = found.newest;
    refresh = again;
    ask = context.ask;
    told = el("p", { class: "note", role: "status", id: "managed" });
    text = el("pre", { id: "spec", tabindex: "0", "aria-label": "Spec as YAML" });
    root.append(
      told,
      el(
        "section",
        { class: "card", "aria-labelledby": "spec-title" },
        el(
          "div",
          { class: "head" },
          el("h3", { id: "spec-title" }, "Spec"),
          el(
            "a",
            {
              href: "#create",
              id: "like",
              onclick: () => sessionStorage.setItem("sash-like", yamlOf({ ...spec, name: `${name}-2` })),
            },
            "Create one like this",
          ),
        ),
        text,
      ),
    );
    say(text, yamlOf(spec));
    const { role } = context.caller;
    if (role !== "admin") {
      root.append(
        el(
          "section",
          { class: "card" },
          el("p", { id: "no-admin" }, "Evicting entries and deleting the window are for tokens with the role admin."),
        ),
      );
      return;
    }
    root.append(evictForm(), deleteForm());
  }

  async function call(form, path, options, done) {
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      done(await ask(path, { signal: null, ...options }));
      showProblem(form, null);
    } catch (error) {
      showProblem(form, error);
    } finally {
      button.disabled = false;
    }
  }

  function evictForm() {
    const unit = spec.time_unit;
    const time = input("", {
      id: "evict-time",
      placeholder: newest === null ? "" : instant(newest, unit),
      required: true,
    });
    const key = spec.keyed ? keyField(spec, null, () => {}, "evict-key") : null;
    key?.offer().catch(() => {});
    const form = el(
      "form",
      {
        class: "card",
        id: "evict",
        onsubmit: (event) => {
          event.preventDefault();
          const body = withTime(ticksText(time.value, unit) ?? time.value, key?.get() ? { key: key.get() } : {});
          call(form, windowPath(name, "/bulk-evict"), { method: "POST", body }, (found) => {
            say(told, `${plural(found.evicted, "entry", "entries")} evicted; ${found.durability}`);
            refresh();
          });
        },
      },
      el("h3", {}, "Evict entries"),
      spec.keyed ? el("p", { class: "faint" }, "Of all keys, unless one is given.") : null,
      el(
        "div",
        { class: "row" },
        field("Up to and including", time, {
          name: "time",
          hint: unit === "none" ? "ticks" : `ISO 8601, or ticks (${unit})`,
        }),
        key?.element ?? null,
      ),
      el("div", { class: "row" }, el("button", { class: "bad" }, "Evict")),
    );
    return form;
  }

  function deleteForm() {
    const sure = input("", { id: "sure", required: true });
    const form = el(
      "form",
      {
        class: "card",
        id: "delete",
        onsubmit: (event) => {
          event.preventDefault();
          if (sure.value !== name)
            return showProblem(form, new Problem(`Write ${name} to delete it.`, { field: "sure" }));
          return call(form, windowPath(name), { method: "DELETE" }, () => address.go({}));
        },
      },
      el("h3", {}, "Delete the window"),
      el("p", { class: "faint" }, "It goes with all its entries. Nothing brings them back but an export."),
      el("div", { class: "row" }, field(`Write its name to delete it`, sure, { name: "sure" })),
      el("div", { class: "row" }, el("button", { class: "bad" }, "Delete")),
    );
    return form;
  }

  function update(context, found) {
    ask = context.ask;
    say(text, yamlOf(found.spec));
  }

  return { mount, refresh: update };
}
