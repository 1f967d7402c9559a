// The threshold on the scale of the model's own good images: rates on offer by two rules, and what each would change.

import { json, modelPath, send, showImage } from "./api.js";
import { $, domain, element, percent, plural, score, svg, toast } from "./draw.js";
import { goodCard, oddImages } from "./good.js";
import { current, onModel, onState } from "./state.js";

const STEPS = 1000;
const MOST_CARDS = 24; // good images shown
let parts = [];
let good = []; // good images, highest score first
let cards = new Map(); // of good images, by number, so that a picture is fetched once
let rule = "robust"; // of the rates on the slider
let draft = null; // a threshold that is not set yet: { score }, with { rate, rule } unless it is set by hand
let seen = "";

const open = () => location.hash === "#threshold";
const span = () => domain(current().threshold, [...parts.map((part) => part.score), ...(draft ? [draft.score] : [])]);
const value = () => draft?.score ?? current().threshold.score;
const offers = () => current().threshold.offers.filter((offer) => offer.rule === rule);

async function refresh() {
  const model = current();
  const key = model ? `${model.name} ${model.verdicts} ${model.waiting} ${model.revision}` : "";
  if (!open() || !model || key === seen) return;
  seen = key;
  $("#set-threshold").hidden = Boolean(model.exported) || !model.threshold;
  $("#fixed").hidden = !model.exported;
  if (!model.threshold) {
    $("#promise").textContent = "This model has no threshold: it was fitted on too few images.";
    return;
  }
  try {
    const [verdicts, behind] = await Promise.all([
      json(`${modelPath(model.name)}/verdicts?limit=1000`), json(`${modelPath(model.name)}/good-images`)]);
    if (seen !== key) return;
    parts = verdicts.verdicts;
    good = behind.images;
  } catch {
    seen = "";
    return;
  }
  cards = new Map();
  const [promise] = model.threshold.sentences;
  $("#promise").textContent = promise[0].toUpperCase() + promise.slice(1);
  $("#rate").value = +(100 * model.threshold.false_alarm_rate).toFixed(3);
  $("#odd").replaceChildren(...oddImages(model));
  $("#odd").hidden = !model.threshold.set_aside.length;
  if (draft === null) {
    rule = model.threshold.rule;
    const [low, high] = span();
    $("#move").value = Math.round((STEPS * (model.threshold.score - low)) / (high - low));
  }
  describeRules();
  describeDeciding(model);
  placeSlider();
  draw();
}

/** The images without which the threshold would be another, with their pictures. */
function describeDeciding(model) {
  const { decided_by: deciding, by_hand: byHand, rule: inForce } = model.threshold;
  $("#decide-words").textContent = byHand ? "None: the threshold was set by hand."
    : !deciding.length ? "None: without any one of the images it would be the same."
      : inForce === "guarantee" ? "The threshold is the score of one good image. Without these images it would be another."
        : "Level and spread of all counted images make the threshold; these move it most. If one is not a good part, remove it with procon forget.";
  $("#decide").replaceChildren(...deciding.map((image) => goodCard(model, image, `without it: threshold ${score(image.threshold_without)}`)));
}

/** What each rule promises, and on how many images it rests. */
function describeRules() {
  const { good_scores: scores, set_aside: odd, kind, offers: all } = current().threshold;
  const images = plural(scores.length, "good image"), lowest = all.find((offer) => offer.rule === "guarantee").false_alarm_rate;
  const counted = odd.length ? `${scores.length - odd.length} of ${images}` : images;
  $("#robust-words").textContent = all.filter((offer) => offer.rule === "robust").length > 1
    ? `aims at the rate you choose and guarantees nothing. It rests on ${counted}.`
    : `takes the highest score, as ${images} are too few to aim at a rate.`;
  const held = kind === "held-out" ? "" : "; exact only with held-out images";
  $("#guarantee-words").textContent = "promises that good parts exceed it at the rate you choose or less, on average" +
    `${held}. It rests on all ${images} and cannot promise less than ${percent(lowest)}.`;
  for (const choice of document.querySelectorAll("[name=rule]")) choice.checked = choice.value === rule;
}

/** Put the slider at the rate that is drafted or in force, or at the nearest threshold if that was set by hand. */
function placeSlider() {
  const choices = offers(), { false_alarm_rate: rate, rule: inForce, by_hand: byHand } = current().threshold;
  // A guarantee has few thresholds, each on offer at its own rate and not at the one that was asked for.
  const wanted = draft ? draft.rate : byHand || inForce !== rule || rule === "guarantee" ? undefined : rate;
  const distance = (offer) => wanted === undefined ? Math.abs(offer.score - value()) : Math.abs(offer.false_alarm_rate - wanted);
  const best = choices.reduce((at, offer, index) => (distance(offer) < distance(choices[at]) ? index : at), 0);
  $("#offer").max = choices.length - 1;
  $("#offer").value = best;
  $("#offer").disabled = choices.length < 2;
  nameRate(draft || !byHand ? choices[best].false_alarm_rate : null);
}

function nameRate(rate) {
  const words = rate === null ? "set by hand" : percent(rate);
  $("#offer-value").textContent = words;
  $("#offer").setAttribute("aria-valuetext", words);
}

/** Draft the rate at this place of the slider. */
function take(place) {
  const offer = offers()[place], now = current().threshold;
  const inForce = !now.by_hand && offer.rule === now.rule && offer.score === now.score &&
    (rule === "guarantee" || offer.false_alarm_rate === now.false_alarm_rate);
  draft = inForce ? null : { score: offer.score, rate: offer.false_alarm_rate, rule: offer.rule };
  nameRate(offer.false_alarm_rate);
  draw();
}

function takeRule(wanted) {
  const rate = offers()[$("#offer").value]?.false_alarm_rate ?? 0;
  rule = wanted;
  const place = offers().findIndex((offer) => offer.false_alarm_rate >= rate);
  $("#offer").max = offers().length - 1;
  $("#offer").disabled = offers().length < 2;
  $("#offer").value = place < 0 ? offers().length - 1 : place;
  take(Number($("#offer").value));
}

function draw() {
  if (!current()?.threshold) return;
  const limit = value(), before = current().threshold.score;
  drawPlot(limit, before);
  const changed = parts.filter((part) => part.score > limit !== part.score > before).sort((a, b) => b.score - a.score);
  const above = good.filter((image) => image.score > limit);
  $("#preview").textContent = `${draft === null ? "Now" : "Then"}: threshold ${score(limit)}. ` +
    `${above.length || "None"} of ${plural(good.length, "good image")} ${above.length === 1 ? "lies" : "lie"} above it. ` + describeChanges(changed, limit, before) + describeRendered(limit);
  $("#apply").disabled = $("#undo").disabled = draft === null;
  $("#above-title").textContent = `Good images above ${draft === null ? "the threshold" : score(limit)}` +
    (above.length > MOST_CARDS ? `: the ${MOST_CARDS} highest of ${above.length}` : "");
  $("#above").replaceChildren(...above.slice(0, MOST_CARDS).map(card));
  $("#changes").replaceChildren(...changed.slice(0, 60).map((part) => {
    const picture = element("img", { alt: "", loading: "lazy" });
    showImage(picture, `/v1/verdicts/${part.id}/thumbnail`).catch(() => {});
    const bad = part.score > limit;
    return element("li", {}, picture, element("div", {},
      element("div", { className: bad ? "to-bad" : "to-good", textContent: bad ? "becomes anomalous" : "becomes good" }),
      element("div", { textContent: `${score(part.score)}  ${part.name}` })));
  }));
}

function describeChanges(changed, limit, before) {
  const waiting = parts.filter((part) => part.score > before && !part.label);
  const toGood = waiting.filter((part) => part.score <= limit).length, others = changed.length - toGood;
  if (draft === null) return waiting.length ? `${plural(waiting.length, "part")} in review.` : "No part in review.";
  const review = waiting.length ? `${toGood || "None"} of ${plural(waiting.length, "part")} in review would become good` : "No part is in review";
  const rest = !others ? "" : `; ${plural(others, waiting.length ? "other past part" : "past part")} would become ${limit < before ? "anomalous" : "good"}`;
  return `${review}${rest}.`;
}

/** What this threshold finds of the defects that procon limits rendered; nothing between the rates on offer. */
function describeRendered(limit) {
  const { offers: all, rendered, score: now } = current().threshold;
  const seen = limit === now ? rendered : all.find((offer) => offer.score === limit)?.rendered;
  if (!seen?.total) return "";
  const half = seen.half_from === null ? "" : `, half from ${Math.ceil(seen.half_from)} px`;
  return ` It finds ${percent(seen.found / seen.total)} of ${plural(seen.total, "rendered defect")}${half}; real defects differ.`;
}

function card(image) {
  if (!cards.has(image.number)) cards.set(image.number, goodCard(current(), image));
  return cards.get(image.number);
}

function drawPlot(limit, before) {
  const place = $("#plot"), width = Math.max(place.clientWidth - 14, 260), height = 176;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `threshold ${score(limit)}` });
  const [low, high] = span(), x = (one) => 10 + ((Math.min(one, high) - low) / (high - low)) * (width - 20);
  picture.append(
    svg("rect", { class: "zone-good", x: 10, y: 22, width: Math.max(0, x(limit) - 10), height: 120 }),
    svg("rect", { class: "zone-bad", x: x(limit), y: 22, width: Math.max(0, width - 10 - x(limit)), height: 120 }),
    svg("text", { class: "soft", x: 14, y: 38 }, "good images"),
    svg("text", { class: "soft", x: 14, y: 86 }, "past parts"),
  );
  const odd = new Set(current().threshold.set_aside.map((image) => image.score));
  for (const one of current().threshold.good_scores) {
    picture.append(svg("line", { class: odd.has(one) ? "odd-tick" : "good-tick", x1: x(one), x2: x(one), y1: 46, y2: 68 }));
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
    await send(`${modelPath(current().name)}/threshold`, "PUT", wanted);
    draft = null;
    seen = "";
    refresh();
  } catch (error) {
    toast(error.message);
  }
}

export function start() {
  $("#above").setAttribute("data-empty", "None.");
  $("#changes").setAttribute("data-empty", "None. Move the threshold to see.");
  $("#offer").addEventListener("input", () => current()?.threshold && take(Number($("#offer").value)));
  for (const choice of document.querySelectorAll("[name=rule]")) {
    choice.addEventListener("change", () => current()?.threshold && takeRule(choice.value));
  }
  $("#move").addEventListener("input", () => {
    if (!current()?.threshold) return;
    const [low, high] = span();
    draft = { score: Math.max(0, low + ($("#move").value / STEPS) * (high - low)) };
    nameRate(null);
    draw();
  });
  $("#apply").addEventListener("click", () => put(draft.rule ? { false_alarm_rate: draft.rate, rule: draft.rule } : { score: draft.score }));
  $("#undo").addEventListener("click", () => { draft = null; seen = ""; refresh(); });
  $("#apply-rate").addEventListener("click", () => put({ false_alarm_rate: Number($("#rate").value) / 100, rule }));
  window.addEventListener("hashchange", () => { seen = ""; refresh(); });
  new ResizeObserver(() => open() && current()?.threshold && draw()).observe($("#plot"));
  onModel(() => { draft = null; seen = ""; parts = []; good = []; });
  onState(refresh);
}
