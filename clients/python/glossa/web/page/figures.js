// The server's live figures while they are looked at, and what a model is.
import {get} from "./api.js";
import {$, duration, make, number, percent, show} from "./dom.js";
import {languageName, modelChoice} from "./state.js";

const EVERY_MS = 1000, KEPT = 60;
const rates = [];  // tokens per second
let timer = 0, before = null;

const model = modelChoice("server-model", () => true, chosen => {
  rates.length = 0;
  before = null;
  about(chosen);
});

function about(chosen) {
  $("about").replaceChildren();
  if (!chosen) return;
  const {limits} = chosen;
  const languages = [chosen.source_languages, chosen.target_languages].map(codes => codes.map(languageName).join(", "));
  const attention = Object.entries(chosen.attention).map(([kind, {layers, heads}]) =>
    `${kind}: ${layers} layers of ${heads} heads`);
  const tokens = `${number(limits.prompt_tokens)} tokens in, ${number(limits.new_tokens)} out`;
  const facts = {
    Name: `${chosen.name}, version ${chosen.version}`,
    Task: chosen.task,
    Architecture: `${chosen.architecture}, ${number(chosen.vocab_size)} tokens in the vocabulary`,
    Precision: `${chosen.precision} on ${chosen.provider.replace("ExecutionProvider", "")}`,
    Engines: `${chosen.engines} in ${chosen.processes === 1 ? "1 process" : `${chosen.processes} processes`}`,
    Languages: languages.filter(Boolean).join(" → "),
    Limits: `${tokens}; texts of ${number(limits.text_bytes)} bytes`,
    Attention: attention.join("; "),
    Verified: chosen.verified ? "against PyTorch, at export" : "no",
    Bundle: chosen.bundle_sha256.slice(0, 16),
    "It cannot": Object.values(chosen.missing).join("; "),
  };
  for (const [name, value] of Object.entries(facts)) {
    if (!value) continue;
    make("dt", {text: name, parent: $("about")});
    make("dd", {text: value, parent: $("about")});
  }
}

async function look() {
  clearTimeout(timer);
  if ($("server").hidden || document.visibilityState !== "visible") return;
  try {
    const found = await get("/api/figures");
    const now = found.models[model()?.name];
    show($("figures-problem"), "");
    if (now) draw(now, found.read_s);
  } catch (problem) {
    $("figures").replaceChildren();
    show($("figures-problem"), problem.message);
    if (problem.status === 501) return;
  }
  timer = setTimeout(look, EVERY_MS);
}

function draw(now, read) {
  if (before && read > before.read) {
    rates.push(Math.max(0, now.generated_tokens - before.now.generated_tokens) / (read - before.read));
    if (rates.length > KEPT) rates.shift();
  }
  if (!before || read > before.read) before = {now, read};
  const first = now.first_token_count ? duration(now.first_token_s_sum / now.first_token_count) : "–";
  const tiles = [
    ["Tokens per second", number(rates.at(-1) ?? 0), "", rates],
    ["Rows in use", number(now.rows_used), `of ${number(now.rows_limit)}`],
    ["Waiting", number(now.queued), `of ${number(now.queue_limit)}`],
    ["KV cache", percent(now.cache_ratio), "reserved"],
    ["First token", first, "mean since the start"],
  ];
  $("figures").replaceChildren(...tiles.map(([name, value, more, line]) => {
    const tile = make("div");
    make("dt", {text: name, parent: tile});
    const shown = make("dd", {text: value, parent: tile});
    if (more) make("small", {text: ` ${more}`, class: "quiet", parent: shown});
    if (line?.length > 1) shown.append(spark(line));
    return tile;
  }));
}

function spark(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const most = Math.max(...values, 1), start = KEPT - values.length;
  const line = document.createElementNS(svg.namespaceURI, "polyline");
  const points = values.map((value, place) => `${start + place},${(19 - 18 * value / most).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return svg;
}

document.addEventListener("view", look);
document.addEventListener("visibilitychange", look);
