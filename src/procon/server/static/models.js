// Fit on good images, watch it, and see what models there are.

import { actionsOf, historyOf } from "./actions.js";
import { json, request, upload } from "./api.js";
import { $, element, percent, plural, toast } from "./draw.js";
import { oddImages } from "./good.js";
import { all, choose, onState } from "./state.js";
import { lessonsOf } from "./teach.js";

const SOON = 250; // ms without another change before the server is asked
let good = [];
let listed = null; // the models in the list, each with its revision
let ours = null; // the job that this tab started: its model is chosen when it is done
let asking; // timer

const isImage = (file) => file.type.startsWith("image/") || /\.(tiff?|bmp|jp2|p[gp]m)$/i.test(file.name);

/** Add good images; of a whole data set, those in its train/good alone: the others may have defects. */
export function addGood(files) {
  const images = [...files].filter(isImage), inside = (file) => /(^|\/)train\/good\//.test(file.webkitRelativePath || file.path || "");
  const train = images.filter(inside), rest = train.length ? images.length - train.length : 0;
  if (files.length && !images.length) say("No images found in these files: choose a folder with image files.", true);
  else say(rest ? `${plural(rest, "image")} outside train/good ${rest === 1 ? "was" : "were"} left out.` : "");
  good = [...good, ...(train.length ? train : images)];
  $("#good-count").textContent = good.length ? plural(good.length, "good image") : "Drop good images or a folder here";
  $("#good-clear").hidden = !good.length;
  promise();
}

/** All files in dropped folders, each with its path. */
export async function filesIn(entries) {
  const files = [];
  for (const entry of entries) {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
      files.push(Object.assign(file, { path: entry.fullPath }));
      continue;
    }
    const reader = entry.createReader();
    for (;;) { // it gives a hundred at a time
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) break;
      files.push(...await filesIn(some));
    }
  }
  return files;
}

/** What so many images allow, before anything is sent. */
function promise() {
  clearTimeout(asking);
  const rate = Number($("#fit-rate").value) / 100;
  if (!good.length || !(rate > 0 && rate < 1)) {
    $("#fit-promise").textContent = "\u00a0";
    return;
  }
  const count = good.length;
  asking = setTimeout(async () => {
    try {
      const { sentences } = await json(`/v1/promise?images=${count}&false_alarm_rate=${rate}`);
      if (count === good.length) $("#fit-promise").textContent = sentences.join(" ");
    } catch { /* the fit itself says what is wrong */ }
  }, SOON);
}

function say(words, failed = false) {
  $("#fit-words").textContent = words || "\u00a0";
  $("#fit-words").className = failed ? "note error" : "note";
}

async function fit(event) {
  event.preventDefault();
  if (!good.length) {
    say("Choose good images first.", true);
    return;
  }
  const form = new FormData();
  form.append("name", $("#name").value);
  form.append("false_alarm_rate", Number($("#fit-rate").value) / 100);
  form.append("replace", $("#replace").checked);
  for (const file of good) form.append("images", file, file.name);
  $("#start").disabled = true;
  try {
    const job = await upload("/v1/models", form, (done, total) => say(`Sending ${percent(done / total)}`));
    ours = job.id;
    good = [];
    addGood([]);
    say("Sent. It goes on without this page.");
  } catch (error) {
    say(error.message, true);
  } finally {
    $("#start").disabled = false;
  }
}

function jobRow(job) {
  const live = ["queued", "running", "finishing"].includes(job.state);
  const name = element("div", {}, element("strong", { textContent: job.model }),
    element("div", { className: "soft", textContent: job.kind === "fit" ? `fit on ${plural(job.images, "image")}` : job.kind === "teach" ? "price of a lesson" : "learning" }));
  const words = job.reason ?? (job.state === "running" ? `${job.stage ?? "starting"}${job.total ? ` ${job.done} of ${job.total}` : ""}` : job.state);
  const middle = element("div", {}, element("div", { className: job.state === "failed" ? "error" : "soft", textContent: words }));
  if (live) middle.prepend(element("progress", job.total ? { max: job.total, value: job.done } : {}));
  const cancel = job.kind !== "learn" && (job.state === "queued" || job.state === "running")
    ? element("button", { type: "button", textContent: "Cancel", onclick: () => request(`/v1/jobs/${job.id}/cancel`, { method: "POST" }).catch((error) => toast(error.message)) })
    : element("span", { className: "soft", textContent: live ? "" : new Date(1000 * job.finished).toLocaleTimeString() });
  return element("li", {}, name, middle, cancel);
}

function modelRow(model) {
  const facts = model.revision
    ? [`${plural(model.images, "good image")}, ${model.backbone}, ${model.image_size.toReversed().join(" × ")} px` +
         (model.exported ? `; exported (${model.exported}): it scores, and cannot explain or learn` : ""),
       model.threshold ? model.threshold.sentences[0] : "no threshold"]
    : [];
  if (model.error) facts.push(`its file cannot be loaded: ${model.error}`);
  return element("li", {}, element("strong", { textContent: model.name }), ...facts.map((fact) => element("p", { textContent: fact })),
    element("p", { className: "counts" }),
    ...(model.threshold ? oddImages(model) : []), ...lessonsOf(model), actionsOf(model), ...historyOf(model));
}

function render() {
  const { jobs, models, can_fit: canFit } = all();
  $("#fit").hidden = $("#upload-label").hidden = !canFit;
  $("#jobs").replaceChildren(...jobs.slice(0, 8).map(jobRow));
  const rows = models.map((model) => `${model.name} ${model.revision} ${model.error}`).join("\n");
  if (rows !== listed) { // their pictures are fetched once
    listed = rows;
    $("#list").replaceChildren(...models.map(modelRow));
  }
  models.forEach((model, index) => {
    $("#list").children[index].querySelector(".counts").textContent =
      model.verdicts ? `${plural(model.verdicts, "part")} scored, ${model.waiting || "none"} to review` : "no part scored yet";
  });
  const done = jobs.find((job) => job.id === ours && job.state === "done");
  const fitted = done && models.find((model) => model.name === done.model);
  if (fitted) {
    ours = null;
    choose(done.model);
    const odd = fitted.threshold?.set_aside.length ?? 0;
    say(`${done.model} is ready. Show it a part.` +
      (odd ? ` ${plural(odd, "odd image")} ${odd === 1 ? "was" : "were"} set aside: look above.` : ""));
  }
}

export function start() {
  $("#fit").addEventListener("submit", fit);
  $("#good").addEventListener("change", (event) => {
    addGood(event.target.files);
    event.target.value = "";
  });
  $("#good-folder").addEventListener("change", (event) => {
    addGood(event.target.files);
    event.target.value = "";
  });
  $("#good-clear").addEventListener("click", () => { good = []; addGood([]); });
  $("#fit-rate").addEventListener("input", promise);
  $("#jobs").setAttribute("data-empty", "Nothing has run yet.");
  $("#list").setAttribute("data-empty", "No models yet.");
  onState(render);
}
