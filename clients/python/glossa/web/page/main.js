// The frame: tabs, and whether the server is there.
import {Problem, get, useToken} from "./api.js";
import {$} from "./dom.js";
import {modelsChanged, state} from "./state.js";
import "./translate.js";
import "./documents.js";
import "./generate.js";
import "./figures.js";

const UP_MS = 5000, DOWN_MS = 2000;
const tabs = [...$("tabs").children];

function open(name, focus) {
  for (const tab of tabs) {
    const here = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", here);
    tab.tabIndex = here ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !here;
    if (here && focus) tab.focus();
  }
  document.dispatchEvent(new CustomEvent("view", {detail: name}));
}

const named = () => tabs.map(tab => tab.getAttribute("aria-controls")).find(name => location.hash === `#${name}`);
for (const [place, tab] of tabs.entries()) {
  tab.onclick = () => {
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
    open(tab.getAttribute("aria-controls"), true);
  };
  tab.onkeydown = event => {
    const to = {ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    tabs.at(to % tabs.length).click();
  };
}
addEventListener("hashchange", () => named() && open(named(), false));

let timer = 0, known = "";
async function look() {
  clearTimeout(timer);
  try {
    const found = await get("/api/server"), text = JSON.stringify(found);
    if (text !== known || !state.up) {
      known = text;
      try { state.pairs = await get("/api/pairs"); } catch { state.pairs = []; }  // an older server has none
      Object.assign(state, found, {up: true});
      modelsChanged();
    }
    const {models: {length}, models: [only], address} = found;
    $("status").textContent = `${length === 1 ? only.name : `${length} models`} at ${address}`;
    $("status").dataset.state = "up";
    $("down").hidden = $("token-form").hidden = true;
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    lost(problem);
  }
  if (document.visibilityState === "visible") timer = setTimeout(look, state.up ? UP_MS : DOWN_MS);
}

function lost(problem) {
  state.up = false;
  const asks = problem.code === "UNAUTHENTICATED";
  $("token-form").hidden = !asks;
  $("status").dataset.state = "down";
  $("status").textContent = asks ? "a token is needed" : "not connected";
  $("down").hidden = asks && !sessionStorage.length;
  $("down-title").textContent = problem.isDown ? "Nobody answers." : "The server refuses.";
  if ($("down-message").textContent !== problem.message) $("down-message").textContent = problem.message;
}

$("token-form").onsubmit = event => {
  event.preventDefault();
  useToken($("token").value);
  look();
};
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && look());
document.addEventListener("problem", event => event.detail.isDown && look());
open(named() ?? "translate", false);
look();
