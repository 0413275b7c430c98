// Calls the service. What it refuses becomes a `Problem`, in its own words.

const TOKEN = "sash-token"; // in sessionStorage, which is this tab's and goes with it

export class Problem extends Error {
  constructor(message, { field = null, status = 0 } = {}) {
    super(message);
    this.field = field;
    this.status = status;
  }
}

// There is no answer.
export class Unreachable extends Error {}

// The service does not know who asks.
export class Unauthenticated extends Problem {}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

// Where clients of gRPC find the service, as it says itself.
let port = 7070;
export const grpcPort = { get: () => port, set: (found) => (port = found) };

// The functions whose answers depend on the order of entries, as the service says.
export const ORDERED = new Set();

// Returns JSON, or a text where the answer is none. `body` is sent as JSON unless `type` says otherwise. `asked` is the
// promise of fetch where this was asked already.
export async function ask(path, { method = "GET", body, type = "application/json", signal, accept, asked } = {}) {
  const headers = { accept: accept ?? "application/json, text/plain;q=0.9" };
  const known = token.get();
  if (known !== null) {
    // What cannot be a header would be an error without words.
    if (!/^[\x21-\x7e]+$/.test(known)) throw new Unauthenticated("a token has no spaces, and ASCII characters only");
    headers.authorization = `Bearer ${known}`;
  }
  if (body !== undefined) headers["content-type"] = type;
  const sent = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  const [response, isJson, found] = await answered(asked, path, { method, headers, body: sent, signal });
  if (response.ok) return found;
  // PromQL has `error`.
  const { error, detail = error ?? response.statusText, limit, field = null } = isJson ? found : {};
  const message = limit ? `${detail} (limit: ${limit})` : detail;
  if (response.status === 401) throw new Unauthenticated(known === null ? "not signed in" : message);
  throw new Problem(message, { field, status: response.status });
}

async function answered(asked, path, options) {
  try {
    const response = await (asked ?? fetch(path, options));
    const isJson = /json/.test(response.headers.get("content-type") ?? "");
    return [
      response,
      isJson,
      isJson ? await response.json() : isFile(options) ? await response.blob() : await response.text(),
    ];
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable(`no answer from the service: ${error.message}`);
  }
}

const isFile = ({ headers }) => headers.accept.startsWith("application/vnd");

// Saves a text, or what the service answers to { path } in a type.
export async function download(content, file, type) {
  const found = typeof content === "string" ? new Blob([content], { type }) : await ask(content.path, { accept: type });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(found);
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser reads it after the click
}

export const windowPath = (name, rest = "") => `/v1/windows/${encodeURIComponent(name)}${rest}`;

// A query string; lists repeat their name, and what is empty is left out.
export function questionOf(members) {
  const made = new URLSearchParams();
  for (const [name, value] of Object.entries(members)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") made.append(name, each);
    }
  }
  return made;
}
