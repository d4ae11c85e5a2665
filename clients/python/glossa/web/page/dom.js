// Elements, and texts by code points: the server counts these, JavaScript units of UTF-16.
export const $ = id => document.getElementById(id);

export function make(tag, {text, parent, ...attributes} = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent?.append(node);
  return node;
}

export function show(node, text) {
  node.hidden = !text;
  node.textContent = text ?? "";
}

export const slice = (points, [start, end]) => points.slice(start, end).join("");

// [start, end) of each word and punctuation mark, in code points.
export function words(text, language) {
  const found = [];
  let at = 0;
  for (const {segment} of new Intl.Segmenter(language || undefined, {granularity: "word"}).segment(text)) {
    const length = Array.from(segment).length;
    if (segment.trim()) found.push([at, at + length]);
    at += length;
  }
  return found;
}

// [start, end) of each sentence, in code points.
export function sentences(text, language) {
  const found = [];
  let at = 0;
  for (const {segment} of new Intl.Segmenter(language || undefined, {granularity: "sentence"}).segment(text)) {
    const length = Array.from(segment).length, blank = length - Array.from(segment.trimEnd()).length;
    if (segment.trim()) found.push([at, at + length - blank]);
    at += length;
  }
  return found;
}

export const number = (value, digits = 0) => value.toLocaleString("en", {maximumFractionDigits: digits});

export function duration(seconds) {
  return seconds < 1 ? `${number(1000 * seconds, seconds < .01 ? 1 : 0)} ms` : `${number(seconds, 1)} s`;
}

export const percent = share => `${Math.round(100 * share)} %`;
