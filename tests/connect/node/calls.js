// A generated TypeScript client against a service: node calls.js URL. Prints one JSON document of what it saw.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { Windows } from "./gen/sash_proto/v1/windows_pb.js";

const baseUrl = process.argv[2];
const spec = {
  name: "typescript",
  timeUnit: "s",
  keyed: true,
  aggregates: { n: { function: "count" }, total: { function: "sum" } },
};

async function failing(call) {
  try {
    await call();
  } catch (error) {
    const found = ConnectError.from(error);
    return { code: Code[found.code], message: found.rawMessage, details: found.details.map((detail) => detail.type) };
  }
  return null;
}

async function calls(options) {
  const sash = createClient(Windows, createConnectTransport({ baseUrl, httpVersion: "1.1", ...options }));
  await sash.createWindow({ spec });
  for (const [time, value] of [[1n, 2.5], [2n, 4.0]]) {
    await sash.insert({ window: spec.name, key: "a", time, value });
  }
  const { answers } = await sash.query({ window: spec.name, key: "a", lookbacks: ["1s", "1m"] });
  let entries = 0;
  for await (const bulk of sash.entries({ window: spec.name, key: "a" })) {
    entries += bulk.time.length / 8;
  }
  let watched = null;
  for await (const look of sash.watch({ query: { window: spec.name, key: "a" }, intervalMs: 50n })) {
    watched = Number(look.answers[0].entries);
    break;
  }
  let parts = 0;
  for await (const part of sash.exportWindow({ window: spec.name })) {
    parts += part.data.length;
  }
  const seen = {
    totals: answers.map((answer) => answer.aggregates.total.kind.value),
    entries,
    watched,
    exported: parts > 0,
    unary: await failing(() => sash.query({ window: "nothing" })),
    stream: await failing(async () => {
      for await (const _ of sash.entries({ window: "nothing" }));
    }),
    late: await failing(async () => {
      for await (const _ of sash.watch({ query: { window: spec.name, key: "a" } }, { timeoutMs: 200 }));
    }),
  };
  await sash.deleteWindow({ name: spec.name });
  return seen;
}

const found = {};
for (const useBinaryFormat of [true, false]) {
  for (const useHttpGet of [true, false]) {
    found[`binary=${useBinaryFormat} get=${useHttpGet}`] = await calls({ useBinaryFormat, useHttpGet });
  }
}
process.stdout.write(JSON.stringify(found), () => process.exit(0)); // kept connections would delay the end
