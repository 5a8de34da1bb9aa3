// Renders components to static markup, each in a context of its own. Argument 1: the bundle of guest.cjs.
// Reads requests from stdin, one JSON object a line, and answers likewise; needs no other file, process or net.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { types } from "node:util";
import vm from "node:vm";

import { inspect } from "./markup.mjs";

const MAX_STRING = 201_000;

const bundle = new vm.Script(readFileSync(process.argv[2], "utf8"), { filename: "guest.js" });

function freshContext() {
  return vm.createContext(Object.create(null), {
    codeGeneration: { strings: false, wasm: false },
    microtaskMode: "afterEvaluate",
  });
}

/** Runs one component, strict as a module is; only strings are read of what comes out of its context. */
function runOnce(js, props, timeout) {
  const context = freshContext();
  bundle.runInContext(context);
  const call = `__creditbench(function(exports,require,module){"use strict";${js}\n},${JSON.stringify(JSON.stringify(props))})`;
  const began = process.hrtime.bigint();
  let result;
  try {
    result = new vm.Script(call, { filename: "answer.js" }).runInContext(context, { timeout });
  } catch (error) {
    // an error of the component may be a trap: it is not looked into, only vm's own are
    if (Number(process.hrtime.bigint() - began) / 1e6 >= timeout) return { status: "timeout" };
    const own = !types.isProxy(error) && types.isNativeError(error) && Object.getPrototypeOf(error) === SyntaxError.prototype;
    return { status: "threw", message: own ? "not a script" : "an error that escaped the renderer" };
  }
  if (typeof result !== "string" || result.length > MAX_STRING) return { status: "threw", message: "no markup came out" };
  const colon = result.indexOf(":");
  const [status, rest] = [result.slice(0, colon), result.slice(colon + 1)];
  if (status === "ok") return { status, html: rest };
  return { status: status === "none" ? "no_export" : "threw", message: rest };
}

/** A component that ran out of time while the machine gave it little of it gets a second, longer run. */
function render({ js, props }, options) {
  if (/\bimport\s*\(/.test(js)) return { status: "threw", message: "a dynamic import", blank: true };
  const before = process.cpuUsage();
  let result = runOnce(js, props, options.timeout);
  const used = process.cpuUsage(before);
  if (result.status === "timeout" && (used.user + used.system) / 1000 < 0.6 * options.timeout) {
    result = runOnce(js, props, 4 * options.timeout);
  }
  if (result.status !== "ok") return { ...result, blank: true };
  const { html, ...rest } = result;
  return { ...rest, ...inspect(html), html: options.html ? html : undefined };
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("close", () => process.exit(0));
lines.on("line", (line) => {
  const request = JSON.parse(line);
  const results = request.items.map((item) => render(item, request.options));
  const answer = { id: request.id, results, rss: process.memoryUsage.rss() };
  process.stdout.write(`${JSON.stringify(answer)}\n`);
});
process.stdout.write(`${JSON.stringify({ ready: true, node: process.version })}\n`);
