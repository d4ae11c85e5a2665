// Which tokens of the text a word of the answer attends to, in every layer and head.
import {call} from "./api.js";
import {$, make} from "./dom.js";

const FAINT = .1;  // of the largest weight: less is not shown in texts
const chosen = {layer: 0, head: 0};  // 0: the mean
const replies = new Map();  // by the part of an answer
let shown = () => {};

export function forgetAttention() {
  replies.clear();
  $("attention").hidden = true;
}

// The attention of a part of an answer; asked for once.
export function attend(part, given, signal) {
  if (!replies.has(part)) {
    const {model, source_language, target_language} = given;
    const asked = {model, text: part.source.text, target: part.target.text, kinds: ["cross"]};
    if (source_language) Object.assign(asked, {source_language, target_language});
    replies.set(part, call("attend", asked, signal));
  }
  return replies.get(part);
}

const overlaps = ([start, end], [from, to]) => start < to && from < end;

// A token without the blanks before it.
function bare(token, start) {
  const blanks = Array.from(token.text).length - Array.from(token.text.trimStart()).length;
  const [from, to] = token.span;
  return [start + Math.min(to, from + (to > from ? blanks : 0)), start + to];
}

// word: its text and its span in the answer. light: shades the text itself.
export function showAttention(attended, part, word, light) {
  const place = word.span.map(end => end - part.target.start);
  const rows = attended.predicted.flatMap((token, row) => overlaps(token.span, place) ? [row] : []);
  const width = attended.source.length;
  const places = name => [...new Set(attended.matrices.map(matrix => matrix[name]))];
  const layers = places("layer"), heads = places("head");

  shown = () => {
    const used = attended.matrices.filter(({layer, head}) =>
      (!chosen.layer || layer === chosen.layer) && (!chosen.head || head === chosen.head));
    const total = used.length * Math.max(1, rows.length);
    const weights = Array.from({length: width}, (_, column) =>
      used.reduce((sum, {rows: all}) => sum + rows.reduce((some, row) => some + all[row][column], 0), 0) / total);
    const most = Math.max(...weights, 1e-9), share = weights.map(weight => weight / most);
    const shades = attended.source.map((token, column) => (
      {span: bare(token, part.source.start), weight: share[column]}));
    light(shades.filter(({span, weight}) => span[1] > span[0] && weight > FAINT));
    $("attention-title").textContent = `What “${word.text}” attends to`;
    $("strip").replaceChildren();
    attended.source.forEach((token, column) => {
      $("strip").append(token.text.startsWith(" ") || token.span[0] === token.span[1] ? " " : "\u200b");
      const node = make("span", {text: token.text.trimStart(), parent: $("strip"), title: weights[column].toFixed(3)});
      if (share[column] > FAINT) node.style.setProperty("--weight", share[column]);
    });
    maps(attended, layers, heads, rows);
  };
  if (!layers.includes(chosen.layer)) chosen.layer = 0;
  if (!heads.includes(chosen.head)) chosen.head = 0;
  choice("layer", layers);
  choice("head", heads);
  $("attention").hidden = !rows.length;
  if (rows.length) shown();
}

function choice(name, places) {
  $(name).replaceChildren(new Option("mean", 0), ...places.map(place => new Option(place, place)));
  $(name).value = chosen[name];
  $(name).onchange = () => { chosen[name] = Number($(name).value); shown(); };
}

// A table of small maps, one for each layer and head: a row for each token of the answer, the word's framed.
function maps(attended, layers, heads, rows) {
  const table = $("maps"), focused = document.activeElement?.dataset?.place;
  const room = Math.max(44, Math.min(150, ($("maps-scroll").clientWidth - 72) / heads.length - 16));
  table.replaceChildren();
  const head = make("tr", {parent: make("thead", {parent: table})});
  make("td", {parent: head});
  for (const place of heads) make("th", {text: `head ${place}`, scope: "col", parent: head});
  const body = make("tbody", {parent: table});
  for (const layer of layers) {
    const line = make("tr", {parent: body});
    make("th", {text: `layer ${layer}`, scope: "row", parent: line});
    for (const place of heads) {
      const matrix = attended.matrices.find(one => one.layer === layer && one.head === place);
      const here = chosen.layer === layer && chosen.head === place;
      const label = {"aria-pressed": here, "aria-label": `layer ${layer}, head ${place}`};
      const button = make("button", {type: "button", ...label, parent: make("td", {parent: line})});
      button.dataset.place = `${layer},${place}`;
      button.onclick = () => {
        Object.assign(chosen, here ? {layer: 0, head: 0} : {layer, head: place});
        $("layer").value = chosen.layer;
        $("head").value = chosen.head;
        shown();
      };
      paint(make("canvas", {parent: button}), matrix.rows, rows, room);
    }
  }
  if (focused) table.querySelector(`[data-place="${focused}"]`)?.focus();
}

function paint(canvas, weights, marked, room) {
  const width = weights[0].length, size = Math.max(2, Math.floor(room / Math.max(width, weights.length)));
  const style = getComputedStyle(document.documentElement);
  canvas.width = width * size;
  canvas.height = weights.length * size;
  const pen = canvas.getContext("2d"), heat = style.getPropertyValue("--heat");
  weights.forEach((row, down) => row.forEach((weight, across) => {
    pen.fillStyle = `rgb(${heat}, ${Math.sqrt(weight).toFixed(3)})`;
    pen.fillRect(across * size, down * size, size, size);
  }));
  pen.strokeStyle = style.getPropertyValue("--warn");
  for (const row of marked) pen.strokeRect(.5, row * size + .5, width * size - 1, size - 1);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => $("attention").hidden || shown());
