// The page: shows the view that the address names, and asks the service again and again.
//
//   core/    calls, elements, the address, numbers, charts       views/    one module for each view, with `open`
//
// It is sent within page.html, so it imports by whole paths.
//
// A view is { mount(place, windows), refresh(context), unmount() }. Everything that comes from the service is written
// as text, never as markup.

import * as address from "/ui/core/address.js";
import { ORDERED, Problem, Unauthenticated, Unreachable, ask, grpcPort, token } from "/ui/core/ask.js";
import { byId, say } from "/ui/core/dom.js";

// Each view comes when it is asked for, so that the first one is there soon.
const VIEWS = {
  overview: () => import("/ui/views/overview.js"),
  window: () => import("/ui/views/window.js"),
  create: () => import("/ui/views/create.js"),
};
const SLOW_MS = 1000;
const place = byId("view");
let view = null;
let viewName = null;
let timer = null;
let turn = 0;
let stopping = new AbortController();
let caller = null;
let meeting = null;

address.onMove(async () => {
  const kind = address.has("window") ? "window" : address.has("create") ? "create" : "overview";
  const wanted = kind === "window" ? `window ${address.get("window")} ${address.get("tab")}` : kind;
  document.title = [address.get("window") || (kind === "create" ? "New window" : ""), "Sash"]
    .filter(Boolean)
    .join(" · ");
  if (wanted === viewName) {
    view?.readAddress?.();
    return refresh();
  }
  const isFirst = viewName === null;
  viewName = wanted;
  view?.unmount?.();
  view = null;
  place.replaceChildren();
  refresh();
  if (caller === null) meet().catch(() => {}); // while the view is on its way; `refresh` says what is wrong
  const { open } = await VIEWS[kind]().catch((error) => {
    viewName = null;
    showStatus(`no answer from the service: ${error.message}`, true);
    return {};
  });
  if (viewName !== wanted) return undefined;
  view = open();
  view.mount(place, refresh);
  for (const link of document.querySelectorAll("header nav a[data-view]")) {
    link.toggleAttribute("aria-current", link.dataset.view === kind);
  }
  if (!isFirst) focusTitle();
  return refresh();
});

byId("every").addEventListener("change", () => refresh());
document.addEventListener("visibilitychange", () => document.hidden || refresh());
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  caller = null;
  refresh();
});
byId("leave").addEventListener("click", () => {
  token.forget();
  caller = null;
  refresh();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says what is shown
  place.focus();
});
address.start();

// Asks for what the view shows, and then again after a while. Answers to an earlier question are thrown away.
async function refresh() {
  clearTimeout(timer);
  stopping.abort();
  stopping = new AbortController();
  const { signal } = stopping;
  const mine = ++turn;
  if (view === null) return; // it is on its way
  const began = performance.now();
  // A search of a million keys takes seconds.
  const slow = setTimeout(() => mine === turn && showStatus("asking …"), SLOW_MS);
  const context = {
    isCurrent: () => mine === turn,
    ask: (path, more = {}) => ask(path, { signal, ...more }),
    caller,
  };
  try {
    const [notReady, found] = await Promise.all([whyNotReady(context), shown(context)]);
    if (mine !== turn) return;
    document.body.classList.remove("stale");
    const said = found?.status ?? "";
    for (const load of Object.values(VIEWS)) load().catch(() => {}); // from now on they are there, whatever happens
    showStatus(notReady === null ? said : `${said ? `${said}; ` : ""}not ready: ${notReady}`, notReady !== null);
  } catch (error) {
    if (mine !== turn || error.name === "AbortError") return;
    if (error instanceof Unauthenticated) {
      caller = null;
      showLogin(true, error.message);
      return;
    }
    document.body.classList.add("stale");
    showStatus(error.message, true);
    if (!(error instanceof Problem || error instanceof Unreachable)) console.error(error);
  } finally {
    clearTimeout(slow);
  }
  const every = Number(byId("every").value);
  // A service that takes long to answer is not asked all the time.
  if (every > 0 && !document.hidden) timer = setTimeout(refresh, Math.max(every, 3 * (performance.now() - began)));
}

async function shown(context) {
  await (caller ?? meet());
  if (!context.isCurrent()) return {};
  context.caller = caller;
  showLogin(false);
  return view.refresh(context);
}

// Who asks, and what the service has.
function meet() {
  meeting ??= ask("/ui/caller", { asked: begun() })
    .then((found) => {
      caller = found;
      grpcPort.set(caller.grpc_port);
      for (const name of caller.ordered) ORDERED.add(name);
    })
    .finally(() => (meeting = null));
  return meeting;
}

// page.html asks this while these scripts are on their way.
function begun() {
  const found = window.early;
  window.early = null;
  return found;
}

async function whyNotReady({ ask: get }) {
  try {
    await get("/readyz");
    return null;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return error.message;
  }
}

// What somebody with a token saw is not left for somebody without one.
function showLogin(isAsked, why) {
  byId("login-section").hidden = !isAsked;
  byId("leave").hidden = token.get() === null;
  if (!isAsked) {
    place.hidden = false;
    return;
  }
  place.hidden = true;
  view?.unmount?.();
  place.replaceChildren();
  view?.mount(place, refresh);
  showStatus(why, token.get() !== null);
  if (document.activeElement === document.body) byId("token").focus();
}

function showStatus(text, bad = false) {
  say(byId("status"), text);
  byId("status").classList.toggle("bad", bad);
}

// Of another view: a screen reader begins with its title.
function focusTitle() {
  const title = place.querySelector("h2");
  if (title === null) return;
  title.tabIndex = -1;
  title.focus({ preventScroll: true });
  scrollTo(0, 0);
}
