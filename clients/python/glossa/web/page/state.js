// What all parts of the page share: the server's models, and who wants to know when they change.
import {$, make} from "./dom.js";

export const state = {models: [], pairs: [], formats: {}, up: false};
const listeners = [];
export const onModels = listener => listeners.push(listener);
export const modelsChanged = () => listeners.forEach(listener => listener());

// A choice of models. fits: which ones; changed: called with the model that is chosen, or none. any: that the languages
// choose the model is a choice, too, where the server has several.
export function modelChoice(id, fits, changed, any = false) {
  const select = $(id);
  const chosen = () => select.value || !any ? state.models.find(model => model.name === select.value) : byLanguages();
  select.onchange = () => changed(chosen());
  onModels(() => {
    const before = select.value, models = state.models.filter(fits);
    const routes = any && models.length > 1 && state.pairs.length;
    select.replaceChildren(...models.map(({name}) => new Option(name, name)));
    if (routes) select.prepend(new Option("model by languages", "", true, true));
    if (before && models.some(({name}) => name === before)) select.value = before;
    select.hidden = select.length < 2;
    changed(chosen());
  });
  return chosen;
}

// What stands for a model while the languages of a request choose one. Every limit is that of the answer's model.
function byLanguages() {
  if (!state.pairs.length) return undefined;
  const codes = side => [...new Set(state.pairs.map(pair => pair[`${side}_language`]))].sort();
  const sides = {source_languages: codes("source"), target_languages: codes("target")};
  return {name: "", limits: {hypotheses: 32}, missing: {}, ...sides};
}

const names = new Intl.DisplayNames(["en"], {type: "language", fallback: "code"});
export function languageName(code) {
  try { return names.of(code.replace("_", "-")); } catch { return code; }
}

// The languages of a model as two choices, "auto" first of what it may detect.
export function languageChoice(source, target, changed) {
  const fill = (select, codes, first) => {
    const before = select.value;
    const nameOf = code => code === "auto" ? "Detect language" : languageName(code);
    select.replaceChildren(...codes.map(code => new Option(nameOf(code), code)));
    select.value = codes.includes(before) ? before : first ?? "";
    select.hidden = codes.length < 2;
    const title = document.querySelector(`[data-language="${select.id}"]`);  // names the only one there is
    title?.classList.toggle("unseen", !select.hidden);
    if (title) title.textContent = codes.length === 1 ? languageName(codes[0]) : title.dataset.name;
  };
  const targets = chosen => {
    const codes = chosen?.target_languages ?? [], from = source.value;
    const served = state.pairs.filter(pair => pair.source_language === from).map(pair => pair.target_language);
    const isAny = chosen?.name || from === "auto" || !served.length;
    return codes.filter(code => isAny ? code !== from || codes.length === 1 : served.includes(code));
  };
  let model;
  source.onchange = () => { fill(target, targets(model), targets(model)[0]); changed(); };
  target.onchange = changed;
  return {
    show(chosen) {
      model = chosen;
      const sources = chosen?.source_languages ?? [];
      fill(source, sources.length > 1 ? ["auto", ...sources] : sources, sources.length > 1 ? "auto" : sources[0]);
      fill(target, targets(chosen), targets(chosen)[0]);
    },
    get given() {
      const found = {};
      if (source.value) found.source_language = source.value;
      if (target.value) found.target_language = target.value;
      return found;
    },
  };
}
