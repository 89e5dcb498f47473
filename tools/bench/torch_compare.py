#!/usr/bin/env python3
"""Measures PyTorch on this GPU, for the rows of tools/bench. It times attention in f32 with the memory-efficient kernel (for bf16
see torch_attention.py), and the character-level GPT's training step, compiled into CUDA graphs. Prints one JSON object per line:
name, shape, dtype, pass, ms. Times are medians by the GPU's clock. A training step is timed by the host, which waits for the GPU
every 20 steps."""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from comparator import seconds_of
from torch_models import Config, Loss, training_step


def emit(**row):
    print(json.dumps(row), flush=True)


def median_ms(run, seconds=0.3):
    """Queues ten calls at a time. Otherwise the GPU would be idle while Python prepares the next call."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        times += [a.elapsed_time(b) for a, b in zip(events, events[1:])][1:]
    return statistics.median(times)


def attention(backend, batch, heads, length, width, causal, dtype, name):
    shape = [batch, heads, length, width]
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    with sdpa_kernel(backend):
        forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        o = forward()
        z = torch.randn_like(o)
        row = dict(name="flash_attn" + (" causal" if causal else ""), shape="×".join(map(str, shape)), dtype=name)
        with torch.no_grad():
            emit(**row, **{"pass": "forward"}, ms=median_ms(forward))
        # autograd.grad returns the gradients without accumulating them.
        emit(**row, **{"pass": "backward"},
             ms=median_ms(lambda: torch.autograd.grad(o, (q, k, v), z, retain_graph=True)))


def gpt_step(name, layers=6, heads=6, width=384, context=256, batch=64, vocabulary=65):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name != "f32"
    torch.compiler.reset()
    model = Loss(Config(dict(model="gpt", layers=layers, heads=heads, width=width, context=context, vocabulary=vocabulary,
                             bias="true"))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    ids = [torch.randint(vocabulary, (batch, context), device="cuda") for _ in range(2)]
    step = training_step(torch.compile(model, mode="reduce-overhead"), list(model.parameters()), optimizer, ids, "cuda",
                         name == "bf16")
    run = lambda: seconds_of(step, 20, torch.cuda.synchronize)
    run()
    emit(name="GPT step", shape="×".join(map(str, (layers, heads, width, context, batch))), dtype=name,
         **{"pass": "both"}, ms=1e3 * min(run() for _ in range(5)))


def main():
    if not torch.cuda.is_available():
        sys.exit("torch_compare: PyTorch finds no GPU")
    emit(name="PyTorch", version=torch.__version__)
    for name in ("f32", "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        attention(SDPBackend.EFFICIENT_ATTENTION, 4, 16, 2048, 64, True, torch.float32, name)
    for name in ("bf16", "tf32", "f32"):
        gpt_step(name)


main()
