// Asks for one key: one text, or a text for each of its parts. Keys that are there are offered.

import { ask, questionOf, windowPath } from "./ask.js";
import { el, field, input, wait } from "./dom.js";
import { escaped, keyOf, partsOf } from "./words.js";

const OFFERED = 50;

// Returns { element, get, set, offer }; `get` is the key as one text, and null where nothing was said.
export function keyField(spec, value, changed, name = "key") {
  const parts = spec.keys ?? null;
  const list = (i) => `${name}-offered-${i}`;
  const given = value === null ? null : parts === null ? [value] : partsOf(value);
  const boxes = (parts ?? ["key"]).map((_, i) =>
    input(given?.[i] ?? "", {
      list: list(i),
      id: `${name}${parts === null ? "" : `-${i}`}`,
      placeholder: parts === null ? "a key" : "",
    }),
  );
  const offered = boxes.map((_, i) => el("datalist", { id: list(i) }));
  let wasSaid = value !== null;

  const get = () => {
    if (!wasSaid && boxes.every((box) => box.value === "")) return null;
    return parts === null ? boxes[0].value : keyOf(boxes.map((box) => box.value));
  };
  const set = (key) => {
    wasSaid = key !== null;
    const values = key === null ? [] : parts === null ? [key] : partsOf(key);
    boxes.forEach((box, i) => {
      if (document.activeElement !== box) box.value = values[i] ?? "";
    });
  };

  // Offers the keys that begin with what is there; of parts, the values that go with the other parts.
  async function offer() {
    const question =
      parts === null
        ? { prefix: boxes[0].value, limit: OFFERED }
        : {
            where: parts.flatMap((part, i) =>
              boxes[i].value === "" ? [] : [`${part}=~${JSON.stringify(`${escaped(boxes[i].value)}.*`)}`],
            ),
            limit: 4 * OFFERED,
          };
    const { keys } = await ask(windowPath(spec.name, `/keys?${questionOf(question)}`));
    offered.forEach((place, i) => {
      const values = [...new Set(keys.map((key) => (parts === null ? key : (partsOf(key)[i] ?? ""))))];
      place.replaceChildren(...values.slice(0, OFFERED).map((each) => el("option", { value: each })));
    });
    return keys;
  }

  const offerSoon = wait(() => offer().catch(() => {}), 200); // keys are offered, not needed
  for (const box of boxes) {
    box.addEventListener("input", () => {
      wasSaid = true;
      offerSoon();
      changed(get());
    });
  }
  const element = el(
    "fieldset",
    { class: "key" },
    el("legend", { class: "unseen" }, "Key"),
    boxes.map((box, i) => field(parts?.[i] ?? "Key", box, { name: parts === null ? name : `${name}.${parts[i]}` })),
    offered,
  );
  return { element, get, set, offer };
}
