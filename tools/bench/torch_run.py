#!/usr/bin/env python3
"""Repeats a run of `train` in PyTorch. The model, its initial weights, the tokens of each step, the schedule,
clipping and AdamW are the same. Writes metrics.jsonl as `train` does, for loss_curves.py and `inspect
--plot-curves`.

As usual in PyTorch, weights, moments and the update are f32, and the forward pass uses autocast to bf16. AdamW is fused."""
import argparse
import json
import math
import os
import sys
import time

import torch
from torch import nn

import run_files
from torch_models import Config, new_adamw, new_model, saved_weights

# Options that may differ between the run and its start.
OF_START = {"lr", "min-lr", "schedule", "warmup", "steps", "eval-every", "eval-batches", "save-every", "sample"}
MOST_VALIDATION_BATCHES = 400  # as in Trainer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("run", help="folder of a finished run of train with --optimizer adamw or adam and without dropout")
    parser.add_argument("start", help="folder of the same run with --lr 0 --steps 1, which contains the initial weights")
    parser.add_argument("out", help="folder to write metrics.jsonl to")
    parser.add_argument("--device", help="device: cpu, cuda or cuda:N [same as in the run]")
    parser.add_argument("--threads", type=int, default=0, help="number of CPU threads [PyTorch's default]")
    parser.add_argument("--change", metavar="OPTION=X", action="append", default=[],
                        help="use a different lr, min-lr, warmup, weight-decay, clip, seed (of the batches), beta1, beta2 "
                        "or eps from the run: a bug that a comparison should detect")
    return parser.parse_args()


def options_of(args):
    """Returns the options of the run, with changes. Raises ValueError if the run cannot be repeated in PyTorch."""
    options, start = run_files.options(args.run), run_files.options(args.start)
    for name in options.keys() - OF_START:
        if options[name] != start[name]:
            raise ValueError(f"{args.start} has --{name} {start[name]}, {args.run} has {options[name]}")
    if start["steps"] != "1" or float(start["lr"]) != 0:
        raise ValueError(f"{args.start} is not a run with --lr 0 --steps 1")
    if options["optimizer"] not in ("adamw", "adam") or options["schedule"] != "cosine":
        raise ValueError(f"{args.run} was not trained by AdamW with --schedule cosine")
    if options["dtype"] not in ("f32", "tf32", "bf16") or float(options["dropout"]) or options["lora"] != "0":
        raise ValueError(f"{args.run} was trained in f16, with dropout or with adapters")
    options |= dict(beta1="0.9", beta2="0.99", eps="1e-8")
    for change in args.change:
        name, value = change.split("=", 1)
        if name not in ("lr", "min-lr", "warmup", "weight-decay", "clip", "seed", "beta1", "beta2", "eps"):
            raise ValueError(f"--change {name}: this option cannot be changed")
        options[name] = value
    return options


class Trainer:
    def __init__(self, options, start, device):
        number = lambda name: float(options[name])
        self.steps, self.warmup = int(options["steps"]), int(options["warmup"])
        self.peak, self.floor, self.clip = number("lr"), number("min-lr"), number("clip")
        self.seed, self.batch, self.parts = (int(options[name]) for name in ("seed", "batch", "accumulate"))
        self.device, self.bf16 = device, options["dtype"] == "bf16"
        weights = f"{start}/last/model.safetensors"
        config = Config(run_files.header(weights)[0])
        self.context = config.context
        self.model = new_model(config, saved_weights(weights), device)
        self.optimizer = new_adamw(self.model, self.peak, number("weight-decay"),
                                   betas=(number("beta1"), number("beta2")), eps=number("eps"))
        parts = run_files.split(run_files.read_tokens(options))
        self.train, self.held_out = (torch.tensor(part, dtype=torch.long, device=device) for part in parts)
        # Moves these tensors to the device before the first step. A copy in each step would wait for the
        # previous step.
        rows = self.parts * self.batch
        self.starts = torch.tensor([run_files.training_starts(self.seed, t, rows, len(self.train), self.context)
                                    for t in range(self.steps)], device=device)

    def rate(self, t):
        """Returns the learning rate of step t = 0, 1, …, as in nn/optimizers/optimizers.cpp."""
        if t < self.warmup:
            return self.peak * (t + 1) / (self.warmup + 1)
        part = (t - self.warmup) / (self.steps - self.warmup)
        return self.floor + (self.peak - self.floor) * 0.5 * (1 + math.cos(math.pi * part))

    def loss(self, tokens, starts):
        """Returns the mean loss of rows that begin at these offsets."""
        places = starts[:, None] + torch.arange(self.context, device=self.device)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.bf16):
            return self.model(tokens[places], tokens[places + 1])

    def step(self, t):
        """Starts a step. Returns (loss, gradient norm) as tensors, whose values may not be ready yet."""
        losses = []
        for starts in self.starts[t].split(self.batch):
            loss = self.loss(self.train, starts) / self.parts
            loss.backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(t)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack([sum(losses), norm])

    @torch.no_grad()
    def validation_loss(self, most):
        batches = torch.tensor(run_files.validation_starts(self.batch, self.context, len(self.held_out), most),
                               device=self.device)
        return torch.stack([self.loss(self.held_out, starts) for starts in batches]).double().mean().item()


def train(options, args, device):
    rows = f"{args.out}/metrics.jsonl"
    if os.path.lexists(rows):
        raise ValueError(f"{rows} exists: choose another folder, or remove it first")
    trainer = Trainer(options, args.start, device)
    every, some = int(options["eval-every"]), int(options["eval-batches"])
    results, validations, begin = [], {}, time.perf_counter()
    for step in range(1, trainer.steps + 1):
        results.append(trainer.step(step - 1))
        if step % every == 0 or step == trainer.steps:
            validations[step] = trainer.validation_loss(MOST_VALIDATION_BATCHES if step == trainer.steps else some)
            print(f"\rstep {step}/{trainer.steps}: validation loss {validations[step]:.4f}", end="", flush=True)
    seconds = time.perf_counter() - begin
    os.makedirs(args.out, exist_ok=True)
    with open(rows, "x", encoding="utf-8") as file:
        for step, (loss, norm) in enumerate(torch.stack(results).tolist(), 1):
            row = dict(step=step, train_loss=loss, val_loss=validations.get(step), lr=trainer.rate(step - 1), grad_norm=norm)
            file.write(json.dumps(row) + "\n")
    print(f", {1e3 * seconds / trainer.steps:.2f} ms a step with PyTorch {torch.__version__}")


def main():
    args = arguments()
    try:
        options = options_of(args)
        device = args.device or options["backend"]
        torch.backends.cuda.matmul.allow_tf32 = options["dtype"] == "tf32"
        if args.threads:
            torch.set_num_threads(args.threads)
        train(options, args, device)
    except (ValueError, OSError) as error:
        sys.exit(f"torch_run: {error}")


if __name__ == "__main__":
    main()
