// Runs in a page of the browser that takes screenshots: React, and the function that mounts a component.

const React = require("react");
const jsxRuntime = require("react/jsx-runtime");
const ReactDOM = require("react-dom");
const { createRoot } = require("react-dom/client");

const modules = {
  __proto__: null,
  react: React,
  "react/jsx-runtime": jsxRuntime,
  "react/jsx-dev-runtime": { ...jsxRuntime, jsxDEV: jsxRuntime.jsx },
  "react-dom": ReactDOM,
};

function revive(value) {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(revive);
  if (value.$function) return () => undefined;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, revive(inner)]));
}

function requireModule(name) {
  if (modules[name]) return modules[name];
  throw new Error(`no module of that name here: ${name}`);
}

/** Mounts the component that a CommonJS factory exports by default; a failure leaves the page empty. */
module.exports = function mount(factory, props) {
  const module = { exports: {} };
  factory(module.exports, requireModule, module);
  const root = createRoot(document.getElementById("root"));
  ReactDOM.flushSync(() => root.render(React.createElement(module.exports.default, revive(props))));
};
