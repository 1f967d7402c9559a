// One part on the stage: photo, heat map, regions, the score, what a patch was compared with, and what people say.

import { json, mayPass, modelPath, request, send, sendImage } from "./api.js";
import { outlines } from "./contour.js";
import { $, drawAxis, element, percent, plural, score, svg, tell, toast } from "./draw.js";
import { decodeMap, paint } from "./heat.js";
import { current, onState } from "./state.js";
import { renderWhy } from "./why.js";

const MAP_SIDE = 384;
const GRID = 28; // steps of the keyboard cursor across a part

let part = null; // { blob, url, name, id, answer, verdict }
let cursor = null;
let asked = 0; // the latest question wins
let after = () => {};
let onShown = () => {};

export const shown = () => part;

/** Score a blob and show it. `keep` remembers the verdict; `id` names one that is remembered already. */
export async function show(blob, name, { id = null, keep = true, verdict = null } = {}) {
  const mine = ++asked;
  reset();
  part = { blob, name, id, url: URL.createObjectURL(blob), answer: null, verdict };
  const photo = $("#photo");
  photo.src = part.url;
  photo.alt = name;
  $("#invite").hidden = true;
  busy("Scoring");
  try {
    await photo.decode().then(place, () => {}); // a TIFF no browser shows: the answer has its size
    if (!current()) throw new Error("there is no model yet");
    const path = `${modelPath(current().name)}/predict?map_side=${MAP_SIDE}&keep=${keep}`;
    const answer = await sendImage(path, blob, name, (seconds) => mine === asked && busy(`The queue is full, again in ${seconds} s`));
    if (mine !== asked) return;
    part.answer = answer;
    part.id = answer.id ?? id;
    busy("");
    render();
  } catch (error) {
    if (mine !== asked) return;
    busy("");
    $("#verdict").className = "verdict failed";
    $("#verdict .word").textContent = "Not scored";
    $("#verdict .facts").textContent = error.message;
    toast(`${name}: ${error.message}`, mayPass(error) ? { label: "Try again", run: () => show(blob, name, { id, keep, verdict }) } : null);
  }
}

/** Hears when another part, or nothing, is on the stage, and when its answer has arrived. */
export function onPart(callback) {
  onShown = callback;
}

/** The part as the model sees it now, with what was said about it. */
export async function refreshPart(place) {
  try {
    const verdict = await json(`/v1/verdicts/${place.id}`);
    const path = `${modelPath(current().name)}/predict?map_side=${MAP_SIDE}&keep=false`;
    const answer = await sendImage(path, place.blob, place.name);
    if (place !== part) return;
    place.verdict = verdict;
    place.answer = answer;
    render();
  } catch (error) {
    toast(error.message);
  }
}

/** Fetch a remembered part and show it. */
export async function showVerdict(verdict) {
  const mine = ++asked;
  reset();
  busy("Scoring");
  try {
    const blob = await (await request(`/v1/verdicts/${verdict.id}/image`)).blob();
    if (mine === asked) await show(blob, verdict.name, { id: verdict.id, keep: false, verdict });
  } catch (error) {
    busy("");
    toast(error.message);
  }
}

export function clear() {
  asked++;
  reset();
  $("#invite").hidden = false;
}

export function busy(words) {
  $("#busy").textContent = words;
}

function reset() {
  if (part) URL.revokeObjectURL(part.url);
  part = null;
  cursor = null;
  marked = null;
  $("#frame").hidden = true;
  $("#verdict").className = "verdict";
  for (const selector of ["#verdict .word", "#learned", "#axis-words"]) $(selector).textContent = "\u00a0";
  $("#verdict .facts").textContent = "No part yet";
  $("#regions ol").replaceChildren();
  $("#marks").replaceChildren();
  $("#why-body").replaceChildren();
  $("#why").hidden = true;
  $("#why-hint").hidden = explainsNothing();
  $("#why-hint").style.visibility = "hidden"; // there is nothing to click on; its place stays
  $("#was-good").disabled = $("#was-defect").disabled = true;
  $("#take-back").hidden = true;
  $("#heat").width = $("#heat").width; // empties it: a map must never lie over another part
  busy("");
  drawAxis($("#axis"), current()?.threshold ?? null);
  onShown();
}

/** Put the frame where a photo of these proportions fits into the stage; nothing around it moves. */
function place() {
  if (!part) return;
  const stage = $("#stage"), photo = $("#photo");
  const width = part.answer?.width ?? photo.naturalWidth, height = part.answer?.height ?? photo.naturalHeight;
  if (!width) return;
  const scale = Math.min(stage.clientWidth / width, stage.clientHeight / height);
  const frame = $("#frame");
  frame.style.width = `${width * scale}px`;
  frame.style.height = `${height * scale}px`;
  frame.style.left = `${(stage.clientWidth - width * scale) / 2}px`;
  frame.style.top = `${(stage.clientHeight - height * scale) / 2}px`;
  frame.hidden = false;
}

function render() {
  const { answer } = part, threshold = current()?.threshold;
  place();
  const box = $("#verdict");
  const word = answer.is_anomalous === null ? "No threshold" : answer.is_anomalous ? "✕ Anomalous" : "✓ Good";
  box.className = `verdict ${answer.is_anomalous === null ? "" : answer.is_anomalous ? "bad" : "good"}`;
  box.querySelector(".word").textContent = word;
  box.querySelector(".facts").textContent = `score ${score(answer.score)}` +
    (answer.relative_score === null ? "" : `, ${answer.relative_score.toFixed(2)} × the threshold`) +
    (answer.p_value === null ? "" : `, p = ${answer.p_value.toFixed(3)}`);
  drawAxis($("#axis"), threshold ?? null, answer.score);
  if (threshold) {
    const above = threshold.good_scores.filter((one) => one >= answer.score).length;
    $("#axis-words").textContent = `Of ${plural(threshold.good_scores.length, "good image")} behind this model, ${above || "none"} ` +
      `${above > 1 ? "score" : "scores"} as high. ${threshold.sentences[0].includes("aims at")
        ? `The threshold aims at ${percent(threshold.false_alarm_rate)} false alarms.`
        : `About ${percent(threshold.promised_rate)} of good parts exceed the threshold.`}`;
  }
  const low = threshold?.typical ?? 0.4, high = threshold?.usual_peak ?? 0.8;
  if (answer.map) {
    paint($("#heat"), answer.map, low, high);
    part.outlines = outlines(answer.regions, answer.map, decodeMap(answer.map), answer.width, answer.height);
  }
  const marks = $("#marks");
  marks.setAttribute("viewBox", `0 0 ${answer.width} ${answer.height}`);
  marks.setAttribute("preserveAspectRatio", "none");
  drawMarks();
  $("#regions ol").replaceChildren(...answer.regions.map((region, index) => {
    const [left, top, right, bottom] = region.box;
    const words = `${right - left} × ${bottom - top} px at ${left}, ${top}; peak ${score(region.peak)}`;
    return element("li", {}, element("button", { type: "button", onclick: () => explainPeak(region) },
      element("span", { className: "dot", textContent: index + 1 }), ` ${words}`));
  }));
  if (!answer.regions.length) $("#regions ol").replaceChildren(element("li", { className: "hint", textContent: "none" }));
  $("#why-hint").style.visibility = "visible";
  renderFeedback();
  onShown();
}

/** The regions as contours, each with its number in the list where the contour is nearest to its upper left. */
function drawRegions(marks) {
  const { width } = part.answer, pixel = width / ($("#frame").clientWidth || width); // of the image, per pixel of the page
  part.outlines.forEach(({ path, corner }, index) => {
    const [x, y] = corner.map((place) => Math.max(place - 7 * pixel, 11 * pixel)); // outside: the region may be small
    const number = svg("text", { class: "number", x, y }, String(index + 1));
    number.style.fontSize = `${12 * pixel}px`;
    marks.append(svg("path", { class: "region", d: path }), svg("circle", { class: "disc", cx: x, cy: y, r: 10 * pixel }), number);
  });
}

let marked = null; // the patch that was explained last

function drawMarks(patch = marked) {
  marked = patch;
  const marks = $("#marks");
  marks.replaceChildren();
  if (!part?.answer) return;
  if ($("#outlines").checked) drawRegions(marks);
  if (patch) {
    const [left, top, right, bottom] = patch;
    marks.append(svg("rect", { class: "patch", x: left, y: top, width: right - left, height: bottom - top }));
  }
  if (cursor) {
    const { width, height } = part.answer, w = width / GRID, h = height / GRID;
    marks.append(svg("rect", { class: "cursor", x: cursor[0] - w / 2, y: cursor[1] - h / 2, width: w, height: h }));
  }
}

// ------------------------------------------------------------------------------------------------------------ why

/** An exported model has left its training images behind: it scores, and that is all. */
const explainsNothing = () => Boolean(current()?.exported);

/** Explain the patch at the peak of the heat map inside a region. */
const explainPeak = (region) => explain(`region=${region.box.join(",")}`);

/** Explain the patch around a pixel; one outside the image is moved to its edge. */
function explainPixel(x, y) {
  const limit = (value, most) => Math.max(0, Math.min(most - 1, Math.floor(value)));
  return explain(`xy=${limit(x, part.answer.width)},${limit(y, part.answer.height)}`);
}

async function explain(query) {
  const mine = asked, place = part;
  if (!place?.answer || explainsNothing()) return;
  $("#why").hidden = false;
  $("#why-words").className = "hint";
  $("#why-words").textContent = "Comparing";
  $("#why").scrollIntoView({ block: "nearest", behavior: "smooth" });
  try {
    const found = await sendImage(`${modelPath(current().name)}/explain?${query}`, place.blob, place.name);
    if (mine !== asked) return;
    drawMarks(found.box);
    renderWhy(found);
    $("#why").scrollIntoView({ block: "nearest", behavior: "smooth" });
  } catch (error) {
    if (mine !== asked) return;
    $("#why-words").className = "note error";
    $("#why-words").textContent = error.message;
  }
}

// ------------------------------------------------------------------------------------------------------- feedback

export function onFeedback(callback) {
  after = callback;
}

export async function give(label) {
  const place = part;
  if (!place?.id || $(label === "good" ? "#was-good" : "#was-defect").disabled) {
    tell(!place ? "There is no part to answer for" : place.id ? "This part has its answer; U takes it back" : "This part is not scored yet");
    return;
  }
  $("#was-good").disabled = $("#was-defect").disabled = true;
  try {
    const said = await send(`/v1/verdicts/${place.id}/feedback`, "POST", { label });
    if (place === part) {
      place.verdict = { ...place.verdict, label, feedback: said.id, feedback_state: said.state, score_after: said.score_after };
      renderFeedback();
    }
    tell(label === "good" ? `Good: ${place.name}` : `Defect: ${place.name}`);
    after(place, label);
  } catch (error) {
    renderFeedback();
    toast(error.message);
  }
}

/** Say that nothing was said; what was learned is forgotten again. */
export async function takeBack() {
  const place = part, number = place?.verdict?.feedback;
  if (!number || $("#take-back").hidden) {
    tell("There is nothing to take back");
    return;
  }
  $("#take-back").hidden = true;
  try {
    const { state } = await json(`/v1/feedback/${number}`, { method: "DELETE" });
    const left = state === "withdrawn" ? { label: null, feedback: null, feedback_state: null } : { feedback_state: state };
    tell(`Taken back: ${place.name}`);
    if (place === part) {
      place.verdict = { ...place.verdict, ...left };
      renderFeedback();
    }
  } catch (error) {
    renderFeedback();
    toast(error.message);
  }
}

const CHANGING = ["pending", "forgetting"]; // states in which the memory is about to change

function renderFeedback() {
  const verdict = part?.verdict, state = verdict?.feedback_state, note = $("#learned");
  $("#was-good").disabled = !part?.id || Boolean(state) && !(state === "noted" && verdict.label === "defect") && state !== "failed";
  $("#was-defect").disabled = !part?.id || Boolean(state) && !(state === "noted" && verdict.label === "good") && state !== "failed";
  $("#take-back").hidden = !state || state === "forgetting";
  if (!state && part?.answer?.not_kept) note.textContent = `Not kept for review: ${part.answer.not_kept}`;
  else if (!state) note.textContent = "\u00a0";
  else if (state === "noted" && verdict.label === "good") note.textContent = "Noted as good. An exported model does not learn.";
  else if (state === "noted") note.textContent = "Noted as a defect. The model stays as it is.";
  else if (state === "pending") note.textContent = "Kept. The model is learning it…";
  else if (state === "forgetting") note.textContent = "The model is forgetting it…";
  else if (state === "failed") note.textContent = `Kept, but not learned: ${verdict.feedback_reason}`;
  else {
    const now = verdict.score_after, limit = current()?.threshold?.score;
    note.textContent = "Learned." + (verdict.feedback_reason ? ` But ${verdict.feedback_reason}` : now === null || now === undefined ? "" :
      ` The score was ${score(verdict.score ?? part.answer.score)} and is ${score(now)} now` +
      (limit === undefined ? "." : now > limit ? ", still above the threshold." : ", below the threshold."));
  }
}

/** While the memory changes, look what became of it; then show the part as the model sees it now. */
async function followFeedback() {
  const place = part, before = place?.verdict?.feedback_state;
  if (!CHANGING.includes(before)) return;
  try {
    const verdict = await json(`/v1/verdicts/${place.id}`);
    if (place !== part || verdict.feedback_state === before) return;
    place.verdict = verdict;
    if (!verdict.feedback_state || verdict.feedback_state === "learned") await refreshPart(place);
    else renderFeedback();
  } catch { /* the next change of state tries again */ }
}

// ---------------------------------------------------------------------------------------------------------- start

export function start() {
  $("#opacity").addEventListener("input", () => {
    $("#heat").style.opacity = $("#opacity").value / 100;
    $("#opacity-value").textContent = `${$("#opacity").value} %`;
  });
  $("#heat").style.opacity = $("#opacity").value / 100;
  $("#outlines").addEventListener("change", () => drawMarks());
  $("#frame").addEventListener("click", (event) => {
    if (!part?.answer) return;
    const frame = $("#frame").getBoundingClientRect();
    explainPixel(((event.clientX - frame.left) / frame.width) * part.answer.width,
      ((event.clientY - frame.top) / frame.height) * part.answer.height);
  });
  $("#stage").addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!part?.answer || event.target !== $("#stage")) return;
    const { width, height } = part.answer;
    if (event.key in steps) {
      const [dx, dy] = steps[event.key];
      cursor ??= [width / 2, height / 2];
      cursor = [Math.min(Math.max(cursor[0] + (dx * width) / GRID, 0), width - 1), Math.min(Math.max(cursor[1] + (dy * height) / GRID, 0), height - 1)];
      drawMarks();
    } else if (event.key === "Enter" && cursor) {
      explainPixel(...cursor);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  $("#was-good").addEventListener("click", () => give("good"));
  $("#was-defect").addEventListener("click", () => give("defect"));
  $("#take-back").addEventListener("click", takeBack);
  new ResizeObserver(() => {
    place();
    drawMarks();
    drawAxis($("#axis"), current()?.threshold ?? null, part?.answer?.score ?? null);
  }).observe($("#stage"));
  onState(followFeedback);
}
