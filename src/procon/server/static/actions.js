// What can be done with a model as a whole: rename, delete, download, upload, export, its verdicts and its history.

import { download, modelPath, request, send, upload } from "./api.js";
import { ask } from "./dialog.js";
import { $, element, percent, plural, tell, toast } from "./draw.js";
import { all, choose, current } from "./state.js";

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    toast(error.message);
  }
}

async function rename(model) {
  const name = await ask({ title: `New name for ${model.name}`, words: "Its past parts and its training images go with it.", yes: "Rename", value: model.name });
  if (!name || name === model.name) return;
  await attempt(async () => {
    const chosen = current()?.name === model.name;
    await send(modelPath(model.name), "PATCH", { name });
    if (chosen) choose(name);
    tell(`${model.name} is called ${name} now`);
  });
}

async function remove(model) {
  const now = all().models.find((other) => other.name === model.name) ?? model;
  const parts = now.verdicts ? ` and ${plural(now.verdicts, "past part")} with what was said about them` : "";
  const sure = await ask({
    title: `Delete ${model.name}?`, yes: "Delete", danger: true,
    words: `The model, its training images${parts} are deleted. This cannot be undone; download the model first if you may need it again.`,
  });
  if (sure === null) return;
  await attempt(async () => {
    await request(modelPath(model.name), { method: "DELETE" });
    tell(`${model.name} is deleted`);
  });
}

async function exportModel(model, to, button) {
  button.disabled = true;
  const words = button.textContent;
  button.textContent = "Exporting, a minute or more…";
  await attempt(async () => {
    await download(`${modelPath(model.name)}/export?to=${to}`, `${model.name}-${to}.zip`, { method: "POST" });
    tell(`${model.name} is exported; procon watch runs it without torch`);
  });
  button.textContent = words;
  button.disabled = false;
}

/** The buttons of a model. */
export function actionsOf(model) {
  const button = (textContent, onclick, className = "") => element("button", { type: "button", textContent, onclick, className, "aria-label": `${textContent}: ${model.name}` });
  const file = `${model.name}${model.exported ? ".zip" : ".procon"}`;
  const made = [];
  if (model.revision) made.push(button("Download", () => attempt(() => download(`${modelPath(model.name)}/file`, file))));
  if (model.revision && !model.exported) {
    for (const [to, name] of [["onnx", "ONNX"], ["openvino", "OpenVINO"]]) {
      made.push(button(`Export to ${name}`, (event) => exportModel(model, to, event.target)));
    }
  }
  if (model.revision) made.push(button("Verdicts as CSV", () => attempt(() => download(`${modelPath(model.name)}/verdicts.csv`, `${model.name}-verdicts.csv`))));
  if (all().can_fit) made.push(button("Rename", () => rename(model)), button("Delete", () => remove(model), "danger"));
  return element("div", { className: "actions" }, ...made);
}

/** Everything that changed the model since its fit, latest first. */
export function historyOf(model) {
  if (!model.history.length) return [];
  const rows = model.history.toReversed().map((change) => element("tr", {},
    element("td", { textContent: change.when.replace("T", " ").replace(/(\+00:00|Z)$/, " UTC") }), element("td", { textContent: change.what }),
    element("td", { textContent: change.count ? plural(change.count, "image") : "" }), element("td", { textContent: change.note })));
  const head = element("tr", {}, ...["when", "what", "images", "note"].map((textContent) => element("th", { textContent, scope: "col" })));
  return [element("details", {}, element("summary", { textContent: `History: ${plural(model.history.length, "change")} since the fit` }),
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)))];
}

function say(words, failed = false) {
  $("#upload-words").hidden = false;
  $("#upload-words").className = failed ? "note error" : "note";
  $("#upload-words").textContent = words;
}

async function uploadModel(file, replace = false) {
  const name = file.name.replace(/\.procon$/i, "");
  const path = `${modelPath(name)}/file${replace ? "?replace=true" : ""}`;
  try {
    const model = await upload(path, file, (done, total) => say(`Sending ${name}: ${percent(done / total)}`), "PUT");
    if (model.error) say(`${name} has arrived, but cannot be loaded: ${model.error}`, true);
    else say(`${name} is ${replace ? "replaced" : "ready"}.`);
  } catch (error) {
    if (error.status === 409 && error.message.includes("replace=true") && !replace) {
      const sure = await ask({ title: `Replace ${name}?`, words: "There is a model of this name. Its past parts stay.", yes: "Replace" });
      if (sure !== null) await uploadModel(file, true);
    } else say(error.message, true);
  }
}

export function start() {
  $("#upload").addEventListener("change", (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) uploadModel(file);
  });
}
