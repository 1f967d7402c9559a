// Views, drops and pastes; everything else is in the modules it starts.

import * as actions from "./actions.js";
import { follow } from "./api.js";
import { $, element } from "./draw.js";
import * as inspection from "./inspect.js";
import * as models from "./models.js";
import * as review from "./review.js";
import { all, choose, current, onState, setState } from "./state.js";
import * as teach from "./teach.js";
import * as threshold from "./threshold.js";
import * as viewer from "./viewer.js";

const VIEWS = ["inspect", "review", "threshold", "models"];

function view() {
  const wanted = location.hash.slice(1);
  const name = VIEWS.includes(wanted) ? wanted : "inspect";
  if (name !== wanted) history.replaceState(null, "", `#${name}`);
  const none = all().ready && !current();
  for (const one of VIEWS) {
    $(`#view-${one}`).hidden = one !== name || (none && one !== "models");
    const link = $(`nav [data-view=${one}]`);
    if (one === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  $("#invite").textContent = name === "review" ? "No flagged part" : "Drop a part here";
  $("#viewer").hidden = none || (name !== "inspect" && name !== "review");
  $("#empty").hidden = !none || name === "models";
  document.title = `${name[0].toUpperCase()}${name.slice(1)}${current() ? ` \u00b7 ${current().name}` : ""} \u00b7 ProCon`;
}

/** Another view begins at its top, without the errors of the last one. */
function jump() {
  view();
  $("#toasts").replaceChildren();
  $("#told").replaceChildren();
  scrollTo(0, 0);
}

function badge() {
  const waiting = current()?.waiting ?? 0;
  $("#waiting").hidden = !waiting;
  $("#waiting").textContent = waiting;
  $("#waiting").setAttribute("aria-label", `${waiting} to review`);
}

/** What does not work while parts are still scored: a full disk, a model that cannot be loaded. */
function problems() {
  const list = all().problems ?? [];
  $("#problems").hidden = !list.length;
  $("#problems").replaceChildren(...list.map((problem) => element("li", { textContent: problem })));
}

function drops() {
  const target = () => (location.hash === "#models" ? $("#drop") : $("#stage"));
  let inside = 0;
  document.addEventListener("dragenter", (event) => { event.preventDefault(); inside++; target().classList.add("over"); });
  document.addEventListener("dragleave", () => { if (--inside <= 0) { inside = 0; target().classList.remove("over"); } });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    target().classList.remove("over");
    const folders = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry?.isDirectory);
    if (folders.length) models.filesIn(folders).then(take);
    else take(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) take(event.clipboardData.files);
  });
}

function take(files) {
  if (!files.length) return;
  if (location.hash === "#models") {
    models.addGood(files);
    return;
  }
  if (location.hash !== "#inspect") location.hash = "#inspect";
  inspection.inspect(files);
}

viewer.start();
for (const part of [inspection, review, teach, threshold, models, actions]) part.start();
onState(() => { view(); badge(); problems(); });
window.addEventListener("hashchange", jump);
$("#model").addEventListener("change", (event) => choose(event.target.value));
drops();
view();
new ResizeObserver(([bar]) => document.documentElement.style.setProperty("--bar", `${bar.target.offsetHeight}px`)).observe($(".bar"));
follow(setState, (on) => {
  $("#link").className = `link ${on ? "on" : "off"}`;
  $("#link").textContent = on ? "connected" : "connection lost";
});
