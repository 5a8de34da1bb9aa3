// Invents props for a component from what it declares: required ones only, strings that can be found again.
// Values are JSON; `{"$function": true}` stands for a function.

const MAX_DEPTH = 6;
const FUNCTION = { $function: true };
const ARRAY_METHODS = new Set("map filter forEach reduce some every find slice length join flatMap".split(" "));
const NODE_TYPES = new Set("ReactNode ReactElement ReactChild Element ReactText".split(" "));
const COMPONENT_TYPES = new Set("FC FunctionComponent VFC ComponentType ElementType".split(" "));
const SAME = new Set("Readonly Required NonNullable PropsWithChildren PropsWithRef Pick Omit".split(" "));
const EMPTY = new Set("Partial Record CSSProperties RefObject Ref".split(" "));

const sentinel = (name) => `Sample ${name}`;
const looksCallable = (name) => /^(?:on|set|handle|render)[A-Z]/.test(name);
const typeName = (ts, node) => (ts.isQualifiedName(node) ? node.right.text : (node.text ?? ""));

/** Interfaces, aliases and enums of a file by name, and the declared types of its constants. */
function declaredTypes(ts, file) {
  const types = new Map();
  const constants = new Map();
  for (const statement of file.statements) {
    if (ts.isInterfaceDeclaration(statement) || ts.isTypeAliasDeclaration(statement) || ts.isEnumDeclaration(statement)) {
      types.set(statement.name.text, statement);
    } else if (ts.isVariableStatement(statement)) {
      for (const { name, type } of statement.declarationList.declarations) {
        if (type && ts.isIdentifier(name)) constants.set(name.text, type);
      }
    }
  }
  return { types, constants };
}

class Sampler {
  constructor(ts, file) {
    this.ts = ts;
    Object.assign(this, declaredTypes(ts, file));
  }

  /** A value of a type; undefined where none is needed. */
  value(type, name, depth = 0) {
    const { ts } = this;
    const kind = ts.SyntaxKind;
    if (!type || depth > MAX_DEPTH) return looksCallable(name) ? FUNCTION : sentinel(name);
    switch (type.kind) {
      case kind.NumberKeyword:
      case kind.BigIntKeyword:
        return 3;
      case kind.BooleanKeyword:
        return true;
      case kind.FunctionType:
      case kind.ConstructorType:
        return FUNCTION;
      case kind.ArrayType:
        return this.list(type.elementType, name, depth);
      case kind.TupleType:
        return type.elements.map((element) => this.value(element.type ?? element, name, depth + 1));
      case kind.LiteralType:
        return literalValue(ts, type.literal);
      case kind.UndefinedKeyword:
        return undefined;
      case kind.UnionType:
        return this.union(type, name, depth);
      case kind.IntersectionType:
        return Object.assign({}, ...type.types.map((part) => this.value(part, name, depth + 1)).filter(isPlain));
      case kind.TypeLiteral:
        return this.members(type.members, depth);
      case kind.ParenthesizedType:
      case kind.TypeOperator:
        return this.value(type.type, name, depth + 1);
      case kind.TypeReference:
        return this.reference(type, name, depth);
      default:
        return looksCallable(name) ? FUNCTION : sentinel(name);
    }
  }

  list(type, name, depth) {
    return [1, 2].map((i) => this.value(type, `${name} ${i}`, depth + 1));
  }

  union(type, name, depth) {
    const values = type.types.map((part) => this.value(part, name, depth + 1));
    return values.find((value) => value !== undefined && value !== null) ?? values[0];
  }

  members(members, depth) {
    const { ts } = this;
    const object = {};
    for (const member of members) {
      const name = member.name?.text;
      if (!name || member.questionToken) continue;
      object[name] = ts.isPropertySignature(member) ? this.value(member.type, name, depth + 1) : FUNCTION;
    }
    return object;
  }

  reference(type, name, depth) {
    const { ts } = this;
    const called = typeName(ts, type.typeName);
    const first = type.typeArguments?.[0];
    const own = this.types.get(called);
    if (own && ts.isTypeAliasDeclaration(own)) return this.value(own.type, name, depth + 1);
    if (own && ts.isInterfaceDeclaration(own)) return this.interface(own, depth);
    if (own) return enumValue(ts, own);
    if (called === "Array" || called === "ReadonlyArray" || called === "Iterable") return this.list(first, name, depth);
    if (SAME.has(called)) return this.value(first, name, depth + 1);
    if (EMPTY.has(called)) return {};
    if (NODE_TYPES.has(called)) return sentinel(name);
    if (COMPONENT_TYPES.has(called)) return "span";
    return /(?:Handler|Callback|Dispatch|Function)$/.test(called) || looksCallable(name) ? FUNCTION : sentinel(name);
  }

  interface(declaration, depth) {
    const bases = (declaration.heritageClauses ?? []).flatMap((clause) => [...clause.types]);
    const inherited = bases.map((base) => this.types.get(base.expression.text)).filter(Boolean);
    const parts = inherited.map((base) => (base.members ? this.members(base.members, depth + 1) : this.value(base.type, "", depth + 1)));
    return Object.assign({}, ...parts.filter(isPlain), this.members(declaration.members, depth));
  }
}

const isPlain = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function literalValue(ts, literal) {
  if (ts.isStringLiteralLike(literal)) return literal.text;
  if (ts.isNumericLiteral(literal)) return Number(literal.text);
  if (literal.kind === ts.SyntaxKind.TrueKeyword) return true;
  if (literal.kind === ts.SyntaxKind.FalseKeyword) return false;
  return null;
}

function enumValue(ts, declaration) {
  const first = declaration.members[0]?.initializer;
  return first ? literalValue(ts, first) : 0;
}

/** How a name is used, for lack of a type: listed, called, read field by field, or shown. */
function usedValue(ts, scope, matches, name, depth = 0) {
  const fields = {};
  let result;
  const visit = (node) => {
    if (ts.isPropertyAccessExpression(node) && matches(node.expression)) {
      const field = node.name.text;
      if (ARRAY_METHODS.has(field)) result ??= usedList(ts, node, name, depth);
      else if (depth < MAX_DEPTH) {
        const inner = (other) => ts.isPropertyAccessExpression(other) && other.name.text === field && matches(other.expression);
        fields[field] ??= usedValue(ts, scope, inner, field, depth + 1);
      }
    } else if (ts.isCallExpression(node) && matches(node.expression)) result ??= FUNCTION;
    ts.forEachChild(node, visit);
  };
  visit(scope);
  if (result !== undefined) return result;
  if (Object.keys(fields).length) return fields;
  return looksCallable(name) ? FUNCTION : sentinel(name);
}

function usedList(ts, access, name, depth) {
  const call = access.parent;
  const callback = ts.isCallExpression(call) && call.expression === access ? call.arguments[0] : undefined;
  const parameter = callback?.parameters?.[0];
  return [1, 2].map((i) => {
    const label = `${name} ${i}`;
    if (!parameter || depth >= MAX_DEPTH) return label;
    if (!ts.isIdentifier(parameter.name)) return patternValue(ts, parameter.name, callback, depth + 1);
    return usedValue(ts, callback, (node) => ts.isIdentifier(node) && node.text === parameter.name.text, label, depth + 1);
  });
}

/** An object for a destructuring pattern without a type; names with a default are left out. */
function patternValue(ts, pattern, scope, depth = 0) {
  const object = {};
  for (const element of pattern.elements ?? []) {
    if (!element.name || element.initializer || element.dotDotDotToken) continue;
    const key = element.propertyName?.text ?? element.name.text;
    if (!key) continue;
    const matches = (node) => ts.isIdentifier(node) && node.text === element.name.text;
    object[key] = ts.isIdentifier(element.name)
      ? usedValue(ts, scope, matches, key, depth + 1)
      : patternValue(ts, element.name, scope, depth + 1);
  }
  return object;
}

/** The type of the props that a call or annotation around the function names. */
function outerType(ts, { wrappers, annotation, target }) {
  if (annotation && ts.isFunctionTypeNode(annotation)) return annotation.parameters[0]?.type;
  if (annotation?.typeArguments) return annotation.typeArguments[0];
  for (const call of wrappers) {
    const named = call.typeArguments ?? [];
    if (named.length) return named[named.length - 1];
  }
  return target.heritageClauses?.[0]?.types[0]?.typeArguments?.[0];
}

/** Props for the component that `resolved` describes (see `resolveComponent`). */
export function inferProps(ts, file, resolved) {
  if (!resolved) return {};
  const sampler = new Sampler(ts, file);
  const { target } = resolved;
  const parameter = target.parameters?.[0];
  const annotation = resolved.name ? sampler.constants.get(resolved.name) : undefined;
  const type = parameter?.type ?? outerType(ts, { ...resolved, annotation });
  if (type && type.kind !== ts.SyntaxKind.AnyKeyword) {
    const value = sampler.value(type, "props");
    return isPlain(value) ? withoutDefaults(ts, value, parameter) : {};
  }
  if (!parameter) return {};
  if (ts.isObjectBindingPattern(parameter.name)) return patternValue(ts, parameter.name, target);
  if (type || !ts.isIdentifier(parameter.name)) return {}; // `props: any` promises nothing
  const value = usedValue(ts, target, (node) => ts.isIdentifier(node) && node.text === parameter.name.text, "props");
  return isPlain(value) && !value.$function ? value : {};
}

/** A prop with a default is shown with its default. */
function withoutDefaults(ts, value, parameter) {
  if (!parameter || !ts.isObjectBindingPattern(parameter.name)) return value;
  const kept = { ...value };
  for (const element of parameter.name.elements) {
    if (element.initializer) delete kept[element.propertyName?.text ?? element.name.text];
  }
  return kept;
}
