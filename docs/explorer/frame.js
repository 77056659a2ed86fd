// The frame: tabs, data that is loaded when a panel opens, and what panels share.
//
// A panel joins by explorer.panels.push({id, title, draw(root, data)}). `id` is the hash, the tab, page/ID.js and
// data/ID.js, which says explorer.data.ID = {...}. `draw` is called once, when the panel is opened for the first time.
"use strict";

const explorer = {
  panels: [],
  data: {},

  // An element: attributes by name, functions as listeners, children as elements or as text.
  el(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value != null) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  },

  // A label with a range and its value as text; `show` makes the text. The input is `.input`.
  slider({ label, min, max, step = "any", value, show = String, change }) {
    const text = explorer.el("span", { class: "value" }, show(value)); // <output> would take the label from the input
    const input = explorer.el("input", { type: "range", min, max, step, "aria-valuetext": show(value) });
    input.value = value;
    input.addEventListener("input", () => {
      const number = Number(input.value);
      text.textContent = show(number);
      input.setAttribute("aria-valuetext", show(number));
      change(number);
    });
    const root = explorer.el("label", { class: "control" }, explorer.el("span", {}, label, " ", text), input);
    root.input = input;
    return root;
  },

  // A label with a list to choose from. `options` are pairs [value, text]. The select is `.input`.
  choice({ label, options, value, change }) {
    const input = explorer.el("select", {}, ...options.map(([key, text]) => explorer.el("option", { value: key }, text)));
    if (value !== undefined) input.value = value;
    input.addEventListener("change", () => change(input.value));
    const root = explorer.el("label", { class: "control" }, explorer.el("span", {}, label), input);
    root.input = input;
    return root;
  },

  // A colour of style.css by its name, such as "ink": light or dark, as the page is.
  color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  },

  // A uPlot chart in the page's colours, as wide as its root. `label` is for screen readers; `options` are uPlot's.
  chart(root, label, options, data) {
    const box = explorer.el("div", { class: "chart", role: "img", "aria-label": label });
    root.append(box);
    const axis = (one, place) => ({
      size: place ? 50 : 34,
      font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      labelSize: 18,
      stroke: () => explorer.color("ink"),
      ...one,
      grid: { stroke: () => explorer.color("line"), width: 1, ...one.grid },
      ticks: { stroke: () => explorer.color("line"), width: 1, ...one.ticks },
    });
    const height = options.height || 240;
    const chart = new uPlot(
      { ...options, width: box.clientWidth || 320, height, axes: (options.axes || [{}, {}]).map(axis) },
      data,
      box,
    );
    new ResizeObserver(() => box.clientWidth && chart.setSize({ width: box.clientWidth, height })).observe(box);
    scheme.addEventListener("change", () => chart.redraw(false));
    return chart;
  },

  // A number in few digits.
  format(value, digits = 3) {
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(digits - 1);
    return String(Number(value.toPrecision(digits)));
  },

  // Say how many frames a second a panel has.
  frames(perSecond) {
    document.documentElement.dataset.framesPerSecond = perSecond.toFixed(1);
    tellSpeed();
  },

  start() {
    const tabs = document.getElementById("tabs");
    for (const { id, title } of explorer.panels) {
      const tab = { role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`, click: () => open(id) };
      tabs.append(explorer.el("button", tab, title));
      const panel = { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`, tabindex: 0, hidden: true };
      document.getElementById("panels").append(explorer.el("section", panel));
    }
    tabs.addEventListener("keydown", moveByKey);
    addEventListener("hashchange", () => show(wanted()));
    show(wanted());
  },
};

const scheme = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();

function wanted() {
  const id = location.hash.slice(1);
  return explorer.panels.some((panel) => panel.id === id) ? id : explorer.panels[0].id;
}

function open(id) {
  if (wanted() !== id) location.hash = id; // hashchange shows it
}

function moveByKey(event) {
  const ids = explorer.panels.map((panel) => panel.id);
  const place = ids.indexOf(wanted());
  const places = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: ids.length - 1 };
  if (!(event.key in places)) return;
  event.preventDefault();
  const id = ids[(places[event.key] + ids.length) % ids.length];
  open(id);
  document.getElementById(`tab-${id}`).focus();
}

async function show(id) {
  for (const panel of explorer.panels) {
    const isShown = panel.id === id;
    const tab = document.getElementById(`tab-${panel.id}`);
    tab.setAttribute("aria-selected", String(isShown));
    tab.tabIndex = isShown ? 0 : -1;
    document.getElementById(`panel-${panel.id}`).hidden = !isShown;
  }
  if (drawn.has(id)) return;
  drawn.add(id);
  const root = document.getElementById(`panel-${id}`);
  await loadData(id);
  explorer.panels.find((panel) => panel.id === id).draw(root, explorer.data[id]);
  root.dataset.drawn = "yes";
  if (document.documentElement.dataset.ready) return;
  requestAnimationFrame(() => setTimeout(() => {
    document.documentElement.dataset.ready = performance.now().toFixed(0);
    tellSpeed();
  }));
}

// A page from disk cannot fetch, so data comes as scripts.
function loadData(id) {
  return new Promise((done, fail) => {
    const src = `data/${id}.js`;
    document.head.append(explorer.el("script", { src, load: done, error: () => fail(new Error(`${src} is missing`)) }));
  });
}

function tellSpeed() {
  const { ready, framesPerSecond } = document.documentElement.dataset;
  const parts = [];
  if (ready) parts.push(`Ready after ${ready} ms.`);
  if (framesPerSecond) parts.push(`${Math.round(framesPerSecond)} frames a second.`);
  document.getElementById("speed").textContent = parts.join(" ");
}
