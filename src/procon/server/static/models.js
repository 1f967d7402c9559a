// Fit on good images, watch it, and see what models there are.

import { request, upload } from "./api.js";
import { $, element, percent, plural, toast } from "./draw.js";
import { oddImages } from "./good.js";
import { all, choose, onState } from "./state.js";

let good = [];
let listed = null; // the models in the list, each with its revision
let ours = null; // the job that this tab started: its model is chosen when it is done

export function addGood(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/") || /\.(tiff?|bmp|jp2|p[gp]m)$/i.test(file.name));
  good = [...good, ...images];
  $("#good-count").textContent = good.length ? plural(good.length, "good image") : "Drop good images here";
}

async function fit(event) {
  event.preventDefault();
  if (!good.length) {
    $("#fit-words").textContent = "Choose good images first.";
    return;
  }
  const form = new FormData();
  form.append("name", $("#name").value);
  form.append("false_alarm_rate", Number($("#fit-rate").value) / 100);
  form.append("replace", $("#replace").checked);
  for (const file of good) form.append("images", file, file.name);
  $("#start").disabled = true;
  try {
    const job = await upload("/v1/models", form, (done, total) => {
      $("#fit-words").textContent = `Sending ${percent(done / total)}`;
    });
    ours = job.id;
    good = [];
    addGood([]);
    $("#fit-words").textContent = "Sent. It goes on without this page.";
  } catch (error) {
    $("#fit-words").textContent = error.message;
  } finally {
    $("#start").disabled = false;
  }
}

function jobRow(job) {
  const live = ["queued", "running", "finishing"].includes(job.state);
  const name = element("div", {}, element("strong", { textContent: job.model }),
    element("div", { className: "soft", textContent: job.kind === "fit" ? `fit on ${plural(job.images, "image")}` : "learning" }));
  const words = job.reason ?? (job.state === "running" ? `${job.stage ?? "starting"}${job.total ? ` ${job.done} of ${job.total}` : ""}` : job.state);
  const middle = element("div", {}, element("div", { className: job.state === "failed" ? "error" : "soft", textContent: words }));
  if (live) middle.prepend(element("progress", job.total ? { max: job.total, value: job.done } : {}));
  const cancel = job.kind === "fit" && (job.state === "queued" || job.state === "running")
    ? element("button", { type: "button", textContent: "Cancel", onclick: () => request(`/v1/jobs/${job.id}/cancel`, { method: "POST" }).catch((error) => toast(error.message)) })
    : element("span", { className: "soft", textContent: live ? "" : new Date(1000 * job.finished).toLocaleTimeString() });
  return element("li", {}, name, middle, cancel);
}

function modelRow(model) {
  const facts = model.revision
    ? [`${plural(model.images, "good image")}, ${model.backbone}, ${model.image_size.join(" × ")} px` +
         (model.exported ? `; exported (${model.exported}): it scores, and cannot explain or learn` : ""),
       model.threshold ? model.threshold.sentences[0] : "no threshold"]
    : [];
  if (model.error) facts.push(`its file cannot be loaded: ${model.error}`);
  const last = model.history.at(-1);
  if (last) facts.push(`last change: ${last.what} ${last.note || plural(last.count, "image")}, ${last.when}`);
  return element("li", {}, element("strong", { textContent: model.name }), ...facts.map((fact) => element("p", { textContent: fact })),
    ...(model.threshold ? oddImages(model) : []));
}

function render() {
  const { jobs, models, can_fit: canFit } = all();
  $("#fit").hidden = !canFit;
  $("#jobs").replaceChildren(...jobs.slice(0, 8).map(jobRow));
  const rows = models.map((model) => `${model.name} ${model.revision} ${model.error}`).join("\n");
  if (rows !== listed) { // their pictures are fetched once
    listed = rows;
    $("#list").replaceChildren(...models.map(modelRow));
  }
  const done = jobs.find((job) => job.id === ours && job.state === "done");
  const fitted = done && models.find((model) => model.name === done.model);
  if (fitted) {
    ours = null;
    choose(done.model);
    const odd = fitted.threshold?.set_aside.length ?? 0;
    $("#fit-words").textContent = `${done.model} is ready. Show it a part.` +
      (odd ? ` ${plural(odd, "odd image")} ${odd === 1 ? "was" : "were"} set aside: look below.` : "");
  }
}

export function start() {
  $("#fit").addEventListener("submit", fit);
  $("#good").addEventListener("change", (event) => {
    addGood(event.target.files);
    event.target.value = "";
  });
  $("#drop").addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      $("#good").click();
    }
  });
  $("#jobs").setAttribute("data-empty", "Nothing has run yet.");
  $("#list").setAttribute("data-empty", "No models yet.");
  onState(render);
}
