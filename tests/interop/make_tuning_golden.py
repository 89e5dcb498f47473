#!/usr/bin/env python3
"""Writes the golden files of tests/train/tuning_test.cpp: fine-tunes the golden models of tests/io/pretrained for 50 steps
with transformers and torch's AdamW, in f32. The output is tests/io/tuning/NAME.safetensors.
  In this file, tokens and targets [50, B, L] i32 are the batches. A target of -100 is masked, for example in
  a prompt. loss and grad_norm [50] are computed before each update. rate [50] is the learning rate.

  make_tuning_golden.py            needs torch, transformers, safetensors (made with 5.24.0)
  make_tuning_golden.py --check    only checks that the installed versions compute the same losses

The optimizer is the same as in `train`: betas 0.9 and 0.99, decay 0.1 for two-dimensional weights, norms clipped at 1."""
import pathlib
import sys

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

IO = pathlib.Path(__file__).parent.parent / "io"
MODELS = ["llama", "gpt2", "qwen3", "gemma3"]  # untied; tied with transposed weights; with norms of heads; gains 1 + w
STEPS, BATCH, LENGTH, VOCABULARY, PEAK = 50, 3, 20, 37, 2e-3


def batches():
    """Each row repeats a different cycle of tokens, so the model can learn it. Every third row has a
    prompt."""
    draw = torch.Generator().manual_seed(7)
    ring = torch.randperm(VOCABULARY, generator=draw)
    place = torch.argsort(ring)
    tokens = torch.empty(STEPS, BATCH, LENGTH + 1, dtype=torch.int64)
    tokens[..., 0] = torch.randint(VOCABULARY, (STEPS, BATCH), generator=draw)
    noise = torch.rand(STEPS, BATCH, LENGTH, generator=draw)
    other = torch.randint(VOCABULARY, (STEPS, BATCH, LENGTH), generator=draw)
    for t in range(LENGTH):
        follower = ring[(place[tokens[..., t]] + 1) % VOCABULARY]
        tokens[..., t + 1] = torch.where(noise[..., t] < 0.1, other[..., t], follower)
    targets = tokens[..., 1:].clone()
    for step in range(STEPS):
        targets[step, step % BATCH, :step % LENGTH] = -100
    rate = torch.tensor([PEAK * min(1, (step + 1) / 10) * (1 - step / STEPS) for step in range(STEPS)])
    return dict(tokens=tokens[..., :-1].int().contiguous(), targets=targets.int().contiguous(), rate=rate)


def tune(name, data):
    model = transformers.AutoModelForCausalLM.from_pretrained(IO / "pretrained" / name, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if (p.dim() > 1) == decays], weight_decay=0.1 * decays)
              for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = data["rate"][step].item()
        logits = model(data["tokens"][step].long()).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), data["targets"][step].long().flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0))
        optimizer.step()
        losses.append(loss.detach())
    return dict(loss=torch.stack(losses), grad_norm=torch.stack(norms))


for chosen in MODELS:
    golden = IO / "tuning" / f"{chosen}.safetensors"
    if sys.argv[1:] == ["--check"]:
        expected = load_file(golden)
        error = (tune(chosen, expected)["loss"] - expected["loss"]).abs().max().item()
        assert error <= 1e-5, f"{chosen}: losses differ by {error}"
    else:
        golden.parent.mkdir(exist_ok=True)
        data = batches()
        data |= tune(chosen, data)
        save_file(data, golden)
        print(f"{chosen}: loss {data['loss'][0]:.4f} … {data['loss'][-1]:.4f}, {golden.stat().st_size >> 10} KiB")
if sys.argv[1:] == ["--check"]:
    print(f"transformers {transformers.__version__}: {len(MODELS)} models, all as expected")
