// Click a pixel: its row of the kernel, made here from the embeddings, for every sub-block of a network.
"use strict";

explorer.panels.push({
  id: "click",
  title: "Click a pixel",
  draw(root, data) {
    const { el } = explorer;
    if (!data.networks.length) return root.append(el("p", {}, "No recorded network with weights is here."));
    const state = { picture: 0, network: 0, position: 0, scale: 1 };

    const picker = explorer.canvas("");
    const where = el("figcaption", { "aria-live": "polite" });
    const about = el("p", { class: "note" });
    const maps = el("div", { class: "maps" });
    const curves = el("div", {});
    const scale = explorer.slider({
      label: "Logits ×",
      min: 0,
      max: 4,
      step: 0.05,
      value: 1,
      show: (value) => value.toFixed(2),
      change: (value) => update({ scale: value }),
    });
    root.append(
      el("p", {}, "Choose a position of the picture, with the pointer or the arrow keys. Each map shows where it looks: ",
        "the bright positions are averaged with the largest weights."),
      el("div", { class: "controls" },
        explorer.choice({
          label: "Network",
          options: data.networks.map((one, place) => [place, one.name]),
          change: (value) => choose({ network: Number(value) }),
        }),
        explorer.choice({
          label: "Picture",
          options: data.pictures.map((one, place) => [place, one.name]),
          change: (value) => choose({ picture: Number(value) }),
        }),
        scale,
      ),
      about,
      maps,
      el("h2", {}, "How many positions share the weight"),
      el("p", { class: "note" }, "e to the entropy of the row: all positions for equal weights, 1 where a single one has it all. ",
        "Larger logits make the row narrower."),
      curves,
    );
    const side = data.pictures[0].side;
    picker.tabIndex = 0;
    picker.setAttribute("role", "application"); // arrow keys are for it
    explorer.pick(picker, () => side, () => state.position, (position) => update({ position }));
    let shown = []; // one for each affinity: how to compute a row, and where to show it
    let chart;
    choose({ position: Math.floor(side * 0.55) * side + Math.floor(side / 2) });

    function choose(change) {
      Object.assign(state, change);
      const picture = data.pictures[state.picture];
      const network = data.networks[state.network];
      const look = network.pictures[state.picture];
      const values = Float64Array.from(explorer.bytes(picture.pixels), (byte) => byte / 255);
      picker.setAttribute("aria-label", `${picture.name}: arrow keys move the position`);
      about.textContent = (look.says ? `It sees: ${look.says.class}, ${look.says.percent} %. ` : "") + `${network.note}.`;
      shown = look.maps.map((one) => {
        const canvas = explorer.canvas(`where the position looks, ${one.text}`);
        const caption = el("span", {});
        explorer.pick(canvas, () => side, () => state.position, (position) => update({ position }));
        const row = rowMaker(one);
        return { ...one, row, canvas, caption, values: explorer.shrink(values, side, one.side) };
      });
      maps.replaceChildren(el("figure", {}, picker, where), ...shown.map((one) =>
        el("figure", {}, one.canvas, el("figcaption", {}, el("b", {}, one.text), el("br"), one.caption))));
      picker.values = values;
      if (chart) chart.destroy();
      curves.replaceChildren();
      chart = makeChart();
      update({});
    }

    function update(change) {
      Object.assign(state, change);
      const [down, right] = [Math.floor(state.position / side), state.position % side];
      where.textContent = `Row ${down + 1}, column ${right + 1}.`;
      explorer.paint(picker, explorer.rgba(picker.values), side);
      explorer.mark(picker, state.position, side);
      for (const one of shown) {
        one.index = Math.floor((down * one.side) / side) * one.side + Math.floor((right * one.side) / side);
        const weights = softmax(one.row(one.index), state.scale);
        const { entropy, largest } = summary(weights);
        const count = weights.length;
        one.canvas.dataset.entropy = entropy;
        one.caption.textContent =
          `Entropy ${entropy.toFixed(2)}: ${Math.exp(entropy).toFixed(0)} of ${count} positions. ` +
          `Largest weight ${explorer.format(largest, 2)}.`;
        explorer.paint(one.canvas, explorer.weighted(one.values, weights), one.side);
        explorer.mark(one.canvas, one.index, one.side);
      }
      chart.setData(chartData());
    }

    function chartData() {
      const scales = Array.from({ length: 21 }, (_, place) => place / 5);
      return [scales, ...shown.map((one) => {
        const logits = one.row(one.index || 0);
        return scales.map((value) => Math.exp(summary(softmax(logits, value)).entropy));
      })];
    }

    function makeChart() {
      const colors = ["positive", "negative", "third", "fourth", "fifth", "sixth"];
      const lineAt = (u) => {
        const x = u.valToPos(state.scale, "x", true);
        u.ctx.save();
        u.ctx.strokeStyle = explorer.color("soft");
        u.ctx.setLineDash([4, 4]);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
        u.ctx.restore();
      };
      return explorer.chart(curves, "effective number of positions against the scale of the logits", {
        height: 220,
        scales: { x: { time: false }, y: { distr: 3, range: [1, side * side] } },
        legend: { live: false },
        axes: [{ label: "logits ×" }, { label: "positions", size: 60 }],
        series: [{ label: "logits ×" }, ...shown.map((one, place) => ({
          label: one.text,
          stroke: () => explorer.color(colors[place % colors.length]),
          width: 2,
          points: { show: false },
        }))],
        hooks: { draw: [lineAt] },
      }, chartData());
    }
  },
});

// From an affinity in 8 bits to its rows of logits: Σ_c steps_c left_ic right_jc.
function rowMaker({ channels, left, right, steps }) {
  const [lefts, rights] = [left, right].map((text) => new Int8Array(explorer.bytes(text).buffer));
  const count = lefts.length / channels;
  return (index) => {
    const query = steps.map((step, c) => step * lefts[index * channels + c]);
    const logits = new Float64Array(count);
    for (let j = 0, k = 0; j < count; j++) {
      let sum = 0;
      for (let c = 0; c < channels; c++, k++) sum += query[c] * rights[k];
      logits[j] = sum;
    }
    return logits;
  };
}

function softmax(logits, scale) {
  const largest = logits.reduce((a, b) => Math.max(a, b));
  const weights = logits.map((one) => Math.exp(scale * (one - largest)));
  const total = weights.reduce((a, b) => a + b);
  return weights.map((one) => one / total);
}

function summary(weights) {
  let [entropy, largest] = [0, 0];
  for (const one of weights) {
    if (one > 0) entropy -= one * Math.log(one);
    if (one > largest) largest = one;
  }
  return { entropy, largest };
}
