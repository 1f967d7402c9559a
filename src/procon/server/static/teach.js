// A defect that was missed: it is marked on a part that passed, its price is told, and it is accepted or discarded.

import { json, request, send } from "./api.js";
import { $, element, plural, score, svg, tell, toast } from "./draw.js";
import { all, current, onState } from "./state.js";
import { onPart, refreshPart, shown } from "./viewer.js";
import { tile } from "./why.js";

const GRID = 28; // steps of the keyboard across a part
let marking = false;
let box = null; // [left, top, right, bottom] in pixels of the part
let corner = null; // where the drag began, or the first corner that was set with the keyboard
let spot = null; // the place of the keyboard
let job = null; // the lesson whose price was asked for: { id, part }
let priced = false;

/** A lesson can be taken from a part that passed; an exported model cannot be taught. */
const canMark = () => Boolean(shown()?.id && shown().answer && !shown().answer.is_anomalous && !current()?.exported);

function draw() {
  const part = shown(), marks = $("#lesson-marks");
  $("#mark").disabled = !canMark();
  $("#mark").setAttribute("aria-pressed", String(marking));
  $("#mark").textContent = marking ? "Stop marking" : "Mark a missed defect";
  $("#frame").classList.toggle("marking", marking);
  $("#teach").hidden = !marking && !job;
  $("#ask-price").hidden = !marking || Boolean(job);
  $("#ask-price").disabled = !box;
  marks.replaceChildren();
  if (!part?.answer) return;
  marks.setAttribute("viewBox", `0 0 ${part.answer.width} ${part.answer.height}`);
  marks.setAttribute("preserveAspectRatio", "none");
  if (box && (marking || job?.part === part.id)) {
    const [left, top, right, bottom] = box;
    marks.append(svg("rect", { class: "marked", x: left, y: top, width: right - left, height: bottom - top }));
  }
  if (marking && spot) {
    const w = part.answer.width / GRID, h = part.answer.height / GRID;
    marks.append(svg("rect", { class: "cursor", x: spot[0] - w / 2, y: spot[1] - h / 2, width: w, height: h }));
  }
}

function say(words, failed = false) {
  $("#teach-words").className = failed ? "note error" : "note";
  $("#teach-words").textContent = words || "\u00a0";
}

function toggle() {
  if (!marking && !canMark()) {
    tell(shown()?.answer?.is_anomalous ? "This part is flagged: its defect is not missed" : "There is no part to mark");
    return;
  }
  marking = !marking;
  if (marking) {
    forgetPrice();
    box = corner = spot = null;
    say("Drag a box around the defect, as close as you can. With the keyboard: focus the part, move with the arrow keys, and press Enter at two corners.");
    $("#stage").focus({ preventScroll: true });
  }
  draw();
}

/** The box between two places of the part, at least a pixel. */
function between([x1, y1], [x2, y2]) {
  const { width, height } = shown().answer;
  const limit = (value, most) => Math.max(0, Math.min(most, value));
  const left = limit(Math.floor(Math.min(x1, x2)), width - 1), top = limit(Math.floor(Math.min(y1, y2)), height - 1);
  return [left, top, limit(Math.max(Math.ceil(Math.max(x1, x2)), left + 1), width), limit(Math.max(Math.ceil(Math.max(y1, y2)), top + 1), height)];
}

function placeOf(event) {
  const frame = $("#frame").getBoundingClientRect(), { width, height } = shown().answer;
  return [((event.clientX - frame.left) / frame.width) * width, ((event.clientY - frame.top) / frame.height) * height];
}

function drag() {
  const frame = $("#frame");
  frame.addEventListener("pointerdown", (event) => {
    if (!marking || !shown()?.answer) return;
    event.preventDefault();
    frame.setPointerCapture(event.pointerId);
    corner = placeOf(event);
    box = null;
  });
  frame.addEventListener("pointermove", (event) => {
    if (!marking || !corner || !frame.hasPointerCapture(event.pointerId)) return;
    box = between(corner, placeOf(event));
    draw();
  });
  frame.addEventListener("pointerup", () => { corner = null; if (marking) ready(); });
  // While marking, a click on the part marks and does not explain.
  $("#stage").addEventListener("click", (event) => { if (marking) event.stopPropagation(); }, true);
}

function ready() {
  if (box) say(`Marked: ${box[2] - box[0]} × ${box[3] - box[1]} px at ${box[0]}, ${box[1]}.`);
  draw();
}

function keys(event) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (!marking || !shown()?.answer || event.target !== $("#stage")) return;
  const { width, height } = shown().answer;
  if (event.key in steps) {
    const [dx, dy] = steps[event.key];
    spot ??= [width / 2, height / 2];
    spot = [Math.min(Math.max(spot[0] + (dx * width) / GRID, 0), width), Math.min(Math.max(spot[1] + (dy * height) / GRID, 0), height)];
    if (corner) box = between(corner, spot);
    draw();
  } else if (event.key === "Enter" && spot) {
    if (corner) {
      box = between(corner, spot);
      corner = null;
      ready();
    } else {
      corner = [...spot];
      say("First corner set; move to the opposite one and press Enter.");
    }
  } else if (event.key === "Escape") toggle();
  else return;
  event.preventDefault();
  event.stopImmediatePropagation(); // nor the listener of the viewer on the same element
}

async function askPrice(force = false) {
  const part = shown();
  if (!part || !box) return;
  $("#ask-price").disabled = true;
  try {
    const made = await send(`/v1/verdicts/${part.id}/lesson`, "POST", { box, force });
    job = { id: made.id, part: part.id };
    priced = marking = false;
    say("Every good image is scored as if the lesson were accepted. This takes about as long as half a fit.");
    refreshPart(part);
  } catch (error) {
    say(error.message, true);
  }
  draw();
}

/** What became of the price that was asked for. */
async function follow() {
  if (!job || priced) return;
  const now = all().jobs.find((one) => one.id === job.id);
  if (!now) return;
  if (now.state === "queued" || now.state === "running") {
    say(now.state === "queued" ? "Waiting for another job." : `${now.stage ?? "starting"}${now.total ? ` ${now.done} of ${now.total}` : ""}`);
    return;
  }
  priced = true;
  if (now.state === "done") {
    try {
      showPrice(await json(`/v1/lessons/${job.id}`));
    } catch (error) { say(error.message, true); }
  } else {
    say(now.reason ?? "It was cancelled.", true);
    if (now.reason?.includes("(--force)")) $("#teach-actions").replaceChildren(button("Go on without a price", () => askPrice(true)));
    job = null;
    marking = Boolean(box) && canMark();
    draw();
  }
}

const button = (textContent, onclick, className = "") => element("button", { type: "button", textContent, onclick, className });

function showPrice(price) {
  if (!price.is_known) {
    say("This price was decided already, or the server was started again: ask for it once more.", true);
    job = null;
    return;
  }
  const limit = current()?.threshold?.score, now = price.score_after;
  const found = limit === undefined ? "" : now > limit ? ", above the threshold" : ", still below the threshold";
  say(`${price.part} scores ${score(price.score_before)} today and ${score(now)} with the lesson${found}.`);
  $("#price").replaceChildren(...price.sentences.map((words) => element("li", { textContent: words })));
  $("#priced").replaceChildren(...price.added.map((image) => tile(image.picture, image.inner, [
    image.name, `${score(image.score_before)} → ${score(image.score_after)}`], "the training image can no longer be read")));
  const words = price.is_too_high ? "Accept it all the same" : "Accept the lesson";
  $("#teach-actions").replaceChildren(
    button(words, () => decide(price.is_too_high), price.is_too_high ? "danger" : "main"), button("Discard it", discard));
  if (price.is_too_high) {
    $("#teach-words").className = "note error";
    $("#teach-words").textContent += ` It would flag ${plural(price.added.length, "good image")} more, above the false-alarm rate of the model.`;
  }
}

async function decide(force) {
  for (const one of $("#teach-actions").children) one.disabled = true;
  try {
    await send(`/v1/lessons/${job.id}/accept`, "POST", { force });
    tell("The lesson is part of the model");
    finish();
  } catch (error) {
    say(error.message, true);
    $("#teach-actions").replaceChildren(button("Close", discard));
  }
}

async function discard() {
  const { id } = job ?? {};
  finish();
  if (id) await request(`/v1/lessons/${id}`, { method: "DELETE" }).catch((error) => toast(error.message));
}

function forgetPrice() {
  job = null;
  priced = false;
  for (const selector of ["#price", "#priced", "#teach-actions"]) $(selector).replaceChildren();
}

/** The part as the model sees it now. */
function finish() {
  const part = shown();
  forgetPrice();
  box = null;
  marking = false;
  draw();
  if (part) refreshPart(part);
}

/** The lessons of a model, each with a button that takes it back. */
export function lessonsOf(model) {
  if (!model.lessons.length) return [];
  const forget = async (lesson) => {
    try {
      await json(`/v1/models/${encodeURIComponent(model.name)}/lessons/${encodeURIComponent(lesson.name)}`, { method: "DELETE" });
      tell(`${lesson.name} is taken back`);
    } catch (error) { toast(error.message); }
  };
  return [element("h3", { textContent: plural(model.lessons.length, "lesson") }), element("ul", { className: "lessons" },
    ...model.lessons.map((lesson) => element("li", {}, element("span", { textContent: lesson.sentence }),
      element("button", { type: "button", textContent: "Forget", "aria-label": `Forget ${lesson.name} of ${model.name}`, onclick: () => forget(lesson) }))))];
}

export function start() {
  $("#mark").addEventListener("click", toggle);
  $("#ask-price").addEventListener("click", () => askPrice());
  $("#stage").addEventListener("keydown", keys, true);
  drag();
  onPart(() => {
    if (marking || (job && job.part !== shown()?.id)) { // another part: the price stays on the server, undecided
      marking = false;
      forgetPrice();
      box = null;
    }
    draw();
  });
  onState(follow);
}
