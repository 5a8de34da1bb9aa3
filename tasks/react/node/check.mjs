// Static checks of one source: TypeScript parse, esbuild transform, imports, component.

import { findComponent, findFacts, findImports } from "./component.mjs";
import { inferProps } from "./props.mjs";

const MAX_DIAGNOSTICS = 20;

const TRANSFORM = {
  loader: "tsx",
  format: "cjs",
  jsx: "automatic",
  target: "es2022",
  supported: { "dynamic-import": false }, // turns import() into require(), which the sandbox answers itself
  tsconfigRaw: "{}",
  logLevel: "silent",
  logLimit: MAX_DIAGNOSTICS,
};

/** Parses a source; offsets are UTF-16 units, as everywhere on this side. */
export function parse(ts, source) {
  const file = ts.createSourceFile("answer.tsx", source, ts.ScriptTarget.ES2022, true, ts.ScriptKind.TSX);
  // in the order of the source and each once, as tsc shows them
  const sorted = ts.sortAndDeduplicateDiagnostics(file.parseDiagnostics);
  const diagnostics = sorted.slice(0, MAX_DIAGNOSTICS).map((d) => ({
    source: "typescript",
    code: `TS${d.code}`,
    message: ts.flattenDiagnosticMessageText(d.messageText, " "),
    start: d.start,
    length: d.length,
  }));
  return { file, diagnostics };
}

/** The offset of an esbuild location (line, UTF-8 byte column), by esbuild's own idea of a line. */
function offsetOf(source, location) {
  const ends = /\r\n|[\n\r\u2028\u2029]/g;
  let start = 0;
  for (let line = 1; line < location.line; line++) {
    const match = ends.exec(source);
    if (!match) return source.length;
    start = ends.lastIndex;
  }
  const line = source.slice(start, start + location.column + 1); // a column has at least as many bytes as units
  const before = Buffer.from(line, "utf8").subarray(0, location.column).toString("utf8");
  return Math.min(source.length, start + before.length);
}

function esbuildDiagnostics(source, error) {
  const errors = error.errors ?? [];
  if (!errors.length) return [{ source: "esbuild", code: "esbuild", message: String(error.message ?? error), start: 0, length: source.length }];
  return errors.slice(0, MAX_DIAGNOSTICS).map(({ text, location }) => ({
    source: "esbuild",
    code: "esbuild",
    message: text,
    start: location ? offsetOf(source, location) : 0,
    length: location ? Math.max(1, location.length) : source.length,
  }));
}

const nothing = (diagnostics) => ({ syntax: false, compile: false, diagnostics, component: null, facts: null, js: null, props: null });

/** `{syntax, compile, diagnostics, component, facts, js, props}` of one source; js and props when asked for. */
export async function check(tools, source, options) {
  try {
    return await checkParsed(tools, parse(tools.ts, source), source, options);
  } catch (error) {
    // the parser recurses, and says so when the stack is full; anything else is a fault of the checker
    if (!(error instanceof RangeError)) throw error;
    const message = "nested too deeply to be parsed";
    return nothing([{ source: "typescript", code: "too_deep", message, start: 0, length: source.length }]);
  }
}

async function checkParsed({ ts, esbuild }, parsed, source, options) {
  if (parsed.diagnostics.length) return nothing(parsed.diagnostics);
  let js;
  try {
    js = (await esbuild.transform(source, TRANSFORM)).code;
  } catch (error) {
    return nothing(esbuildDiagnostics(source, error));
  }
  const diagnostics = refusedImports(ts, parsed.file, options.imports);
  const { component, resolved } = findComponent(ts, parsed.file);
  if (!component) {
    const message = "no default-exported component with a body that returns JSX";
    diagnostics.push({ source: "component", code: "missing", message, start: 0, length: source.length });
  }
  const facts = component && options.facts ? findFacts(ts, parsed.file) : null;
  const rendering = options.js ? { js, props: inferProps(ts, parsed.file, resolved) } : { js: null, props: null };
  return { syntax: true, compile: !diagnostics.length, diagnostics, component, facts, ...rendering };
}

function refusedImports(ts, file, allowed) {
  const refused = findImports(ts, file).filter(({ name }) => !allowed.includes(name));
  return refused.map(({ name, start, length }) => ({
    source: "imports",
    code: name === null ? "computed" : "refused",
    message: name === null ? "a computed or dynamic import" : `import of "${name}", which is not on the allow-list`,
    start,
    length,
  }));
}
