// What all parts of the page share: the server's models, and who wants to know when they change.
import {$, make} from "./dom.js";

export const state = {models: [], formats: {}, up: false};
const listeners = [];
export const onModels = listener => listeners.push(listener);
export const modelsChanged = () => listeners.forEach(listener => listener());

// A choice of models. fits: which ones; changed: called with the model that is chosen, or none.
export function modelChoice(id, fits, changed) {
  const select = $(id);
  const chosen = () => state.models.find(model => model.name === select.value);
  select.onchange = () => changed(chosen());
  onModels(() => {
    const before = select.value;
    const models = state.models.filter(fits);
    select.replaceChildren(...models.map(({name}) => new Option(name, name)));
    if (models.some(({name}) => name === before)) select.value = before;
    select.hidden = models.length < 2;
    changed(chosen());
  });
  return chosen;
}

const names = new Intl.DisplayNames(["en"], {type: "language", fallback: "code"});
export function languageName(code) {
  try { return names.of(code); } catch { return code; }
}

export function fillLanguages(select, codes, preferred) {
  const before = select.value;
  select.hidden = !codes.length;
  select.replaceChildren();
  for (const code of codes) make("option", {text: languageName(code), value: code, parent: select});
  select.value = codes.includes(before) ? before : preferred ?? codes[0] ?? "";
}
