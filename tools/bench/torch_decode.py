#!/usr/bin/env python3
"""Times PyTorch's decoding of a GPT for `bench generate --compare` and `bench serve --compare`. Arguments are the device,
the dtype and LAYERSxHEADSxWIDTHxCONTEXTxVOCABULARY. Requests and answers are described
in comparator.serve_decoding.

The model is compiled by torch.compile, with static caches. On a GPU, each length has a separate CUDA graph
for its step, so attention needs no mask and reads no unused keys. Attention uses the backend that is fastest
for attention without the rest of the model. Weights are random. A trace is cut into static batches of SLOTS
sequences. They are padded to the longest prompt, and run until the longest sequence is complete. Processing
prompts and capturing graphs is not counted."""
import math
import statistics
import sys

from comparator import note, refuse, repeated, seconds_of, serve_decoding

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_models import DTYPES, event_ms
except ImportError as error:
    refuse(error)
DEVICE, DTYPE, SHAPE = sys.argv[1:4]
ON_GPU = DEVICE.startswith("cuda")
if ON_GPU and not torch.cuda.is_available():
    refuse("PyTorch finds no GPU")

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = (int(n) for n in SHAPE.split("x"))
BACKENDS = ([SDPBackend.CUDNN_ATTENTION] if ON_GPU else []) + [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
MODE = "max-autotune-no-cudagraphs" if ON_GPU else "default"
LENGTHS = 64  # the time of a step is measured at multiples of this number of keys


def best_seconds(run, least=0.15):
    """Returns the seconds per call, after a warm-up. On a GPU, this is the median by CUDA events of ten queued calls."""
    for _ in range(3):
        run()
    if ON_GPU:
        return statistics.median(repeated(lambda: event_ms(run, 10) / 1e3, least))
    return min(repeated(lambda: seconds_of(run), least))


def replayed(run):
    """Captures run() in a CUDA graph on a GPU, and returns a function that replays it."""
    if not ON_GPU:
        return run
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # compilation and warm-up of the first call
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def random(*shape, std=0.02):
    return torch.randn(shape, device=DEVICE).mul_(std).to(DTYPES[DTYPE])


class Weights:
    """GPT-2 as in nn/models/gpt.h: learned positions, no biases, and the head shares the embedding."""

    def __init__(self):
        def norm():
            return random(WIDTH, std=0.1) + 1

        self.tokens, self.positions, self.norm = random(VOCABULARY, WIDTH), random(CONTEXT, WIDTH), norm()
        self.layers = [(norm(), random(3 * WIDTH, WIDTH), random(WIDTH, WIDTH), norm(), random(4 * WIDTH, WIDTH),
                        random(WIDTH, 4 * WIDTH)) for _ in range(LAYERS)]


class Batch:
    """A batch of sequences, each with a token to read and a cache."""

    def __init__(self, sequences, weights):
        self.weights, self.sequences = weights, sequences
        self.read = torch.zeros(sequences, dtype=torch.long, device=DEVICE)
        width = WIDTH // HEADS
        self.caches = [tuple(random(sequences, HEADS, CONTEXT, width, std=1) for _ in range(2)) for _ in range(LAYERS)]
        self.query = random(sequences, HEADS, 1, width, std=1)
        self.compiled = {}  # by attention backend

    def fastest(self, keys):
        """Returns the backend for which attention by itself is the fastest."""
        times = {}
        for backend in BACKENDS:
            try:
                with sdpa_kernel(backend):
                    run = replayed(lambda: [F.scaled_dot_product_attention(self.query, k[:, :, :keys], v[:, :, :keys])
                                            for k, v in self.caches])
                times[backend] = best_seconds(run, 0.02)
            except RuntimeError as error:  # it does not support the call
                note(f"{backend}: ", error)
        return min(times, key=times.get)

    def step(self, keys, at):
        """Processes a token of each sequence at position `at` [1]. `keys` has one element per key."""
        w, n = self.weights, keys.shape[0]
        x = w.tokens[self.read] + w.positions[at]
        for (norm, qkv, out, norm2, up, down), (k, v) in zip(w.layers, self.caches):
            parts = F.linear(F.layer_norm(x, (WIDTH,), norm), qkv).view(self.sequences, 3, HEADS, 1, WIDTH // HEADS)
            query, key, value = parts.unbind(1)
            k.index_copy_(2, at, key)
            v.index_copy_(2, at, value)
            o = F.scaled_dot_product_attention(query, k[:, :, :n], v[:, :, :n])
            x = x + F.linear(o.reshape(self.sequences, WIDTH), out)
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (WIDTH,), norm2), up)), down)
        logits = F.linear(F.layer_norm(x, (WIDTH,), w.norm), w.tokens)
        self.read.copy_(logits.argmax(-1))

    def seconds(self, keys):
        backend = self.fastest(keys)
        if backend not in self.compiled:
            self.compiled[backend] = torch.compile(self.step, mode=MODE)
        length = torch.empty(keys, device=DEVICE)
        torch._dynamo.maybe_mark_dynamic(length, 0)  # otherwise each length would be compiled
        at = torch.tensor([keys - 1], device=DEVICE)
        with sdpa_kernel(backend):
            return best_seconds(replayed(lambda: self.compiled[backend](length, at)))


class Decoding:
    def __init__(self):
        self.weights, self.batch, self.times = Weights(), None, {}

    def step(self, sequences, keys):
        if (sequences, keys) not in self.times:
            if self.batch is None or self.batch.sequences != sequences:
                self.batch = Batch(sequences, self.weights)
            self.times[sequences, keys] = self.batch.seconds(keys)
        return self.times[sequences, keys]

    def trace(self, slots, requests):
        slots, seconds, steps = min(slots, len(requests)), 0, 0
        for first in range(0, len(requests), slots):
            batch = requests[first:first + slots]
            prompt, output = (max(sizes) for sizes in zip(*batch))
            for keys in range(prompt, prompt + output):
                seconds += self.step(slots, min(CONTEXT, math.ceil(keys / LENGTHS) * LENGTHS))
            steps += output
        return seconds, steps


@torch.no_grad()
def main():
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = DTYPE == "tf32"
    torch._dynamo.config.recompile_limit = 64
    if not ON_GPU:
        torch.set_num_threads(int(sys.argv[4]))
    decoding = Decoding()
    on = f"CUDA graphs, cuDNN {torch.backends.cudnn.version()}" if ON_GPU else f"{sys.argv[4]} threads"
    serve_decoding(f"PyTorch {torch.__version__}, compiled, {on}", decoding.step, decoding.trace)


main()
