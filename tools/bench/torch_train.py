#!/usr/bin/env python3
"""Times PyTorch's training step for `bench train --compare`. Arguments are the device, the dtype, the number of threads, the
minimum measuring time in seconds, and the number of rows in a batch. They are followed by a safetensors file with the initial
weights, and the model's settings as in checkpoints (key=value). Each line of standard input is a request: eager, compiled or graphs. The answer is

    BEST MEDIAN PEAK LOSS NORM LOSS2

or "- REASON". BEST and MEDIAN are milliseconds per step, PEAK is the peak GPU memory in bytes ("-" on the CPU). LOSS and NORM are
the loss and the gradient norm of the first step, and LOSS2 is the loss of the second step. They show the caller that both
libraries train the same model.

As usual in PyTorch, weights, moments and the update are f32, and the forward pass uses autocast to bf16. AdamW is fused, and
gradients are clipped by their norm. "graphs" is torch.compile's mode that uses CUDA graphs for the forward and backward pass."""
import statistics
import sys

from comparator import refuse, repeated, seconds_of, serve

try:
    import torch
    from torch_models import Config, new_adamw, new_model, saved_weights, spread_ids, training_step
except ImportError as error:
    refuse(error)
DEVICE, DTYPE, THREADS, SECONDS, BATCH, WEIGHTS = sys.argv[1:7]
CONFIG = Config(dict(word.split("=", 1) for word in sys.argv[7:]))
ON_GPU = DEVICE.startswith("cuda")
if ON_GPU and not torch.cuda.is_available():
    refuse("PyTorch finds no GPU")
LEARNING_RATE = 1e-4  # same as bench_learning_rate


def synchronize():
    if ON_GPU:
        torch.cuda.synchronize()


def measure(way, weights):
    torch.compiler.reset()
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = new_model(CONFIG, weights, DEVICE)
    parameters, optimizer = list(model.parameters()), new_adamw(model, LEARNING_RATE)
    run = model if way == "eager" else torch.compile(model, mode="reduce-overhead" if way == "graphs" else None)
    step = training_step(run, parameters, optimizer, spread_ids(int(BATCH), CONFIG, DEVICE), DEVICE.split(":")[0],
                         DTYPE == "bf16")
    loss, norm = (x.item() for x in step())
    second = step()[0].item()
    for _ in range(3):
        step()
    synchronize()
    times = repeated(lambda: 1e3 * seconds_of(step, 20 if ON_GPU else 1, synchronize), float(SECONDS))
    peak = torch.cuda.max_memory_allocated() if ON_GPU else "-"
    return f"{min(times):.6f} {statistics.median(times):.6f} {peak} {loss:.8g} {norm:.8g} {second:.8g}"


def main():
    if DTYPE not in ("f32", "tf32", "bf16"):
        refuse(f"only f32, tf32 and bf16 are supported, got {DTYPE}")
    torch.backends.cuda.matmul.allow_tf32 = DTYPE == "tf32"
    if ":" in DEVICE:
        torch.cuda.set_device(DEVICE)
    if not ON_GPU:
        torch.set_num_threads(int(THREADS))
    try:
        weights = saved_weights(WEIGHTS)  # the file is deleted after "ready"
        count = sum(p.numel() for p in new_model(CONFIG, weights, DEVICE).parameters())
    except (RuntimeError, KeyError) as error:
        refuse("its model differs: " + " ".join(str(error).split()))
    on = torch.cuda.get_device_name() if ON_GPU else f"{THREADS} threads"

    def answer(words):
        way = words[0]
        if way == "graphs" and not ON_GPU:
            return "- CUDA graphs require a GPU"
        try:
            return measure(way, weights)
        except Exception as error:
            return "- " + (str(error).strip().splitlines() or [type(error).__name__])[0]

    serve(f"PyTorch {torch.__version__}, {on}, {count:,} parameters", answer)


main()
