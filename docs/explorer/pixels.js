// Pictures on canvases: bytes from base64, pixels from bytes, weights over a picture.
"use strict";

// The bytes of a base64 text.
explorer.bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// A square canvas for pictures.
explorer.canvas = (label) =>
  explorer.el("canvas", { width: 320, height: 320, class: "picture", role: "img", "aria-label": label });

// Draw rgba [side · side · 4] over all of the canvas, pixels as squares.
explorer.paint = (canvas, rgba, side) => {
  const small = new OffscreenCanvas(side, side);
  small.getContext("2d").putImageData(new ImageData(rgba, side), 0, 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
};

// rgba of values in [0, 1], three a pixel; what is outside is cut off.
explorer.rgba = (values) => {
  const rgba = new Uint8ClampedArray((values.length / 3) * 4);
  for (let i = 0, k = 0; k < values.length; i += 4, k += 3) {
    for (let c = 0; c < 3; c++) rgba[i + c] = 255 * values[k + c];
    rgba[i + 3] = 255;
  }
  return rgba;
};

// rgba of weights [pixels], from none to the largest, over the grey of a picture (three values a pixel).
explorer.weighted = (values, weights) => {
  const rgba = new Uint8ClampedArray(weights.length * 4);
  const largest = weights.reduce((a, b) => Math.max(a, b), 0) || 1;
  for (let i = 0; i < weights.length; i++) {
    const share = Math.sqrt(Math.max(0, weights[i]) / largest); // a root, to see small weights, too
    const grey = 90 * (0.3 * values[3 * i] + 0.6 * values[3 * i + 1] + 0.1 * values[3 * i + 2]);
    const color = glow(share);
    for (let c = 0; c < 3; c++) rgba[4 * i + c] = (1 - share) * grey + share * color[c];
    rgba[4 * i + 3] = 255;
  }
  return rgba;
};

// Frame a pixel of a picture of this side.
explorer.mark = (canvas, index, side) => {
  const size = canvas.width / side;
  const context = canvas.getContext("2d");
  const [left, top] = [(index % side) * size, Math.floor(index / side) * size];
  for (const [color, width] of [["#000", 5], ["#fff", 2]]) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(left - 1, top - 1, size + 2, size + 2);
  }
};

// Choose pixels by pointer and by arrow keys: `get` and `set` are of the index in a picture whose side `sideOf` gives.
explorer.pick = (canvas, sideOf, get, set) => {
  const point = (event) => {
    const [box, side] = [canvas.getBoundingClientRect(), sideOf()];
    const at = (part, length) => Math.min(side - 1, Math.max(0, Math.floor((part / length) * side)));
    set(at(event.clientY - box.top, box.height) * side + at(event.clientX - box.left, box.width));
  };
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointermove", (event) => event.buttons && point(event));
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [side, [down, right]] = [sideOf(), moves[event.key]];
    const within = (value) => Math.min(side - 1, Math.max(0, value));
    set(within(Math.floor(get() / side) + down) * side + within((get() % side) + right));
  });
};

const STOPS = [[30, 12, 80], [170, 40, 100], [245, 140, 45], [255, 245, 190]];

function glow(share) {
  const place = Math.min(share, 0.999) * (STOPS.length - 1);
  const low = Math.floor(place);
  return STOPS[low].map((value, c) => value + (place - low) * (STOPS[low + 1][c] - value));
}

// A picture (three values a pixel) on a coarser grid, by means.
explorer.shrink = (values, side, coarse) => {
  const step = side / coarse;
  const result = new Float64Array(coarse * coarse * 3);
  for (let y = 0; y < side; y++)
    for (let x = 0; x < side; x++)
      for (let c = 0; c < 3; c++)
        result[(Math.floor(y / step) * coarse + Math.floor(x / step)) * 3 + c] += values[(y * side + x) * 3 + c] / step ** 2;
  return result;
};
