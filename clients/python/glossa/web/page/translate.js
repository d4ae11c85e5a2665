// The text, its translation as it streams, and what can be asked about it.
import {call, stream} from "./api.js";
import {attend, forgetAttention, showAttention} from "./attention.js";
import {$, duration, make, number, percent, sentences, show, slice, words} from "./dom.js";
import {languageChoice, languageName, modelChoice, onModels, state} from "./state.js";

const PAUSE_MS = 250;  // after the last key
const OTHERS = 4;
let running = new AbortController(), timer = 0;
let answer = {points: [], words: [], parts: [], text: "", given: {}}, place = 0;

const languages = languageChoice($("source-language"), $("target-language"), () => later(0));
const model = modelChoice("translate-model", ({translates}) => translates, chosen => {
  languages.show(chosen);
  $("beams").max = chosen?.limits.hypotheses ?? 32;
  later(0);
}, true);

// The model that answered: the one that is chosen, or that the languages chose.
const answered = () => state.models.find(({name}) => name === answer.route?.model) ?? model();

const lines = id => $(id).value.split("\n").map(line => line.trim()).filter(Boolean);
const markup = () => [...document.querySelectorAll("[name=markup]:checked")].map(({value}) => value);

function glossary() {
  const terms = lines("glossary").map(line => line.split("=").map(part => part.trim()));
  return Object.fromEntries(terms.filter(([from, to]) => from && to));
}

// The arguments of a call that translates the text as it is asked for now.
function given() {
  const chosen = model();
  const asked = {model: chosen.name, text: $("text").value, ...languages.given};
  if (chosen.name && !chosen.missing.confidence) asked.confidence = true;
  if ($("beams").valueAsNumber > 1) asked.beam_size = $("beams").valueAsNumber;
  if ($("most").valueAsNumber > 0) asked.max_tokens = $("most").valueAsNumber;
  if (lines("phrases").length) asked.phrases = lines("phrases");
  if (Object.keys(glossary()).length) asked.glossary = glossary();
  if (markup().length) asked.markup = markup();
  return asked;
}

function later(pause = PAUSE_MS) {
  clearTimeout(timer);
  running.abort();
  running = new AbortController();
  closeMenu();
  closeOthers();
  forgetAttention();
  light(null);
  count();
  timer = setTimeout(translate, pause);
}

function count() {
  const text = $("text").value, bytes = new TextEncoder().encode(text).length, limit = model()?.limits.text_bytes;
  const isNear = limit && bytes > limit / 2;
  const characters = `${number(Array.from(text).length)} characters`;
  $("count").textContent = isNear ? `${number(bytes)} of ${number(limit)} bytes` : characters;
}

async function translate() {
  const chosen = model(), {signal} = running;
  if (!$("text").value.trim() || !chosen) {
    place = 0;
    set({text: ""});
    show($("problem"), state.up && !chosen ? "None of the server’s models translates." : "");
    return;
  }
  const asked = given(), started = performance.now();
  let first = 0, text = "";
  show($("problem"), "");
  $("answer").setAttribute("aria-busy", true);
  try {
    let final;
    if (asked.glossary || asked.markup) {
      final = await call("translate", asked, signal);
      first = performance.now() - started;
    } else {
      for await (const piece of stream("stream_translate", asked, signal)) {
        text += piece.text;
        if (text && !first) first = performance.now() - started;
        $("answer").textContent = text;
        $("empty").hidden = true;
        final = piece.answer ?? final;
      }
    }
    set(final, asked);
    facts(final, first);
  } catch (problem) {
    if (signal.aborted) return;
    report(problem);
    set({text: ""});
  } finally {
    if (!signal.aborted) $("answer").setAttribute("aria-busy", false);
  }
}

function report(problem) {
  show($("problem"), problem.message);
  $("empty").hidden = true;
  document.dispatchEvent(new CustomEvent("problem", {detail: problem}));
}

function facts(final, first) {
  const tokens = `${number(final.generated_tokens)} tokens in ${duration(final.total_s)}`;
  const parts = [`first word after ${duration(first / 1000)}`, tokens];
  if (final.queue_s > .01) parts.push(`${duration(final.queue_s)} in the queue`);
  if (final.confidence) parts.unshift(`confidence ${percent(final.confidence.sentence)}`);
  if (final.finish_reason === "length") parts.push("cut at the limit of tokens");
  if (final.detected_language) {
    const {language, probability} = final.detected_language;
    parts.unshift(`${languageName(language)}, found with ${percent(probability)}`);
  }
  const {model: name, first_model: before, pivot_language, pivot_text} = final.route ?? {};
  if (before) parts.push(`by way of ${languageName(pivot_language)}: “${pivot_text}”`);
  else if (name) parts.push(name);
  if (final.glossary?.unmet.length) parts.push(`without their translation: ${final.glossary.unmet.join(", ")}`);
  $("facts").textContent = parts.join(" · ");
}

// The sentences of the text, each with its translation, if they can be told apart: a model that reads single sentences
// has seen no more of each.
function partsOf(source, text, given) {
  const whole = [[source, [0, Array.from(source).length]], [text, [0, Array.from(text).length]]];
  let pairs = [whole.map(([, span]) => span)];
  if (answered()?.splits_sentences) {
    const [froms, tos] = [sentences(source, given.source_language), sentences(text, given.target_language)];
    if (froms.length === tos.length) pairs = froms.map((from, place) => [from, tos[place]]);
  }
  const part = (all, [start, end]) => ({start, end, text: slice(Array.from(all), [start, end])});
  return pairs.map(([from, to]) => ({source: part(source, from), target: part(text, to)}));
}

const partAt = place => answer.parts.findLast(({target}) => target.start <= place) ?? answer.parts[0];

// Shows an answer word by word.
function set(final, asked = {}) {
  const text = final.text ?? "", points = Array.from(text), language = asked.target_language;
  const sure = final.confidence && !asked.markup ? final.confidence.words : null;
  const spans = sure ? sure.map(word => word.span) : words(text, language);
  const detected = final.detected_language && {source_language: final.detected_language.language};
  answer = {points, words: spans, text, given: {...asked, ...detected}, confidence: sure, route: final.route};
  answer.parts = partsOf(asked.text ?? "", text, answer.given);
  place = Math.min(place, Math.max(0, spans.length - 1));
  $("answer").replaceChildren();
  $("answer").lang = language ?? "";
  let at = 0;
  spans.forEach((span, index) => {
    $("answer").append(slice(points, [at, span[0]]));
    const word = make("span", {text: slice(points, span), class: "word", role: "button", parent: $("answer")});
    word.tabIndex = index === place ? 0 : -1;
    word.setAttribute("aria-haspopup", "menu");
    if (sure?.[index].is_uncertain) word.classList.add("unsure");
    if (sure) word.setAttribute("aria-label", `${word.textContent}, confidence ${percent(sure[index].confidence)}`);
    word.onpointerenter = event => event.pointerType === "mouse" && look(index);
    word.onfocus = () => look(index);
    word.onclick = () => menu(index);
    word.onkeydown = event => keys(event, index);
    at = span[1];
  });
  $("answer").append(slice(points, [at, points.length]));
  $("empty").hidden = Boolean(text) || !$("problem").hidden;
  $("spoken").textContent = text;
  for (const id of ["copy", "others"]) $(id).disabled = !text;
  if (!text) $("facts").textContent = "";
  help();
}

function help() {
  const missing = answered()?.missing ?? {};
  if (!answer.text) return show($("answer-help"), "");
  const parts = ["Choose a word for others in its place; the arrow keys go from word to word."];
  if (answer.confidence) parts.push("Dotted words are uncertain.");
  else if (missing.confidence) parts.push(`No confidence: ${missing.confidence}.`);
  if (answer.route?.first_model) parts.push("No attention: two models answered.");
  else if (missing.attention) parts.push(`No attention: ${missing.attention}.`);
  show($("answer-help"), parts.join(" "));
}

function keys(event, index) {
  const to = {ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: answer.words.length - 1}[event.key];
  if (["Enter", " ", "ArrowDown"].includes(event.key)) { event.preventDefault(); menu(index); }
  if (to === undefined) return;
  event.preventDefault();
  $("answer").querySelectorAll(".word")[Math.max(0, Math.min(to, answer.words.length - 1))]?.focus();
}

// Looks at a word: which words of the text it attends to.
async function look(index) {
  place = index;
  $("answer").querySelectorAll(".word").forEach((word, other) => {
    word.classList.toggle("chosen", other === index);
    word.tabIndex = other === index ? 0 : -1;
  });
  const asked = answer, span = asked.words[index];
  if (answered()?.missing.attention || asked.given.markup || asked.route?.first_model) return;
  const part = partAt(span[0]), word = {text: slice(asked.points, span), span};
  try {
    const attended = await attend(part, {...asked.given, model: answered().name}, running.signal);
    if (asked === answer && place === index) showAttention(attended, part, word, light);
  } catch (problem) {
    if (problem.name !== "AbortError" && asked === answer) show($("answer-help"), `No attention: ${problem.message}`);
  }
}

// Shades the text: spans with their weights, the largest 1; null: nothing.
function light(shades) {
  $("mirror").replaceChildren();
  if (!shades) return;
  const points = Array.from($("text").value);
  let at = 0;
  for (const {span, weight} of shades) {
    if (span[0] < at) continue;
    $("mirror").append(slice(points, [at, span[0]]));
    make("span", {text: slice(points, span), parent: $("mirror")}).style.setProperty("--weight", weight);
    at = span[1];
  }
  $("mirror").append(slice(points, [at, points.length]));
}

function closeMenu() { $("menu").hidden = true; }
function closeOthers() {
  $("other-answers").hidden = true;
  $("others").setAttribute("aria-expanded", false);
}

// Other words in the place of one, each with the rest that follows from it.
async function menu(index) {
  const asked = answer, span = asked.words[index], word = $("answer").querySelectorAll(".word")[index];
  const part = partAt(span[0]), prefix = slice(asked.points, [part.target.start, span[0]]).trimEnd();
  const {beam_size, glossary, phrases, ...rest} = asked.given;
  $("menu").style.left = `${Math.max(8, Math.min(word.offsetLeft, $("answer").clientWidth - 260))}px`;
  $("menu").style.top = `${word.offsetTop + word.offsetHeight + 4}px`;
  $("menu").replaceChildren(make("p", {text: "Looking …", role: "none"}));
  $("menu").hidden = false;
  try {
    const options = {...rest, text: part.source.text, prefix, return_alternatives: true, num_hypotheses: 5};
    const found = await call("translate", options, running.signal);
    if (asked === answer) choices($("menu"), "menuitem", found.hypotheses, part, prefix, word);
  } catch (problem) {
    if (problem.name !== "AbortError") $("menu").replaceChildren(make("p", {text: problem.message, role: "none"}));
  }
}

// An answer with other words in the place of one of its parts.
function replaced(part, one) {
  const {start, end} = part.target, points = Array.from(one.text), moved = points.length - (end - start);
  const text = slice(answer.points, [0, start]) + one.text + slice(answer.points, [end, answer.points.length]);
  if (!(answer.confidence && one.confidence)) return {text};
  const shift = (word, by) => ({...word, span: word.span.map(place => place + by)});
  const before = answer.confidence.filter(({span}) => span[1] <= start);
  const after = answer.confidence.filter(({span}) => span[0] >= end).map(word => shift(word, moved));
  return {text, confidence: {words: [...before, ...one.confidence.words.map(word => shift(word, start)), ...after]}};
}

// Fills a list with other answers of a part. role: of its items. back: what had the focus.
function choices(list, role, hypotheses, part, prefix, back) {
  const seen = new Set([part.target.text]);
  const others = hypotheses.filter(({text}) => !seen.has(text) && seen.add(text));
  list.replaceChildren(...others.map(one => {
    const text = one.text.slice(one.text.startsWith(prefix) ? prefix.length : 0).trim();
    const item = make("button", {text: text || "(ends here)", type: "button"});
    if (role) item.setAttribute("role", role);
    if (one.confidence) make("small", {text: percent(one.confidence.sentence), class: "quiet", parent: item});
    item.onclick = () => {
      const chosen = replaced(part, one);
      closeMenu();
      closeOthers();
      forgetAttention();
      light(null);
      set({...chosen, route: answer.route}, answer.given);
      $("facts").textContent = "chosen by you";
      $("answer").querySelectorAll(".word")[place]?.focus();
    };
    return role ? item : wrap(item);
  }));
  if (!others.length) list.append(make(role ? "p" : "li", {text: "The model knows no other.", role: "none"}));
  list.onkeydown = event => {
    const items = [...list.querySelectorAll("button")], at = items.indexOf(document.activeElement);
    if (event.key === "Escape") { list.hidden = true; closeOthers(); back.focus(); }
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (step && items.length) { event.preventDefault(); items.at((at + step) % items.length).focus(); }
  };
  list.querySelector("button")?.focus();
}

function wrap(item) {
  const line = make("li");
  line.append(item);
  return line;
}

$("others").onclick = async () => {
  if (!$("other-answers").hidden) return closeOthers();
  const asked = answer, list = $("other-answers");
  list.hidden = false;
  $("others").setAttribute("aria-expanded", true);
  list.replaceChildren(make("li", {text: "Looking …", class: "quiet"}));
  try {
    const beams = Math.max(OTHERS, asked.given.beam_size ?? 1);
    const options = {...asked.given, beam_size: beams, num_hypotheses: OTHERS};
    const found = await call("translate", options, running.signal);
    const whole = {target: {start: 0, end: asked.points.length, text: asked.text}};
    if (asked === answer) choices(list, "", found.hypotheses, whole, "", $("others"));
  } catch (problem) {
    if (problem.name !== "AbortError") list.replaceChildren(make("li", {text: problem.message}));
  }
};
$("copy").onclick = async () => {
  await navigator.clipboard.writeText(answer.text);
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
};
$("clear").onclick = () => { $("text").value = ""; later(0); $("text").focus(); };
$("text").oninput = () => later();
$("options").oninput = () => later();
document.addEventListener("click", event => {
  if (!$("menu").hidden && !event.target.closest("#menu, .word")) closeMenu();
});
$("answer").onpointerleave = () => {
  if (!$("answer").contains(document.activeElement)) light(null);
};
onModels(help);
