"""One step of ten ResNet-9 clients at CIFAR-10's size on one GPU: ms, and against plain loops.

    python benchmarks/images_gpu.py [--quick] [--check] [--profile] [--out FILE.json]

--check first compares the engine with the CPU engine on small networks; --profile lists the
kernels of a step.

The data is random (the time does not depend on it). The plain loops do the same work: client
after client, eager PyTorch, data on the device, in float32 (TF32 off) and in bf16
channels-last with float32 weights.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import fedtaper as ft
from fedtaper import engines
from fedtaper.engines.cuda import session as cuda

CLIENTS, BATCH, FLOP_IMAGE = 10, 32, 2.27e9


def problem(folder, samples=50_000, tests=10_000, clients=CLIENTS):
    rng = np.random.default_rng(0)
    path = Path(folder) / f"random-{samples}.npz"
    np.savez(
        path,
        train_images=rng.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8),
        train_labels=(np.arange(samples) % 10).astype(np.uint8),
        test_images=rng.integers(0, 256, (tests, 32, 32, 3), dtype=np.uint8),
        test_labels=(np.arange(tests) % 10).astype(np.uint8),
    )
    return ft.ImageClassification(str(path), split=ft.Iid(), model="resnet9", num_clients=clients)


def timed(call, repeats, tries=5):
    """Median ms of a call, by device events."""
    found = []
    for _ in range(tries):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            call()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / repeats)
    return float(np.median(found)), float(np.ptp(found))


def plain_loop(e, half):
    """What people write: one model a client, one after another."""
    torch.backends.cudnn.allow_tf32 = half
    models = [e.problem.module().cuda() for _ in range(CLIENTS)]
    if half:
        models = [m.to(memory_format=torch.channels_last) for m in models]
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models]
    x = torch.randn(CLIENTS, BATCH, 3, 32, 32, device="cuda")
    y = torch.randint(0, 10, (CLIENTS, BATCH), device="cuda")

    def step():
        for i, (model, optimiser) in enumerate(zip(models, optimisers, strict=True)):
            xi = x[i].contiguous(memory_format=torch.channels_last) if half else x[i]
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = torch.nn.functional.cross_entropy(model(xi), y[i])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    for _ in range(5):
        step()
    return timed(step, 10)


def ours(e, precision, **way):
    """The engine's captured step of all clients."""
    clients = e.num_clients
    state = engines.init(e, np.array([0]))
    began = time.perf_counter()
    session = cuda.CudaSession(e, state, cuda.PRECISIONS[precision], **way)
    slots = session.device_round = cuda.DeviceRound(session, clients)
    slots.begin(session.w[0], clients)
    members = np.arange(clients)
    batches = cuda.round_batches(e, members, 0, 0)
    for name in ("index", "share", "flip", "angle"):
        getattr(slots, name)[:] = getattr(batches, name).cuda()
    slots.a[..., 0] = 1e-4
    slots._advance(clients, clients)
    torch.cuda.synchronize()
    ready = time.perf_counter() - began

    def step():
        slots.t.zero_()
        slots.graphs[clients].replay()

    for _ in range(5):
        step()
    ms = timed(step, 30)
    memory = torch.cuda.max_memory_allocated() / 2**30
    session.close()
    return *ms, ready, memory


WAYS = ("float32", "bf16", "bf16 stacked")


def check(ways=WAYS):
    """Two rounds' training losses, and the update, against the CPU engine's.

    A ResNet-9's gradient jumps where a ReLU or a pool switches: weights nudged by 1e-6 change
    two rounds' update by 2 %, so its update is held to 10 %, and its losses closely.
    """
    from fedtaper.engines import cpu

    with tempfile.TemporaryDirectory() as folder:
        path = problem(folder, 400, 100).data_set
        for model in ("cnn", "resnet9"):
            images = ft.ImageClassification(
                path, split=ft.Dirichlet(1.0, smallest=16), model=model, augment=True
            )
            schedules = [ft.Power(0.01, 0.76)] * 5 + [ft.Power(0.005, 0.9)] * 5
            e = ft.Experiment(
                images, schedules, rounds=2, local_epochs=1, batch_size=16, local=ft.Proximal(0.1)
            )
            ends, losses = {}, {}
            for name in ("cpu", *ways):
                state = engines.init(e, np.array([0]))
                if name == "cpu":
                    made = cpu.CpuSession(e, state, workers=1)
                else:
                    made = cuda.CudaSession(
                        e, state, cuda.PRECISIONS[name.split()[0]], stacked="stacked" in name
                    )
                losses[name] = made.advance(2).metrics["train_loss"][0]
                made.sync()
                made.close()
                ends[name] = state.w[0].copy()
            size = np.linalg.norm(ends["cpu"] - images.initial(0))
            deep = model == "resnet9"
            most = {"float32": 0.1 if deep else 1e-3}
            close = {"float32": 1e-3}
            for name in ways:
                error = np.linalg.norm(ends[name] - ends["cpu"]) / size
                apart = np.abs(losses[name] / losses["cpu"] - 1).max()
                print(f"check {model} {name}: update {error:.1e}, loss {apart:.1e}", flush=True)
                assert error < most.get(name, 0.5) and apart < close.get(name, 0.03)


def profile(e):
    """The kernels of one step of all clients."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    state = engines.init(e, np.array([0]))
    session = cuda.CudaSession(e, state)
    slots = cuda.DeviceRound(session, CLIENTS)
    slots.begin(session.w[0], CLIENTS)
    slots._advance(CLIENTS, CLIENTS)
    with recorded(activities=[ProfilerActivity.CUDA]) as found:
        slots.t.zero_()
        slots.graphs[CLIENTS].replay()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows)
    print(f"one step: {total:.0f} us in {sum(row.count for row in rows)} kernels")
    for row in rows[:40]:
        print(f"{row.self_device_time_total:8.0f} us {row.count:5d} x {row.key[:100]}")
    session.close()


def ceiling():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    ms, _ = timed(lambda: a @ b, 10)
    return 2 * 8192**3 / ms / 1e9


def main():
    options = argparse.ArgumentParser()
    for flag in ("--quick", "--check", "--profile"):
        options.add_argument(flag, action="store_true")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path)
    options = options.parse_args()
    if options.check:
        check()
    rows = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows["matrix_product_tflops"] = ceiling()
    with tempfile.TemporaryDirectory() as folder:
        images = problem(folder)
        e = ft.Experiment(
            images, ft.Power(0.1, 0.76), rounds=options.rounds, local_epochs=3, batch_size=BATCH
        )
        for name, half in (("eager float32", False), ("eager bf16", True)):
            rows[f"{name} ms"], rows[f"{name} spread"] = plain_loop(e, half)
            print(name, round(rows[f"{name} ms"], 2), flush=True)
        ways = {"bf16 stacked": (e, "bf16", {"stacked": True})}
        if not options.quick:
            twice = problem(folder, 100_000, 1000, 2 * CLIENTS)
            double = ft.Experiment(
                twice, ft.Power(0.1, 0.76), rounds=1, local_epochs=1, batch_size=BATCH
            )
            ways["bf16 streams"] = e, "bf16", {"stacked": False}
            ways["float32 streams"] = e, "float32", {}
            ways["two runs side by side, bf16 stacked"] = double, "bf16", {"stacked": True}
        for name, (experiment, precision, way) in ways.items():
            ms, spread, ready, memory = ours(experiment, precision, **way)
            rows |= {f"{name} ms": ms, f"{name} spread": spread, f"{name} ready s": ready}
            rows[f"{name} GiB"] = memory
            print(f"captured {name}", round(ms, 3), "ready", round(ready, 1), flush=True)
        if options.profile:
            profile(e)
        best = rows["bf16 stacked ms"]
        plain = min(rows["eager float32 ms"], rows["eager bf16 ms"])
        floor = FLOP_IMAGE * CLIENTS * BATCH / rows["matrix_product_tflops"] / 1e9
        rows |= {"times faster": plain / best, "share of ceiling": floor / best}
        run = ft.run(e, device="cuda", progress=False)
        rows["round s"] = float(run.metrics["seconds"][1:].min())
        rows["100 rounds s"] = 99 * rows["round s"] + float(run.metrics["seconds"][0])
    print(json.dumps(rows, indent=1))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
