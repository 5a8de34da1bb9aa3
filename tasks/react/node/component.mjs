// What an AST says about a component: is there one, what is it called, what does it show.
// Everything here reads the tree that TypeScript parsed; no source text is matched, no code is run.

const MAX_DEPTH = 40; // resolution steps through names and calls: no program needs more to name its component

/** Top-level names of a file: name -> declaration or initialiser node. */
function topLevelNames(ts, file) {
  const names = new Map();
  for (const statement of file.statements) collectNames(ts, statement, names);
  return names;
}

function collectNames(ts, statement, names) {
  if (ts.isFunctionDeclaration(statement) || ts.isClassDeclaration(statement)) {
    // an overload has no body and must not hide the implementation
    if (statement.name && (statement.body || statement.members)) names.set(statement.name.text, statement);
  } else if (ts.isVariableStatement(statement)) {
    for (const declaration of statement.declarationList.declarations) {
      if (ts.isIdentifier(declaration.name) && declaration.initializer) {
        names.set(declaration.name.text, declaration.initializer);
      }
    }
  } else if (ts.isExpressionStatement(statement) && isPlainAssignment(ts, statement.expression)) {
    names.set(statement.expression.left.text, statement.expression.right);
  }
}

function isPlainAssignment(ts, node) {
  return (
    ts.isBinaryExpression(node) &&
    node.operatorToken.kind === ts.SyntaxKind.EqualsToken &&
    ts.isIdentifier(node.left)
  );
}

/** The node that a file exports by default, with the name it carries, or null. */
function defaultExport(ts, file, names) {
  for (const statement of file.statements) {
    const flags = ts.canHaveModifiers(statement) ? ts.getCombinedModifierFlags(statement) : 0;
    if (flags & ts.ModifierFlags.Default && flags & ts.ModifierFlags.Export) {
      if (statement.body || statement.members) return { node: statement, name: statement.name?.text ?? null };
    } else if (ts.isExportAssignment(statement) && !statement.isExportEquals) {
      return { node: statement.expression, name: null };
    } else if (ts.isExportDeclaration(statement) && !statement.moduleSpecifier && !statement.isTypeOnly) {
      const found = exportedAsDefault(ts, statement);
      if (found) return { node: names.get(found) ?? null, name: found };
    }
  }
  return null;
}

function exportedAsDefault(ts, statement) {
  if (!statement.exportClause || !ts.isNamedExports(statement.exportClause)) return null;
  for (const element of statement.exportClause.elements) {
    if (element.name.text === "default" && !element.isTypeOnly) return (element.propertyName ?? element.name).text;
  }
  return null;
}

function unwrap(ts, node) {
  while (
    node &&
    (ts.isParenthesizedExpression(node) ||
      ts.isAsExpression(node) ||
      ts.isSatisfiesExpression(node) ||
      ts.isNonNullExpression(node) ||
      ts.isTypeAssertionExpression(node))
  ) {
    node = node.expression;
  }
  return node;
}

const calleeName = (ts, node) =>
  ts.isIdentifier(node) ? node.text : ts.isPropertyAccessExpression(node) ? node.name.text : "";

const isFunction = (ts, node) =>
  ts.isFunctionDeclaration(node) ||
  ts.isFunctionExpression(node) ||
  ts.isArrowFunction(node) ||
  ts.isMethodDeclaration(node);

/** Resolves components and JSX values; one resolver a file. */
class Resolver {
  constructor(ts, names) {
    this.ts = ts;
    this.names = names;
    this.scopes = []; // names of the functions being read, innermost last
    this.open = new Set(); // nodes being resolved: a cycle is not a component
  }

  lookup(name) {
    for (let i = this.scopes.length - 1; i >= 0; i--) {
      if (this.scopes[i].has(name)) return this.scopes[i].get(name);
    }
    return this.names.get(name);
  }

  guarded(node, test) {
    if (!node || this.open.has(node) || this.open.size > MAX_DEPTH) return false;
    this.open.add(node);
    const result = test(node);
    this.open.delete(node);
    return result;
  }

  isComponent(raw) {
    const ts = this.ts;
    return this.guarded(unwrap(ts, raw), (node) => {
      if (isFunction(ts, node)) return !node.asteriskToken && this.returnsJsx(node);
      if (ts.isClassDeclaration(node) || ts.isClassExpression(node)) return this.hasRender(node);
      if (ts.isIdentifier(node)) return this.isComponent(this.lookup(node.text));
      if (ts.isConditionalExpression(node)) return this.isComponent(node.whenTrue) && this.isComponent(node.whenFalse);
      if (ts.isBinaryExpression(node)) return this.isComponent(node.right);
      if (ts.isCallExpression(node)) return this.isWrapped(node);
      return false;
    });
  }

  /** memo(X), React.forwardRef(X), Object.assign(X, ...), and higher-order components of the file. */
  isWrapped(node) {
    const called = calleeName(this.ts, node.expression);
    if (["memo", "forwardRef", "assign"].includes(called)) return this.isComponent(node.arguments[0]);
    const target = unwrap(this.ts, this.ts.isIdentifier(node.expression) ? this.lookup(called) : node.expression);
    if (!target || !isFunction(this.ts, target)) return false;
    return this.guarded(target, () => this.someReturn(target, (value) => this.isComponent(value)));
  }

  hasRender(node) {
    const render = node.members.find(
      (member) =>
        member.name?.text === "render" && (member.body || (member.initializer && isFunction(this.ts, member.initializer))),
    );
    if (!render) return false;
    this.scopes.push(new Map(node.members.filter((m) => m.name?.text).map((m) => [`this.${m.name.text}`, m.initializer ?? m])));
    const result = this.returnsJsx(render.initializer ?? render);
    this.scopes.pop();
    return result;
  }

  returnsJsx(node) {
    return Boolean(node.body) && this.someReturn(node, (value) => this.isJsx(value));
  }

  /** Whether a reachable return value of a function passes a test. */
  someReturn(node, test) {
    const ts = this.ts;
    if (!node.body) return false;
    if (!ts.isBlock(node.body)) return test(node.body);
    const scope = new Map();
    const values = [];
    readBlock(ts, node.body, scope, values);
    this.scopes.push(scope);
    const found = values.some(test);
    this.scopes.pop();
    return found;
  }

  isJsx(raw) {
    const ts = this.ts;
    const node = unwrap(ts, raw);
    if (!node) return false;
    if (ts.isJsxElement(node) || ts.isJsxSelfClosingElement(node) || ts.isJsxFragment(node)) return true;
    return this.guarded(node, () => {
      if (ts.isConditionalExpression(node)) return this.isJsx(node.whenTrue) || this.isJsx(node.whenFalse);
      if (ts.isBinaryExpression(node)) return this.isJsx(node.right) || this.isJsx(node.left);
      if (ts.isIdentifier(node)) return this.isJsx(this.lookup(node.text));
      if (ts.isArrayLiteralExpression(node)) return node.elements.some((element) => this.isJsx(element));
      if (ts.isCallExpression(node)) return this.isJsxCall(node);
      return false;
    });
  }

  /** createElement(...), items.map(() => <li/>), useMemo(() => <p/>), renderRow(), this.renderRow(). */
  isJsxCall(node) {
    const ts = this.ts;
    const name = calleeName(ts, node.expression);
    if (name === "createElement" || name === "cloneElement") return node.arguments.length > 0;
    if (name === "createPortal") return this.isJsx(node.arguments[0]);
    if (["map", "flatMap", "from", "useMemo"].includes(name)) {
      return node.arguments.some((argument) => isFunction(ts, argument) && this.returnsJsx(argument));
    }
    const own = ts.isPropertyAccessExpression(node.expression) && node.expression.expression.kind === ts.SyntaxKind.ThisKeyword;
    const target = unwrap(ts, this.lookup(own ? `this.${name}` : name));
    return Boolean(target) && isFunction(ts, target) && this.returnsJsx(target);
  }
}

/** Reads the return values and names of a block; what follows a plain return or throw is dead. */
function readBlock(ts, block, scope, values) {
  for (const statement of block.statements) {
    readStatement(ts, statement, scope, values);
    if (ts.isReturnStatement(statement) || ts.isThrowStatement(statement)) return;
  }
}

function readStatement(ts, node, scope, values) {
  if (ts.isReturnStatement(node)) {
    if (node.expression) values.push(node.expression);
  } else if (ts.isBlock(node) || ts.isCaseClause(node) || ts.isDefaultClause(node)) {
    readBlock(ts, node, scope, values);
  } else if (ts.isFunctionDeclaration(node) || ts.isClassDeclaration(node) || ts.isVariableStatement(node)) {
    collectNames(ts, node, scope);
  } else if (ts.isExpressionStatement(node)) {
    // `let body = null; if (x) body = <p/>; return body;`: any JSX ever assigned counts
    if (isPlainAssignment(ts, node.expression) && isJsxLike(ts, node.expression.right)) collectNames(ts, node, scope);
  } else if (!ts.isExpression(node)) {
    ts.forEachChild(node, (child) => readStatement(ts, child, scope, values));
  }
}

function isJsxLike(ts, raw) {
  const node = unwrap(ts, raw);
  return ts.isJsxElement(node) || ts.isJsxSelfClosingElement(node) || ts.isJsxFragment(node) || ts.isConditionalExpression(node);
}

/** The name under which people know the component: its own, or that of the identifier it comes from. */
function componentName(ts, node, name) {
  for (let depth = 0; depth < MAX_DEPTH && node && !name; depth++) {
    node = unwrap(ts, node);
    if (ts.isCallExpression(node) && node.arguments.length) node = node.arguments[0];
    else return ts.isIdentifier(node) ? node.text : (node.name?.text ?? null);
  }
  return name;
}

/** The function or class behind a default export, with the calls and the name it passes through, or null. */
function behind(ts, names, node) {
  const wrappers = [];
  let name = null;
  for (let depth = 0; depth < MAX_DEPTH && node; depth++) {
    node = unwrap(ts, node);
    if (!node) return null;
    if (isFunction(ts, node) || ts.isClassLike(node)) return { target: node, wrappers, name };
    if (ts.isCallExpression(node)) {
      wrappers.push(node);
      node = node.arguments[0];
    } else if (ts.isIdentifier(node)) {
      name = node.text;
      node = names.get(name);
    } else return null;
  }
  return null;
}

/**
 * What a file exports by default: `component` is `{name, start, end}` if it has a body that returns JSX, else
 * null; `resolved` is the function or class behind it, whatever it returns, or null.
 */
export function findComponent(ts, file) {
  const names = topLevelNames(ts, file);
  const found = defaultExport(ts, file, names);
  if (!found || !found.node) return { component: null, resolved: null };
  const place = { start: found.node.getStart(file), end: found.node.getEnd() };
  const isComponent = new Resolver(ts, names).isComponent(found.node);
  return {
    component: isComponent ? { name: componentName(ts, found.node, found.name), ...place } : null,
    resolved: behind(ts, names, found.node),
  };
}

/** Modules that a file asks for, each with its place; a computed name is given as null. */
export function findImports(ts, file) {
  const found = jsxSources(ts, file);
  const add = (node) => {
    const literal = node && ts.isStringLiteralLike(node);
    const at = node ?? file;
    found.push({ name: literal ? node.text : null, start: at.getStart(file), length: at.getEnd() - at.getStart(file) });
  };
  walk(ts, file, (node) => {
    if (ts.isImportDeclaration(node) || (ts.isExportDeclaration(node) && node.moduleSpecifier)) add(node.moduleSpecifier);
    else if (ts.isExternalModuleReference(node)) add(node.expression);
    else if (ts.isImportTypeNode(node)) add(ts.isLiteralTypeNode(node.argument) ? node.argument.literal : node.argument);
    else if (ts.isCallExpression(node)) {
      const dynamic = node.expression.kind === ts.SyntaxKind.ImportKeyword;
      const required = ts.isIdentifier(node.expression) && node.expression.text === "require";
      // a dynamic import is refused whatever it names: nothing here can wait for it
      if (dynamic) found.push({ name: null, start: node.getStart(file), length: node.getEnd() - node.getStart(file) });
      else if (required) add(node.arguments[0] ?? node);
    }
  });
  return found;
}

/** Modules that a comment `@jsxImportSource` asks for. */
function jsxSources(ts, file) {
  const pragmas = [file.pragmas.get("jsximportsource") ?? []].flat();
  return pragmas.map(({ arguments: { factory }, range }) => ({
    name: factory ?? null,
    start: range?.pos ?? 0,
    length: range ? range.end - range.pos : 0,
  }));
}

/** JSX tag names and called names of a file, each with `[start, length]` of where it first stands. */
export function findFacts(ts, file) {
  const facts = { tags: Object.create(null), calls: Object.create(null) };
  const note = (kind, name, node) => {
    const start = node.getStart(file);
    const known = facts[kind][name]?.[0] ?? Infinity;
    if (start < known) facts[kind][name] = [start, node.getEnd() - start];
  };
  walk(ts, file, (node) => {
    if (ts.isJsxOpeningElement(node) || ts.isJsxSelfClosingElement(node)) note("tags", node.tagName.getText(file), node);
    else if (ts.isCallExpression(node)) note("calls", calleeName(ts, node.expression), node.expression);
  });
  return facts;
}

function walk(ts, root, visit) {
  const stack = [root]; // no recursion: a hostile tree is deep
  while (stack.length) {
    const node = stack.pop();
    visit(node);
    ts.forEachChild(node, (child) => {
      stack.push(child);
    });
  }
}
