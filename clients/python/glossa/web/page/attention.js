// Which tokens of the text a word of the answer attends to, in every layer and head.
import {call} from "./api.js";
import {$, make} from "./dom.js";

const chosen = {layer: 0, head: 0};  // 0: the mean
let cache = {asked: null, reply: null}, shown = () => {};

export function forgetAttention() {
  cache = {asked: null, reply: null};
  $("attention").hidden = true;
}

// The attention of an answer; asked for once.
export function attend(asked, signal) {
  if (cache.asked !== asked) {
    const {model, source_language, target_language} = asked.given;
    const given = {model, text: asked.source, target: asked.text, kinds: ["cross"]};
    if (source_language) Object.assign(given, {source_language, target_language});
    cache = {asked, reply: call("attend", given, signal)};
  }
  return cache.reply;
}

const overlaps = ([start, end], [from, to]) => start < to && from < end;

// light: shades the text itself.
export function showAttention(attended, asked, index, light) {
  const span = asked.words[index], word = asked.points.slice(...span).join("");
  const rows = attended.predicted.map((token, row) => [token, row]).filter(([token]) => overlaps(token.span, span)).map(([, row]) => row);
  const width = attended.source.length;
  const places = name => [...new Set(attended.matrices.map(matrix => matrix[name]))];
  const layers = places("layer"), heads = places("head");

  shown = () => {
    const used = attended.matrices.filter(({layer, head}) =>
      (!chosen.layer || layer === chosen.layer) && (!chosen.head || head === chosen.head));
    const weights = Array.from({length: width}, (_, column) =>
      used.reduce((sum, matrix) => sum + rows.reduce((all, row) => all + matrix.rows[row][column], 0), 0));
    const most = Math.max(...weights, 1e-9), total = used.length * Math.max(1, rows.length);
    light(attended.source.map((token, column) => ({span: token.span, weight: weights[column] / most})).filter(({span}) => span[1] > span[0]));
    $("attention-title").textContent = `What “${word}” attends to`;
    $("strip").replaceChildren();
    attended.source.forEach((token, column) => {
      const node = make("span", {text: token.text, parent: $("strip"), title: (weights[column] / total).toFixed(3)});
      node.style.setProperty("--weight", weights[column] / most);
      $("strip").append("\u200b");
    });
    maps(attended, layers, heads, rows);
  };
  if (!layers.includes(chosen.layer)) chosen.layer = 0;
  if (!heads.includes(chosen.head)) chosen.head = 0;
  choice("layer", layers);
  choice("head", heads);
  $("attention").hidden = !rows.length;
  shown();
}

function choice(name, places) {
  $(name).replaceChildren(new Option("mean of all", 0), ...places.map(place => new Option(place, place)));
  $(name).value = chosen[name];
  $(name).onchange = () => { chosen[name] = Number($(name).value); shown(); };
}

// A table of small maps, one for each layer and head: a row for each token of the answer, the word's framed.
function maps(attended, layers, heads, rows) {
  const table = $("maps"), focused = document.activeElement?.dataset?.place;
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
      const button = make("button", {type: "button", "aria-pressed": here, "aria-label": `layer ${layer}, head ${place}`, parent: make("td", {parent: line})});
      button.dataset.place = `${layer},${place}`;
      button.onclick = () => {
        Object.assign(chosen, here ? {layer: 0, head: 0} : {layer, head: place});
        $("layer").value = chosen.layer;
        $("head").value = chosen.head;
        shown();
      };
      paint(make("canvas", {parent: button}), matrix.rows, rows);
    }
  }
  if (focused) table.querySelector(`[data-place="${focused}"]`)?.focus();
}

function paint(canvas, weights, marked) {
  const width = weights[0].length, size = Math.max(2, Math.floor(96 / Math.max(width, weights.length)));
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
