// Long-lived linter: one JSON object a line in, one a line out. Argument 1: the folder with node_modules.

import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(join(process.argv[2], "package.json"));
const { Linter } = require("eslint");
const parser = require("@typescript-eslint/parser");
const react = require("eslint-plugin-react");
const hooks = require("eslint-plugin-react-hooks");

const MAX_MESSAGES = 20;
const linter = new Linter({ configType: "flat" });
const config = [
  {
    files: ["**/*.tsx"],
    languageOptions: { parser, parserOptions: { ecmaFeatures: { jsx: true }, sourceType: "module" } },
    plugins: { react, "react-hooks": hooks },
    settings: { react: { version: "19.3" } },
    linterOptions: { noInlineConfig: true, reportUnusedDisableDirectives: "off" },
    rules: {
      "constructor-super": "error",
      "no-const-assign": "error",
      "no-dupe-keys": "error",
      "no-self-assign": "error",
      "no-unreachable": "error",
      "no-unsafe-finally": "error",
      "react/jsx-key": "error",
      "react/jsx-no-duplicate-props": "error",
      "react/jsx-no-undef": "error",
      "react/no-children-prop": "error",
      "react/no-danger-with-children": "error",
      "react/no-direct-mutation-state": "error",
      "react/no-unescaped-entities": "error",
      "react/no-unknown-property": "error",
      "react/void-dom-elements-no-children": "error",
      "react-hooks/rules-of-hooks": "error",
      "react-hooks/exhaustive-deps": "warn",
    },
  },
];

/** ESLint counts lines from 1 and columns, in UTF-16 units, from 1; a fatal error has no end. */
function offsets(source) {
  const starts = [0];
  const ends = /\r\n|[\n\r\u2028\u2029]/g;
  while (ends.exec(source)) starts.push(ends.lastIndex);
  return (line, column) => Math.min(source.length, (starts[line - 1] ?? source.length) + Math.max(0, column - 1));
}

function lint(source) {
  const at = offsets(source);
  // a message without a rule that is no error says that a comment which would change the rules had no effect
  const messages = linter.verify(source, config, "answer.tsx").filter((m) => m.ruleId || m.severity === 2);
  return messages.slice(0, MAX_MESSAGES).map((m) => {
    const start = at(m.line ?? 1, m.column ?? 1);
    const end = m.endLine ? at(m.endLine, m.endColumn) : start;
    return { source: "eslint", code: m.ruleId ?? "fatal", message: m.message.slice(0, 300), start, length: Math.max(0, end - start) };
  });
}

const send = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("close", () => process.exit(0));
lines.on("line", (line) => {
  const { id, items } = JSON.parse(line);
  send({ id, results: items.map((source) => ({ diagnostics: lint(source) })) });
});
send({ ready: true, node: process.version, eslint: Linter.version });
