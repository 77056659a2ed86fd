"""Ways to train many PreResNet-20 baselines on one GPU: milliseconds per step and run.

    python docs/experiments/many_runs.py --out many_runs.json [--budget 140] [--only REGEX] [--seconds 0.6]

A step is forward, cross-entropy, backward and SGD (momentum 0.9, weight decay 1e-4) on a batch of 128 random images
that lies on the device; bf16 autocast, channels-last. No augmentation. Every way is captured as a CUDA graph.
"""

import argparse
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

from nonloc_paper.fast import accelerate
from nonloc_paper.networks.build import build

SPEC = "preresnet20/baseline"
BATCH = 128
BEGIN = time.perf_counter()
DEVICE = "cuda"


def elapsed():
    return time.perf_counter() - BEGIN


# --- one run -----------------------------------------------------------------------------------------------------


def make_model(seed, fused, spec=SPEC):
    torch.manual_seed(seed)
    model = build(spec).to(DEVICE).to(memory_format=torch.channels_last)
    return accelerate(model) if fused else model


def make_batch(seed, k=1):
    g = torch.Generator(device=DEVICE).manual_seed(seed)
    x = torch.randn(BATCH, 3 * k, 32, 32, generator=g, device=DEVICE).contiguous(
        memory_format=torch.channels_last
    )
    shape = (BATCH,) if k == 1 else (BATCH, k)
    return x, torch.randint(0, 10, shape, generator=g, device=DEVICE)


def sgd(parameters, fused):
    return torch.optim.SGD(
        parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=fused, foreach=not fused
    )


class Run:
    """A network, its optimizer, a batch, and the step as a function without arguments."""

    def __init__(self, seed, fused=True, fused_sgd=True, dtype=torch.bfloat16, forward=None):
        self.model = make_model(seed, fused)
        self.optimizer = sgd(self.model.parameters(), fused_sgd)
        self.x, self.y = make_batch(seed)
        self.dtype = dtype
        self.forward = forward or self.model
        self.stream = torch.cuda.Stream()
        self.graph = None

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, self.dtype, enabled=self.dtype != torch.float32):
            out = self.forward(self.x)
        loss = F.cross_entropy(out.float(), self.y)
        loss.backward()
        self.optimizer.step()
        return loss

    def capture(self, steps=1):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            for _ in range(steps):
                self.loss = self.step()
        return self

    def replay(self):
        with torch.cuda.stream(self.stream):
            self.graph.replay()


class HalfRun(Run):
    """Convolution weights live as bf16 copies of float32 masters; two foreach copies replace all casts."""

    def __init__(self, seed):
        super().__init__(seed)
        self.half, self.masters, rest = [], [], []
        for module in self.model.modules():
            for _, p in list(module.named_parameters(recurse=False)):
                if isinstance(module, (nn.Conv2d, nn.Linear)):
                    master = p.detach().clone(memory_format=torch.preserve_format)
                    p.data = p.data.to(torch.bfloat16)
                    p.grad = torch.zeros_like(p)
                    master.grad = torch.zeros_like(master)
                    self.half.append(p)
                    self.masters.append(master)
                else:
                    rest.append(p)
        self.rest = rest
        self.optimizer = sgd([*self.masters, *rest], True)

    def step(self):
        for p in (*self.half, *self.rest):
            p.grad = None
        out = self.model(self.x.to(torch.bfloat16))
        loss = F.cross_entropy(out.float(), self.y)
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.half])
            self.optimizer.step()
            torch._foreach_copy_(self.half, self.masters)
        return loss


# --- several runs in one network ---------------------------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.weight = nn.Parameter(torch.stack([h.weight.detach() for h in heads]))  # [k, classes, C]
        self.bias = nn.Parameter(torch.stack([h.bias.detach() for h in heads]))

    def forward(self, x):
        k = len(self.weight)
        x = x.view(len(x), k, -1).transpose(0, 1)  # [k, B, C]
        return torch.baddbmm(
            self.bias[:, None].to(x.dtype), x, self.weight.transpose(1, 2).to(x.dtype)
        ).transpose(0, 1)


def grouped_model(k, fused):
    """k networks as one, by grouped convolutions: channels of run i are i·C … (i+1)·C − 1."""
    models = [make_model(i, fused) for i in range(k)]

    def join(modules):
        first = modules[0]
        if isinstance(first, nn.BatchNorm2d):
            joined = nn.BatchNorm2d(k * first.num_features)
        elif isinstance(first, nn.Conv2d):
            joined = nn.Conv2d(
                k * first.in_channels,
                k * first.out_channels,
                first.kernel_size,
                stride=first.stride,
                padding=first.padding,
                groups=k,
                bias=False,
            )
        elif isinstance(first, nn.Linear):
            return Heads(modules)
        else:
            for name, _ in list(first.named_children()):
                setattr(first, name, join([getattr(m, name) for m in modules]))
            return first
        for name, p in joined.named_parameters():
            p.data = torch.cat([dict(m.named_parameters())[name].detach() for m in modules])
        return joined

    return join(models).to(DEVICE).to(memory_format=torch.channels_last)


class GroupedRun(Run):
    def __init__(self, k, fused):
        self.k = k
        self.model = grouped_model(k, fused)
        self.optimizer = sgd(self.model.parameters(), True)
        self.x, self.y = make_batch(0, k)
        self.stream = torch.cuda.Stream()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            out = self.model(self.x)  # [B, k, classes]
        loss = F.cross_entropy(out.float().transpose(1, 2), self.y) * self.k
        loss.backward()
        self.optimizer.step()
        return loss


class VmapRun(Run):
    def __init__(self, k):
        self.k = k
        models = [make_model(i, False) for i in range(k)]
        self.parameters, self.buffers = torch.func.stack_module_state(models)
        self.base = copy.deepcopy(models[0]).to("meta")
        self.optimizer = sgd(self.parameters.values(), True)
        x, y = zip(*(make_batch(i) for i in range(k)), strict=True)
        self.x, self.y = torch.stack(x), torch.stack(y)
        self.stream = torch.cuda.Stream()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)

        def one(parameters, buffers, x, y):
            with torch.autocast(DEVICE, torch.bfloat16):
                out = torch.func.functional_call(self.base, (parameters, buffers), (x,))
            return F.cross_entropy(out.float(), y)

        loss = torch.vmap(one)(self.parameters, self.buffers, self.x, self.y).sum()
        loss.backward()
        self.optimizer.step()
        return loss


# --- timing ------------------------------------------------------------------------------------------------------


def time_replays(replay, runs_per_call, seconds, repeats=5):
    """ms per step and run: (median, least, greatest, host ms of one call without waiting)."""
    for _ in range(3):
        replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        replay()
    host = (time.perf_counter() - start) / 5
    torch.cuda.synchronize()
    each = (time.perf_counter() - start) / 5
    calls = max(3, int(seconds / repeats / each))
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            replay()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start) / calls / runs_per_call)
    found.sort()
    return {
        "ms": found[len(found) // 2],
        "low": found[0],
        "high": found[-1],
        "host_ms": 1e3 * host / runs_per_call,
    }


def kernels_of(replay):
    """Number and summed ms of the kernels of one replay, and the ten costliest names."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        replay()
        torch.cuda.synchronize()
    table = [
        (e.key, e.count, e.self_device_time_total)
        for e in found.key_averages()
        if e.self_device_time_total > 0
    ]
    table.sort(key=lambda row: -row[2])
    return {
        "kernels": sum(row[1] for row in table),
        "kernel_ms": sum(row[2] for row in table) / 1e3,
        "top": [(name[:90], count, round(us, 1)) for name, count, us in table[:12]],
    }


# --- the ways ----------------------------------------------------------------------------------------------------

POOL = {}


def runs(kind, k):
    """k captured runs of a kind, made once."""
    makers = {
        "plain": lambda i: Run(i, fused=False, fused_sgd=False),
        "fused": lambda i: Run(i, fused=True, fused_sgd=True),
        "half": lambda i: HalfRun(i),
    }
    have = POOL.setdefault(kind, [])
    while len(have) < k:
        have.append(makers[kind](len(have)).capture())
    return have[:k]


def streams(kind, k):
    chosen = runs(kind, k)

    def replay():
        for run in chosen:
            run.replay()

    return replay, k


def threads(kind, k, calls=20):
    """Each of k threads replays its own graph."""
    chosen = runs(kind, k)

    def replay():
        def work(run):
            for _ in range(calls):
                run.replay()

        workers = [threading.Thread(target=work, args=(run,)) for run in chosen]
        for w in workers:
            w.start()
        for w in workers:
            w.join()

    return replay, k * calls


def several_steps(kind_fused, k, steps=10):
    chosen = [Run(i, fused=kind_fused).capture(steps) for i in range(k)]

    def replay():
        for run in chosen:
            run.replay()

    return replay, k * steps


def branches(k, make=lambda i: Run(i)):
    """k runs as parallel branches of one graph."""
    chosen = [make(i) for i in range(k)]
    main = torch.cuda.Stream()
    for run in chosen:
        run.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(run.stream):
            for _ in range(3):
                run.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=main):
        for run in chosen:
            run.stream.wait_stream(main)
            with torch.cuda.stream(run.stream):
                run.step()
        for run in chosen:
            main.wait_stream(run.stream)

    def replay():
        with torch.cuda.stream(main):
            graph.replay()

    replay.keep = (chosen, graph)
    return replay, k


def single(run, k=1):
    run.capture()
    return run.replay, k


def eager(fused):
    run = Run(0, fused=fused, fused_sgd=fused)
    for _ in range(3):
        run.step()
    return run.step, 1


COMPILED = {}


def compiled(k, **options):
    """One compiled function of (parameters and buffers, x) for all runs, so that it is compiled once."""
    model = make_model(0, False)

    def call(values, x):
        return torch.func.functional_call(model, values, (x,))

    start = time.perf_counter()
    function = COMPILED.setdefault("function", torch.compile(call, **options))
    have = COMPILED.setdefault("runs", [])
    while len(have) < k:
        run = Run(len(have), fused=False, fused_sgd=True)
        values = {**dict(run.model.named_parameters()), **dict(run.model.named_buffers())}
        run.forward = lambda x, values=values: function(values, x)
        have.append(run.capture())
    COMPILED["seconds"] = time.perf_counter() - start
    chosen = have[:k]

    def replay():
        for run in chosen:
            run.replay()

    return replay, k


def _process(number, kind, barrier, queue, seconds):
    try:
        run = Run(number, fused=kind != "plain", fused_sgd=kind != "plain").capture()
        run.replay()
        torch.cuda.synchronize()
        barrier.wait(timeout=60)
        start = time.perf_counter()
        steps = 0
        while time.perf_counter() - start < seconds:
            for _ in range(50):
                run.replay()
            torch.cuda.synchronize()
            steps += 50
        queue.put((number, steps, time.perf_counter() - start, None))
    except Exception:
        queue.put((number, 0, 1.0, traceback.format_exc()))


def processes(k, kind, seconds, env=None):
    """ms per step and run, amortised: wall time over all steps of all processes."""
    before = dict(os.environ)
    os.environ.update(env or {})
    try:
        context = mp.get_context("spawn")
        barrier, queue = context.Barrier(k), context.Queue()
        children = [
            context.Process(target=_process, args=(i, kind, barrier, queue, seconds)) for i in range(k)
        ]
        for child in children:
            child.start()
        found = [queue.get(timeout=90) for _ in children]
        for child in children:
            child.join(20)
    finally:
        os.environ.clear()
        os.environ.update(before)
    for number, _, _, problem in found:
        if problem:
            raise RuntimeError(f"process {number}:\n{problem}")
    rate = sum(steps / spent for _, steps, spent, _ in found)
    return {"ms": 1e3 / rate, "low": 1e3 / rate, "high": 1e3 / rate, "host_ms": float("nan")}


def with_mps(k, kind, seconds):
    folder = "/tmp/nonloc-mps"
    Path(folder).mkdir(exist_ok=True)
    env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **env}, check=True, timeout=20)
    try:
        return processes(k, kind, seconds, env)
    finally:
        subprocess.run(
            ["nvidia-cuda-mps-control"],
            input="quit\n",
            text=True,
            env={**os.environ, **env},
            timeout=20,
            check=False,
        )


def check_agreement():
    """Losses of six float32 steps, plain against fused, before any time is looked at."""
    losses = {}
    for fused in (False, True):
        run = Run(7, fused=fused, fused_sgd=fused, dtype=torch.float32)
        losses[fused] = [float(run.step()) for _ in range(6)]
    worst = max(abs(a - b) for a, b in zip(losses[False], losses[True], strict=True))
    print("losses plain", [f"{v:.5f}" for v in losses[False]])
    print("losses fused", [f"{v:.5f}" for v in losses[True]], f"largest difference {worst:.1e}", flush=True)
    if not worst < 1e-3:
        raise RuntimeError("plain and fused disagree; no times")
    return worst


def list_ways(seconds):
    ways = [
        ("eager, plain", 1, lambda: eager(False), False),
        ("captured, plain", 1, lambda: streams("plain", 1), True),
        ("captured, fused norm", 1, lambda: single(Run(0, fused=True, fused_sgd=False)), True),
        ("captured, plain norm, fused SGD", 1, lambda: single(Run(0, fused=False, fused_sgd=True)), False),
        ("captured, fused norm + SGD", 1, lambda: streams("fused", 1), True),
        ("captured, fused norm + SGD, bf16 copies", 1, lambda: streams("half", 1), True),
    ]
    for k in (2, 3, 4, 6, 8):
        ways.append((f"{k} streams, plain", k, lambda k=k: streams("plain", k), False))
        ways.append((f"{k} streams, fused", k, lambda k=k: streams("fused", k), False))
    for k in (2, 4, 8):
        ways.append((f"{k} streams, fused, bf16 copies", k, lambda k=k: streams("half", k), False))
    ways += [
        ("4 threads, 4 streams, fused", 4, lambda: threads("fused", 4), False),
        ("8 threads, 8 streams, fused", 8, lambda: threads("fused", 8), False),
        ("10 steps in a graph, fused", 1, lambda: several_steps(True, 1), False),
        ("4 streams, 10 steps in a graph, fused", 4, lambda: several_steps(True, 4), False),
        ("one graph, 4 branches, fused", 4, lambda: branches(4), False),
        ("one graph, 8 branches, bf16 copies", 8, lambda: branches(8, HalfRun), False),
        ("grouped convolutions, fused", 4, lambda: single(GroupedRun(4, True), 4), True),
        ("vmap, plain", 4, lambda: single(VmapRun(4), 4), True),
    ]
    for k in (2, 4):
        ways.append((f"{k} processes, fused", k, lambda k=k: processes(k, "fused", 1.5), False))
    if shutil.which("nvidia-cuda-mps-control"):
        ways.append(("4 processes under MPS, fused", 4, lambda: with_mps(4, "fused", 1.5), False))
    ways += [
        ("compiled, captured", 1, lambda: compiled(1), True),
        ("4 streams, compiled", 4, lambda: compiled(4), False),
        ("8 streams, compiled", 8, lambda: compiled(8), False),
    ]
    return ways


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--budget", type=float, default=140, help="seconds after which no further way is begun"
    )
    parser.add_argument("--seconds", type=float, default=0.6, help="seconds of timing for each way")
    parser.add_argument("--only", default="", help="a regular expression for the ways to measure")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = []
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    print(f"{report['device']}, torch {torch.__version__}; {elapsed():.0f} s to import", flush=True)
    report["agreement"] = check_agreement()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    print(f"checked after {elapsed():.0f} s\n", flush=True)
    print(
        f"{'way':44s}{'k':>3s}{'ms/step/run':>12s}{'low':>8s}{'high':>8s}{'host':>8s}{'kernels':>9s}{'sum ms':>8s}"
        f"{'setup s':>9s}{'peak GB':>9s}",
        flush=True,
    )
    for name, k, make, has_profile in list_ways(options.seconds):
        if options.only and not re.search(options.only, name):
            continue
        if elapsed() > options.budget:
            print(f"{name:44s} not begun, {elapsed():.0f} s are over")
            rows.append({"way": name, "k": k, "problem": "not begun"})
            continue
        row = {"way": name, "k": k}
        try:
            start = time.perf_counter()
            torch.cuda.reset_peak_memory_stats()
            made = make()
            row["setup_s"] = time.perf_counter() - start
            if isinstance(made, dict):
                row.update(made)
            else:
                replay, per_call = made
                row.update(time_replays(replay, per_call, options.seconds))
                if has_profile:
                    row.update(kernels_of(replay))
            row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            print(
                f"{name:44s}{k:3d}{row['ms']:12.3f}{row['low']:8.3f}{row['high']:8.3f}{row['host_ms']:8.3f}"
                f"{row.get('kernels', 0):9d}{row.get('kernel_ms', 0):8.3f}{row['setup_s']:9.1f}"
                f"{row['peak_gb']:9.2f}",
                flush=True,
            )
            for line in row.get("top", ()):
                print("      ", *line, flush=True)
        except Exception:
            row["problem"] = traceback.format_exc()
            print(f"{name:44s}{k:3d}  FAILED\n{row['problem']}", flush=True)
        rows.append(row)
        Path(options.out).write_text(json.dumps(report, indent=1))
    print(f"\n{elapsed():.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
