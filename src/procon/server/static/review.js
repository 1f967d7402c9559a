// Flagged parts that nobody has looked at, one after the other, with the keyboard.

import { json, modelPath } from "./api.js";
import { $, plural, tell } from "./draw.js";
import { thumbnail } from "./inspect.js";
import { current, onModel, onState } from "./state.js";
import { clear, give, onFeedback, showVerdict, shown, takeBack } from "./viewer.js";

let queue = [];
let position = 0;
let seen = "";

/** Whether parts that passed are looked at: one of them may have a defect that was missed. */
const passed = () => $("#passed").checked;
const open = () => location.hash === "#review";

async function refresh() {
  const model = current();
  const key = model ? `${model.name} ${passed() ? model.verdicts : model.waiting} ${model.revision} ${passed()}` : "";
  if (!open() || !model || key === seen) return;
  seen = key;
  try {
    const { verdicts } = await json(`${modelPath(model.name)}/verdicts?waiting=${!passed()}&limit=200`);
    const limit = model.threshold?.score;
    const found = passed() ? verdicts.filter((one) => !one.label && limit !== undefined && one.score <= limit) : verdicts.reverse();
    const last = queue[position]?.id;
    queue = found.filter((verdict) => verdict.has_image);
    const place = queue.findIndex((verdict) => verdict.id === last);
    if (place >= 0) position = place;
    draw();
    const judged = shown()?.verdict?.label; // one that was just answered stays, so that its lesson can be seen
    if (!shown() && queue.length) go(0);
    else if (!queue.length && !judged) clear();
  } catch { seen = ""; }
}

function draw() {
  const total = queue.length;
  $("#queue-count").textContent = passed() ? `${plural(total, "part")} that passed, latest first` :
    total ? `${plural(total, "flagged part")} to look at` : "Nothing to review";
  $("#queue").replaceChildren(...queue.map((verdict, index) => thumbnail(verdict, () => go(index))));
  mark();
}

function mark() {
  [...$("#queue").children].forEach((item, index) => {
    const button = item.firstChild, here = queue[index].id === shown()?.id;
    if (here) {
      button.setAttribute("aria-current", "true");
      button.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else button.removeAttribute("aria-current");
  });
}

async function go(index) {
  if (!queue.length) return;
  position = Math.max(0, Math.min(queue.length - 1, index));
  const loading = showVerdict(queue[position]);
  await loading;
  mark();
}

/** The place in the queue after the part on the stage, or where it was. */
function next(step) {
  const at = queue.findIndex((verdict) => verdict.id === shown()?.id), place = at < 0 ? position : at + step;
  if (!queue.length) tell("Nothing to review");
  else if (place < 0) tell("This is the first part");
  else if (place >= queue.length) tell("This is the last part");
  else {
    tell(`Part ${place + 1} of ${queue.length}`);
    go(place);
  }
}

export function start() {
  $("#queue").setAttribute("data-empty", "Parts above the threshold wait here until somebody has looked at them.");
  document.addEventListener("keydown", (event) => {
    if (!open() || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, dialog")) return;
    const actions = {
      j: () => next(1), ArrowRight: () => next(1), k: () => next(-1), ArrowLeft: () => next(-1),
      g: () => give("good"), d: () => give("defect"), u: takeBack,
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
  $("#passed").addEventListener("change", () => { clear(); queue = []; position = 0; refresh(); });
  onFeedback((_part, label) => {
    if (!open()) return;
    queue = queue.filter((verdict) => verdict.id !== _part.id);
    draw();
    if (label === "defect" && queue.length) go(Math.min(position, queue.length - 1)); // a lesson is worth a look first
  });
  window.addEventListener("hashchange", () => { seen = ""; if (open()) { clear(); refresh(); } });
  onModel(() => { seen = ""; queue = []; position = 0; });
  onState(refresh);
}
