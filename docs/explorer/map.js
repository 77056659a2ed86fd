// The map: which rates, starts and numbers of blocks train; a chosen cell shows its losses, logits and last steps.
"use strict";
{
  const { el, number } = explorer;
  const NAMES = { original: "original", diffusive: "proposed", stable: "proposed with a stable W" };
  const COLOURS = ["accent", "negative", "third", "fourth", "fifth", "sixth"];

  explorer.panels.push({ id: "map", title: "The map", draw });

  function draw(root, data) {
    const chosen = { part: data.parts[0], cell: null };
    const parts = explorer.choice({
      label: "Runs of",
      options: data.parts.map((part, place) => [place, part.title]),
      change: (place) => choosePart(data.parts[place]),
    });
    const rates = el("div");
    const grids = el("div", { class: "grids", keydown: moveByKey, mouseleave: () => details.show(chosen.cell, chosen.part) });
    const details = makeDetails(data);
    root.append(
      el("p", {}, "Which learning rates, starts and numbers of blocks train. Choose a cell, with the pointer or the arrow keys, to see its runs beside the map, or below it on a narrow screen."),
      el("div", { class: "controls" }, parts, rates),
      el("div", { class: "split" }, el("div", {}, grids, note(data)), details.root),
    );
    choosePart(chosen.part);

    function choosePart(part) {
      chosen.part = part;
      rates.replaceChildren(
        explorer.choice({ label: "Learning rate", options: part.rates.map((rate) => [rate, rate]), change: (rate) => chooseRate(Number(rate)) }),
      );
      chooseRate(part.rates[0]);
    }

    function chooseRate(rate) {
      const cells = chosen.part.cells.filter((cell) => cell.rate === rate);
      const forms = Object.keys(NAMES).filter((form) => cells.some((cell) => cell.form === form));
      const losses = chosen.part.cells.map((cell) => cell.loss).filter((loss) => loss != null);
      const lowest = Math.min(...losses, data.trains_below);
      const shade = (loss) => Math.max(0, Math.min(1, (data.chance_loss - loss) / (data.chance_loss - lowest)));
      grids.replaceChildren(...forms.map((form) => grid(form, chosen.part, cells.filter((cell) => cell.form === form), shade)));
      (grids.querySelector(".diverged") || grids.querySelector("button")).choose();
    }

    function grid(form, part, cells, shade) {
      const blocks = [...new Set(cells.map((cell) => cell.blocks))].sort((a, b) => a - b);
      const starts = part.starts.filter((start) => cells.some((cell) => cell.start === start));
      const square = (start, count) => {
        const cell = cells.find((one) => one.start === start && one.blocks === count);
        return el("td", {}, ...(cell ? [button(cell, shade)] : []));
      };
      return el(
        "table",
        { class: "map" },
        el("caption", {}, NAMES[form]),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "start"), ...blocks.map((count) => el("th", { scope: "col", "aria-label": `${count} blocks` }, count)))),
        el("tbody", {}, ...starts.map((start) => el("tr", {}, el("th", { scope: "row" }, start.replace("normal ", "")), ...blocks.map((count) => square(start, count))))),
      );
    }

    function button(cell, shade) {
      const choose = () => {
        for (const old of grids.querySelectorAll("[aria-current]")) {
          old.removeAttribute("aria-current");
          old.tabIndex = -1;
        }
        one.setAttribute("aria-current", "true");
        one.tabIndex = 0;
        chosen.cell = cell;
        details.show(cell, chosen.part);
      };
      const preview = () => details.show(cell, chosen.part);
      const look = { type: "button", tabindex: -1, "aria-label": `${name(cell)}: ${sentence(cell)}`, mouseenter: preview, focus: choose, click: choose };
      const one = el("button", look, ...lines(cell).map((text) => el("span", {}, text)));
      one.choose = choose;
      if (cell.loss == null) one.classList.add("gone");
      else one.style.setProperty("--share", `${(70 * shade(cell.loss)).toFixed(0)}%`);
      if (cell.diverged) one.classList.add("diverged");
      return one;
    }

    // To the next cell; from the edge of a form on to the next form.
    function moveByKey(event) {
      const [right, down] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] || [0, 0];
      const here = event.target.closest("td");
      if (!here || (!right && !down)) return;
      event.preventDefault();
      const squares = (table) => [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td")]);
      const tables = [...grids.children];
      const table = here.closest("table");
      const lines = squares(table);
      const line = lines.findIndex((row) => row.includes(here));
      const column = lines[line].indexOf(here);
      let next = lines[line + down]?.[column + right];
      const beyond = tables[tables.indexOf(table) + right + down];
      if (!next && beyond) {
        const others = squares(beyond);
        const row = right ? others[Math.min(line, others.length - 1)] : others.at(down > 0 ? 0 : -1);
        next = row.at(right ? (right > 0 ? 0 : -1) : Math.min(column, row.length - 1));
      }
      next?.querySelector("button")?.focus();
    }
  }

  function note(data) {
    return el(
      "p",
      { class: "note" },
      "Columns: the number of blocks. Number: training loss at the end, the mean of the seeds left; the bluer, the lower. " +
        "✕ and grey: all seeds diverged, with the step of the first. ✕ 1/2: one seed of two diverged. ○ 1/2: one of two ended no better than guessing " +
        `(${number(data.chance_loss)}). Rows: the start, the deviation of the initial weights, or the name of an initialisation.`,
    );
  }

  function lines(cell) {
    const n = cell.runs.length;
    if (cell.loss == null) return [`✕ ${cell.first_step}`];
    const stuck = n - cell.diverged - cell.trained;
    return [cell.loss.toFixed(2), stuck ? `○ ${stuck}/${n}` : "", cell.diverged ? `✕ ${cell.diverged}/${n}` : ""].filter(Boolean);
  }

  function name(cell) {
    return `${cell.blocks} × ${NAMES[cell.form]}, start ${cell.start}, rate ${cell.rate}`;
  }

  function sentence(cell) {
    const loss = cell.loss == null ? "" : `, loss ${number(cell.loss)}`;
    const gone = cell.diverged ? `, ${cell.diverged} diverged, the first at step ${cell.first_step}` : "";
    return `${cell.trained} of ${cell.runs.length} runs train${gone}${loss}`;
  }

  // What is next to the map: a sentence, the losses, the last steps, and a table with a line for each seed.
  function makeDetails(data) {
    const most = Math.max(...data.parts.flatMap((part) => part.cells.map((cell) => cell.runs.length)));
    const title = el("h2");
    const said = el("p");
    const losses = el("figure"), spreads = el("figure"), lasts = el("figure");
    const table = el("div");
    const calm = el("p", { class: "note" });
    const key = el("p", { class: "key", "aria-hidden": "true" });
    const root = el("div", { class: "details" }, el("div", { role: "status" }, title, said), key, el("div", { class: "columns" }, losses, spreads, lasts), calm, table);
    const byEpoch = chart(losses, most, "epoch", "training loss", {}, [data.chance_loss]);
    losses.append(el("figcaption", {}, "Training loss: the first batch, then the mean of each epoch. Dashed: guessing."));
    const bySpread = chart(spreads, most, "steps to the end", "spread of logits", { distr: 3 }, [], powers);
    spreads.append(el("figcaption", {}, "The largest difference of two logits in a row of the kernel, before the run diverged."));
    const byLast = chart(lasts, most, "steps to the end", "loss of a batch", {});
    lasts.append(el("figcaption", {}, "The loss in the last recorded steps before the run diverged."));
    return { root, show };

    function show(cell, part) {
      title.textContent = name(cell);
      const error = cell.error == null ? "" : ` Median error ${number(cell.error, 4)} %.`;
      const spread = cell.spread == null ? "" : ` Largest spread of logits ${number(cell.spread)}.`;
      said.textContent = `${sentence(cell)}.${error}${spread}`;
      key.replaceChildren(...cell.runs.map((run, place) => mark(run, place)));
      const epochs = Array.from({ length: part.epochs + 1 }, (_, epoch) => epoch);
      const trains = cell.runs.map((run) => epochs.map((epoch) => (epoch ? run.train[epoch - 1] : run.first_loss) ?? null));
      drawLines(byEpoch, epochs, trains, most, epochs.map(() => data.chance_loss));
      losses.hidden = !cell.runs.some((run) => run.train.length);
      const gone = cell.runs.some((run) => run.before.step.length);
      spreads.hidden = lasts.hidden = !gone;
      if (gone) {
        drawLast(bySpread, cell, "spread", most);
        drawLast(byLast, cell, "loss", most);
      }
      const watched = cell.runs.some((run) => run.spread != null) || gone;
      calm.textContent = watched ? "" : "The logits of these runs were not recorded: in the map of one epoch only those of runs that diverged are.";
      table.replaceChildren(
        explorer.table(
          "Every run",
          ["seed", "ending", "first loss", "loss at the end", "error (%)", "spread of logits", "growth before divergence"],
          cell.runs.map((run) => [
            run.seed,
            run.diverged_at == null ? "came to its end" : `diverged at step ${run.diverged_at}`,
            number(run.first_loss),
            number(run.loss),
            number(run.error, 4),
            number(run.spread ?? run.before.spread.findLast((one) => one != null)),
            number(run.growth),
          ]),
        ),
      );
    }
  }

  // Ticks of a logarithmic axis: at most five powers of ten.
  const powers = {
    splits: (_, axis, low, high) => {
      const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
      const step = Math.max(1, Math.ceil((last - first + 1) / 5));
      return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, place) => 10 ** (first + place * step));
    },
    values: (_, ticks) => ticks.map((tick) => (tick < 1e4 && tick >= 0.01 ? number(tick) : explorer.power(Math.round(Math.log10(tick))))),
    filter: (_, ticks) => ticks,
  };

  function mark(run, place) {
    const dot = el("span", {}, "●");
    dot.style.color = `var(--${COLOURS[place % COLOURS.length]})`;
    return el("span", {}, dot, ` seed ${run.seed} `);
  }

  function chart(root, most, x, y, scale, marks = [], ticks = {}) {
    const series = Array.from({ length: most }, (_, place) => {
      const colour = () => explorer.color(COLOURS[place % COLOURS.length]);
      return { stroke: colour, width: 2, spanGaps: true, points: { show: true, size: 5, fill: colour } };
    });
    const dashed = marks.map(() => ({ stroke: () => explorer.color("chance"), dash: [5, 4], points: { show: false } }));
    const options = {
      height: 190,
      cursor: { drag: { x: false, y: false } },
      legend: { show: false },
      scales: { x: { time: false }, y: scale },
      axes: [{ label: x, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] }, { label: y, size: 58, ...ticks }],
      series: [{}, ...series, ...dashed],
    };
    return explorer.chart(root, y, options, [[0], ...series.map(() => [null]), ...dashed.map(() => [null])]);
  }

  function drawLines(chart, x, lines, most, ...marks) {
    while (lines.length < most) lines.push(x.map(() => null));
    chart.setData([x, ...lines, ...marks]);
    const ends = lines.map((line, seed) => [seed, line.filter((value) => value != null)]).filter(([, line]) => line.length);
    const text = ends.map(([seed, line]) => `seed ${seed} from ${number(line[0])} to ${number(line.at(-1))}`).join("; ");
    chart.root.parentElement.setAttribute("aria-label", `${chart.axes[1].label}: ${text}`);
  }

  function drawLast(chart, cell, name, most) {
    const steps = cell.runs.map((run) => run.before.step.map((step) => step - run.diverged_at));
    const every = [...new Set(steps.flat())].sort((a, b) => a - b);
    const lines = cell.runs.map((run, seed) => every.map((step) => run.before[name][steps[seed].indexOf(step)] ?? null));
    drawLines(chart, every, lines, most);
  }
}
