// What the server last said, and which model this tab looks at.

import { $, element } from "./draw.js";

let state = { models: [], jobs: [], can_fit: true, ready: false };
let chosen = localStorage.getItem("procon-model") ?? "";
const listeners = [];
const choosers = [];

export const all = () => state;
export const current = () => state.models.find((model) => model.name === chosen && model.revision) ??
  state.models.find((model) => model.revision) ?? null;

export function onState(callback) {
  listeners.push(callback);
}

/** Hears when another model is looked at. */
export function onModel(callback) {
  choosers.push(callback);
}

export function setState(next) {
  const before = current()?.name;
  // A server that has just started has not loaded its models yet: what was there is shown until it has.
  state = next.ready || !state.models.length ? next : { ...next, models: state.models };
  const select = $("#model"), names = state.models.filter((model) => model.revision).map((model) => model.name);
  if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    select.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  }
  if (current()) select.value = current().name;
  if (current()?.name !== before) choosers.forEach((callback) => callback());
  listeners.forEach((callback) => callback());
}

export function choose(name) {
  if (name === current()?.name) return;
  chosen = name;
  localStorage.setItem("procon-model", name);
  if (current()) $("#model").value = current().name;
  choosers.forEach((callback) => callback());
  listeners.forEach((callback) => callback());
}
