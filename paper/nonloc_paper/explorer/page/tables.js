// The tables: a forest of paired differences with published numbers, and the tables of paper/README.md.
"use strict";
{
  const { el, svg, number } = explorer;
  const EDGE = 0.1; // of the axis, on both sides of the values

  explorer.panels.push({ id: "tables", title: "The tables", draw });

  function draw(root, data) {
    const every = data.differences;
    const chosen = { comparison: "", backbone: "", form: "", affinity: "" };
    const names = { both: "own minus one", own: "own affinities", one: "one affinity", ...data.backbones };
    const choose = (label, key) =>
      explorer.choice({
        label,
        options: [["", "all"], ...[...new Set(every.map((line) => line[key]))].map((value) => [value, names[value] || value])],
        change: (value) => {
          chosen[key] = value;
          show();
        },
      });
    const said = el("p", { role: "status" });
    const forest = el("div");
    root.append(
      el("p", {}, data.hypothesis),
      el("h2", {}, "Paired differences"),
      el("div", { class: "controls" }, choose("Comparison", "comparison"), choose("Backbone", "backbone"), choose("Form", "form"), choose("Affinity", "affinity")),
      said,
      forest,
      el(
        "p",
        { class: "note" },
        "Differences of the test error in points, seed by seed; left of 0 is better. Small dots: every seed, hollow where it was " +
          "seen before the rules were written and decides nothing. Square and line: mean and 95 % interval of the others, cut at " +
          "the frame. Diamond: published; an arrow where it is beyond the frame. Inside or outside: of the interval that ours predict for it.",
      ),
      ...data.tables.map(({ title, about, tables }) =>
        el(
          "details",
          {},
          el("summary", {}, title),
          ...tables.map(({ header, lines }) => explorer.table(title, header, lines)),
          ...about.map((text) => el("p", { class: "note" }, text)),
        ),
      ),
    );
    show();

    function show() {
      const shown = every.filter((line) => Object.entries(chosen).every(([key, value]) => !value || line[key] === value));
      said.textContent = `${shown.length} of ${every.length} differences.`;
      const values = shown.flatMap((line) => line.seeds.map(([, value]) => value));
      const low = Math.min(...values, -0.5), high = Math.max(...values, 0.5);
      const pad = EDGE * (high - low);
      forest.replaceChildren(shown.length ? makeForest(shown, data.backbones, [low - pad, high + pad]) : el("p", {}, "No such difference is recorded."));
    }
  }

  function makeForest(lines, backbones, limits) {
    const groups = new Map();
    for (const line of lines) {
      const title = `${line.comparison}; ${backbones[line.backbone] || line.backbone}`;
      if (!groups.has(title)) groups.set(title, []);
      groups.get(title).push(line);
    }
    const bodies = [...groups].map(([title, some]) =>
      el(
        "tbody",
        {},
        el("tr", { class: "title" }, el("th", { scope: "rowgroup", colspan: 3 }, title)),
        ...some.map((line) =>
          el(
            "tr",
            { "data-form": line.form, "data-affinity": line.affinity },
            el("th", { scope: "row" }, line.label),
            el("td", { class: "strip" }, strip(line, limits)),
            el("td", {}, words(line)),
          ),
        ),
      ),
    );
    const head = ["networks", "", "mean, 95 % interval, n; published"].map((name) => el("th", { scope: "col" }, name));
    head[1].append(el("span", { class: "unseen" }, "drawing"), axis(limits));
    return el("table", { class: "forest" }, el("caption", { class: "unseen" }, "Paired differences"), el("thead", {}, el("tr", {}, ...head)), ...bodies);
  }

  function words(line) {
    return line.published == null ? line.text : `${line.text}; published ${line.published_text}`;
  }

  const percent = (value, [low, high]) => `${((100 * (value - low)) / (high - low)).toFixed(2)}%`;

  function strip(line, limits) {
    const at = (value) => percent(value, limits);
    const [low, high] = limits;
    const look = `${line.form} ${line.affinity}`;
    const marks = ticks(limits).map((tick) => svg("line", { class: tick === 0 ? "zero" : "rule", x1: at(tick), x2: at(tick), y1: 0, y2: "100%" }));
    if (line.ends[0] != null) {
      const [from, to] = [Math.max(line.ends[0], low), Math.min(line.ends[1], high)];
      marks.push(svg("line", { class: `interval ${look}`, x1: at(from), x2: at(to), y1: 12, y2: 12 }));
    }
    for (const [seed, value, decides] of line.seeds) {
      const title = svg("title", {}, `seed ${seed}: ${number(value)}`);
      marks.push(svg("circle", { class: `seed ${look}${decides ? "" : " hollow"}`, cx: at(value), cy: 22, r: 3 }, title));
    }
    if (line.mean != null) marks.push(svg("rect", { class: `mean ${look}`, x: at(line.mean), y: 8, width: 8, height: 8, transform: "translate(-4 0)" }));
    if (line.published != null) {
      const beyond = line.published > high ? "▸" : line.published < low ? "◂" : "";
      const place = at(Math.min(Math.max(line.published, low), high));
      if (beyond) {
        const anchor = beyond === "▸" ? "end" : "start";
        const text = beyond === "▸" ? `◇ ${number(line.published)} ▸` : `◂ ${number(line.published)} ◇`;
        marks.push(svg("text", { x: place, y: 16, "text-anchor": anchor }, text));
      } else {
        const title = svg("title", {}, `published: ${number(line.published)}`);
        marks.push(svg("svg", { x: place, y: 12, overflow: "visible" }, svg("path", { class: `published ${look}`, d: "M-6 0 0-6 6 0 0 6Z" }, title)));
      }
    }
    return svg("svg", { width: "100%", height: 28, "aria-hidden": "true" }, ...marks);
  }

  function axis(limits) {
    const texts = ticks(limits).map((tick) => svg("text", { x: percent(tick, limits), y: 13, "text-anchor": "middle" }, number(tick)));
    return svg("svg", { width: "100%", height: 18, "aria-hidden": "true" }, ...texts);
  }

  // A few round numbers between the limits, 0 among them.
  function ticks([low, high]) {
    const rough = (high - low) / 6;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
    const found = [];
    for (let count = Math.ceil(low / step); count * step <= high; count++) found.push(Number((count * step).toFixed(6)));
    return found;
  }
}
