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
  denseKernel(patches, scale) {
    const count = patches.side ** 2;
    const matrix = new Float64Array(count * count);
    const balance = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      for (let j = 0; j <= i; j++) {
        matrix[i * count + j] = matrix[j * count + i] = Math.exp(-scale * distance(patches, i, j));
      }
    }
    for (let i = 0; i < count; i++) {
      for (let j = 0; j < count; j++) balance[i] += matrix[i * count + j];
      for (let j = 0; j < count; j++) matrix[i * count + j] /= balance[i];
    }
    const starts = Int32Array.from({ length: count + 1 }, (_, i) => i * count);
    const columns = { at: (k) => k % count };
    return {
      balance,
      apply(z, channels) {
        const result = new Float64Array(z.length);
        for (let i = 0, k = 0; i < count; i++) {
          for (let j = 0, m = 0; j < count; j++, k++)
            for (let c = 0; c < channels; c++, m++) result[i * channels + c] += matrix[k] * z[m];
        }
        return result;
      },
      transpose(z, channels) {
        const result = new Float64Array(z.length);
        for (let i = 0, k = 0; i < count; i++) {
          for (let j = 0, m = 0; j < count; j++, k++)
            for (let c = 0; c < channels; c++, m++) result[m] += matrix[k] * z[i * channels + c];
        }
        return result;
      },
      jump: (i, uniform) => walk(starts, columns, matrix, i, uniform),
    };
  },

  // The kernel between neighbours: the same Ω times the tent (1 − |dx| / (reach + 1)) (1 − |dy| / (reach + 1)), which
  // keeps it positive semi-definite.
  sparseKernel(patches, scale, reach) {
    const { side } = patches;
    const count = side ** 2;
    const starts = new Int32Array(count + 1);
    const column = new Int32Array(count * (2 * reach + 1) ** 2); // more than enough: fewer at the border
    const weight = new Float64Array(column.length);
    const balance = new Float64Array(count);
    let k = 0;
    for (let i = 0; i < count; i++) {
      const [y, x] = [Math.floor(i / side), i % side];
      for (let v = Math.max(0, y - reach); v <= Math.min(side - 1, y + reach); v++) {
        for (let u = Math.max(0, x - reach); u <= Math.min(side - 1, x + reach); u++, k++) {
          const tent = (1 - Math.abs(v - y) / (reach + 1)) * (1 - Math.abs(u - x) / (reach + 1));
          column[k] = v * side + u;
          weight[k] = tent * Math.exp(-scale * distance(patches, i, column[k]));
          balance[i] += weight[k];
        }
      }
      starts[i + 1] = k;
    }
    for (let i = 0; i < count; i++) for (let k = starts[i]; k < starts[i + 1]; k++) weight[k] /= balance[i];
    const product = (z, channels, isTransposed) => {
      const result = new Float64Array(z.length);
      for (let i = 0; i < count; i++) {
        for (let k = starts[i]; k < starts[i + 1]; k++) {
          const to = isTransposed ? column[k] : i;
          const from = isTransposed ? i : column[k];
          for (let c = 0; c < channels; c++) result[to * channels + c] += weight[k] * z[from * channels + c];
        }
      }
      return result;
    };
    return {
      balance,
      apply: (z, channels) => product(z, channels, false),
      transpose: (z, channels) => product(z, channels, true),
      jump: (i, uniform) => walk(starts, column, weight, i, uniform),
    };
  },

  // The state after a step of length h. `kind` is one of the keys of RATES.
  step(kind, kernel, z, channels, h) {
    const rate = RATES[kind](kernel, z, channels);
    return z.map((value, k) => value + h * rate[k]);
  },

  // The largest eigenvalue of L = I − K by Lanczos in the norm of π, from below.
  largestEigenvalue(kernel, products = 40) {
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

function distance({ features, width }, i, j) {
  let sum = 0;
  for (let c = 0; c < width; c++) sum += (features[i * width + c] - features[j * width + c]) ** 2;
  return sum;
}

function walk(starts, columns, weights, i, uniform) {
  let k = starts[i];
  for (let sum = weights[k]; sum < uniform && k < starts[i + 1] - 1; sum += weights[k]) k++;
  return columns.at(k);
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
