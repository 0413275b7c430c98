// What is shown stands in the address after '#', so that a view can be reloaded and sent to somebody:
//
//   #                                        the overview
//   #window=delays&tab=charts&key=JFK&…      a window
//   #create                                  a new window

const listeners = [];
let given = new URLSearchParams();
let shown = null;

export const onMove = (listener) => listeners.push(listener);

export function start() {
  window.addEventListener("hashchange", () => location.hash !== shown && arrive());
  arrive();
}

function arrive() {
  given = new URLSearchParams(location.hash.slice(1));
  shown = location.hash;
  for (const listener of listeners) listener();
}

export const get = (name, otherwise = "") => given.get(name) ?? otherwise;
export const all = (name) => given.getAll(name);
export const has = (name) => given.has(name);

// Notes choices within a view. What is empty, or null, is left out.
export function set(members) {
  for (const [name, value] of Object.entries(members)) {
    given.delete(name);
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") given.append(name, each);
    }
  }
  write("replaceState");
}

// The address of another view.
export function to(members) {
  const made = new URLSearchParams();
  for (const [name, value] of Object.entries(members)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined) made.append(name, each);
    }
  }
  return `#${made}`;
}

export function go(members) {
  location.hash = to(members);
}

function write(how) {
  shown = `#${given}`;
  history[how](null, "", shown);
  shown = location.hash;
}
