// Writes a problem at the control that it is about. Controls say their field in `data-field`.

import { el } from "./dom.js";

// Shows a problem within a form; null takes the last one away. `focused` leads to the control that it is about.
export function showProblem(form, problem, { focused = true } = {}) {
  const id = `${form.id}-problem`;
  // What is asked again and again is wrong again and again, and is said once.
  const said = `${problem?.field}: ${problem?.message}`;
  if (!focused && form.querySelector(`#${id}`)?.dataset.said === said) return;
  for (const each of form.querySelectorAll(".at-field")) each.remove();
  for (const each of form.querySelectorAll("[aria-invalid]")) {
    each.removeAttribute("aria-invalid");
    each.removeAttribute("aria-errormessage");
  }
  if (problem === null) return;
  const control = problem.field ? closest(form, problem.field) : null;
  const text = el("p", { class: "problem at-field", id, role: "alert", "data-said": said }, problem.message);
  if (control === null) return void form.append(text);
  control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-errormessage", id);
  control.after(text);
  if (focused) control.focus();
}

// `aggregates.p95.q` is at the control of itself, else at that of `aggregates.p95`, and so on; `fields.x` of an entry
// is at that of `x`, and `delay[3]` at that of `delay`.
function closest(form, path) {
  const controls = [...form.querySelectorAll("[data-field]")];
  const find = (name) => controls.find((each) => each.dataset.field === name && !each.closest("[hidden]"));
  for (
    let part = path.replace(/\[\d+\]/g, "");
    part !== "";
    part = part.includes(".") ? part.slice(0, part.lastIndexOf(".")) : ""
  ) {
    const found =
      find(part) ??
      find(part.replace(/^fields\./, "")) ??
      controls.find((each) => !each.closest("[hidden]") && each.dataset.field.endsWith(`.${part}`));
    if (found) return found;
  }
  return null;
}
