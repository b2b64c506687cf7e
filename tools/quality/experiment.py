#!/usr/bin/env python3
"""What does a lost token cost in quality? Trains tiny byte-level MoE models on one CPU core and
evaluates each under many routers and capacity factors.

    experiment.py [--out out/quality] [--seeds 1,2,3,4,5] [--verses FILE]

Needs python3-torch and the package bible-kjv. Each (arm, seed) is one file under OUT/runs, written
whole, so a run that was interrupted goes on where it stopped. At the end OUT/results.csv holds all.

Design, and analysis plan, written before any result was looked at
-------------------------------------------------------------------
Model: 2 layers, hidden 64, each FFN a MoE layer of 8 (or 32) experts of 192; 8 simulated GPUs of
S = 128 tokens (one sequence) a step, 400 steps, AdamW. An arm is what is trained; a seed sets the
initial weights, the order of the data and the held-out sample, all equal between arms of one seed,
so arms are compared in pairs. Training with 8 experts puts 1 on a GPU, with 32 puts 4.

Each trained model is evaluated under its own k with +nothing, +ir, +fr, +fr+ir, at capacity
factors 0.5 to 3 and at E, where nothing is dropped; with IR also at 1, 2 and 4 experts per GPU (capacity
factors 0.5, 1 and 2): held-out loss in nats per byte against lost mass (residual_loss, mean over
layers).

Figures: mean over seeds of the difference within a seed, and its 95 % t interval. A claim that a
difference is negative (or positive) "holds" when the whole interval is on that side, "does not
hold" when the whole interval is on the other, and "cannot tell" otherwise. A claim that something
"hardly matters" holds when the interval lies within +-0.01 nats per byte, does not hold when it
lies wholly outside, else cannot tell. No correction for the number of claims. Seeds are run one
after another with all arms; all seeds that are complete when the time is up count, none is dropped.

  1 IR helps at low capacity     x+ir against x on the model trained as x: top1 at 0.5, 0.75; top2
                                 at 1
  2 FR helps at high capacity    x+fr against x on the model trained as x: top1 at 1.25, 1.5; top2
                                 at 2.5, 3
  3 Both together are best       trained and evaluated as x+fr+ir against x, x+ir, x+fr, CF = k
  4 Rectified routers need the   loss that leaving the balance loss out costs top1, less what it
    balance loss less            costs top1+fr+ir: positive; CF 1, each under its own router
  5 Experts per GPU hardly       x+ir with 2, 4 experts per GPU against 1, CF = k
    matter
  6 The straight-through         trained with it against without: top1+fr at 1, top2 at 2
    normaliser helps
  7 More experts do not help     32 against 8 experts, top1 at 1, top2 at 2: "hardly matters"
  8 FR and IR help with 32 too   x+fr+ir against x on the models of 32 experts, CF = k
  9 With IR half the capacity    top1+ir at 0.5 against top1 at 1, top2+ir at 1 against top2 at 2, on
    does                         the models trained as top1, top2: "hardly matters" or better

Extension, added when seed 1 of the above had been looked at: there IR hurt. Experts trained from
scratch never saw each other's tokens, whereas the paper's models start from LLaMA2-7B. So two more
arms, top1 and top2 "upcycled": a dense model is trained as above, each expert starts as a copy of its
FFN, and training goes on for as many steps at 0.3 of the learning rate. On them claims 1, 2, 5 and 9 are
asked again, as 10 to 13, by the same rules. 14, added when seeds 1 to 3 had been looked at, asks 3 of
them at inference: x+fr+ir against x, x+ir, x+fr on the models trained as x, CF = k.
"""
import argparse
import csv
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

COLUMNS = ("arm", "seed", "router", "capacity_factor", "experts_per_gpu", "nats_per_byte",
           "residual_loss", "failed")
CAPACITY_FACTORS = ("0.5", "0.75", "1", "1.25", "1.5", "2", "2.5", "3")
LOCALITY_FACTORS = ("0.5", "1", "2")
SUFFIXES = ("", "+ir", "+fr", "+fr+ir")
GPUS, TOKENS_PER_GPU, SEQUENCE = 8, 128, 128
STEPS, WARMUP, LEARNING_RATE, BALANCE_WEIGHT = 400, 30, 1e-2, 1e-2
UPCYCLED_SHARE = 0.3  # of the learning rate
HELD_OUT_BATCHES = 8
TRACED_STEPS = (10, 50, 100, 150, 200, 250, 300, 400)


@dataclass(frozen=True)
class Arm:
    name: str
    router: str = "dense"
    capacity_factor: str = "1"
    experts: int = 8
    balance: bool = True
    straight_through: bool = True
    upcycled: bool = False

    @property
    def experts_per_gpu(self):
        return self.experts // GPUS


def arms():
    own = [Arm(f"{base}{suffix}", f"{base}{suffix}", base[3:])
           for suffix in ("", "+fr+ir", "+ir", "+fr") for base in ("top1", "top2")]
    named = {arm.name: arm for arm in own}
    return own + [
        replace(named["top1"], name="top1, no balance loss", balance=False),
        replace(named["top1+fr+ir"], name="top1+fr+ir, no balance loss", balance=False),
        replace(named["top1+fr"], name="top1+fr, normaliser differentiated",
                straight_through=False),
        replace(named["top2"], name="top2, normaliser differentiated", straight_through=False),
        replace(named["top1"], name="top1, 32 experts", experts=32),
        replace(named["top2"], name="top2, 32 experts", experts=32),
        Arm("dense", experts=0),
        replace(named["top1"], name="top1, upcycled", upcycled=True),
        replace(named["top2"], name="top2, upcycled", upcycled=True),
    ]


def train(arm, seed, corpus, steps):
    """The trained model, and the logits of the traced steps [step, layer, gpu, token, expert]."""
    import torch
    from tiny_moe import Shape, TinyMoe
    torch.manual_seed(seed)
    model = TinyMoe(Shape(corpus.symbols, experts=arm.experts))
    if not arm.upcycled:
        return model, train_steps(model, arm, [seed, 1], corpus, steps, LEARNING_RATE)
    dense = TinyMoe(Shape(corpus.symbols, experts=0))
    train_steps(dense, Arm("dense", experts=0), [seed, 3], corpus, steps, LEARNING_RATE)
    model.upcycle(dense)
    rate = UPCYCLED_SHARE * LEARNING_RATE
    return model, train_steps(model, arm, [seed, 1], corpus, steps, rate)


def train_steps(model, arm, stream, corpus, steps, rate):
    """Trains in place; the logits of the traced steps."""
    import numpy as np
    import torch
    from rectified_router import Rules
    from tiny_moe import Control
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rate, total_steps=steps + 1, pct_start=min(0.3, WARMUP / steps),
        cycle_momentum=False)
    random = np.random.default_rng(stream)
    rules = arm.experts and Rules.parse(arm.router, arm.capacity_factor, arm.experts_per_gpu)
    traced = []
    for step in range(1, steps + 1):
        text = corpus.sample(corpus.train, GPUS * TOKENS_PER_GPU // SEQUENCE, SEQUENCE, random)
        control = Control(rules, TOKENS_PER_GPU, arm.straight_through)
        loss = model(torch.from_numpy(text), control)
        if arm.experts and arm.balance:
            loss = loss + BALANCE_WEIGHT * control.balance_loss()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if arm.experts and step in TRACED_STEPS:
            traced.append(torch.stack([logits.detach().reshape(GPUS, TOKENS_PER_GPU, -1)
                                       for logits in control.logits]).numpy())
    return np.array(traced, np.float32)


def evaluations(arm):
    """(router, capacity factor, experts per GPU) to evaluate a model under."""
    if not arm.experts:
        return [("dense", "", "")]
    base = arm.router.split("+", maxsplit=1)[0]
    return [(base + suffix, factor, local) for suffix in SUFFIXES
            for factor in (*CAPACITY_FACTORS, str(arm.experts))
            for local in ((1, 2, 4) if "ir" in suffix and factor in LOCALITY_FACTORS
                          else (arm.experts_per_gpu,))
            if factor != str(arm.experts) or not suffix]


def evaluate(model, arm, seed, corpus):
    """One row per evaluation; all see the same held-out batches."""
    import numpy as np
    import torch
    from rectified_router import Rules
    from tiny_moe import Control
    sequences = GPUS * TOKENS_PER_GPU // SEQUENCE
    random = np.random.default_rng([seed, 2])
    batches = [torch.from_numpy(corpus.sample(corpus.held_out, sequences, SEQUENCE, random))
               for _ in range(HELD_OUT_BATCHES)]
    rows = []
    for router, factor, local in evaluations(arm):
        rules = None if router == "dense" else Rules.parse(router, factor, local)
        losses, residual, failed = [], [], []
        for index, text in enumerate(batches):
            control = Control(rules, TOKENS_PER_GPU, first_gpu=index * GPUS)
            with torch.no_grad():
                losses.append(model(text, control).item())
            residual += [routing.residual_loss() for routing in control.routings]
            failed += [routing.failed() for routing in control.routings]
        shares = [f"{np.mean(part):.6f}" if part else "" for part in (residual, failed)]
        rows.append((arm.name, seed, router, factor, local, f"{np.mean(losses):.6f}", *shares))
    return rows


def write_atomically(path, write):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_rows(path, rows):
    def write(temporary):
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(rows)
    write_atomically(path, write)


def run_one(arm, seed, corpus, out, steps):
    import numpy as np
    import torch
    torch.set_num_threads(1)  # one summation order, and one core
    model, traced = train(arm, seed, corpus, steps)
    if len(traced):
        def write(temporary):
            with open(temporary, "wb") as file:
                np.save(file, traced)
        write_atomically(out / "logits" / f"{arm.name} {seed}.npy", write)
    write_rows(run_path(out, arm, seed), evaluate(model, arm, seed, corpus))


def run_path(out, arm, seed):
    return out / "runs" / f"{arm.name} {seed}.csv"


def run_all(options, corpus):
    pairs = [(arm, seed) for seed in options.seeds for arm in arms()]
    missing = [pair for pair in pairs if not run_path(options.out, *pair).exists()]
    print(f"{len(pairs) - len(missing)} of {len(pairs)} runs are there already", file=sys.stderr)
    begin = time.monotonic()
    for done, (arm, seed) in enumerate(missing):
        spent = time.monotonic() - begin
        left = f", about {spent / done * (len(missing) - done) / 60:.0f} min left" if done else ""
        print(f"[{done + 1}/{len(missing)}] {arm.name}, seed {seed}{left}", file=sys.stderr,
              flush=True)
        run_one(arm, seed, corpus, options.out, options.steps)


def collect(options):
    """OUT/results.csv of all runs so far, seeds in order."""
    rows = []
    for seed in options.seeds:
        for arm in arms():
            path = run_path(options.out, arm, seed)
            if path.exists():
                with open(path, newline="", encoding="utf-8") as file:
                    rows += list(csv.reader(file))[1:]
    write_rows(options.out / "results.csv", rows)
    print(f"{options.out / 'results.csv'}: {len(rows)} rows", file=sys.stderr)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("out/quality"))
    parser.add_argument("--seeds", default="1,2,3,4,5",
                        type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--verses", help="output of `bible -f gen1:1-rev22:21` (default: run it)")
    parser.add_argument("--steps", type=int, default=STEPS, help="shorter for a trial")
    parser.add_argument("--collect", action="store_true", help="run nothing, write results.csv")
    return parser.parse_args(words)


def main(words):
    options = arguments(words)
    from corpus import Corpus, Unavailable
    if not options.collect:
        try:
            import torch  # noqa: F401
            run_all(options, Corpus(options.verses))
        except ModuleNotFoundError as error:
            print(f"error: {error}: apt install python3-torch", file=sys.stderr)
            return 1
        except Unavailable as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    collect(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
