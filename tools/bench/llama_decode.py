#!/usr/bin/env python3
"""Times llama.cpp's decoding of a GPT-2 on the CPU for `bench generate --compare` and `bench serve --compare`. It calls the C
functions of the library that the Python package xllamacpp contains. Arguments are the device, the dtype,
LAYERSxHEADSxWIDTHxCONTEXTxVOCABULARY and the number of threads. Requests and answers are described in comparator.serve_decoding.

Weights are random and in f32. The Python package gguf writes them into a temporary file. All other settings are llama.cpp's
defaults: the cache is in f16, with a separate part for each sequence. Sampling is greedy. A sequence of a trace starts when a
slot is free, and its prompt is processed in the same batches as the tokens of other sequences."""
import ctypes
import glob
import os
import sys
import tempfile
import time

from comparator import refuse, repeated, seconds_of, serve_decoding

try:
    import gguf
    import numpy as np
    import xllamacpp
except ImportError as error:
    refuse(error)
DTYPE, SHAPE, THREADS = sys.argv[2], sys.argv[3], int(sys.argv[4])
if DTYPE != "f32":
    refuse("the comparison with llama.cpp supports only f32")
LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = (int(n) for n in SHAPE.split("x"))


class Params(ctypes.Structure):
    """Parameters of a model or a context. Later fields keep their defaults. The buffer is large enough for any version."""
    _fields_ = [(name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")]
    _fields_ += [("rest", ctypes.c_uint8 * 1008)]


class Batch(ctypes.Structure):
    """A llama_batch with arrays for `most` tokens."""
    _fields_ = [("n_tokens", ctypes.c_int32)] + [
        (name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")]

    def __init__(self, most):
        super().__init__()
        self.tokens, self.positions, self.texts = (np.zeros(most, np.int32) for _ in range(3))
        self.wanted, self.ones = np.zeros(most, np.int8), np.ones(most, np.int32)
        self.pointers = self.texts.ctypes.data + 4 * np.arange(most, dtype=np.uint64)
        self.token, self.pos, self.logits = (a.ctypes.data for a in (self.tokens, self.positions, self.wanted))
        self.n_seq_id, self.seq_id = self.ones.ctypes.data, self.pointers.ctypes.data

    def add(self, text, tokens, position):
        """Adds tokens of a sequence, starting at a position. Logits are computed for the last token."""
        at = slice(self.n_tokens, self.n_tokens + len(tokens))
        self.tokens[at], self.texts[at], self.wanted[at] = tokens, text, 0
        self.positions[at] = np.arange(position, position + len(tokens))
        self.n_tokens = at.stop
        self.wanted[at.stop - 1] = 1


def load_library():
    library = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0])
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ("log_set", None, [pointer, pointer]), ("model_default_params", Params, []), ("context_default_params", Params, []),
            ("model_load_from_file", pointer, [ctypes.c_char_p, Params]), ("init_from_model", pointer, [pointer, Params]),
            ("set_n_threads", None, [pointer, number, number]), ("n_seq_max", ctypes.c_uint32, [pointer]),
            ("decode", number, [pointer, Batch]), ("get_logits", pointer, [pointer]), ("free", None, [pointer]),
            ("get_memory", pointer, [pointer]), ("memory_seq_rm", ctypes.c_bool, [pointer, number, number, number])):
        function = getattr(library, "llama_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def write_model(path):
    numbers = np.random.default_rng(0)
    file = gguf.GGUFWriter(path, "gpt2")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(4 * WIDTH)
    file.add_head_count(HEADS)
    file.add_layer_norm_eps(1e-5)
    file.add_vocab_size(VOCABULARY)
    file.add_tokenizer_model("no_vocab")

    def add(name, *shape, mean=0):
        file.add_tensor(name, (mean + 0.02 * numbers.standard_normal(shape)).astype(np.float32))

    def add_layer(name, *shape, mean=0):
        add(name + ".weight", *shape, mean=mean)
        file.add_tensor(name + ".bias", np.zeros(shape[0], np.float32))

    add("token_embd.weight", VOCABULARY, WIDTH)
    add("position_embd.weight", CONTEXT, WIDTH)
    add_layer("output_norm", WIDTH, mean=1)
    for n in range(LAYERS):
        add_layer(f"blk.{n}.attn_norm", WIDTH, mean=1)
        add_layer(f"blk.{n}.attn_qkv", 3 * WIDTH, WIDTH)
        add_layer(f"blk.{n}.attn_output", WIDTH, WIDTH)
        add_layer(f"blk.{n}.ffn_norm", WIDTH, mean=1)
        add_layer(f"blk.{n}.ffn_up", 4 * WIDTH, WIDTH)
        add_layer(f"blk.{n}.ffn_down", WIDTH, 4 * WIDTH)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


class Context:
    """Creates a cache for this number of sequences."""

    def __init__(self, library, model, texts):
        self.library, self.texts = library, texts
        params = library.llama_context_default_params()
        params.n_ctx, params.n_seq_max = texts * CONTEXT, texts
        self.most = params.n_batch
        self.context = library.llama_init_from_model(model, params)
        if not self.context or library.llama_n_seq_max(self.context) != texts:
            raise RuntimeError("llama.cpp cannot create this context")
        library.llama_set_n_threads(self.context, THREADS, THREADS)
        self.memory = library.llama_get_memory(self.context)
        self.batch = Batch(self.most)

    def close(self):
        self.library.llama_free(self.context)

    def decode(self):
        """Runs the batch and empties it. Returns the most likely next token for each token with logits."""
        rows = int(self.batch.wanted[:self.batch.n_tokens].sum())
        if self.library.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        self.batch.n_tokens = 0
        logits = ctypes.cast(self.library.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(logits, (rows, VOCABULARY)).argmax(-1) if rows else []

    def cut(self, text, length):
        self.library.llama_memory_seq_rm(self.memory, text, length, -1)


def read_before(context, keys):
    """Adds tokens until every sequence has this number of keys."""
    for text in range(context.texts):
        context.cut(text, 0)
        for first in range(0, keys, context.most):
            context.batch.add(text, np.arange(first, min(keys, first + context.most)) % VOCABULARY, first)
            context.decode()


def step_seconds(context, keys, least=0.3):
    read_before(context, keys - 1)

    def step():
        for text in range(context.texts):
            context.batch.add(text, [text % VOCABULARY], keys - 1)
        context.decode()

    def measure():
        seconds = seconds_of(step)
        for text in range(context.texts):
            context.cut(text, keys - 1)
        return seconds

    return min(repeated(measure, least))


def replay(context, requests):
    waiting = list(reversed(requests))
    running, steps = {}, 0  # by slot: the token to read, its position, and the number of tokens left to
                            # generate
    begin = time.perf_counter()
    while waiting or running:
        wanted = []
        for slot, (token, position, _) in running.items():
            context.batch.add(slot, [token], position)
            wanted.append(slot)
        for slot in range(context.texts):
            if slot in running or not waiting or context.batch.n_tokens + waiting[-1][0] > context.most:
                continue
            prompt, output = waiting.pop()
            context.batch.add(slot, np.arange(prompt) * (slot + 7) % VOCABULARY, 0)
            running[slot] = (0, prompt - 1, output)
            wanted.append(slot)
        for slot, token in zip(wanted, context.decode()):
            _, position, left = running[slot]
            running[slot] = (token, position + 1, left - 1)
            if left == 1:
                context.cut(slot, 0)
                del running[slot]
        steps += 1
    return time.perf_counter() - begin, steps


def main():
    library = load_library()
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.llama_log_set(quiet, None)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        write_model(path)
        model = library.llama_model_load_from_file(path.encode(), library.llama_model_default_params())
    if not model:
        refuse("llama.cpp cannot load the model")
    context = None

    def with_texts(texts):
        nonlocal context
        if context is None or context.texts != texts:
            if context is not None:
                context.close()
            context = Context(library, model, texts)
        return context

    features = [word for word in ("AVX2", "AVX512") if word + " = 1" in xllamacpp.get_system_info()]
    serve_decoding(
        f"llama.cpp of xllamacpp {xllamacpp.__version__}, built for {features[-1] if features else 'any processor'}",
        lambda texts, keys: step_seconds(with_texts(texts), keys), lambda slots, requests: replay(with_texts(slots), requests))


main()
