// Runs inside the sandbox, next to the component: React, and the function that renders it to a string.
// Nothing but strings leaves: errors, elements and exports of the component stay in this realm.

const React = require("react");
const jsxRuntime = require("react/jsx-runtime");
const ReactDOM = require("react-dom");
const { renderToStaticMarkup } = require("react-dom/cjs/react-dom-server-legacy.browser.production.js");

const MAX_HTML = 200_000;
const MAX_MESSAGE = 300;

const modules = {
  __proto__: null,
  react: React,
  "react/jsx-runtime": jsxRuntime,
  "react/jsx-dev-runtime": { ...jsxRuntime, jsxDEV: jsxRuntime.jsx },
  "react-dom": ReactDOM,
};

// what a component could use to reach further, or to hold memory outside the heap that is limited
const REMOVED = [
  "ArrayBuffer", "SharedArrayBuffer", "DataView", "Atomics", "WebAssembly", "WeakRef", "FinalizationRegistry",
  "Int8Array", "Uint8Array", "Uint8ClampedArray", "Int16Array", "Uint16Array", "Int32Array", "Uint32Array",
  "Float16Array", "Float32Array", "Float64Array", "BigInt64Array", "BigUint64Array",
  "setTimeout", "setInterval", "setImmediate", "queueMicrotask", "console", "escape", "unescape",
];

function harden() {
  for (const name of REMOVED) delete globalThis[name];
  const quiet = () => undefined;
  globalThis.console = { log: quiet, info: quiet, warn: quiet, error: quiet, debug: quiet, trace: quiet, table: quiet };
  // a stack trace hook is handed call sites of the frames below, which belong to the host
  Object.defineProperty(Error, "prepareStackTrace", { get: quiet, set: quiet, configurable: false });
  Object.defineProperty(Error, "stackTraceLimit", { value: 0, writable: false, configurable: false });
  delete Error.captureStackTrace;
}

const { parse } = JSON;
const { apply } = Reflect;
const { slice } = String.prototype;
const hasOwn = Object.prototype.hasOwnProperty;

/** A copy of parsed JSON in which `{"$function": true}` has become a function. */
function revive(value) {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(revive);
  if (value.$function) return () => undefined;
  const copy = {};
  for (const key of Object.keys(value)) copy[key] = revive(value[key]);
  return copy;
}

function requireModule(name) {
  if (typeof name === "string" && modules[name]) return modules[name];
  throw new Error(`no module of that name here: ${name}`);
}

const cut = (text, limit) => (text.length > limit ? apply(slice, text, [0, limit]) : text);

/** "ok:" and the markup, "none:" without a default export, "threw:" and the message. */
function run(factory, propsJson) {
  try {
    const module = { exports: {} };
    factory(module.exports, requireModule, module);
    const { exports } = module;
    if (typeof exports !== "object" || exports === null || !apply(hasOwn, exports, ["default"])) return "none:";
    const html = renderToStaticMarkup(React.createElement(exports.default, revive(parse(propsJson))));
    if (typeof html !== "string") return "threw:the renderer was tampered with";
    return html.length > MAX_HTML ? "threw:more markup than is allowed" : `ok:${html}`;
  } catch (error) {
    let message = "something that is no error";
    try {
      if (error instanceof Error && typeof error.message === "string") message = cut(error.message, MAX_MESSAGE);
    } catch {
      message = "an error that throws when it is read";
    }
    return `threw:${message}`;
  }
}

harden();
module.exports = run;
