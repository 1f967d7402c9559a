// One question at a time, in the page's own dialog.

import { $ } from "./draw.js";

/** Ask; resolves with the text that was entered ("" where none was asked for), or null if the answer is no. */
export function ask({ title, words, yes, value = null, danger = false }) {
  const dialog = $("#sure"), input = $("#sure-value");
  $("#sure-title").textContent = title;
  $("#sure-words").textContent = words;
  $("#sure-yes").textContent = yes;
  $("#sure-yes").className = danger ? "danger" : "main";
  input.hidden = value === null;
  input.required = value !== null;
  input.value = value ?? "";
  dialog.returnValue = "";
  dialog.showModal();
  (value === null ? $("#sure-no") : input).focus();
  if (value !== null) input.select();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok" ? input.value.trim() : null), { once: true });
  });
}
