// Small helpers for elements, numbers and the score axis.

const MOST_TOASTS = 4; // more would cover the page
const TOLD_SECONDS = 3;
const SVG = "http://www.w3.org/2000/svg";

export const $ = (selector) => document.querySelector(selector);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export const score = (value) => value.toFixed(value < 10 ? 3 : 1);
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`; // as the sentences of the server
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** A file name with its invisible characters replaced: some turn or hide the text around them. */
export const shownName = (name) => name.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, "\ufffd");

/** What the scores of a model span, with room for others. Odd images may lie beyond it: they would squeeze the rest. */
export function domain(threshold, others = []) {
  const odd = new Set(threshold.set_aside.map((image) => image.score));
  const all = [...threshold.good_scores.filter((one) => !odd.has(one)), threshold.score, ...others];
  const low = Math.min(...all), high = Math.max(...all, threshold.score * 1.25);
  const room = 0.06 * (high - low || 1);
  return [Math.max(0, low - room), high + room];
}

/** Scores on the scale of a model: good images as ticks, the threshold as a line, the part as a marker. */
export function drawAxis(place, threshold, value = null) {
  const width = Math.max(place.clientWidth, 240), height = 92, top = 30, bottom = 62;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "no part yet" });
  if (threshold) {
    const [low, high] = domain(threshold, value === null ? [] : [value]);
    const x = (one) => 8 + ((Math.min(one, high) - low) / (high - low)) * (width - 16);
    const limit = x(threshold.score);
    picture.setAttribute("aria-label", `threshold ${score(threshold.score)} among the scores of good images`);
    picture.append(
      svg("rect", { class: "zone-good", x: 8, y: top, width: Math.max(0, limit - 8), height: bottom - top }),
      svg("rect", { class: "zone-bad", x: limit, y: top, width: Math.max(0, width - 8 - limit), height: bottom - top }),
    );
    for (const good of threshold.good_scores) {
      picture.append(svg("line", { class: "good-tick", x1: x(good), x2: x(good), y1: top + 8, y2: bottom }));
    }
    const side = limit > width - 130 ? "end" : limit < 130 ? "start" : "middle";
    picture.append(
      svg("line", { class: "limit", x1: limit, x2: limit, y1: top - 4, y2: bottom + 4 }),
      svg("text", { class: "soft", x: limit, y: bottom + 20, "text-anchor": side }, `threshold ${score(threshold.score)}`),
    );
    if (value !== null) {
      const here = x(value), anchor = here > width - 70 ? "end" : here < 70 ? "start" : "middle";
      picture.append(
        svg("path", { class: "here", d: `M${here} ${top + 6}l-8 -13h16z` }),
        svg("line", { class: "limit", x1: here, x2: here, y1: top, y2: bottom, "stroke-dasharray": "3 3" }),
        svg("text", { x: here, y: 12, "text-anchor": anchor, "font-weight": 700 }, `this part ${score(value)}`),
      );
      picture.setAttribute("aria-label", `score ${score(value)}, threshold ${score(threshold.score)}`);
    }
  }
  place.replaceChildren(picture);
}

/** Say that something failed. It stays until it is closed or the view changes; an action is offered where one helps. */
export function toast(message, action = null) {
  const note = element("div", {}, element("span", { className: "words", textContent: message }));
  if (action) {
    note.append(element("button", { type: "button", textContent: action.label, onclick: () => { note.remove(); action.run(); } }));
  }
  note.append(element("button", { type: "button", className: "close", textContent: "\u2715", "aria-label": "Close", onclick: () => note.remove() }));
  while ($("#toasts").children.length >= MOST_TOASTS) $("#toasts").firstChild.remove();
  $("#toasts").append(note);
}

/** Confirm what was just done, for a moment. */
export function tell(message) {
  const note = element("div", {}, element("span", { textContent: message }));
  $("#told").replaceChildren(note);
  setTimeout(() => note.remove(), TOLD_SECONDS * 1000);
}
