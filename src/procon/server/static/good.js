// Good images behind a threshold, with their pictures, and the odd ones among them.

import { modelPath, showImage } from "./api.js";
import { element, percent, plural, score } from "./draw.js";

const MOST_ODD = 8; // cards

/** A good image with its picture, where that can still be read. */
export function goodCard(model, image, note = "") {
  const picture = element("img", { alt: "", loading: "lazy" });
  const gone = () => picture.replaceWith(element("p", { className: "gone", textContent: "picture not available" }));
  picture.addEventListener("error", gone);
  showImage(picture, `${modelPath(model.name)}/good-images/${image.number}/picture`).catch(gone);
  const apart = image.deviations === null ? "" : `, ${image.deviations.toFixed(1)} robust deviations above the median`;
  return element("li", {}, picture, element("div", {},
    element("div", { textContent: image.name }),
    element("div", { className: "soft", textContent: `score ${score(image.score)}${image.set_aside ? apart : ""}` }),
    ...(note ? [element("div", { className: "which", textContent: note })] : []),
    ...(image.set_aside ? [element("div", { className: "to-bad", textContent: "odd: set aside" })] : [])));
}

/** The images that a fit set aside, what they would change, and what to do; nothing if there are none. */
export function oddImages(model) {
  const { set_aside: odd, false_alarm_rate: rate, rule, score_without_odd: without, score_with_odd: counted } = model.threshold;
  if (!odd.length) return [];
  const [were, they, them] = odd.length === 1 ? ["was", "It scores", "it"] : ["were", "They score", "them"];
  const force = rule === "guarantee" ? " The rule in force is the guarantee, which counts all images." : "";
  const more = odd.length > MOST_ODD ? ` The ${MOST_ODD} highest are shown.` : "";
  return [
    element("h3", { textContent: `${plural(odd.length, "odd image")} ${were} set aside` }),
    element("p", { textContent: `${they} far above the other good images.${more} The robust threshold at ${percent(rate)} is ` +
      `${score(without)} without ${them}, and would be ${score(counted)} with ${them}.${force}` }),
    element("p", { textContent: "Look at each. If it is not a good part, remove it with procon forget; if it is good, nothing needs to be done." }),
    element("ol", { className: "cards" }, ...odd.slice(0, MOST_ODD).map((image) => goodCard(model, image))),
  ];
}
