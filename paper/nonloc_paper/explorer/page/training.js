// Training: the spectra of sym(W) after each recorded epoch, and what the trained blocks do to features.
"use strict";
{
  const { el, svg, number } = explorer;
  const WIDTH = 240, HEIGHT = 130, LEFT = 38, MIDDLE = HEIGHT / 2, REACH = MIDDLE - 8;

  explorer.panels.push({ id: "training", title: "Training", draw });

  function draw(root, data) {
    const chosen = { suite: 0, row: 0, run: 0, epoch: 0, fixed: false };
    const suites = choice("Table", (place) => choose(place, 0));
    const rows = choice("Row", (place) => choose(chosen.suite, place));
    const runs = choice("Seed", (place) => chooseRun(place));
    const scrub = el("div");
    const fixed = el("input", { type: "checkbox", change: () => show({ fixed: fixed.checked }) });
    const said = el("p", { role: "status" });
    const spectra = el("div", { class: "spectra" });
    const shares = el("figure"), variances = el("figure");
    const varianceNote = el("figcaption");
    root.append(
      el("p", {}, "How the weights of the nonlocal blocks change while a network learns. Choose a run, then move the epoch."),
      el("div", { class: "controls" }, suites, rows, runs),
      el("div", { class: "controls" }, scrub, el("label", {}, fixed, " same scale for all epochs")),
      said,
      el(
        "figure",
        {},
        spectra,
        el(
          "figcaption",
          {},
          `The ${data.top} eigenvalues of (W + Wᵀ)/2 of largest magnitude, in their order; blue above 0, orange below. ` +
            "Shaded: 95 % of random weights of the same rank and energy. A factored W of rank C/2 has as many positive as negative " +
            "eigenvalues, whatever was learned; training decides the sign of the large ones. Recorded after a few epochs only.",
        ),
      ),
      el("div", { class: "columns" }, shares, variances),
    );
    const shareChart = makeShareChart(shares);
    shares.append(
      el("figcaption", {}, "Negative part of the energy Σ λ² of all blocks together. Shaded: chance, for one W. Dot: the epoch above."),
    );
    const mostStages = Math.max(...every(data).map((run) => run.variance.length));
    const varianceChart = makeVarianceChart(variances, mostStages);
    variances.append(varianceNote);
    fill(suites, data.suites.map((suite) => suite.title));
    choose(0, 0);

    function choose(suite, row) {
      Object.assign(chosen, { suite, row });
      fill(rows, data.suites[suite].rows.map((one) => [one.group, one.label]), row);
      const { runs: seeds, first } = data.suites[suite].rows[row];
      fill(runs, seeds.map((run) => `${run.seed}: ${ending(run)}`));
      chooseRun(Math.max(0, seeds.findIndex((run) => run.seed === first)));
    }

    function chooseRun(place) {
      runs.input.value = place;
      const run = data.suites[chosen.suite].rows[chosen.row].runs[place];
      const epoch = run.epochs.length - 1;
      const slider = explorer.slider({
        label: "After",
        min: 0,
        max: epoch,
        step: 1,
        value: epoch,
        show: (index) => `epoch ${run.epochs[index].epoch}`,
        change: (index) => show({ epoch: index }),
      });
      slider.input.disabled = epoch === 0;
      scrub.replaceChildren(slider);
      show({ run: place, epoch });
    }

    function show(change) {
      Object.assign(chosen, change);
      const row = data.suites[chosen.suite].rows[chosen.row];
      const run = row.runs[chosen.run];
      const line = run.epochs[chosen.epoch];
      const bands = line.weights.map((_, block) => (run.sizes ? data.bands[run.sizes[block]] : null));
      const scaled = chosen.fixed ? run.epochs : [line];
      const limit = Math.max(
        ...scaled.flatMap((one) => one.weights.flatMap((weight, block) => [weight.largest, ...reach(weight, bands[block])])),
      );
      spectra.replaceChildren(
        ...line.weights.map((weight, block) => spectrum(run.blocks[block], weight, bands[block], limit || 1, data.parts)),
      );
      const chance = run.chance ? `; of random weights it is ${between(run.chance)}` : "; no band of random weights is recorded";
      said.textContent =
        `${row.label}, seed ${run.seed}, after epoch ${line.epoch}: ${percent(line.negative)} of the energy of sym(W) ` +
        `is negative${chance}. At its end: ${ending(run)}.`;
      showShares(shareChart, run, chosen.epoch);
      showVariances(varianceChart, run, mostStages, varianceNote);
    }
  }

  const every = (data) => data.suites.flatMap((suite) => suite.rows.flatMap((row) => row.runs));
  const ending = (run) => (Number.isNaN(Number(run.score)) ? run.score : `error ${run.score} %`);
  const between = ([low, high]) => `${Math.round(100 * low)} to ${percent(high)}`;
  const percent = (share) => (share == null ? "none" : `${Math.round(100 * share)} %`);

  function choice(label, change) {
    return explorer.choice({ label, options: [], change: (value) => change(Number(value)) });
  }

  // Fill a choice with texts, or with pairs of a group and a text.
  function fill(control, texts, value = 0) {
    const groups = new Map();
    texts.forEach((text, place) => {
      const [group, name] = Array.isArray(text) ? text : ["", text];
      if (!groups.has(group)) groups.set(group, group ? el("optgroup", { label: group }) : document.createDocumentFragment());
      groups.get(group).append(el("option", { value: place }, name));
    });
    control.input.replaceChildren(...groups.values());
    control.input.value = value;
  }

  // How far the band of random weights reaches, for a W of this energy.
  function reach(weight, band) {
    return band ? [band.high[0] * Math.sqrt(weight.energy), -band.low[0] * Math.sqrt(weight.energy)] : [];
  }

  function spectrum(name, weight, band, limit, parts) {
    const count = weight.values.length;
    const wide = (WIDTH - LEFT) / count;
    const x = (place) => LEFT + wide * place;
    const y = (value) => MIDDLE - (REACH * value) / limit;
    const children = [];
    if (band) {
      const root = Math.sqrt(weight.energy);
      const edge = (side, places) => places.flatMap((place) => [[x(place), y(band[side][place] * root)], [x(place + 1), y(band[side][place] * root)]]);
      const places = weight.values.map((_, place) => place);
      const corners = [...edge("high", places), ...edge("low", places).reverse()];
      children.push(svg("polygon", { class: "chance", points: corners.map((corner) => corner.map((one) => one.toFixed(1)).join()).join(" ") }));
    }
    const tick = niceBelow(limit);
    for (const value of [tick, 0, -tick]) {
      children.push(
        svg("line", { class: "rule", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 4, y: y(value) + 4, "text-anchor": "end" }, number(value, 2)),
      );
    }
    weight.values.forEach((part, place) => {
      const value = (weight.largest * part) / parts;
      const [top, bottom] = [y(Math.max(value, 0)), y(Math.min(value, 0))];
      const look = { class: value > 0 ? "positive" : "negative", x: (x(place) + 0.14 * wide).toFixed(1), width: (0.72 * wide).toFixed(1) };
      children.push(svg("rect", { ...look, y: top.toFixed(1), height: (bottom - top).toFixed(1) }));
    });
    const first = (weight.largest * weight.values[0]) / parts;
    const chance = band ? `, by chance ${between(band.negative)}` : "";
    const label = `${name}: largest eigenvalue ${number(first)}; ${percent(weight.negative)} of the energy negative${chance}`;
    return el(
      "div",
      {},
      el("div", { class: "name", "aria-hidden": "true" }, `${name}: ${percent(weight.negative)} negative`),
      svg("svg", { class: "drawing", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...children),
    );
  }

  // The largest of 1, 2, 5, 10, … times a power of ten that is not above.
  function niceBelow(limit) {
    const power = 10 ** Math.floor(Math.log10(limit));
    return power * [5, 2, 1].find((one) => one * power <= limit * 1.0001);
  }

  function makeShareChart(root) {
    const grey = { stroke: () => explorer.color("chance"), width: 1, points: { show: false } };
    const colour = () => explorer.color("accent");
    const options = {
      height: 210,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false }, y: { range: [0, 1] } },
      axes: [{ label: "epoch", size: 34 }, { label: "negative energy", values: (_, ticks) => ticks.map((tick) => percent(tick)), size: 56 }],
      series: [
        {},
        { ...grey },
        { ...grey },
        { stroke: colour, width: 2, points: { show: true, size: 5 } },
        { stroke: colour, fill: colour, paths: () => null, points: { show: true, size: 13, fill: colour } },
      ],
      bands: [{ series: [2, 1], fill: () => `${explorer.color("chance")}40` }],
    };
    return explorer.chart(root, "", options, [[0], [null], [null], [null], [null]]);
  }

  function showShares(chart, run, shown) {
    const epochs = run.epochs.map((line) => line.epoch);
    const shares = run.epochs.map((line) => line.negative);
    const [low, high] = run.chance || [null, null];
    chart.setData([epochs, epochs.map(() => low), epochs.map(() => high), shares, shares.map((share, place) => (place === shown ? share : null))]);
    const text = epochs.map((epoch, place) => `${percent(shares[place])} after epoch ${epoch}`).join(", ");
    describe(chart, `Negative part of the energy: ${text}`);
  }

  function makeVarianceChart(root, stages) {
    const colours = ["accent", "negative", "third", "fourth", "fifth", "sixth"];
    const series = Array.from({ length: stages }, (_, place) => {
      const colour = () => explorer.color(colours[place % colours.length]);
      return { stroke: colour, width: 2, points: { show: true, size: 6, fill: colour } };
    });
    const options = {
      height: 210,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(low, 0.9) - 0.05, Math.max(high, 1.1) + 0.05] } },
      axes: [{ label: "blocks passed", size: 34, incrs: [1, 2, 5] }, { label: "variance, before = 1", size: 56 }],
      series: [{}, ...series],
    };
    return explorer.chart(root, "", options, [[0], ...series.map(() => [null])]);
  }

  function showVariances(chart, run, stages, note) {
    const longest = run.variance.reduce((sum, stage) => sum + stage.length - 1, 0);
    const places = Array.from({ length: longest + 1 }, (_, place) => place);
    let start = 0;
    const lines = run.variance.map((stage) => {
      const from = start;
      start += stage.length - 1;
      return places.map((place) => {
        const value = stage[place - from];
        return value == null || !stage[0] ? null : value / stage[0];
      });
    });
    while (lines.length < stages) lines.push(places.map(() => null));
    chart.setData([places, ...lines]);
    const known = run.variance.filter((stage) => stage[0] != null && stage.at(-1) != null);
    const change = known.map((stage) => `from ${number(stage[0])} to ${number(stage.at(-1))}`).join("; ");
    note.textContent = known.length
      ? `Variance of the features over positions through the blocks of a stage, ${change}. Recorded once, after epoch ${run.variance_epoch}.`
      : "The variance of the features was not recorded for this run.";
    describe(chart, note.textContent);
  }

  function describe(chart, text) {
    chart.root.parentElement.setAttribute("aria-label", text);
  }
}
