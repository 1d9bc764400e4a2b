// Elements by construction. Every text becomes a text node, so what a model wrote is never read as markup.

// Formatting characters that reorder or hide what a reader sees, and control characters other than tab and newline.
const HIDDEN = /[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u2060\ufeff\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const SVG = "http://www.w3.org/2000/svg";

/** Any value as text in which invisible and reordering characters appear by code, as in \u202e. */
export function visible(value) {
  return String(value).replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** el("p", {class: "note", onclick: f, style: {"--level": 1}}, "text", node, [more]). null and false vanish. */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG elements. */
export function shape(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A link to a page of the viewer, by the parts of its address. */
export function link(parts, ...children) {
  return el("a", { href: href(parts) }, ...children);
}

export function href(parts, query = "") {
  return "#/" + parts.map(encodeURIComponent).join("/") + (query && "?" + query);
}

export function tag(text, kind = "") {
  return el("span", { class: "tag " + kind }, text);
}

export function number(value, digits = 2) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

export function signed(value, digits = 2) {
  return value === null || value === undefined
    ? "–"
    : (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);
}

export function percent(value) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(1) + " %";
}

/** An advantage in the colour of its sign. */
export function credit(value) {
  return el("span", { class: "number " + (value > 0 ? "up" : value < 0 ? "down" : "note") }, signed(value));
}

/** Pairs of a name and a value in one line; pairs whose value is null are left out. */
export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el(
    "dl",
    { class: "facts" },
    kept.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

/** The share of the strongest colour that a reward gets, of 1 or of the greatest reward here. */
export function level(reward, most = 1) {
  return (0.05 + 0.6 * Math.max(0, Math.min(1, (reward ?? 0) / Math.max(1, most)))).toFixed(3);
}

export function warning(text) {
  return el("p", { class: "warn", role: "alert" }, text);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "href" && !value.startsWith("#")) throw new Error("links stay within the viewer");
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return element;
}
