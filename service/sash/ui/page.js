// The page: asks the REST edge what the windows hold and what the chosen one answers, again and again.
//
// Everything that comes from the service is written with textContent, never as markup. What is chosen stands in
// the address after '#', so that a view can be reloaded and sent to somebody.

const byId = (id) => document.getElementById(id);
const counts = new Intl.NumberFormat("en");
const values = new Intl.NumberFormat("en", { maximumSignificantDigits: 8 });
const MILLISECONDS = { ns: 1e-6, us: 1e-3, ms: 1, s: 1000 };

// What the service refuses, in its words.
class Problem extends Error {}

const chosen = { window: null, key: "", lookbacks: "5m 1h 1d" };
let windows = [];
let timer = null;
// Answers that come after what was asked has changed are thrown away.
let asked = 0;

readAddress();
for (const id of ["key", "lookbacks"]) {
  byId(id).addEventListener("input", () => {
    chosen[id] = byId(id).value;
    writeAddress();
    refresh();
  });
}
byId("every").addEventListener("change", refresh);
byId("question").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => {
  readAddress();
  refresh();
});
refresh();

async function refresh() {
  clearTimeout(timer);
  const turn = ++asked;
  try {
    const listed = await ask("/v1/windows");
    if (turn !== asked) return;
    windows = listed.windows;
    showWindows();
    await refreshAnswers(turn);
    if (turn === asked) showStatus(`${counts.format(windows.length)} window${windows.length === 1 ? "" : "s"}`);
  } catch (error) {
    if (turn === asked) showStatus(`no answer from the service: ${error.message}`, true);
  }
  const every = Number(byId("every").value);
  if (turn === asked && every > 0) timer = setTimeout(refresh, every);
}

async function refreshAnswers(turn) {
  const found = windows.find((each) => each.spec.name === chosen.window);
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

async function ask(path) {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) throw new Problem(body.limit ? `${body.detail} (limit: ${body.limit})` : body.detail);
  return body;
}

function showStatus(text, bad = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", bad);
}

function showProblem(text) {
  byId("problem").hidden = text === null;
  byId("problem").textContent = text ?? "";
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
      // Logical time has no minutes.
      if (each.spec.time_unit === "none") byId("lookbacks").value = chosen.lookbacks = "";
      writeAddress();
      refresh();
    });
    row.append(cell(choose));
    const { inserted, late, evicted } = each.counts;
    for (const count of [each.entries, each.keys, inserted, late, evicted]) row.append(numberCell(counts.format(count)));
    row.append(cell(instant(each.newest, each.spec.time_unit)));
    return row;
  });
  replaceKeepingFocus(byId("windows").tBodies[0], rows);
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
  if (typeof value === "number") return values.format(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

function instant(ticks, unit) {
  if (ticks === null) return "–";
  const date = new Date(ticks * (MILLISECONDS[unit] ?? NaN));
  return Number.isNaN(date.getTime()) ? String(ticks) : date.toISOString().replace("T", " ").replace(/(\.000)?Z$/, "");
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
  chosen.key = given.get("key") ?? "";
  chosen.lookbacks = given.get("lookbacks") ?? "5m 1h 1d";
  byId("key").value = chosen.key;
  byId("lookbacks").value = chosen.lookbacks;
}

function writeAddress() {
  const given = new URLSearchParams();
  if (chosen.window !== null) given.set("window", chosen.window);
  if (chosen.key !== "") given.set("key", chosen.key);
  given.set("lookbacks", chosen.lookbacks);
  history.replaceState(null, "", `#${given}`);
}
