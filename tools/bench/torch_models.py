"""The models of `train` in PyTorch. Their parameters have the same names and shapes as in checkpoints. A model is built from the
settings in a checkpoint's metadata."""
import mmap

import torch
import torch.nn.functional as F
from torch import nn

from run_files import header

DTYPES = dict(bf16=torch.bfloat16, f16=torch.float16, f32=torch.float32, tf32=torch.float32, f64=torch.float64)


class Config:
    """Settings of a model as in checkpoints: {"layers": "4", …}. If a value is 0 or missing, the default is used."""

    def __init__(self, settings):
        self.settings, self.model = settings, settings["model"]
        self.layers, self.heads, self.width, self.context, self.vocabulary = (
            self.size(name) for name in ("layers", "heads", "width", "context", "vocabulary"))
        self.bias = settings.get("bias") == "true"  # of the layers of a GPT
        self.theta = float(settings.get("theta", 1e4))
        self.eps = float(settings.get("eps", 1e-5 if self.model == "gpt" else 1e-6))

    def size(self, name, otherwise=0):
        return int(self.settings.get(name, 0)) or otherwise


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


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
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)  # fused only if all dtypes are equal


class GptAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.c_attn, self.c_proj = linear(c.width, 3 * c.width, c.bias), linear(c.width, c.width, c.bias)

    def forward(self, x):
        return self.c_proj(attend(*(by_head(part, self.heads) for part in self.c_attn(x).chunk(3, 2))))


class GptMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        inner = c.size("mlp_width", 4 * c.width)
        self.c_fc, self.c_proj = linear(c.width, inner, c.bias), linear(inner, c.width, c.bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class GptBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(c.width, eps=c.eps, bias=c.bias) for _ in range(2))
        self.attn, self.mlp = GptAttention(c), GptMlp(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Rope(nn.Module):
    """Rotates pairs of elements of a head. A pair has an element of each half, or two neighbors."""

    def __init__(self, c, width, interleaved):
        super().__init__()
        self.interleaved = interleaved
        angles = torch.outer(torch.arange(c.context), c.theta ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        a, b = (x[..., 0::2], x[..., 1::2]) if self.interleaved else x.chunk(2, -1)
        rotated = a * self.cos - b * self.sin, a * self.sin + b * self.cos
        return (torch.stack(rotated, -1).flatten(-2) if self.interleaved else torch.cat(rotated, -1)).to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.key_heads, width = c.heads, c.size("key_heads", c.heads), c.width // c.heads
        self.q_proj, self.o_proj = linear(c.width, c.width), linear(c.width, c.width)
        self.k_proj, self.v_proj = (linear(c.width, self.key_heads * width) for _ in range(2))
        self.rope = Rope(c, width, False)

    def forward(self, x):
        q, k = self.rope(by_head(self.q_proj(x), self.heads)), self.rope(by_head(self.k_proj(x), self.key_heads))
        return self.o_proj(attend(q, k, by_head(self.v_proj(x), self.key_heads)))


class LatentAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.width = c.heads, c.width // c.heads
        self.latent, self.rotary = c.size("latent"), c.size("rope_width")
        queries, compressed = c.heads * (self.width + self.rotary), c.size("query_latent")
        if compressed:
            self.q_a_proj, self.q_b_proj = linear(c.width, compressed), linear(compressed, queries)
            self.q_a_layernorm = RmsNorm(compressed, 1e-6)
        else:
            self.q_proj = linear(c.width, queries)
        self.kv_a_proj_with_mqa = linear(c.width, self.latent + self.rotary)
        self.kv_a_layernorm = RmsNorm(self.latent, 1e-6)
        self.kv_b_proj = linear(self.latent, c.heads * 2 * self.width)
        self.o_proj = linear(c.heads * self.width, c.width)
        self.rope = Rope(c, self.rotary, True)

    def forward(self, x):
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if hasattr(self, "q_a_proj") else self.q_proj(x)
        q, q_rotary = by_head(q, self.heads).split([self.width, self.rotary], -1)
        latent, k_rotary = self.kv_a_proj_with_mqa(x).split([self.latent, self.rotary], -1)
        k, v = by_head(self.kv_b_proj(self.kv_a_layernorm(latent)), self.heads).split(self.width, -1)
        k_rotary = self.rope(k_rotary.unsqueeze(1)).expand(-1, self.heads, -1, -1)
        return self.o_proj(attend(torch.cat([q, self.rope(q_rotary)], -1), torch.cat([k, k_rotary], -1), v))


class GatedMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        inner = c.size("mlp_width", (8 * c.width // 3 + 7) // 8 * 8)
        self.gate_proj, self.up_proj, self.down_proj = linear(c.width, inner), linear(c.width, inner), linear(inner, c.width)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RotaryBlock(nn.Module):
    def __init__(self, c, attention):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(c.width, c.eps), RmsNorm(c.width, c.eps)
        self.self_attn, self.mlp = attention(c), GatedMlp(c)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.vocabulary, c.width), nn.Embedding(c.context, c.width)
        self.h = nn.ModuleList(GptBlock(c) for _ in range(c.layers))
        self.ln_f = nn.LayerNorm(c.width, eps=c.eps, bias=c.bias)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class Rotary(nn.Module):
    def __init__(self, c, attention):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocabulary, c.width)
        self.layers = nn.ModuleList(RotaryBlock(c, attention) for _ in range(c.layers))
        self.norm = RmsNorm(c.width, c.eps)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x)
        return F.linear(self.norm(x), self.embed_tokens.weight)


class Loss(nn.Module):
    """A model and its loss. The model is a submodule, so that its weights have the right names."""

    def __init__(self, c):
        super().__init__()
        kinds = dict(gpt=("transformer", Gpt), llama=("model", lambda c: Rotary(c, LlamaAttention)),
                     deepseek=("model", lambda c: Rotary(c, LatentAttention)))
        self.inner, make = kinds[c.model]
        self.add_module(self.inner, make(c))

    def forward(self, tokens, targets):
        logits = getattr(self, self.inner)(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def saved_weights(path):
    """The tensors of an f32 safetensors file, which is memory-mapped."""
    _, tensors, start = header(path)
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    weights = {}
    for name, about in tensors.items():
        begin, end = about["data_offsets"]
        weights[name] = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4,
                                         offset=start + begin).view(about["shape"])
    return weights


def new_model(config, weights, device):
    model = Loss(config)
    model.load_state_dict(weights)  # raises an error unless all names and shapes are equal
    return model.to(device)


def new_adamw(model, rate, weight_decay=0.1, **others):
    """Returns AdamW with the defaults of `train`: weight decay for two-dimensional weights, but not for gains."""
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=weight_decay),
              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]
    return torch.optim.AdamW(groups, rate, **{**dict(betas=(0.9, 0.99), eps=1e-8, fused=True), **others})


def spread_ids(rows, config, device):
    """Returns the tokens and targets of a batch, as in TrainBatch in measure.h."""
    i = torch.arange(rows * config.context, device=device).view(rows, config.context)
    return i * 7919 % config.vocabulary, i * 104729 % config.vocabulary


def training_step(run, parameters, optimizer, batch, device, bf16):
    """Returns a function that runs a step, with gradients clipped by their norm, and returns the loss and the norm. As usual in
    PyTorch, weights, moments and the update are f32, and the forward pass uses autocast to bf16."""

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = run(*batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), norm

    return step


def event_ms(run, count):
    """Returns the milliseconds per call for a number of calls, by the GPU's clock."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(count):
        run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / count
