// A document in, its translation out, segment by segment.
import {stream} from "./api.js";
import {$, duration, make, number, percent, show} from "./dom.js";
import {languageChoice, modelChoice, onModels, state} from "./state.js";

const UNSURE = .5, NOTES = 50;
let running = new AbortController(), address = "";

const languages = languageChoice($("document-source"), $("document-target"), () => {});
const model = modelChoice("document-model", ({translates}) => translates, chosen => languages.show(chosen), true);
onModels(() => {
  const suffixes = Object.keys(state.formats).sort().map(suffix => `.${suffix}`);
  $("formats").textContent = suffixes.join(", ");
  $("file").accept = suffixes.join();
});

const suffix = name => name.includes(".") ? name.split(".").pop().toLowerCase() : "";

async function read(file) {
  const known = Object.keys(state.formats).sort().map(one => `.${one}`).join(", ");
  if (!state.formats[suffix(file.name)]) throw new Error(`${file.name}: its suffix names no format; known: ${known}`);
  if (!file.size) throw new Error(`${file.name}: has 0 bytes; there is nothing to translate`);
  const limit = model()?.limits.document_bytes;
  if (limit && file.size > limit) {
    throw new Error(`${file.name}: has ${number(file.size)} bytes; the server takes ${number(limit)}`);
  }
  try {
    return new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name}: must be UTF-8; convert it, e.g. with iconv`);
  }
}

async function translate(file) {
  running.abort();
  running = new AbortController();
  const {signal} = running;
  show($("document-problem"), "");
  $("document-result").hidden = true;
  const parts = [];
  try {
    if (!model()) throw new Error("none of the server’s models translates");
    const text = await read(file), chosen = model();
    begin(file);
    const given = {model: chosen.name, text, format: state.formats[suffix(file.name)], ...languages.given};
    if (chosen.name && !chosen.missing.confidence) given.confidence = true;
    const length = Array.from(text).length;
    let whole;
    for await (const piece of stream("stream_translate_document", given, signal)) {
      for (const segment of piece.segments) take(segment, parts, length);
      whole = piece.document ?? whole;
    }
    end(whole, file.name);
  } catch (problem) {
    if (problem.name === "AbortError") return show($("document-facts"), "Stopped.");
    show($("document-problem"), problem.message);
    document.dispatchEvent(new CustomEvent("problem", {detail: problem}));
  } finally {
    $("document-stop").hidden = true;
  }
}

function begin(file) {
  $("document-result").hidden = $("document-stop").hidden = false;
  $("download").hidden = true;
  $("document-name").textContent = file.name;
  $("document-progress").value = 0;
  $("document-notes").replaceChildren();
  $("document-text").replaceChildren();
  show($("document-facts"), "Translating …");
}

function take(segment, parts, length) {
  parts.push(segment.text);
  $("document-text").append(segment.text);
  $("document-progress").value = segment.source.end / length;
  const unsure = segment.confidence !== null && segment.confidence < UNSURE;
  if (!(segment.error || unsure) || $("document-notes").children.length >= NOTES) return;
  const note = segment.error ? `not translated: ${segment.error.message}` : `confidence ${percent(segment.confidence)}`;
  const kind = segment.error ? "failed" : "unsure";
  make("li", {text: `${segment.text.trim()} (${note})`, class: kind, parent: $("document-notes")});
}

function end(whole, name) {
  const parts = [`${number(whole.segments)} segments in ${duration(whole.total_s)}`];
  if (whole.errors.length) parts.push(`${number(whole.errors.length)} not translated`);
  if (whole.is_language_assumed) parts.push(`sentences split as in ${whole.splitter_language}, which was assumed`);
  show($("document-facts"), parts.join(" · "));
  $("document-progress").value = 1;
  URL.revokeObjectURL(address);
  address = URL.createObjectURL(new Blob([whole.text], {type: "text/plain"}));
  const dot = name.lastIndexOf(".");
  $("download").href = address;
  $("download").download = `${name.slice(0, dot)}.translated${name.slice(dot)}`;
  $("download").hidden = false;
  $("download").focus();
}

$("file").onchange = () => {
  if ($("file").files.length) translate($("file").files[0]);
  $("file").value = "";
};
$("document-stop").onclick = () => running.abort();
for (const name of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(name, event => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files.length) translate(event.dataTransfer.files[0]);
  });
}
