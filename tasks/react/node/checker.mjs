// Long-lived checker: one JSON object a line in, one a line out. Argument 1: the folder with node_modules.

import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { check } from "./check.mjs";

const require = createRequire(join(process.argv[2], "package.json"));
const ts = require("typescript");
const esbuild = require("esbuild");
const tools = { ts, esbuild };

const send = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

async function answer(request) {
  // esbuild works in a process of its own: all sources of a batch are under way while TypeScript parses
  const results = await Promise.all(request.items.map((source) => check(tools, source, request.options)));
  return { id: request.id, results };
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("close", () => process.exit(0));
lines.on("line", async (line) => send(await answer(JSON.parse(line))));
send({ ready: true, node: process.version, typescript: ts.version, esbuild: esbuild.version });
