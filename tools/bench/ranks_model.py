#!/usr/bin/env python3
"""Prints the tables in docs/notes/ranks-model.md. The bytes that ranks send follow from formulas. The scaling of attention and
training steps is modeled from measurements on one host and an assumed network. Needs no packages.

    python3 tools/bench/ranks_model.py

The model assumes no overlap. A rank runs its batches, reduce_scatter of bf16 gradients, its shard of the update, and finally
all_gather of the low-precision weight copies. There are g GPUs on each of h hosts, N = g·h ranks."""
import dataclasses

# Measured on 2 × H200 on one host, eccea6e (docs/notes/ranks.md): the 148 gradients of GPT-2 124M in bf16,
# packed and summed.
LIST = 2 * 124_439_808  # bytes
SCATTER = LIST / 2 / 694e-6  # bytes/s sent by a rank
GATHER = LIST / 1208e-6
WIDE_SUM = LIST / 1501e-6  # all_reduce into f32
SEND = 260e9  # bytes/s for a large message
MESSAGE = 2e-6  # seconds, between two GPUs of a host
# Measured on one H200 (docs/benchmarks.md). MEMORY is the rate of a copy in bytes/s. RATE is the GEMM rate,
# multiplied by the share that a step of GPT-2 124M reaches. FORWARD and BACKWARD are the rates of causal
# attention of 1×16×16384×128.
MEMORY = 4.05e12
RATE = 0.608 * 814.8e12  # FLOP/s
FORWARD, BACKWARD = 669e12, 575e12
# Assumed: 400 Gb/s per GPU with 45 GB/s of useful bandwidth, and the latency of a message between hosts.
NETWORK, NETWORK_MESSAGE = 45e9, 10e-6

LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 16)]  # GPUs per host, hosts


@dataclasses.dataclass
class Model:
    name: str
    parameters: int
    batch: int  # tokens
    seconds: float  # per step of one batch on one GPU, with the update
    step: int  # tokens per step, if the step size is fixed


def gpt2():
    """GPT-2 124M. Its step was measured: 2538673, docs/benchmarks.md."""
    return Model("GPT-2 124M", 124_475_904, 32 * 1024, 53.6e-3, 16 * 32 * 1024)


def llama_7b():
    """32 layers of width 4096, 32 heads of size 128, hidden layers of 11008, 32000 tokens. Its step time is computed: the FLOPs
    of ModelFlops in train_model.cpp, divided by RATE."""
    layers, width, hidden, vocabulary, context, rows = 32, 4096, 11008, 32000, 4096, 4
    products = layers * (4 * width * width + 3 * width * hidden) + width * vocabulary
    attention = rows * layers * 4 * width * context * (context + 1) / 2
    tokens = rows * context
    parameters = products + width * vocabulary + (2 * layers + 1) * width
    return Model("Llama 7B", parameters, tokens, (6 * products * tokens + 3 * attention) / RATE, 1 << 22)


@dataclasses.dataclass
class Exchange:
    """Returns the bytes that a rank sends in a step, and the seconds needed. Within a host, shards of Ψ/g gradients are scattered in
    bf16, and low-precision weight copies are gathered. Between hosts, sums of Ψ/(g·h) gradients are scattered in f32, and
    low-precision weight copies are gathered."""
    parameters: int
    g: int
    h: int

    def inside(self):
        return 2 * 2 * self.parameters * (self.g - 1) / self.g

    def between(self):
        return (4 + 2) * self.parameters / self.g * (self.h - 1) / self.h

    def seconds(self):
        nvlink = self.inside() / 2 / SCATTER + self.inside() / 2 / GATHER
        messages = 2 * (self.g - 1) * MESSAGE + 2 * (self.h - 1) * NETWORK_MESSAGE
        added = 4 * self.parameters / self.g * (1 + 1 / self.h) if self.h > 1 else 0  # read and written, in f32
        return nvlink + self.between() / NETWORK + messages + added / MEMORY


def update(model, ranks):
    """Seconds of AdamW, which moves 28 bytes of memory per parameter."""
    return 28 * model.parameters / ranks / MEMORY


def step(model, exchange, batches):
    """Seconds of a step with this number of batches per rank."""
    ranks = exchange.g * exchange.h
    return batches * (model.seconds - update(model, 1)) + update(model, ranks) + exchange.seconds()


def row(cells):
    print("| " + " | ".join(cells) + " |")


def table_of(model):
    print(f"{model.name}, Ψ = {model.parameters:,}: one GPU needs {model.seconds * 1e3:,.1f} ms for a batch of {model.batch:,} tokens.")
    print(f"In the last column, a step has {model.step:,} tokens.\n")
    row(["GPUs", "hosts", "NVLink, MB", "network, MB", "exchange, ms", "a batch each", "a step divided"])
    print("|" + "---|" * 7)
    whole = model.step / model.batch
    alone = step(model, Exchange(model.parameters, 1, 1), whole)
    for g, h in LAYOUTS:
        x, ranks = Exchange(model.parameters, g, h), g * h
        row([str(ranks), str(h), f"{x.inside() / 1e6:,.0f}", f"{x.between() / 1e6:,.0f}", f"{x.seconds() * 1e3:,.2f}",
             f"{model.seconds / step(model, x, 1):.3f}", f"{alone / ranks / step(model, x, whole / ranks):.3f}"])
    print()


def ring_table():
    """A causal sequence of 131,072 tokens in bf16, B 1, H 8, d 128. Keys and values make N − 1 hops in the
    forward pass, and N − 1 hops in the backward pass. Their f32 gradient sums make N hops in the backward
    pass."""
    heads, length, width = 8, 131072, 128
    flops = 2 * heads * length * (length + 1) / 2 * 2 * width
    row(["ranks", "key heads", "forward, MB", "attention, ms", "hops, ms", "share", "backward, MB", "attention, ms", "hops, ms", "share"])
    print("|" + "---|" * 10)
    for key_heads in (8, 2):
        for ranks in (2, 4, 8):
            numbers = key_heads * length / ranks * 2 * width
            cells = [str(ranks), str(key_heads)]
            for rate, work, sent in ((FORWARD, 1, 2 * (ranks - 1) * numbers),
                                     (BACKWARD, 2.5, (2 * (ranks - 1) + 4 * ranks) * numbers)):
                own, hops = work * flops / ranks / rate, sent / SEND
                cells += [f"{sent / 1e6:,.0f}", f"{own * 1e3:.1f}", f"{hops * 1e3:.2f}", f"{own / (own + hops):.3f}"]
            row(cells)
    print()


def compare_with_measured():
    """Compares the model with measurements: 12 layers of width 768, a vocabulary of 65, a complete update on each rank; eccea6e, 4 × H200, docs/notes/ranks.md."""
    parameters, alone = 12 * 7_087_872 + (65 + 1024 + 2) * 768, 39.56
    row(["ranks", "step by the model, ms", "share", "measured, ms", "share", "not in the model, ms"])
    print("|" + "---|" * 6)
    for ranks, measured in ((2, 41.95), (4, 42.36)):
        sent = 2 * parameters if ranks == 2 else (2 + 4) * parameters * (ranks - 1) / ranks
        modelled = alone + sent / WIDE_SUM * 1e3
        row([str(ranks), f"{modelled:.2f}", f"{alone / modelled:.3f}", f"{measured:.2f}", f"{alone / measured:.3f}",
             f"{measured - modelled:.2f}"])
    print()


def main():
    print(f"Rates of sending: reduce_scatter {SCATTER / 1e9:.0f} GB/s, all_gather {GATHER / 1e9:.0f}, sum into f32 {WIDE_SUM / 1e9:.0f}; "
          f"memory {MEMORY / 1e12:.2f} TB/s; network {NETWORK / 1e9:.0f} GB/s.\n")
    compare_with_measured()
    ring_table()
    for model in (gpt2(), llama_7b()):
        table_of(model)


if __name__ == "__main__":
    main()
