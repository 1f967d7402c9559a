// New parts: dropped, pasted, chosen or photographed; the latest ones in a strip.

import { json, modelPath, showImage } from "./api.js";
import { $, element, score, shownName, toast } from "./draw.js";
import { current, onModel, onState } from "./state.js";
import { busy, clear, show, showVerdict, shown } from "./viewer.js";

const LATEST = 24;
let waiting = Promise.resolve();
let seen = "";
let stream = null;

/** Score files one after the other. */
export function inspect(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/") || /\.(tiff?|bmp|jp2|p[gp]m)$/i.test(file.name));
  if (!images.length) {
    toast("No images found: choose PNG, JPEG or other image files.");
    return;
  }
  if (!current()) {
    toast("There is no model yet; fit one first.");
    return;
  }
  closeCamera();
  for (const file of images) waiting = waiting.then(() => show(file, shownName(file.name) || "pasted image"));
}

export function thumbnail(verdict, action) {
  const limit = current()?.threshold?.score;
  const bad = limit !== undefined && verdict.score > limit;
  const picture = element("img", { alt: "", loading: "lazy", width: 70, height: 70 });
  showImage(picture, `/v1/verdicts/${verdict.id}/thumbnail`).catch(() => {});
  const label = verdict.label === "good" ? "good" : verdict.label === "defect" ? "defect" : score(verdict.score);
  return element("li", {}, element("button", {
    type: "button",
    className: bad ? "bad" : "good",
    title: `${verdict.name}: score ${score(verdict.score)}${verdict.relative_score === null ? "" : `, ${verdict.relative_score.toFixed(2)} × the threshold`}`,
    "aria-label": `${verdict.name}, ${bad ? "anomalous" : "good"}, score ${score(verdict.score)}`,
    onclick: action,
  }, picture, element("span", { className: "mark", textContent: label })));
}

async function refresh() {
  const model = current();
  const key = model ? `${model.name} ${model.verdicts} ${model.waiting} ${model.revision}` : "";
  if (key === seen || location.hash.slice(1) !== "inspect") return;
  seen = key;
  if (!model) return;
  try {
    const { verdicts } = await json(`${modelPath(model.name)}/verdicts?limit=${LATEST}`);
    $("#recent").replaceChildren(...verdicts.map((verdict) => thumbnail(verdict, () => showVerdict(verdict))));
  } catch { seen = ""; }
}

// --------------------------------------------------------------------------------------------------------- camera

async function openCamera() {
  if (!navigator.mediaDevices) {
    toast("A browser gives its camera only to https pages and to localhost.");
    return;
  }
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 } }, audio: false });
  } catch (error) {
    toast(`The camera cannot be used: ${error.message}`);
    return;
  }
  clear();
  $("#invite").hidden = true;
  const video = $("#video");
  video.srcObject = stream;
  video.hidden = false;
  $("#shoot-row").hidden = false;
  await video.play();
  busy("Camera");
}

function closeCamera() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("#video").srcObject = null;
  $("#video").hidden = true;
  $("#shoot-row").hidden = true;
  busy("");
  $("#invite").hidden = shown() !== null;
}

async function shoot() {
  const video = $("#video");
  const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png")); // a JPEG would add its own artefacts
  closeCamera();
  inspect([new File([blob], `camera ${new Date().toLocaleTimeString()}.png`, { type: "image/png" })]);
}

export function start() {
  $("#files").addEventListener("change", (event) => {
    inspect(event.target.files);
    event.target.value = "";
  });
  $("#camera").addEventListener("click", openCamera);
  $("#camera-off").addEventListener("click", closeCamera);
  $("#shoot").addEventListener("click", shoot);
  $("#recent").setAttribute("data-empty", "Parts appear here as they are scored.");
  window.addEventListener("hashchange", refresh);
  onModel(() => { seen = ""; clear(); });
  onState(refresh);
}
