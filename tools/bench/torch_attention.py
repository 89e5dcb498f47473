#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention for `bench attention --compare` and `bench decode --compare`. Each line of standard
input requests one cell: "forward|backward|graph DTYPE LAYOUT B=…,H=…,…". The answer is "CUDNN FLASH" in milliseconds, with "-" for
a backend that does not support the cell. "graph" is the forward pass of calls=… calls with separate inputs in a CUDA graph.

"linear DTYPE - m=…,n=…,k=…,calls=…" requests F.linear of x [m, k] and weights [n, k] in such a graph. The answer is "MS -".

Times are measured as by ColdRuns in tools/bench/measure.h: 30 ms of warm-up, then 150 ms of queued runs. 256 MB are written before
each run, and the result is the median by CUDA events. For "graph" it is the median of 150 ms of graph launches."""
import statistics
import sys

from comparator import note, refuse, repeated, seconds_of, serve

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_models import DTYPES, event_ms
except ImportError as error:
    refuse(error)
DEVICE = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
if DEVICE.type != "cuda":
    refuse("the comparison with PyTorch requires a GPU")
if not torch.cuda.is_available():
    refuse("PyTorch finds no GPU")
torch.cuda.set_device(DEVICE.index or 0)

BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)


def timed(run, flush, runs):
    """Returns the milliseconds of each run. The runs are queued without waiting for the host."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in events:
        flush.zero_()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def median_ms(run):
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    timed(run, flush, 2)  # warm-up of the first call
    each = seconds_of(lambda: timed(run, flush, 5)) / 5
    timed(run, flush, max(1, int(0.03 / each)))
    return statistics.median(timed(run, flush, max(3, int(0.15 / each))))


def graph_ms(run, calls):
    """Returns the milliseconds per call in a CUDA graph of several calls. run(n) makes the nth call."""
    run(0)  # warm-up of the first call
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(calls):
            run(n)
    graph.replay()
    return statistics.median(repeated(lambda: event_ms(graph.replay, 2), 0.15)) / calls


def tensor(batch, heads, rows, width, dtype, layout):
    """Returns a tensor [B, heads, rows, width], stored in this order or as [B, rows, heads, width]."""
    shape = (batch, rows, heads, width) if layout == "BLHd" else (batch, heads, rows, width)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    return (x.transpose(1, 2) if layout == "BLHd" else x).requires_grad_()


def ms(backend, which, dtype, layout, cell):
    size = {k: int(v) for k, _, v in (word.partition("=") for word in cell.split(",")) if v}
    causal = "causal" in cell.split(",")
    if ({"window", "length", "softcap"} & size.keys() or "ragged" in cell.split(",")
            or (causal and size["L"] != size["T"])):
        return None  # windows and softcaps are unsupported, and the causal mask is aligned at the top left
    calls = size.get("calls", 1)
    inputs = [(tensor(size["B"], size["H"], size["L"], size["d"], DTYPES[dtype], layout),
               tensor(size["B"], size["Hk"], size["T"], size["d"], DTYPES[dtype], layout),
               tensor(size["B"], size["Hk"], size["T"], size["dv"], DTYPES[dtype], layout)) for _ in range(calls)]
    forward = lambda n=0: F.scaled_dot_product_attention(*inputs[n], is_causal=causal, enable_gqa=size["H"] != size["Hk"])
    q, k, v = inputs[0]
    with sdpa_kernel(backend):
        if which != "backward":
            with torch.no_grad():
                return graph_ms(forward, calls) if which == "graph" else median_ms(forward)
        o = forward()
        z = torch.randn_like(o)
        # autograd.grad returns the gradients without accumulating them.
        return median_ms(lambda: torch.autograd.grad(o, (q, k, v), z, retain_graph=True))


def linear_ms(dtype, sizes):
    m, n, k, calls = (int(word.split("=")[1]) for word in sizes.split(","))
    x = torch.randn(m, k, device="cuda", dtype=DTYPES[dtype])
    weights = [torch.randn(n, k, device="cuda", dtype=DTYPES[dtype]) for _ in range(calls)]
    with torch.no_grad():
        return graph_ms(lambda i: F.linear(x, weights[i]), calls)


def text_of(backend, *request):
    try:
        found = ms(backend, *request)
        return "-" if found is None else f"{found:.6f}"
    except RuntimeError as error:  # the backend does not support the call, or memory is insufficient
        note(f"{backend}: ", error)
        return "-"
    finally:
        torch.cuda.empty_cache()


def answer(request):
    which, dtype, _, cell = request
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    if which == "linear":
        return f"{linear_ms(dtype, cell):.6f} -"
    return " ".join(text_of(backend, *request) for backend in BACKENDS)


def main():
    torch.manual_seed(0)
    serve(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", answer)


main()
