// The page: asks the REST edge what the windows hold and what the chosen one answers, again and again. `chart.js`
// draws.
//
// Everything that comes from the service is written with textContent, never as markup. What is chosen stands in
// the address after '#', so that a view can be reloaded and sent to somebody.

import { drawChart } from "./chart.js";

const byId = (id) => document.getElementById(id);
const counts = new Intl.NumberFormat("en");
const MILLISECONDS = { ns: 1e-6, us: 1e-3, ms: 1, s: 1000 };
const DURATIONS = { ...MILLISECONDS, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const POINTS = 240;
const POINTS_MAX = 5000;
const KEYS_OFFERED = 50;

// What the service refuses, in its words.
class Problem extends Error {}
// The service does not know who asks.
class Unauthenticated extends Problem {}

const TOKEN = "sash-token"; // in sessionStorage, which is this tab's and goes with it

const ASKED = ["key", "lookbacks", "aggregate", "last", "width", "step"];
const DEFAULTS = { key: "", lookbacks: "5m 1h 1d", aggregate: "", last: "1h", width: "", step: "" };
const chosen = { window: null, ...DEFAULTS };
let windows = [];
let timer = null;
let offering = null;
let offeredFor = null;
let scrolledTo = null;
// Windows may share their keys: one that was typed is kept when another window is chosen, one that was offered is not.
let typedKey = "";
// Answers that come after what was asked has changed are thrown away.
let asked = 0;

readAddress();
for (const id of ASKED) {
  byId(id).addEventListener("input", () => {
    chosen[id] = byId(id).value;
    writeAddress();
    refresh();
  });
}
byId("key").addEventListener("input", () => {
  typedKey = byId("key").value;
  clearTimeout(offering);
  offering = setTimeout(offerKeys, 200);
});
byId("every").addEventListener("change", refresh);
window.addEventListener("resize", refresh);
for (const id of ["question", "chart-question"]) byId(id).addEventListener("submit", (event) => event.preventDefault());
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  refresh();
});
byId("leave").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  windows = [];
  showWindows();
  refresh();
});
window.addEventListener("hashchange", () => {
  readAddress();
  refresh();
});
refresh();

async function refresh() {
  clearTimeout(timer);
  const turn = ++asked;
  try {
    const [listed, notReady] = await Promise.all([ask("/v1/windows"), whyNotReady()]);
    if (turn !== asked) return;
    showLogin(false);
    windows = listed.windows;
    showWindows();
    await Promise.all([refreshAnswers(turn), refreshChart(turn)]);
    if (turn !== asked) return;
    scrollToChosen();
    const found = `${counts.format(windows.length)} window${windows.length === 1 ? "" : "s"}`;
    showStatus(notReady === null ? found : `${found}; not ready: ${notReady}`, notReady !== null);
  } catch (error) {
    if (error instanceof Unauthenticated) {
      if (turn === asked) showLogin(true, error.message);
      return;
    }
    if (turn === asked) showStatus(`no answer from the service: ${error.message}`, true);
  }
  const every = Number(byId("every").value);
  if (turn === asked && every > 0) timer = setTimeout(refresh, every);
}

async function whyNotReady() {
  try {
    await ask("/readyz");
    return null;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return error.message;
  }
}

async function refreshAnswers(turn) {
  const found = windows.find((each) => each.spec.name === chosen.window);
  document.title = chosen.window === null ? "Sash" : `${chosen.window} · Sash`;
  byId("answers-section").hidden = chosen.window === null;
  if (chosen.window === null) return;
  byId("answers-title").textContent = chosen.window;
  if (found === undefined) {
    showProblem("There is no such window any more.");
    showAnswers([], "none");
    return;
  }
  byId("key-label").hidden = !found.spec.keyed;
  byId("spec").textContent = JSON.stringify(found.spec, null, 2);
  if (found.spec.keyed && chosen.key === "") {
    showProblem("This window is keyed: say which key.");
    showAnswers([], found.spec.time_unit);
    return;
  }
  const question = new URLSearchParams();
  if (found.spec.keyed) question.set("key", chosen.key);
  for (const lookback of chosen.lookbacks.split(/[\s,]+/).filter(Boolean)) question.append("lookback", lookback);
  try {
    const { answers } = await ask(`/v1/windows/${encodeURIComponent(chosen.window)}/query?${question}`);
    if (turn !== asked) return;
    showProblem(null);
    showAnswers(answers, found.spec.time_unit);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (turn !== asked) return;
    showProblem(error.message);
    showAnswers([], found.spec.time_unit);
  }
}

async function refreshChart(turn) {
  const found = windows.find((each) => each.spec.name === chosen.window);
  byId("chart-section").hidden = found === undefined;
  if (found === undefined) return;
  showAggregates(Object.keys(found.spec.aggregates));
  if (found.spec.keyed && offeredFor !== chosen.window) offerKeys();
  if (found.spec.keyed && chosen.key === "") return showNoChart("Say which key, above.");
  if (found.newest === null) return showNoChart("The window has no entries.");
  try {
    const question = chartQuestion(found);
    const series = await ask(`/v1/windows/${encodeURIComponent(chosen.window)}/series?${question}`);
    if (turn === asked) showChart(found, series);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (turn === asked) showNoChart(error.message, true);
  }
}

// What to ask for, so that the last bucket ends with the newest entry (or now, where that is the window's clock) and
// no bucket is cut short.
function chartQuestion(found) {
  const unit = found.spec.time_unit;
  const last = ticks(chosen.last || "1h", unit, "Last");
  const step = chosen.step === "" ? Math.max(1, Math.ceil(last / POINTS)) : ticks(chosen.step, unit, "Step");
  const width = chosen.width === "" ? step : ticks(chosen.width, unit, "Each point over");
  const points = Math.ceil(last / step);
  if (points > POINTS_MAX) {
    throw new Problem(`That is ${counts.format(points)} points; choose a longer step. (limit: ${counts.format(POINTS_MAX)})`);
  }
  const now = found.spec.slide.clock === "wall" ? Math.floor(Date.now() / MILLISECONDS[unit]) : found.newest;
  const newest = now + 1 - width;
  const question = { start: newest - (points - 1) * step, end: newest + 1, step, width };
  if (found.spec.keyed) question.key = chosen.key;
  // Ticks of nanoseconds are beyond what a number holds exactly; a chart is not hurt by the last digits.
  for (const name of ["start", "end", "step", "width"]) question[name] = BigInt(question[name]).toString();
  return new URLSearchParams(question);
}

function ticks(text, unit, name) {
  const plain = text.trim();
  if (/^\d+$/.test(plain) && Number(plain) > 0) return Number(plain);
  const parts = [...plain.matchAll(/(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d|w)/g)];
  if (unit === "none" || parts.length === 0 || parts.map((part) => part[0]).join("") !== plain) {
    throw new Problem(`${name}: write ${unit === "none" ? "a number of ticks (1000)" : "a duration (90s, 1h30m) or ticks"}.`);
  }
  const millis = parts.reduce((sum, [, number, suffix]) => sum + Number(number) * DURATIONS[suffix], 0);
  return Math.max(1, Math.round(millis / MILLISECONDS[unit]));
}

function showChart(found, series) {
  const unit = found.spec.time_unit;
  const given = series.aggregates[chosen.aggregate] ?? [];
  const ys = given.map((value) => (typeof value === "number" ? value : null));
  if (ys.every((y) => y === null)) {
    const isEmpty = series.entries.every((count) => count === 0);
    return showNoChart(isEmpty ? "There are no entries in this time." : "These answers are no numbers; choose another aggregate.");
  }
  const xs = series.time.map((time) => time + series.width);
  const read = (i) => {
    const entries = `${counts.format(series.entries[i])} ${series.entries[i] === 1 ? "entry" : "entries"}`;
    return `${instant(series.time[i], unit)} to ${instant(xs[i], unit)}: ${shown(given[i])} (${entries})`;
  };
  byId("chart-problem").hidden = true;
  byId("chart").removeAttribute("hidden"); // an SVG element has no `hidden` of its own
  byId("reading").hidden = false;
  byId("chart").setAttribute("aria-label", `${chosen.aggregate} of ${chosen.window} ${chosen.key}; the newest: ${read(xs.length - 1)}`);
  drawChart(byId("chart"), {
    ...{ xs, ys, millisPerX: MILLISECONDS[unit] ?? null },
    showValue: (value) => numeral(value, 12), // round numbers, which may be close together
    onPoint: (i) => (byId("reading").textContent = read(i ?? xs.length - 1)),
  });
}

function showNoChart(text, bad = false) {
  byId("chart").setAttribute("hidden", "");
  byId("reading").hidden = true;
  byId("chart-problem").hidden = false;
  say(byId("chart-problem"), text);
  byId("chart-problem").classList.toggle("bad", bad);
}

function showAggregates(names) {
  const select = byId("aggregate");
  if (!names.includes(chosen.aggregate)) chosen.aggregate = names[0];
  if ([...select.options].map((each) => each.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  select.value = chosen.aggregate;
}

async function offerKeys() {
  const name = (offeredFor = chosen.window);
  const question = new URLSearchParams({ prefix: chosen.key, limit: KEYS_OFFERED });
  try {
    const { keys } = await ask(`/v1/windows/${encodeURIComponent(name)}/keys?${question}`);
    if (name !== chosen.window) return;
    byId("keys").replaceChildren(...keys.map((key) => new Option(key, key)));
    if (keys.length === 0 && chosen.key === "") offeredFor = null; // the first may come at any time
    if (keys.length > 0 && chosen.key === "" && document.activeElement !== byId("key")) {
      chosen.key = byId("key").value = keys[0];
      writeAddress();
      refresh();
    }
  } catch {
    // Keys are offered, not needed; what is wrong shows where answers are.
  }
}

async function ask(path) {
  const headers = { accept: "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) {
    // What cannot be a header would be an error without words.
    if (!/^[\x21-\x7e]+$/.test(token)) throw new Unauthenticated("a token has no spaces, and ASCII characters only");
    headers.authorization = `Bearer ${token}`;
  }
  const response = await fetch(path, { headers });
  const body = await response.json();
  if (response.status === 401) throw new Unauthenticated(token === null ? "not signed in" : body.detail);
  if (!response.ok) throw new Problem(body.limit ? `${body.detail} (limit: ${body.limit})` : body.detail);
  return body;
}

// Again and again the same: whoever has the page read aloud hears what is new only.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// What was shown to whoever had a token is not left there for whoever has none.
function showLogin(isAsked, why) {
  byId("login-section").hidden = !isAsked;
  byId("windows-section").hidden = isAsked;
  byId("leave").hidden = isAsked || sessionStorage.getItem(TOKEN) === null;
  if (!isAsked) return;
  for (const id of ["answers-section", "chart-section"]) byId(id).hidden = true;
  showStatus(why, sessionStorage.getItem(TOKEN) !== null);
  if (document.activeElement === document.body) byId("token").focus();
}

function showStatus(text, bad = false) {
  say(byId("status"), text);
  byId("status").classList.toggle("bad", bad);
}

function showProblem(text) {
  byId("problem").hidden = text === null;
  say(byId("problem"), text ?? "");
}

function showWindows() {
  byId("no-windows").hidden = windows.length > 0;
  byId("windows").hidden = windows.length === 0;
  const rows = windows.map((each) => {
    const row = document.createElement("tr");
    row.classList.toggle("chosen", each.spec.name === chosen.window);
    const choose = document.createElement("button");
    choose.className = "window";
    choose.textContent = each.spec.name;
    choose.addEventListener("click", () => {
      chosen.window = each.spec.name;
      offeredFor = null;
      // Logical time has no minutes.
      const logical = each.spec.time_unit === "none";
      const { lookbacks } = chosen;
      Object.assign(chosen, DEFAULTS, { key: typedKey }, logical ? { lookbacks: "", last: "1000" } : { lookbacks: lookbacks || DEFAULTS.lookbacks });
      writeAddress();
      readAddress();
      refresh();
    });
    row.append(cell(choose, "name"));
    const { inserted, late, evicted, duplicates, ahead } = each.counts;
    row.append(numberCell(counts.format(each.entries)), numberCell(each.spec.keyed ? counts.format(each.keys) : "–"));
    for (const count of [inserted, late, evicted, duplicates, ahead]) row.append(numberCell(counts.format(count)));
    row.append(cell(instant(each.newest, each.spec.time_unit)), cell(each.problem ? "not served" : each.durability));
    return row;
  });
  replaceKeepingFocus(byId("windows").tBodies[0], rows);
}

// Once for each choice, so that whoever scrolls on is left alone.
function scrollToChosen() {
  if (scrolledTo === chosen.window) return;
  scrolledTo = chosen.window;
  const [list, row] = [byId("list"), document.querySelector("#windows tr.chosen")];
  if (row === null) return;
  const isInSight = row.offsetTop > list.scrollTop && row.offsetTop + row.offsetHeight < list.scrollTop + list.clientHeight;
  if (!isInSight) list.scrollTop = row.offsetTop - list.clientHeight / 2;
}

function showAnswers(answers, unit) {
  const table = byId("answers");
  const names = answers.length > 0 ? Object.keys(answers[0].aggregates) : [];
  const header = document.createElement("tr");
  if (answers.length > 0) {
    for (const title of ["Lookback", "From", "To"]) header.append(headerCell(title));
    for (const title of ["Entries", ...names]) header.append(headerCell(title, "number"));
  }
  const before = [...table.tBodies[0].rows].map((row) => [...row.cells].map((each) => each.textContent));
  const sameQuestion = table.tHead.textContent === header.textContent && before.length === answers.length;
  table.tHead.replaceChildren(header);
  const rows = answers.map((answer, i) => {
    const row = document.createElement("tr");
    row.append(cell(answer.lookback ?? "all"));
    row.append(cell(instant(answer.start, unit)), cell(instant(answer.end, unit)));
    row.append(numberCell(counts.format(answer.entries)));
    for (const name of names) row.append(numberCell(shown(answer.aggregates[name])));
    if (sameQuestion && before[i][0] === row.cells[0].textContent) {
      [...row.cells].forEach((each, j) => each.classList.toggle("changed", j > 2 && each.textContent !== before[i][j]));
    }
    return row;
  });
  table.tBodies[0].replaceChildren(...rows);
}

function shown(value) {
  if (value === null) return "–";
  if (typeof value === "number") return numeral(value, 8);
  return typeof value === "string" ? value : JSON.stringify(value);
}

// Integers in full, other numbers to so many digits: 1,234.5, and 1e-9 rather than a row of zeros.
function numeral(value, digits) {
  if (Number.isSafeInteger(value)) return counts.format(value);
  const rounded = Number(value.toPrecision(digits));
  const size = Math.abs(rounded);
  if (size < 1e-6 || size >= 1e15) return rounded.toExponential();
  return rounded.toLocaleString("en", { maximumSignificantDigits: digits });
}

// In UTC, which the Z says.
function instant(ticks, unit) {
  if (ticks === null) return "–";
  const date = new Date(ticks * (MILLISECONDS[unit] ?? NaN));
  return Number.isNaN(date.getTime()) ? String(ticks) : date.toISOString().replace("T", " ").replace(".000Z", "Z");
}

function cell(content, className = "") {
  const made = document.createElement("td");
  made.className = className;
  made.append(content);
  return made;
}

function numberCell(text) {
  const made = cell(text, text === "–" ? "number none" : "number long");
  if (text.length > 40) made.title = text.slice(0, 2000);
  return made;
}

function headerCell(text, className = "") {
  const made = document.createElement("th");
  made.scope = "col";
  made.className = className;
  made.textContent = text;
  return made;
}

// The rows are made anew at every refresh; whoever goes through them by keyboard must not lose the place.
function replaceKeepingFocus(body, rows) {
  const buttons = [...body.querySelectorAll("button")];
  const focused = buttons.indexOf(document.activeElement);
  const name = focused >= 0 ? buttons[focused].textContent : null;
  body.replaceChildren(...rows);
  if (name !== null) [...body.querySelectorAll("button")].find((each) => each.textContent === name)?.focus();
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  chosen.window = given.get("window");
  for (const name of ASKED) byId(name).value = chosen[name] = given.get(name) ?? DEFAULTS[name];
}

function writeAddress() {
  const given = new URLSearchParams();
  if (chosen.window !== null) given.set("window", chosen.window);
  for (const name of ASKED) if (chosen[name] !== DEFAULTS[name]) given.set(name, chosen[name]);
  history.replaceState(null, "", `#${given}`);
}
