#!/usr/bin/env python3
"""Times a training step of PyTorch's DistributedDataParallel, with and without torch.compile, for comparison with `bench ranks`
on the same model:

    torchrun --nproc-per-node 2 tools/bench/torch_ddp.py 32 model=gpt layers=12 heads=12 width=768 context=1024 vocabulary=50304

Arguments are the number of rows in a rank's batch, and the model's settings as in checkpoints. Weights, moments and the update
are f32, and the forward pass uses autocast to bf16. Gradients are sent in f32, PyTorch's default, and in bf16 with the hook
bf16_compress_hook. AdamW is fused, and gradients are clipped by their norm. Each line has the median milliseconds of a step."""
import os
import statistics
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from comparator import seconds_of
from torch_models import Config, Loss, new_adamw, spread_ids, training_step

BATCH, CONFIG = int(sys.argv[1]), Config(dict(word.split("=", 1) for word in sys.argv[2:]))
RANK = int(os.environ["LOCAL_RANK"])


def seconds_of_step(compiled, together, hook):
    torch.manual_seed(1)
    torch.compiler.reset()
    model = Loss(CONFIG).to(RANK)
    optimizer, parameters = new_adamw(model, 1e-4), list(model.parameters())
    run = DistributedDataParallel(model, device_ids=[RANK], gradient_as_bucket_view=True) if together else model
    if hook:
        run.register_comm_hook(None, bf16_compress_hook)
    if compiled:
        run = torch.compile(run)
    step = training_step(run, parameters, optimizer, spread_ids(BATCH, CONFIG, RANK), "cuda", True)

    def steps(count):
        dist.barrier()
        torch.cuda.synchronize()
        return seconds_of(step, count, torch.cuda.synchronize)

    steps(5)
    return statistics.median(steps(10) for _ in range(5))


def main():
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    count, tokens = dist.get_world_size(), BATCH * CONFIG.context
    if dist.get_rank() == 0:
        print(f"PyTorch {torch.__version__}, {count} × {torch.cuda.get_device_name()}", flush=True)
    for compiled in (False, True):
        alone = None
        for together, hook in ((False, False), (True, False), (True, True)):
            seconds = seconds_of_step(compiled, together, hook)
            alone = alone or seconds
            ranks = count if together else 1
            if dist.get_rank() == 0:
                name = ("compiled" if compiled else "eager") + (", DDP" if together else "") + (" in bf16" if hook else "")
                print(f"{name:24} {1e3 * seconds:8.2f} ms {ranks * tokens / seconds:12.0f} tokens/s {alone / seconds:6.3f} of one rank",
                      flush=True)
    dist.destroy_process_group()


main()
