#!/usr/bin/env python3
"""Times PyTorch's training step for `bench train --compare`: arguments are the device, the dtype, the threads, the least
seconds to measure for, the rows of a batch, a safetensors file with the initial weights, and the settings of the model as
checkpoints have them (key=value). Requests, one a line on standard input: eager, compiled or graphs. The answer is

    BEST MEDIAN PEAK LOSS NORM LOSS2

milliseconds of a step, bytes of the GPU's memory at the peak ("-" on the CPU), and the loss and gradient norm of the first
step, with the loss of the second, by which the caller knows that both train the same model; or "- REASON". The first line of
output is "ready VERSIONS" or "none REASON".

As usual in PyTorch, weights, moments and update are f32, and the forward pass runs under autocast in bf16. AdamW is fused,
gradients are clipped by their norm. "graphs" is torch.compile's mode that replays CUDA graphs of forward and backward."""
import json
import mmap
import statistics
import struct
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    sys.exit(print(f"none {error}"))
DEVICE, DTYPE, THREADS, SECONDS, BATCH, WEIGHTS = sys.argv[1:7]
SETTINGS = dict(word.split("=", 1) for word in sys.argv[7:])
ON_GPU = DEVICE.startswith("cuda")
if ON_GPU and not torch.cuda.is_available():
    sys.exit(print("none PyTorch sees no GPU"))
LEARNING_RATE = 1e-4  # as bench_learning_rate


def setting(name, otherwise=0):
    """A size; 0 and what is not there stand for a default."""
    return int(SETTINGS.get(name, 0)) or otherwise


LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = (setting(n) for n in ("layers", "heads", "width", "context", "vocabulary"))
THETA, EPS = float(SETTINGS.get("theta", 1e4)), float(SETTINGS.get("eps", 1e-5 if SETTINGS["model"] == "gpt" else 1e-6))


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def by_head(x, heads):
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def attend(q, k, v):
    groups = dict(enable_gqa=True) if q.shape[1] != k.shape[1] else {}
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, **groups)
    return o.transpose(1, 2).flatten(2)


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)  # fused for one dtype only


class GptAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.c_proj(attend(*(by_head(part, HEADS) for part in self.c_attn(x).split(WIDTH, 2))))


class GptMlp(nn.Module):
    def __init__(self):
        super().__init__()
        inner = setting("mlp_width", 4 * WIDTH)
        self.c_fc, self.c_proj = linear(WIDTH, inner), linear(inner, WIDTH)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(WIDTH, eps=EPS, bias=False) for _ in range(2))
        self.attn, self.mlp = GptAttention(), GptMlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Rope(nn.Module):
    """Turns pairs: of the first and the second half of a head's numbers, or of neighbours."""

    def __init__(self, width, interleaved):
        super().__init__()
        self.interleaved = interleaved
        angles = torch.outer(torch.arange(CONTEXT), THETA ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        a, b = (x[..., 0::2], x[..., 1::2]) if self.interleaved else x.chunk(2, -1)
        turned = a * self.cos - b * self.sin, a * self.sin + b * self.cos
        return (torch.stack(turned, -1).flatten(-2) if self.interleaved else torch.cat(turned, -1)).to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key_heads, width = setting("key_heads", HEADS), WIDTH // HEADS
        self.q_proj, self.o_proj = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k_proj, self.v_proj = (linear(WIDTH, self.key_heads * width) for _ in range(2))
        self.rope = Rope(width, False)

    def forward(self, x):
        q, k = self.rope(by_head(self.q_proj(x), HEADS)), self.rope(by_head(self.k_proj(x), self.key_heads))
        return self.o_proj(attend(q, k, by_head(self.v_proj(x), self.key_heads)))


class LatentAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.latent, self.turning, self.width = setting("latent"), setting("rope_width"), WIDTH // HEADS
        queries, compressed = HEADS * (self.width + self.turning), setting("query_latent")
        if compressed:
            self.q_a_proj, self.q_b_proj = linear(WIDTH, compressed), linear(compressed, queries)
            self.q_a_layernorm = RmsNorm(compressed, 1e-6)
        else:
            self.q_proj = linear(WIDTH, queries)
        self.kv_a_proj_with_mqa = linear(WIDTH, self.latent + self.turning)
        self.kv_a_layernorm = RmsNorm(self.latent, 1e-6)
        self.kv_b_proj = linear(self.latent, HEADS * 2 * self.width)
        self.o_proj = linear(HEADS * self.width, WIDTH)
        self.rope = Rope(self.turning, True)

    def forward(self, x):
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if hasattr(self, "q_a_proj") else self.q_proj(x)
        q, q_turned = by_head(q, HEADS).split([self.width, self.turning], -1)
        latent, k_turned = self.kv_a_proj_with_mqa(x).split([self.latent, self.turning], -1)
        k, v = by_head(self.kv_b_proj(self.kv_a_layernorm(latent)), HEADS).split(self.width, -1)
        k_turned = self.rope(k_turned.unsqueeze(1)).expand(-1, HEADS, -1, -1)
        return self.o_proj(attend(torch.cat([q, self.rope(q_turned)], -1), torch.cat([k, k_turned], -1), v))


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        inner = setting("mlp_width", (8 * WIDTH // 3 + 7) // 8 * 8)
        self.gate_proj, self.up_proj, self.down_proj = linear(WIDTH, inner), linear(WIDTH, inner), linear(inner, WIDTH)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RotaryBlock(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(WIDTH, EPS), RmsNorm(WIDTH, EPS)
        self.self_attn, self.mlp = attention(), GatedMlp()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(GptBlock() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH, eps=EPS, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class Rotary(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(RotaryBlock(attention) for _ in range(LAYERS))
        self.norm = RmsNorm(WIDTH, EPS)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x)
        return F.linear(self.norm(x), self.embed_tokens.weight)


class Loss(nn.Module):
    """A model under the name that its weights have, and its loss."""

    def __init__(self):
        super().__init__()
        kinds = dict(gpt=("transformer", Gpt), llama=("model", lambda: Rotary(LlamaAttention)),
                     deepseek=("model", lambda: Rotary(LatentAttention)))
        self.inner, make = kinds[SETTINGS["model"]]
        self.add_module(self.inner, make())

    def forward(self, tokens, targets):
        logits = getattr(self, self.inner)(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def saved_weights():
    """The tensors of the file, which is mapped."""
    with open(WEIGHTS, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, about in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        tensors[name] = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4,
                                         offset=start + begin).view(about["shape"])
    return tensors


def new_model(weights):
    model = Loss()
    model.load_state_dict(weights)  # an error unless all names and shapes are equal
    return model.to(DEVICE)


def batch():
    i = torch.arange(int(BATCH) * CONTEXT, device=DEVICE).view(int(BATCH), CONTEXT)
    return i * 7919 % VOCABULARY, i * 104729 % VOCABULARY


def synchronize():
    if ON_GPU:
        torch.cuda.synchronize()


def measure(way, weights):
    torch.compiler.reset()
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = new_model(weights)
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=0.1),
              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, LEARNING_RATE, betas=(0.9, 0.99), eps=1e-8, fused=True)
    run = model if way == "eager" else torch.compile(model, mode="reduce-overhead" if way == "graphs" else None)
    tokens, targets = batch()

    def step():
        with torch.autocast(DEVICE.split(":")[0], torch.bfloat16, enabled=DTYPE == "bf16"):
            loss = run(tokens, targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), norm

    loss, norm = (x.item() for x in step())
    second = step()[0].item()
    for _ in range(3):
        step()
    synchronize()
    times, count, end = [], 20 if ON_GPU else 1, time.perf_counter() + float(SECONDS)
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        times.append(1e3 * (time.perf_counter() - begin) / count)
    peak = torch.cuda.max_memory_allocated() if ON_GPU else "-"
    return f"{min(times):.6f} {statistics.median(times):.6f} {peak} {loss:.8g} {norm:.8g} {second:.8g}"


def main():
    if DTYPE not in ("f32", "tf32", "bf16"):
        sys.exit(print(f"none its steps are measured in f32, tf32 and bf16, not in {DTYPE}"))
    torch.backends.cuda.matmul.allow_tf32 = DTYPE == "tf32"
    if ":" in DEVICE:
        torch.cuda.set_device(DEVICE)
    if not ON_GPU:
        torch.set_num_threads(int(THREADS))
    try:
        weights = saved_weights()  # the file itself is gone after "ready"
        count = sum(p.numel() for p in new_model(weights).parameters())
    except (RuntimeError, KeyError) as error:
        sys.exit(print("none its model is another: " + " ".join(str(error).split())))
    on = torch.cuda.get_device_name() if ON_GPU else f"{THREADS} threads"
    print(f"ready PyTorch {torch.__version__}, {on}, {count:,} parameters", flush=True)
    for line in sys.stdin:
        way = line.strip()
        if way == "graphs" and not ON_GPU:
            answer = "- there are no CUDA graphs on the CPU"
        else:
            try:
                answer = measure(way, weights)
            except Exception as error:
                answer = "- " + (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(answer, flush=True)


main()
