// Filter, order, groups and the enlarged view of a page of results. Without this script all cards are shown.
const controls = document.getElementById("controls");
const list = document.querySelector(".cards");
const cards = [...list.children];
const lightbox = document.getElementById("lightbox");
const body = document.body;
const collator = new Intl.Collator("en", { numeric: true });
const views = ["map", "outline", "plain"];
let current = null; // the enlarged card

const scoreOf = (card) => Number(card.dataset.score ?? Infinity); // errors come first
const nameOf = (card) => card.querySelector("small").textContent;
const orders = {
  high: (a, b) => scoreOf(b) - scoreOf(a),
  low: (a, b) => scoreOf(a) - scoreOf(b),
  name: (a, b) => collator.compare(nameOf(a), nameOf(b)),
};

function arrange() {
  const kind = controls.elements.kind.value;
  const grouped = controls.elements.group?.checked ?? false;
  const sorted = [...cards].sort(orders[controls.elements.order.value]);
  if (grouped) sorted.sort((a, b) => collator.compare(a.dataset.folder, b.dataset.folder));
  let folder = null;
  const children = [];
  for (const card of sorted) {
    card.hidden = kind !== "all" && !card.classList.contains(kind);
    if (grouped && !card.hidden && card.dataset.folder !== folder) {
      folder = card.dataset.folder;
      const heading = document.createElement("h3");
      heading.textContent = folder || "(no folder)";
      const item = document.createElement("li");
      item.className = "heading";
      item.append(heading);
      children.push(item);
    }
    children.push(card);
  }
  list.replaceChildren(...children);
  document.getElementById("none").hidden = cards.some((card) => !card.hidden);
}

function setView(view) {
  controls.elements.view.value = view;
  body.dataset.view = view;
  lightbox.querySelector("[value=view]").textContent = `view: ${view}`;
}

function setWeak(isOn) {
  controls.elements.weak.checked = isOn;
  body.toggleAttribute("data-weak", isOn);
  lightbox.querySelector("[value=weak]").setAttribute("aria-pressed", isOn);
}

function enlarge(card) {
  current = card;
  const picture = card.querySelector(".picture").cloneNode(true);
  lightbox.querySelector(".stage").replaceChildren(picture);
  lightbox.querySelector(".caption").replaceChildren(
    ...[...card.querySelectorAll("p, small")].map((line) => line.cloneNode(true)),
  );
  lightbox.querySelector(".caption").className = `caption ${card.className}`;
  const link = lightbox.querySelector("a");
  link.hidden = !card.dataset.picture;
  if (card.dataset.picture) link.href = card.dataset.picture;
  for (const [value, direction] of [["back", -1], ["on", 1]]) {
    lightbox.querySelector(`[value=${value}]`).setAttribute("aria-disabled", !neighbour(direction));
  }
  if (!lightbox.open) lightbox.showModal();
}

function neighbour(direction) {
  const shown = [...list.querySelectorAll("li:not([hidden])")].filter((card) => card.querySelector(".picture"));
  return shown[shown.indexOf(current) + direction];
}

function step(direction) {
  const card = neighbour(direction);
  if (card) enlarge(card);
}

/** Show or hide weak evidence; it is part of the map, so the map is shown with it. */
function toggleWeak(isOn) {
  setWeak(isOn);
  if (isOn) setView("map");
}

const changeView = () => setView(views[(views.indexOf(body.dataset.view) + 1) % views.length]);
const actions = {
  back: () => step(-1),
  on: () => step(1),
  view: changeView,
  weak: () => toggleWeak(!body.hasAttribute("data-weak")),
  close: () => lightbox.close(),
};
const keys = { ArrowLeft: actions.back, ArrowRight: actions.on, ArrowUp: actions.back, ArrowDown: actions.on };

list.addEventListener("click", (event) => {
  const card = event.target.closest("button")?.closest("li");
  if (card) enlarge(card);
});
lightbox.addEventListener("click", (event) => actions[event.target.closest("button")?.value]?.());
lightbox.addEventListener("close", () => current?.querySelector("button").focus());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (lightbox.open && keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  } else if (event.target.tagName !== "SELECT" && event.key.toLowerCase() === "m") {
    changeView();
  } else if (event.target.tagName !== "SELECT" && event.key.toLowerCase() === "w") {
    actions.weak();
  }
});
controls.addEventListener("change", (event) => {
  setView(controls.elements.view.value);
  if (event.target === controls.elements.weak) toggleWeak(event.target.checked);
  arrange();
});
controls.hidden = false;
controls.reset();
setView("map");
arrange();
