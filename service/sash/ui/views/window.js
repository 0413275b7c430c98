// One window: what it holds, and its tabs. Each tab is a view of its own, of the window as it was last described.

import * as address from "../core/address.js";
import { Problem, windowPath } from "../core/ask.js";
import { el, replaceKeepingFocus, say } from "../core/dom.js";
import { ago, counts, instant } from "../core/words.js";
import { answers } from "./answers.js";
import { entries } from "./entries.js";
import { explore } from "./explore.js";
import { keys } from "./keys.js";
import { manage } from "./manage.js";
import { send } from "./send.js";

const TABS = {
  answers: ["Answers", answers],
  explore: ["Explore", explore],
  keys: ["Keys", keys],
  entries: ["Entries", entries],
  send: ["Send entries", send],
  manage: ["Spec and admin", manage],
};

export function open() {
  const name = address.get("window");
  const given = address.get("tab");
  const asked = given === "charts" ? "explore" : given; // as addresses of earlier versions say
  const chosen = Object.hasOwn(TABS, asked) ? asked : "answers";
  const tab = TABS[chosen][1]({ name });
  let [facts, problem, place] = [];
  let isMounted = false;
  let wasThere = false;
  let again = null;

  function mount(root, refresh) {
    again = refresh;
    isMounted = false;
    facts = el("dl", { class: "facts" });
    problem = el("p", { class: "problem", role: "alert", id: "problem", hidden: true });
    place = el("div", { class: "stack" });
    const links = Object.entries(TABS).map(([id, [title]]) =>
      el(
        "a",
        {
          href: address.to({ window: name, ...(id === "answers" ? {} : { tab: id }), ...kept(id) }),
          "data-tab": id,
          "aria-current": id === chosen ? "page" : null,
        },
        title,
      ),
    );
    root.append(
      el("div", { class: "title" }, el("h2", { id: "window-title" }, name), facts),
      el("nav", { class: "tabs", "aria-label": "Views of this window" }, links),
      problem,
      place,
    );
    links.find((link) => link.hasAttribute("aria-current")).scrollIntoView({ block: "nearest", inline: "center" });
  }

  // The key goes along from tab to tab.
  const kept = (id) => (id === "manage" ? {} : { key: address.all("key") });

  async function refresh(context) {
    let found;
    try {
      found = await context.ask(windowPath(name));
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 404) throw error;
      if (!context.isCurrent()) return {};
      tell(wasThere ? "This window was deleted." : `There is no window "${name}".`);
      unmountTab();
      return {};
    }
    if (!context.isCurrent()) return {};
    wasThere = true;
    showFacts(found);
    tell(found.problem ? `This window is not served: ${found.problem}` : null);
    if (!isMounted) {
      isMounted = true;
      tab.mount(place, found, again, context);
    }
    for (const link of document.querySelectorAll(".tabs a")) {
      link.href = address.to({
        window: name,
        ...(link.dataset.tab === "answers" ? {} : { tab: link.dataset.tab }),
        ...kept(link.dataset.tab),
      });
    }
    return (await tab.refresh?.(context, found)) ?? {};
  }

  function tell(text) {
    problem.hidden = text === null;
    say(problem, text ?? "");
  }

  function showFacts({ spec, entries, keys: count, newest, oldest, counts: of, durability }) {
    const unit = spec.time_unit;
    const made = [["Entries", counts.format(entries)]];
    if (spec.keyed) made.push([spec.keys ? `Keys of ${spec.keys.join(", ")}` : "Keys", counts.format(count)]);
    if (oldest !== null) made.push(["Oldest", instant(oldest, unit)]);
    const age = ago(newest, unit);
    made.push(["Newest", `${instant(newest, unit)}${age ? ` (${age})` : ""}`]);
    made.push(
      ["Inserted", counts.format(of.inserted)],
      ["Late", counts.format(of.late)],
      ["Evicted", counts.format(of.evicted)],
    );
    if (of.duplicates) made.push(["Duplicates", counts.format(of.duplicates)]);
    if (of.retracted) made.push(["Retracted", counts.format(of.retracted)]);
    if (of.corrected) made.push(["Corrected", counts.format(of.corrected)]);
    if (of.ahead) made.push(["Too far ahead", counts.format(of.ahead)]);
    made.push(["Durability", durability]);
    replaceKeepingFocus(
      facts,
      made.map(([title, text]) => el("div", {}, el("dt", {}, title), el("dd", {}, text))),
    );
  }

  function unmountTab() {
    if (isMounted) tab.unmount?.();
    isMounted = false;
    place.replaceChildren();
    facts.replaceChildren();
  }

  return {
    mount,
    refresh,
    unmount: () => isMounted && tab.unmount?.(),
    readAddress: () => isMounted && tab.readAddress?.(),
  };
}
