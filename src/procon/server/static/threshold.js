// The threshold on the scale of the model's own good images, and the past parts that a move would change.

import { json, send, showImage } from "./api.js";
import { $, domain, element, percent, plural, score, svg, toast } from "./draw.js";
import { current, onModel, onState } from "./state.js";

const STEPS = 1000;
let parts = [];
let draft = null;
let seen = "";

const open = () => location.hash === "#threshold";
const span = () => domain(current().threshold, parts.map((part) => part.score));
const value = () => draft ?? current().threshold.score;

async function refresh() {
  const model = current();
  const key = model ? `${model.name} ${model.verdicts} ${model.revision}` : "";
  if (!open() || !model || key === seen) return;
  seen = key;
  $("#set-threshold").hidden = Boolean(model.exported);
  $("#fixed").hidden = !model.exported;
  if (!model.threshold) {
    $("#promise").textContent = "This model has no threshold: it was fitted on too few images.";
    return;
  }
  try {
    parts = (await json(`/v1/models/${model.name}/verdicts?limit=1000`)).verdicts;
  } catch {
    seen = "";
    return;
  }
  const [promise] = model.threshold.sentences;
  $("#promise").textContent = promise[0].toUpperCase() + promise.slice(1);
  $("#rate").value = +(100 * model.threshold.false_alarm_rate).toFixed(3);
  if (draft === null) {
    const [low, high] = span();
    $("#move").value = Math.round((STEPS * (model.threshold.score - low)) / (high - low));
  }
  draw();
}

function draw() {
  if (!current()?.threshold) return;
  const limit = value(), before = current().threshold.score;
  drawPlot(limit, before);
  const changed = parts.filter((part) => part.score > limit !== part.score > before).sort((a, b) => b.score - a.score);
  const { good_scores: good } = current().threshold;
  const rank = good.filter((one) => one <= limit).length;
  const rate = (good.length + 1 - rank) / (good.length + 1);
  const toBad = changed.filter((part) => part.score > limit).length, toGood = changed.length - toBad;
  $("#preview").textContent = draft === null
    ? `At ${score(limit)}: ${parts.filter((part) => part.score > limit).length} of ${plural(parts.length, "past part")} are above it.`
    : `At ${score(limit)}: at most about ${percent(rate)} of good parts exceed it on average. ` +
      (changed.length ? `${plural(changed.length, "past part")} would change: ${toBad} to anomalous, ${toGood} to good.`
        : "No past part would change.");
  $("#apply").disabled = $("#undo").disabled = draft === null;
  $("#changes").replaceChildren(...changed.slice(0, 60).map((part) => {
    const picture = element("img", { alt: "", loading: "lazy" });
    showImage(picture, `/v1/verdicts/${part.id}/thumbnail`).catch(() => {});
    const bad = part.score > limit;
    return element("li", {}, picture, element("div", {},
      element("div", { className: bad ? "to-bad" : "to-good", textContent: bad ? "becomes anomalous" : "becomes good" }),
      element("div", { textContent: `${score(part.score)}  ${part.name}` })));
  }));
}

function drawPlot(limit, before) {
  const place = $("#plot"), width = Math.max(place.clientWidth - 14, 260), height = 176;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `threshold ${score(limit)}` });
  const [low, high] = span(), x = (one) => 10 + ((one - low) / (high - low)) * (width - 20);
  picture.append(
    svg("rect", { class: "zone-good", x: 10, y: 22, width: Math.max(0, x(limit) - 10), height: 120 }),
    svg("rect", { class: "zone-bad", x: x(limit), y: 22, width: Math.max(0, width - 10 - x(limit)), height: 120 }),
    svg("text", { class: "soft", x: 14, y: 38 }, "good images behind the threshold"),
    svg("text", { class: "soft", x: 14, y: 86 }, "past parts"),
  );
  for (const one of current().threshold.good_scores) {
    picture.append(svg("line", { class: "good-tick", x1: x(one), x2: x(one), y1: 46, y2: 68 }));
  }
  parts.forEach((part, index) => {
    const bad = part.score > limit, turned = bad !== part.score > before;
    picture.append(svg("circle", { class: `${bad ? "dot-bad" : "dot-good"}${turned ? " dot-turn" : ""}`, cx: x(part.score), cy: 100 + 34 * ((index * 0.618) % 1), r: 5 }));
  });
  const label = (at, words, y) => svg("text", { x: at, y, "text-anchor": at > width - 120 ? "end" : at < 120 ? "start" : "middle" }, words);
  picture.append(svg("line", { class: "limit", x1: x(before), x2: x(before), y1: 16, y2: 146 }), label(x(before), `now ${score(before)}`, 12));
  if (draft !== null) picture.append(svg("line", { class: "draft", x1: x(limit), x2: x(limit), y1: 22, y2: 152 }), label(x(limit), score(limit), 168));
  place.replaceChildren(picture);
}

async function put(wanted) {
  try {
    await send(`/v1/models/${current().name}/threshold`, "PUT", wanted);
    draft = null;
    seen = "";
    refresh();
  } catch (error) {
    toast(error.message);
  }
}

export function start() {
  $("#changes").setAttribute("data-empty", "None. Move the threshold to see.");
  $("#move").addEventListener("input", () => {
    if (!current()?.threshold) return;
    const [low, high] = span();
    draft = Math.max(0, low + ($("#move").value / STEPS) * (high - low));
    draw();
  });
  $("#apply").addEventListener("click", () => put({ score: draft }));
  $("#undo").addEventListener("click", () => { draft = null; seen = ""; refresh(); });
  $("#apply-rate").addEventListener("click", () => put({ false_alarm_rate: Number($("#rate").value) / 100 }));
  window.addEventListener("hashchange", () => { seen = ""; refresh(); });
  new ResizeObserver(() => open() && current()?.threshold && draw()).observe($("#plot"));
  onModel(() => { draft = null; seen = ""; parts = []; });
  onState(refresh);
}
