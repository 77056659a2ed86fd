// The mathematics of `simulate` on the pixels of a picture: heat kernels of patches, and Euler steps of processes.
//
// A state is a Float64Array [positions · channels]. A kernel K has rows that sum to 1:
//   apply(z, channels)       K z
//   transpose(z, channels)   Kᵀ z
//   balance                  π_i = 𝒞_i, the row sums of Ω: π_i K_ij = π_j K_ji
//   jump(i, uniform)         the position that a walker at i jumps to
"use strict";

explorer.processes = {
  // The patches of a picture [side · side · 3], mirrored at the border, divided by the root of their length.
  patchFeatures(picture, side, radius) {
    const width = 3 * (2 * radius + 1) ** 2;
    const mirror = (x) => (x < 0 ? -x : x >= side ? 2 * (side - 1) - x : x);
    const features = new Float64Array(side * side * width);
    let k = 0;
    for (let y = 0; y < side; y++)
      for (let x = 0; x < side; x++)
        for (let dy = -radius; dy <= radius; dy++)
          for (let dx = -radius; dx <= radius; dx++)
            for (let c = 0; c < 3; c++)
              features[k++] = picture[(mirror(y + dy) * side + mirror(x + dx)) * 3 + c] / Math.sqrt(width);
    return { features, width, side };
  },

  // The kernel between all pairs: Ω_ij = exp(−scale |f_i − f_j|²).
  denseKernel({ features, width, side }, scale) {
    const count = side ** 2;
    const starts = Int32Array.from({ length: count + 1 }, (_, i) => i * count);
    const matrix = new Float64Array(count * count);
    for (let i = 0; i < count; i++) {
      for (let j = 0; j <= i; j++) {
        matrix[i * count + j] = matrix[j * count + i] = Math.exp(-scale * distance(features, width, i, j));
      }
    }
    const balance = normalizeRows(starts, matrix);
    const apply = (plane, result) => {
      for (let i = 0, k = 0; i < count; i++) {
        let sum = 0;
        for (let j = 0; j < count; j++, k++) sum += matrix[k] * plane[j];
        result[i] = sum;
      }
    };
    const transpose = (plane, result) => {
      for (let i = 0, k = 0; i < count; i++) {
        const value = plane[i];
        for (let j = 0; j < count; j++, k++) result[j] += matrix[k] * value;
      }
    };
    const jump = (i, uniform) => walk(starts, matrix, i, uniform) % count;
    return { balance, apply: byPlanes(apply), transpose: byPlanes(transpose), jump };
  },

  // The kernel between neighbours: the same Ω times the tent (1 − |dx| / (reach + 1)) (1 − |dy| / (reach + 1)), which
  // keeps it positive semi-definite.
  sparseKernel({ features, width, side }, scale, reach) {
    const count = side ** 2;
    const starts = new Int32Array(count + 1);
    const columns = new Int32Array(count * (2 * reach + 1) ** 2); // fewer are used: neighbours end at the border
    const matrix = new Float64Array(columns.length);
    let used = 0;
    for (let i = 0; i < count; i++) {
      const y = Math.floor(i / side);
      const x = i % side;
      for (let v = Math.max(0, y - reach); v <= Math.min(side - 1, y + reach); v++) {
        for (let u = Math.max(0, x - reach); u <= Math.min(side - 1, x + reach); u++, used++) {
          const tent = (1 - Math.abs(v - y) / (reach + 1)) * (1 - Math.abs(u - x) / (reach + 1));
          columns[used] = v * side + u;
          matrix[used] = tent * Math.exp(-scale * distance(features, width, i, columns[used]));
        }
      }
      starts[i + 1] = used;
    }
    const balance = normalizeRows(starts, matrix);
    const apply = (plane, result) => {
      for (let i = 0; i < count; i++) {
        let sum = 0;
        for (let k = starts[i]; k < starts[i + 1]; k++) sum += matrix[k] * plane[columns[k]];
        result[i] = sum;
      }
    };
    const transpose = (plane, result) => {
      for (let i = 0; i < count; i++) {
        const value = plane[i];
        for (let k = starts[i]; k < starts[i + 1]; k++) result[columns[k]] += matrix[k] * value;
      }
    };
    const jump = (i, uniform) => columns[walk(starts, matrix, i, uniform)];
    return { balance, apply: byPlanes(apply), transpose: byPlanes(transpose), jump };
  },

  // The state after a step of length h. `kind` is one of the keys of RATES.
  step(kind, kernel, z, channels, h) {
    const rate = RATES[kind](kernel, z, channels);
    return z.map((value, k) => value + h * rate[k]);
  },

  // The largest eigenvalue of L = I − K by Lanczos in the norm of π, from below.
  largestEigenvalue(kernel, products = 30) {
    const roots = kernel.balance.map(Math.sqrt);
    const apply = (v) => {
      const moved = kernel.apply(v.map((value, i) => value / roots[i]), 1);
      return v.map((value, i) => value - roots[i] * moved[i]);
    };
    // A start without symmetry, the same every time.
    let vector = roots.map((_, i) => Math.sin(12.9898 * (i + 1)) + 0.3 * Math.cos(78.233 * i * i));
    const basis = [];
    const [diagonal, beside] = [[], []];
    for (let n = 0; n < Math.min(products, roots.length); n++) {
      const size = Math.sqrt(dot(vector, vector));
      if (n && size < 1e-12) break;
      if (n) beside.push(size);
      vector = vector.map((value) => value / size);
      basis.push(vector);
      const next = apply(vector);
      diagonal.push(dot(next, vector));
      for (const one of [...basis, ...basis]) { // twice: once leaves rounding
        const part = dot(next, one);
        for (let i = 0; i < next.length; i++) next[i] -= part * one[i];
      }
      vector = next;
    }
    return largestOfTridiagonal(diagonal, beside);
  },

  // The variance over positions, averaged over channels.
  variance(z, channels) {
    const count = z.length / channels;
    let total = 0;
    for (let c = 0; c < channels; c++) {
      let mean = 0;
      for (let k = c; k < z.length; k += channels) mean += z[k] / count;
      for (let k = c; k < z.length; k += channels) total += (z[k] - mean) ** 2 / count;
    }
    return total / channels;
  },
};

// From a kernel and a state to its rate of change.
const RATES = {
  diffusion: (kernel, z, channels) => kernel.apply(z, channels).map((value, k) => value - z[k]),
  "diffusion-back": (kernel, z, channels) => kernel.apply(z, channels).map((value, k) => z[k] - value),
  damped: (kernel, z, channels) => kernel.apply(z, channels).map((value) => -value),
  "damped-back": (kernel, z, channels) => kernel.apply(z, channels),
  jump: (kernel, z, channels) => kernel.transpose(z, channels).map((value, k) => value - z[k]),
};

function distance(features, width, i, j) {
  let sum = 0;
  for (let c = 0, k = i * width, m = j * width; c < width; c++, k++, m++) {
    const difference = features[k] - features[m];
    sum += difference * difference;
  }
  return sum;
}

// Divide every row by its sum, and return the sums.
function normalizeRows(starts, matrix) {
  const sums = new Float64Array(starts.length - 1);
  for (let i = 0; i < sums.length; i++) {
    for (let k = starts[i]; k < starts[i + 1]; k++) sums[i] += matrix[k];
    for (let k = starts[i]; k < starts[i + 1]; k++) matrix[k] /= sums[i];
  }
  return sums;
}

// A product with one channel, for states of several.
function byPlanes(product) {
  return (z, channels) => {
    const state = new Float64Array(z.length);
    const count = z.length / channels;
    const plane = new Float64Array(count);
    for (let c = 0; c < channels; c++) {
      for (let i = 0; i < count; i++) plane[i] = z[i * channels + c];
      const result = new Float64Array(count);
      product(plane, result);
      for (let i = 0; i < count; i++) state[i * channels + c] = result[i];
    }
    return state;
  };
}

// The place in row i at which the sum of its entries reaches a number in [0, 1).
function walk(starts, matrix, i, uniform) {
  let k = starts[i];
  for (let sum = matrix[k]; sum < uniform && k < starts[i + 1] - 1; sum += matrix[k]) k++;
  return k;
}

function dot(u, v) {
  let sum = 0;
  for (let i = 0; i < u.length; i++) sum += u[i] * v[i];
  return sum;
}

// By bisection: the number of negative pivots of T − x counts the eigenvalues below x.
function largestOfTridiagonal(diagonal, beside) {
  const reach = diagonal.map((value, n) => Math.abs(value) + Math.abs(beside[n - 1] || 0) + Math.abs(beside[n] || 0));
  let [low, high] = [-Math.max(...reach), Math.max(...reach)];
  while (high - low > 1e-12 * Math.max(1, Math.abs(high))) {
    const middle = (low + high) / 2;
    let [below, pivot] = [0, 1];
    diagonal.forEach((value, n) => {
      pivot = value - middle - (n ? beside[n - 1] ** 2 / pivot : 0) || 1e-300;
      below += pivot < 0;
    });
    if (below === diagonal.length) high = middle;
    else low = middle;
  }
  return high;
}
