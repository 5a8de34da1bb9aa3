// Long-lived type checker: one JSON object a line in, one a line out. Argument 1: the folder with node_modules.
// A batch is one program; what would let one source change the verdict on another is refused beforehand.

import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const packages = process.argv[2];
const ts = createRequire(join(packages, "package.json"))("typescript");

const MAX_DIAGNOSTICS = 20;
const OPTIONS = {
  strict: true,
  noEmit: true,
  skipLibCheck: true,
  target: ts.ScriptTarget.ES2022,
  lib: ["lib.es2022.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts"],
  module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler,
  moduleDetection: ts.ModuleDetectionKind.Force, // else files without import or export would share one scope
  jsx: ts.JsxEmit.ReactJSX,
  types: [],
};

// what a program asks of its files: with less, imports would not be resolved as the options say
const PARSE = { languageVersion: OPTIONS.target, jsDocParsingMode: ts.JSDocParsingMode.ParseAll, setExternalModuleIndicator: (file) => {
  file.externalModuleIndicator ??= true;
} };

const place = (i) => join(packages, "answers", `${i}.tsx`);
const base = ts.createCompilerHost(OPTIONS);
const libraries = new Map(); // parsed once, used by every program
let previous;

function libraryFile(name, languageVersion) {
  if (!libraries.has(name)) libraries.set(name, base.getSourceFile(name, languageVersion));
  return libraries.get(name);
}

/** One program of parsed files; they are roots and cannot be imported, not even by one another. */
function program(files) {
  const own = new Map(files.map((file) => [file.fileName, file]));
  const host = {
    ...base,
    getCurrentDirectory: () => packages,
    getSourceFile: (name, version) => own.get(name) ?? libraryFile(name, version),
    fileExists: (name) => name.startsWith(join(packages, "node_modules")) && base.fileExists(name),
    writeFile: () => undefined,
  };
  previous = ts.createProgram({ rootNames: [...own.keys()], options: OPTIONS, host, oldProgram: previous });
  return previous;
}

/** Places that switch checking off or reach beyond the file. */
function refusals(file) {
  const found = [...(file.commentDirectives ?? [])].map(({ range }) => ({ start: range.pos, end: range.end }));
  const nocheck = [file.pragmas.get("ts-nocheck") ?? []].flat();
  found.push(...nocheck.map(({ range }) => ({ start: range?.pos ?? 0, end: range?.end ?? 0 })));
  for (const list of [file.referencedFiles, file.typeReferenceDirectives, file.libReferenceDirectives]) {
    found.push(...list.map(({ pos, end }) => ({ start: pos, end })));
  }
  const stack = [...file.statements];
  while (stack.length) {
    const node = stack.pop();
    const ambient = ts.canHaveModifiers(node) && ts.getModifiers(node)?.find((m) => m.kind === ts.SyntaxKind.DeclareKeyword);
    if (ambient) found.push({ start: ambient.getStart(file), end: ambient.getEnd() });
    if (ts.isModuleDeclaration(node) && node.body?.statements) stack.push(...node.body.statements);
  }
  return found.map(({ start, end }) => ({
    source: "types",
    code: "refused",
    message: "switches type checking off, or declares what is not there",
    start,
    length: end - start,
  }));
}

function semanticDiagnostics(built, file) {
  return built.getSemanticDiagnostics(file).slice(0, MAX_DIAGNOSTICS).map((d) => ({
    source: "types",
    code: `TS${d.code}`,
    message: ts.flattenDiagnosticMessageText(d.messageText, " ").slice(0, 300),
    start: d.start ?? 0,
    length: d.length ?? 0,
  }));
}

/** Refused files stay out of the program: a `declare global` in one would change the types of the others. */
function checkAll(sources) {
  const files = sources.map((source, i) => ts.createSourceFile(place(i), source, PARSE, true, ts.ScriptKind.TSX));
  const refused = files.map(refusals);
  const built = program(files.filter((_, i) => refused[i].length === 0));
  return files.map((file, i) => {
    const diagnostics = refused[i].length ? refused[i] : semanticDiagnostics(built, file);
    return { types: diagnostics.length === 0, diagnostics };
  });
}

const send = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("close", () => process.exit(0));
lines.on("line", (line) => {
  const { id, items } = JSON.parse(line);
  send({ id, results: checkAll(items) });
});
send({ ready: true, node: process.version, typescript: ts.version });
