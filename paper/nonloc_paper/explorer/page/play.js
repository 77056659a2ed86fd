// Play: a process on a picture, computed live; past the CFL limit the picture bursts.
"use strict";

explorer.panels.push({
  id: "play",
  title: "Play",
  draw(root, data) {
    const { el, processes } = explorer;
    const PROCESSES = {
      diffusion: ["diffusion", "Like pixels are averaged; the mean under π stays."],
      "diffusion-back": ["diffusion, backwards", "Differences grow: contrast rises, noise with it."],
      damped: ["damped flow", "The original operation: the picture fades to black."],
      "damped-back": ["damped flow, backwards", "The picture grows brighter without end."],
      jump: ["jumps", "Walkers jump from pixel to like pixel. Click where they start; the glow is their law."],
    };
    const KERNELS = { sparse: ["neighbours, 64 × 64", 64], dense: ["all pairs, 32 × 32", 32] };
    const LARGEST = 3; // of the step
    const STEPS_A_SECOND = 20;
    const WALKERS = 300;
    const BURST = 12; // times the first variance, as a power of ten

    const settings = { process: "diffusion", kernel: "sparse", picture: 2, h: 0.5, bandwidth: data.bandwidth };
    // By their keys: [64 · 64 · 3], and perhaps one from a file.
    const pictures = data.pictures.map((one) => Float64Array.from(explorer.bytes(one.pixels), (byte) => byte / 255));
    let picture, side, kernel, fastest; // of the settings; fastest is λ_max(L)
    let z, channels, number, time, variances, walkers; // of the simulation
    let start = 0; // the position where walkers start
    let isPlaying = false;

    const canvas = explorer.canvas("the picture as it is now; for jumps, arrow keys move the start");
    const readout = el("figcaption", {});
    const about = el("p", { class: "note" });
    const verdict = el("p", { role: "status" });
    const complaint = el("p", { role: "alert" });
    const mark = el("span", { class: "limit" }, "");
    const playButton = button("Play", () => play(!isPlaying));
    const h = explorer.slider({
      label: "Step h",
      min: 0.05,
      max: LARGEST,
      step: 0.05,
      value: settings.h,
      show: (value) => value.toFixed(2),
      change: (value) => {
        settings.h = value;
        judge();
      },
    });
    const bandwidth = explorer.slider({
      label: "Bandwidth",
      min: 0.02,
      max: 0.5,
      step: 0.01,
      value: settings.bandwidth,
      show: (value) => value.toFixed(2),
      change: (value) => set({ bandwidth: value }),
    });
    h.append(el("span", { class: "limits", "aria-hidden": "true" }, mark));
    const pictureChoice = explorer.choice({
      label: "Picture",
      options: data.pictures.map((one, place) => [place, one.name]),
      value: settings.picture,
      change: (value) => set({ picture: value }),
    });
    const file = el("input", { type: "file", accept: "image/*", change: () => file.files.length && take(file.files[0]) });
    const drawing = el("div", {});
    root.append(
      el("p", {}, "A picture moves by a process on its pixels, computed here and now. Make the step larger than the limit ",
        "and watch the variance."),
      el("div", { class: "controls" },
        explorer.choice({
          label: "Process",
          options: Object.entries(PROCESSES).map(([key, [text]]) => [key, text]),
          change: (value) => set({ process: value }),
        }),
        explorer.choice({
          label: "Kernel",
          options: Object.entries(KERNELS).map(([key, [text]]) => [key, text]),
          change: (value) => set({ kernel: value }),
        }),
        pictureChoice,
        el("label", { class: "control" }, el("span", {}, "Or your own; it stays on this device"), file),
      ),
      about,
      el("div", { class: "live" },
        el("figure", {}, canvas, readout),
        el("div", {},
          el("div", { class: "controls" }, h, bandwidth),
          el("div", { class: "buttons" }, playButton, button("Step", () => advance(1)), button("Reset", reset)),
          verdict,
          complaint,
          el("figure", {}, drawing, el("figcaption", {}, "Variance over positions after each step, on a logarithmic axis.")),
        ),
      ),
    );
    root.addEventListener("dragover", (event) => event.preventDefault());
    root.addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
    });
    const labelled = (u, ...ticks) => u.axes[1].filter(u, ...ticks); // a line for every tick is grey over many powers of ten
    const chart = explorer.chart(drawing, "variance against the number of steps", {
      height: 260,
      scales: { x: { time: false, range: (u) => [0, Math.max(20, u.data[0].length - 1)] }, y: { distr: 3 } },
      axes: [
        { label: "steps", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
        { size: 70, grid: { filter: labelled }, ticks: { filter: labelled }, values: (u, ticks) => ticks.map((one) => one && explorer.number(one, 1)) },
      ],
      legend: { show: false },
      series: [{}, { stroke: () => explorer.color("positive"), width: 2, points: { show: (u) => u.data[0].length === 1 } }],
    }, [[0], [1]]);
    // For tests, and for curious people in the console.
    explorer.live = () => ({ ...settings, side, start, number, limit: limit(), state: Array.from(z), variances });
    set({});

    function button(text, click) {
      return el("button", { class: "button", type: "button", click }, text);
    }

    function set(change) {
      Object.assign(settings, change);
      complaint.textContent = "";
      const fine = pictures[settings.picture];
      [, side] = KERNELS[settings.kernel];
      picture = side === 64 ? fine : explorer.shrink(fine, 64, 32);
      const patches = processes.patchFeatures(picture, side, data.patch_radius);
      const scale = 1 / settings.bandwidth ** 2;
      kernel = side === 64 ? processes.sparseKernel(patches, scale, data.reach) : processes.denseKernel(patches, scale);
      fastest = processes.largestEigenvalue(kernel);
      start = (side * side * 5) / 8 + (side * 5) / 8; // off the middle, where the tiles have a line
      const isJump = settings.process === "jump";
      h.input.max = isJump ? 1 : LARGEST;
      if (isJump && settings.h > 1) {
        h.input.value = 1;
        h.input.dispatchEvent(new Event("input"));
      }
      about.textContent = PROCESSES[settings.process][1];
      reset();
      judge();
    }

    function reset() {
      play(false);
      if (settings.process === "jump") {
        channels = 1;
        z = new Float64Array(side * side);
        z[start] = 1;
        walkers = new Int32Array(WALKERS).fill(start);
      } else {
        channels = 3;
        z = picture.slice();
      }
      [number, time] = [0, 0];
      variances = [processes.variance(z, channels)];
      show();
    }

    function advance(steps) {
      for (let n = 0; n < steps; n++) {
        z = processes.step(settings.process, kernel, z, channels, settings.h);
        if (settings.process === "jump") {
          walkers = walkers.map((i) => (Math.random() < settings.h ? kernel.jump(i, Math.random()) : i));
        }
        number++;
        time += settings.h;
        variances.push(processes.variance(z, channels));
        if (!(variances[number] < 10 ** BURST * variances[0])) {
          play(false);
          complaint.textContent = `It burst: after ${number} steps the variance is more than ${explorer.power(BURST)} times ` +
            "what it was. Reset, and take another step or process.";
          break;
        }
      }
      show();
    }

    function show() {
      if (settings.process === "jump") {
        explorer.paint(canvas, explorer.weighted(picture, z), side);
        const context = canvas.getContext("2d");
        const size = canvas.width / side;
        context.fillStyle = "#7df";
        for (const i of walkers) {
          context.fillRect(((i % side) + Math.random() * 0.8) * size, (Math.floor(i / side) + Math.random() * 0.8) * size, 2, 2);
        }
      } else explorer.paint(canvas, explorer.rgba(z), side);
      const variance = variances[number];
      const mean = settings.process === "jump" ? "" : ` Mean under π ${explorer.number(balancedMean(), 4)}.`;
      readout.textContent =
        `Step ${number}, time ${explorer.format(time, 4)}. Variance ${explorer.number(variance)}.${mean}`;
      const drawn = variances.map((one) => Math.max(one, 1e-30));
      chart.setData([drawn.map((_, n) => n), drawn]);
    }

    function balancedMean() {
      let [sum, total] = [0, 0];
      kernel.balance.forEach((weight, i) => {
        total += weight * channels;
        for (let c = 0; c < channels; c++) sum += weight * z[i * channels + c];
      });
      return sum / total;
    }

    // The largest stable step; null where every step grows.
    function limit() {
      return { diffusion: 2 / fastest, damped: 2, jump: 1 }[settings.process] || null;
    }

    function judge() {
      const most = limit();
      mark.hidden = most === null;
      if (most !== null) {
        mark.style.setProperty("--share", most / Number(h.input.max));
        mark.textContent = `limit ${most.toFixed(2)}`;
      }
      const isBeyond = most !== null && settings.h > most;
      h.classList.toggle("beyond", isBeyond);
      if (settings.process === "jump") verdict.textContent = "h is the probability of a jump in one step, so it is at most 1.";
      else if (most === null) verdict.textContent = "Backwards in time every step grows: there is no limit to stay below.";
      else {
        const factor = settings.process === "damped" ? settings.h - 1 : settings.h * fastest - 1;
        const known = settings.process === "damped" ? "2 / λ_max(K), with λ_max = 1"
          : `2 / λ_max(L), with λ_max = ${fastest.toFixed(4)} by Lanczos`;
        verdict.textContent = isBeyond
          ? `Beyond the CFL limit ${most.toFixed(3)}: one signal grows by the factor ${factor.toFixed(2)} in each step.`
          : `No signal grows: h is within the CFL limit ${most.toFixed(3)} = ${known}.`;
      }
    }

    function play(on) {
      if (on === isPlaying) return;
      isPlaying = on;
      playButton.textContent = on ? "Pause" : "Play";
      if (on) run();
    }

    function run() {
      let [frames, since, last, due] = [0, performance.now(), performance.now(), 0];
      const frame = (now) => {
        if (!isPlaying) return;
        requestAnimationFrame(frame);
        if (root.hidden) return;
        due = Math.min(due + ((now - last) / 1000) * STEPS_A_SECOND, 2);
        last = now;
        if (due >= 1) {
          advance(Math.floor(due));
          due %= 1;
        }
        frames++;
        if (now - since >= 1000) {
          explorer.frames((1000 * frames) / (now - since));
          [frames, since] = [0, now];
        }
      };
      requestAnimationFrame(frame);
    }

    // A picture from a file: the square in its middle.
    async function take(chosen) {
      let image;
      try {
        image = await createImageBitmap(chosen);
      } catch {
        complaint.textContent = `${chosen.name} is no picture that this browser reads; choose a PNG or JPEG.`;
        return;
      }
      const length = Math.min(image.width, image.height);
      const context = new OffscreenCanvas(64, 64).getContext("2d");
      context.fillStyle = "#fff"; // where it is transparent
      context.fillRect(0, 0, 64, 64);
      context.imageSmoothingQuality = "high";
      context.drawImage(image, (image.width - length) / 2, (image.height - length) / 2, length, length, 0, 0, 64, 64);
      const bytes = context.getImageData(0, 0, 64, 64).data;
      if (!pictures.own) pictureChoice.input.append(el("option", { value: "own" }, "your own"));
      pictures.own = new Float64Array(64 * 64 * 3).map((_, k) => bytes[Math.floor(k / 3) * 4 + (k % 3)] / 255);
      pictureChoice.input.value = "own";
      set({ picture: "own" });
    }

    canvas.tabIndex = 0;
    explorer.pick(canvas, () => side, () => start, (position) => {
      if (settings.process !== "jump") return;
      start = position;
      reset();
    });
  },
});
