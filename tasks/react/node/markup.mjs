// What a reader would see of static markup: walks its elements and leaves hidden subtrees out.
// Linear in the markup, which may be hostile (dangerouslySetInnerHTML).

const VOID = new Set("area base br col embed hr img input link meta param source track wbr".split(" "));
const NEVER_SHOWN = new Set(
  "script style template noscript head title meta link base datalist source track param area map".split(" "),
);
const SHOWN_BY_THEMSELVES = new Set(
  "input button select textarea progress meter hr iframe video canvas object embed".split(" "),
);
const SHAPES = new Set("path circle ellipse line polygon polyline rect use image text".split(" "));
const IMAGE = new Set(["img", "picture"]);
// white space, and characters that take no ink: zero-width, joiners, marks of direction, fillers
const INKLESS = /[\s\p{Cf}\p{Cc}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f]+/gu;
const MAX_TEXT = 20_000;

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", apos: "'" };

function decode(text) {
  return text.replace(/&(?:#x([0-9a-f]{1,6})|#([0-9]{1,7})|([a-z]{2,6}));/gi, (whole, hex, decimal, name) => {
    if (name) return ENTITIES[name.toLowerCase()] ?? whole;
    const code = hex ? parseInt(hex, 16) : parseInt(decimal, 10);
    return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

/** Reads one tag that begins at `<`; returns its parts and where it ends, or null. */
function readTag(html, start) {
  const head = /<(\/?)([a-z][^\s/>]*)/iy;
  head.lastIndex = start;
  const match = head.exec(html);
  if (!match) return null;
  const attributes = new Map();
  const attribute = /\s*(?:\/(?!>)|([^\s=/>]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?)/y;
  let at = head.lastIndex;
  for (;;) {
    attribute.lastIndex = at;
    const found = attribute.exec(html);
    if (!found || attribute.lastIndex === at) break;
    at = attribute.lastIndex;
    if (found[1]) attributes.set(found[1].toLowerCase(), decode(found[2] ?? found[3] ?? found[4] ?? ""));
  }
  const end = html.indexOf(">", at);
  if (end < 0) return null;
  const name = match[2].toLowerCase();
  return { closing: match[1] === "/", name, attributes, alone: html[end - 1] === "/" || VOID.has(name), end: end + 1 };
}

function readStyle(text) {
  const style = new Map();
  for (const part of (text ?? "").split(";")) {
    const colon = part.indexOf(":");
    if (colon > 0) style.set(part.slice(0, colon).trim().toLowerCase(), part.slice(colon + 1).trim().toLowerCase());
  }
  return style;
}

const isZero = (value) => value !== undefined && /^0+(?:\.0+)?(?:[a-z]+|%)?$/.test(value.replace(/\s*!important$/, ""));
const says = (style, name, value) => (style.get(name) ?? "").replace(/\s*!important$/, "") === value;

function isHidden({ name, attributes }, style) {
  if (NEVER_SHOWN.has(name) || attributes.has("hidden")) return true;
  if (name === "dialog" && !attributes.has("open")) return true;
  if (name === "input" && attributes.get("type")?.toLowerCase() === "hidden") return true;
  if (says(style, "display", "none") || says(style, "visibility", "hidden") || says(style, "visibility", "collapse")) return true;
  if (says(style, "content-visibility", "hidden") || isZero(style.get("opacity"))) return true;
  if (isZero(style.get("font-size")) && !IMAGE.has(name) && name !== "svg") return true;
  const clipped = says(style, "overflow", "hidden") || says(style, "overflow", "clip");
  return clipped && ["height", "width", "max-height", "max-width"].some((side) => isZero(style.get(side)));
}

const paints = (value) => value !== undefined && !/^(?:none|transparent|inherit|initial|unset|white|#fff(?:fff)?|0)$/.test(value);

function isVisibleElement({ name, attributes }, style, inSvg) {
  if (isZero(attributes.get("width")) || isZero(attributes.get("height"))) return false;
  if (SHOWN_BY_THEMSELVES.has(name)) return true;
  if (IMAGE.has(name)) return Boolean(attributes.get("src") || attributes.get("srcset") || attributes.get("alt"));
  if (inSvg && SHAPES.has(name)) return true;
  const sized = /^[1-9.]/.test(style.get("height") ?? "") || /^[1-9.]/.test(style.get("min-height") ?? "");
  if (sized && (paints(style.get("background")) || paints(style.get("background-color")))) return true;
  return paints(style.get("border")) && !isZero(style.get("border")?.split(" ")[0]);
}

/** `{blank, text, tags, roles}` of the visible part of some markup; text is cut at MAX_TEXT. */
export function inspect(html) {
  const seen = { text: [], length: 0, tags: new Set(), roles: new Set(), element: false };
  const open = []; // {name, hidden, svg} of the elements around the place that is read
  let at = 0;
  while (at < html.length) {
    const next = html.indexOf("<", at);
    const end = next < 0 ? html.length : next;
    if (end > at && !open.at(-1)?.hidden) addText(seen, html.slice(at, end));
    if (next < 0) break;
    at = readMarkup(html, next, open, seen);
  }
  const text = seen.text.join(" ").replace(/\s+/g, " ").trim();
  return { blank: !seen.element && !text, text, tags: [...seen.tags], roles: [...seen.roles] };
}

function addText(seen, raw) {
  const text = decode(raw);
  if (!text.replace(INKLESS, "") || seen.length > MAX_TEXT) return;
  seen.text.push(text.slice(0, MAX_TEXT));
  seen.length += text.length;
}

/** Reads what begins at `<` and returns where reading goes on. */
function readMarkup(html, start, open, seen) {
  if (html.startsWith("<!--", start)) {
    const end = html.indexOf("-->", start + 4);
    return end < 0 ? html.length : end + 3;
  }
  const tag = readTag(html, start);
  if (!tag) {
    if (!open.at(-1)?.hidden) addText(seen, "<");
    return start + 1;
  }
  if (tag.closing) closeElement(open, tag.name);
  else openElement(tag, open, seen);
  return tag.end;
}

function closeElement(open, name) {
  // React's markup is balanced; in raw markup a stray closing tag is ignored, an unclosed one is closed here
  for (let i = open.length - 1, left = 50; i >= 0 && left > 0; i--, left--) {
    if (open[i].name === name) {
      open.length = i;
      return;
    }
  }
}

function openElement(tag, open, seen) {
  const style = readStyle(tag.attributes.get("style"));
  const around = open.at(-1);
  const hidden = Boolean(around?.hidden) || isHidden(tag, style) || isClosedDetail(tag, around);
  const svg = tag.name === "svg" || Boolean(around?.svg);
  if (!hidden) {
    seen.tags.add(tag.name);
    if (tag.attributes.get("role")) seen.roles.add(tag.attributes.get("role"));
    if (isVisibleElement(tag, style, svg)) seen.element = true;
  }
  if (!tag.alone) open.push({ name: tag.name, hidden, svg, closed: tag.name === "details" && !tag.attributes.has("open") });
}

const isClosedDetail = (tag, around) => Boolean(around?.closed) && tag.name !== "summary";
