// The normal patches that a patch was compared with, and what each layer cannot explain.

import { $, element, percent, score } from "./draw.js";

export function renderWhy(found) {
  const typical = found.typical === null ? "" : `; a typical good patch has ${score(found.typical)}`;
  const raised = found.lesson ? `, raised to ${score(found.score * found.lesson.gain)} by ${found.lesson.lesson}` : "";
  $("#why-words").textContent = `This patch has a score of ${score(found.score)}${raised}${typical}. ` +
    "It was compared with these normal patches; the weight says how much each counts.";
  const tiles = found.normal_patches.map((patch) => tile(patch.picture, patch.inner, [
    `weight ${percent(patch.weight)}, distance ${score(patch.distance)}`, patch.image], patch.missing));
  const lesson = found.lesson && tile(found.lesson.picture, found.lesson.inner, [`${found.lesson.lesson} decided: it raised the score ` +
    `${found.lesson.gain.toFixed(2)} times, distance ${score(found.lesson.distance)}`, found.lesson.image]);
  $("#why-body").replaceChildren(tile(found.picture, found.inner, ["this patch", `score ${score(found.score)}`]),
    ...(lesson ? [lesson] : []), ...tiles, layers(found));
}

export function tile(picture, inner, [first, second], missing = null) {
  const cut = element("div", { className: "cut" });
  if (picture) {
    const frame = element("span");
    frame.style.left = `${100 * inner[0]}%`;
    frame.style.top = `${100 * inner[1]}%`;
    frame.style.width = `${100 * (inner[2] - inner[0])}%`;
    frame.style.height = `${100 * (inner[3] - inner[1])}%`;
    cut.append(element("img", { src: picture, alt: first }), frame);
  } else {
    cut.append(element("p", { className: "gone", textContent: missing }));
  }
  return element("div", { className: "tile" }, cut, element("p", { textContent: first }), element("p", { className: "soft", textContent: second }));
}

function layers(found) {
  const most = Math.max(...found.layers.map((layer) => layer.residual), 1e-9);
  const rows = found.layers.map((layer) => element("tr", {},
    element("td", { textContent: layer.blocks.length > 1 ? "joined" : `layer ${layer.blocks[0]}` }),
    element("td", { className: "barcell" }, element("progress", { max: most, value: layer.residual })),
    element("td", { textContent: score(layer.residual) })));
  return element("div", { className: "layers" }, element("p", { className: "hint", textContent: "What each layer cannot explain" }),
    element("table", {}, element("tbody", {}, ...rows)));
}
