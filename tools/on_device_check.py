"""Checks on real devices what no CPU can show: run it on a node with NPUs (or GPUs) and send the report back.

    torchrun --nproc-per-node 8 tools/on_device_check.py                     # NPUs, DeepSeek-V3's shapes
    torchrun --nproc-per-node 2 tools/on_device_check.py --device cpu --rehearse

For each group size N it decodes with the same random weights, through the capture plan and the runner, and
reports: parity with the unsharded model, sizes captured and steps that captured again, memory freed by the
allocator's own count, and time per step. N = 0 is the unsharded model, compiled and captured alike. Nothing
else may run on the devices. Rank 0 prints the report and writes it as JSON; a failed check is reported, and
the next one goes on. With --lose-a-rank it does one thing only: the last rank stops inside a replay, and
every other one must end in an error, or its process with a flight record, within three timeouts.
"""

import argparse
import gc
import json
import os
import platform
import signal
import statistics
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from oproj_pass import DecodeRunner, shard_report
from oproj_pass.capture import StepBound, plan_capture

BACKENDS = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}
TOLERANCE = 0.02  # of the largest value; bfloat16 keeps 8 bits, and ranks add up in another order
REHEARSAL = {"layers": 2, "hidden": 128, "heads": 8, "head_dim": 32, "context": 16, "batch": 8, "steps": 6}


class Attention(nn.Module):
    """One token a request over a fixed context: multi-query attention and its output projection."""

    def __init__(self, args):
        super().__init__()
        self.heads, self.head_dim, width = args.heads, args.head_dim, args.heads * args.head_dim
        self.norm = nn.RMSNorm(args.hidden)
        self.q_proj = nn.Linear(args.hidden, width, bias=False)
        self.o_proj = nn.Linear(width, args.hidden, bias=False)
        shape = (args.batch, 1, args.context, args.head_dim)
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    def forward(self, x):
        rows = x.shape[0]
        query = self.q_proj(self.norm(x)).view(rows, self.heads, 1, self.head_dim)
        keys, values = (cache[:rows].expand(-1, self.heads, -1, -1) for cache in (self.keys, self.values))
        attended = F.scaled_dot_product_attention(query, keys, values)
        return x + self.o_proj(attended.reshape(rows, -1))


class Decoder(nn.Module):
    """Attention layers only: what the pass changes."""

    def __init__(self, args):
        super().__init__()
        self.layers = nn.ModuleList(Attention(args) for _ in range(args.layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass
class Check:
    """What was measured at one group size; errors are the largest absolute one over the largest value."""

    ranks: int
    sharded: int = 0
    freed_mib: float = 0.0
    allocator_freed_mib: float | None = None
    parity_error: float | None = None
    sizes: list[int] = field(default_factory=list)
    captures: dict[str, int] = field(default_factory=dict)
    captures_while_serving: dict[str, int] = field(default_factory=dict)
    milliseconds: float | None = None
    problems: list[str] = field(default_factory=list)
    traceback: str | None = None

    def judge(self, layers):
        """Note everything that a working device would not show."""
        expected = layers if self.ranks > 1 else 0
        if self.sharded != expected:
            self.problems.append(f"{self.sharded} projections sharded, expected {expected}")
        if self.parity_error is not None and not self.parity_error < TOLERANCE:
            self.problems.append(f"parity error {self.parity_error:.2e}, expected below {TOLERANCE:g}")
        if self.captures_while_serving:
            self.problems.append(f"captured while serving: {self.captures_while_serving}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=BACKENDS, default="npu")
    parser.add_argument("--group-sizes", type=int, nargs="+", default=[0, 2, 4, 8], metavar="N")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--heads", type=int, default=128)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=24, help="requests a rank, one token each")
    parser.add_argument("--steps", type=int, default=200, help="timed steps")
    parser.add_argument("--inner-backend", default="auto")
    parser.add_argument("--fuse", choices=["mc2"], help="also fuse the second half of the exchange")
    parser.add_argument("--output", type=Path, default=Path("on_device_report.json"))
    parser.add_argument(
        "--lose-a-rank", action="store_true", help="stop a rank inside a replay, nothing else"
    )
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds, for --lose-a-rank")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, to see the script run")
    args = parser.parse_args()
    if args.rehearse:
        vars(args).update(REHEARSAL)
    return args


def start(args):
    """Join the other ranks; returns this rank's device."""
    if args.device == "npu":
        import torch_npu  # noqa: F401, PLC0415  (makes torch.npu)
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cpu") if args.device == "cpu" else torch.device(args.device, local)
    if args.device != "cpu":
        torch.get_device_module(args.device).set_device(local)
    dist.init_process_group(BACKENDS[args.device])
    return device


def build(args, device):
    """The same weights on every rank and for every group size."""
    torch.manual_seed(0)
    return Decoder(args).to(torch.bfloat16).eval().requires_grad_(False).to(device)


def check(args, device, control, ranks):
    """All measurements at one group size."""
    result, plan = Check(ranks), plan_capture(StepBound(args.batch, max(args.batch, 8192)))
    result.sizes = list(plan.sizes)
    model = build(args, device)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(args.batch, args.hidden, dtype=torch.bfloat16, device=device)
    with torch.inference_mode():
        expected = model(x)
        before = allocated(device)
        runner = DecodeRunner(compiled(model, args, ranks), plan, rows={"x": 0})
        runner.capture({"x": x})
        report = shard_report(model)
        result.sharded, result.freed_mib = len(report.weights), report.freed_nbytes / 2**20
        if before is not None:
            result.allocator_freed_mib = (before - allocated(device)) / 2**20
        result.captures = counted()
        result.parity_error = relative_error(runner.step({"x": x}), expected, control)
        result.milliseconds = time_steps(runner, x, args.steps, device, control)
        now = counted()
        result.captures_while_serving = {
            name: count - result.captures.get(name, 0)
            for name, count in now.items()
            if count != result.captures.get(name, 0)
        }
    return result


def compiled(model, args, ranks):
    options = {"oproj_tensor_parallel_size": ranks, "inner_backend": args.inner_backend}
    if args.fuse and ranks > 1:
        options["fuse"] = args.fuse
    if ranks > 1:
        options["expected_sites"] = args.layers
    return torch.compile(model, backend="oproj_npu", options=options, dynamic=False, fullgraph=True)


def allocated(device):
    """Bytes in use by the device's allocator, None where it does not count."""
    if device.type == "cpu":
        return None
    gc.collect()
    synchronize(device)
    return torch.get_device_module(device.type).memory_allocated()


def counted():
    """The counters of npugraph_ex; empty under another compiler."""
    return dict(torch._dynamo.utils.counters.get("npugraph_ex", {}))


def synchronize(device):
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize()


def relative_error(found, expected, control):
    """The largest error of any rank, as a part of its largest value."""
    scale = expected.float().abs().max()
    return worst(((found.float() - expected.float()).abs().max() / scale).item(), control)


def worst(value, control):
    """The largest value of any rank, over the CPU."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value, group=control)
    return max(gathered)


def lose_a_rank(args, device, control):
    """How this rank's step ends when the last rank stops inside its replay; None on that rank."""
    os.environ.setdefault("OPROJ_FLIGHT_DIR", str(args.output.with_suffix("")) + "_flight")
    world, rank = dist.get_world_size(), dist.get_rank()
    processes = [None] * world
    dist.all_gather_object(processes, os.getpid(), group=control)
    plan = plan_capture(StepBound(args.batch, max(args.batch, 8192)), sizes=[args.batch])
    x = torch.zeros(args.batch, args.hidden, dtype=torch.bfloat16, device=device)
    model = compiled(build(args, device), args, world)
    runner = DecodeRunner(model, plan, rows={"x": 0}, timeout=args.timeout)
    runner.capture({"x": x})
    runner.step({"x": x})
    synchronize(device)
    if rank == world - 1:
        runner._serving._replay = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    begin, error = time.perf_counter(), "none: the step ended as if no rank were lost"
    try:
        runner.step({"x": x})
        synchronize(device)
    except Exception as found:
        error = f"{type(found).__name__}: {found}"
    seconds = time.perf_counter() - begin
    if rank == 0:
        time.sleep(args.timeout)  # the others', too
        os.kill(processes[-1], signal.SIGCONT)
    if rank == world - 1:
        return None
    return {"rank": rank, "seconds": seconds, "error": error}


def time_steps(runner, x, steps, device, control):
    """The median milliseconds of a step on the slowest rank."""
    times = []
    for _ in track(range(steps), description="steps", disable=dist.get_rank() != 0, transient=True):
        synchronize(device)
        begin = time.perf_counter()
        runner.step({"x": x})
        synchronize(device)
        times.append((time.perf_counter() - begin) * 1e3)
    return worst(statistics.median(times[len(times) // 10 :]), control)


def environment(args):
    """Versions and shapes, to be read beside the numbers."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "world": dist.get_world_size()}
    if args.device == "npu":
        import torch_npu  # noqa: PLC0415

        found["torch_npu"] = torch_npu.__version__
        found["cann"] = torch_npu.npu.utils.get_cann_version()
    if args.device != "cpu":
        found["device"] = torch.get_device_module(args.device).get_device_name()
    shapes = {name: value for name, value in vars(args).items() if name != "output"}
    return found | {"arguments": shapes}


def show(checks):
    table = Table(title="o_proj sharding on this node")
    for column in (
        "N",
        "sharded",
        "freed MiB",
        "by allocator",
        "parity error",
        "sizes",
        "while serving",
        "ms",
    ):
        table.add_column(column, justify="right")
    for item in checks:
        if item.milliseconds is None:
            table.add_row(str(item.ranks), "failed")
            continue
        table.add_row(
            str(item.ranks),
            str(item.sharded),
            f"{item.freed_mib:.2f}",
            "-" if item.allocator_freed_mib is None else f"{item.allocator_freed_mib:.2f}",
            f"{item.parity_error:.2e}",
            str(len(item.sizes)),
            str(item.captures_while_serving or "none"),
            f"{item.milliseconds:.3f}",
        )
    console = Console(width=110)
    console.print(table)
    for item in checks:
        for problem in item.problems:
            console.print(f"N = {item.ranks}: {problem.splitlines()[0]}", style="red", markup=False)


def main():
    args = parse()
    device, checks = start(args), []
    control = dist.new_group(backend="gloo")
    if args.lose_a_rank:
        found = lose_a_rank(args, device, control)
        if found is None:
            return 0
        in_time = found["seconds"] <= 3 * args.timeout + 1 and not found["error"].startswith("none")
        report = args.output.with_suffix(f".rank{found['rank']}.json")
        report.write_text(json.dumps({"environment": environment(args), "lost_rank": found}, indent=2) + "\n")
        Console().print(f"{'well' if in_time else 'NOT WELL'}: {found}. Please send {report}.", markup=False)
        return not in_time
    for ranks in args.group_sizes:
        if ranks and dist.get_world_size() % ranks:
            continue
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        try:
            checks.append(check(args, device, control, ranks))
            checks[-1].judge(args.layers)
        except Exception as error:  # the report says what failed; the other sizes are still worth having
            problem = f"{type(error).__name__}: {error}"
            checks.append(Check(ranks, problems=[problem], traceback=traceback.format_exc()))
        gc.collect()
    if dist.get_rank() == 0:
        report = {"environment": environment(args), "checks": [asdict(item) for item in checks]}
        args.output.write_text(json.dumps(report, indent=2) + "\n")
        show(checks)
        Console().print(f"Please send {args.output} back, with anything odd that you saw.")
    dist.destroy_process_group()
    return any(item.problems for item in checks)


if __name__ == "__main__":
    raise SystemExit(main())
