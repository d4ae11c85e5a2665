// A continuation of a prompt, or a conversation, as it is written.
import {stream} from "./api.js";
import {$, duration, make, number, show} from "./dom.js";
import {modelChoice, state} from "./state.js";

let running = new AbortController(), messages = [];
const mode = () => document.querySelector("[name=mode]:checked").value;

const model = modelChoice("generate-model", ({generates}) => generates, chosen => {
  const chat = document.querySelector("[name=mode][value=chat]");
  $("modes").hidden = $("ask").hidden = !chosen;
  chat.disabled = !chosen || Boolean(chosen.missing.chat);
  if (chat.disabled) document.querySelector("[name=mode][value=text]").checked = true;
  show($("generate-missing"), !state.up ? "" : !chosen ? "None of the server’s models generates text." :
    chosen.missing.chat ? `No chat: ${chosen.missing.chat}.` : "");
  if (chosen) $("tokens").value = Math.min($("tokens").valueAsNumber, chosen.limits.new_tokens);
  look();
});

function look() {
  const chats = mode() === "chat";
  $("prompt-title").textContent = chats ? "Message" : "Prompt";
  $("send").textContent = chats ? "Send" : "Generate";
  $("messages").hidden = !chats;
  $("continued-paper").hidden = chats || !$("continued").textContent;
}

async function ask() {
  const prompt = $("prompt").value;
  if (!prompt.trim() || !model()) return $("prompt").focus();
  running = new AbortController();
  const {signal} = running, chats = mode() === "chat";
  const [temperature, most] = ["temperature", "tokens"].map(id => $(id).valueAsNumber);
  const max_tokens = most < model().limits.new_tokens ? most : 0;  // as many as fit behind the prompt
  const given = {model: model().name, temperature, max_tokens};
  const out = chats ? turn(prompt) : continuation(prompt);
  if (chats) given.messages = messages; else given.text = prompt;
  show($("generate-problem"), "");
  $("send").disabled = true;
  $("stop").disabled = false;
  out.setAttribute("aria-busy", true);
  let text = "", started = performance.now(), first = 0;
  try {
    for await (const piece of stream("stream_generate", given, signal)) {
      text += piece.text;
      if (text && !first) first = performance.now() - started;
      out.append(piece.text);
      if (piece.answer) facts(piece.answer, first);
    }
  } catch (problem) {
    if (problem.name === "AbortError") $("generate-facts").textContent = "Stopped.";
    else {
      show($("generate-problem"), problem.message);
      document.dispatchEvent(new CustomEvent("problem", {detail: problem}));
    }
  } finally {
    if (chats && text) messages.push({role: "assistant", content: text});
    if (chats && !text) takeBack(prompt, out);
    out.setAttribute("aria-busy", false);
    $("send").disabled = false;
    $("stop").disabled = true;
  }
}

// A message without an answer goes back to where it was written.
function takeBack(prompt, out) {
  messages.pop();
  out.remove();
  $("messages").lastChild?.remove();
  $("prompt").value = prompt;
}

function turn(prompt) {
  messages.push({role: "user", content: prompt});
  make("li", {text: prompt, class: "user", parent: $("messages")});
  $("prompt").value = "";
  return make("li", {class: "assistant", parent: $("messages")});
}

function continuation(prompt) {
  $("continued").replaceChildren();
  make("span", {text: prompt, class: "given", parent: $("continued")});
  $("continued-paper").hidden = false;
  return $("continued");
}

function facts(answer, first) {
  const warned = answer.warnings.map(({message}) => message);
  const tokens = `${number(answer.generated_tokens)} tokens in ${duration(answer.total_s)}`;
  const parts = [`first word after ${duration(first / 1000)}`, tokens];
  if (answer.finish_reason === "length") parts.push("cut at the limit of tokens");
  $("generate-facts").textContent = [...parts, ...warned].join(" · ");
}

$("ask").onsubmit = event => { event.preventDefault(); ask(); };
$("stop").onclick = () => running.abort();
$("forget").onclick = () => {
  running.abort();
  messages = [];
  $("messages").replaceChildren();
  $("continued").replaceChildren();
  $("prompt").value = $("generate-facts").textContent = "";
  show($("generate-problem"), "");
  look();
  $("prompt").focus();
};
$("prompt").onkeydown = event => {
  if (event.key !== "Enter" || event.shiftKey || mode() !== "chat") return;
  event.preventDefault();
  $("ask").requestSubmit();
};
for (const radio of document.querySelectorAll("[name=mode]")) radio.onchange = look;
