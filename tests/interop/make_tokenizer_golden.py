#!/usr/bin/env python3
"""Writes tests/io/tokenizers/NAME/. Each folder has a small tokenizer, and the ids that the package
`tokenizers` returns for some strings.

usage: make_tokenizer_golden.py [NAME...]

Needs tokenizers 0.23.3. tokenizer.json is trained here. cases.json contains strings, their ids with and
without the tokens around a prompt, and the decoded strings. Some files also contain a checksum of ids, for a
string with all assigned code points.

The file checksums.json has a checksum for each rule of io/text/words.h. The checksum covers the ends of all
words in a string with all assigned code points. The ids of few vocabularies depend on all of these ends.
There is also a checksum of such strings in NFC.
"""
import importlib.metadata
import json
import pathlib
import sys

import tokenizer_strings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert importlib.metadata.version("tokenizers") == "0.23.3"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = GPT4O.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
             "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
TEXT = [(ROOT / name).read_text() for name in ("CONTRIBUTING.md", "docs/models.md")] + tokenizer_strings.HARD * 3


CASED = (  # letters of alphabets with two cases
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
DEEPSEEK = ["[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-\ud7ff]+"]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"]


def splits(*patterns, more=(), removes=False):
    kind = dict(behavior="removed", invert=True) if removes else dict(behavior="isolated")
    steps = [*(pre_tokenizers.Split(Regex(p), **kind) for p in patterns), *more]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(pre_tokenizer, vocabulary=900, **options):
    made = Tokenizer(models.BPE(**options))
    made.pre_tokenizer = pre_tokenizer
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False))
    return made


def on_characters(normalizer, pre_tokenizer, vocabulary=1200):
    """A tokenizer like Llama 2's. It is trained on characters. Then the 256 bytes are added to the
    vocabulary, and the merges do not change."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=vocabulary, limit_alphabet=150, special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
        show_progress=False))
    file = json.loads(trained.to_str())
    file["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    file["added_tokens"] = file["added_tokens"][:3]
    made = Tokenizer.from_str(json.dumps(file))
    made.pre_tokenizer = pre_tokenizer
    if normalizer:
        made.normalizer = normalizer
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made


def as_sentencepiece(tokenizer):
    """A tokenizer with all merges that form a token, grouped by token. Files that were converted from
    SentencePiece have this form."""
    file = json.loads(tokenizer.to_str())
    # Excludes the special tokens that occur in the strings.
    kept = [t for t in sorted(file["model"]["vocab"], key=file["model"]["vocab"].get) if "<|" not in t and not t.endswith("|>")]
    vocabulary, order = {t: i for i, t in enumerate(kept)}, {}
    file["model"]["vocab"] = vocabulary
    for left, right in file["model"]["merges"]:
        if left + right in vocabulary:
            order.setdefault(left + right, len(order))
    order.update((t, len(order)) for t in vocabulary if len(t) > 1 and t not in order and not t.startswith("<"))
    file["model"]["merges"] = [[t[:i], t[i:]] for t in sorted(order, key=order.get) for i in range(1, len(t))
                               if t[:i] in vocabulary and t[i:] in vocabulary]
    return Tokenizer.from_str(json.dumps(file))


def tokenizers():
    gpt2 = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    gpt2.add_special_tokens(["<|endoftext|>"])
    yield "gpt2", gpt2, "a?b"

    llama3 = json.loads(byte_level(splits(LLAMA3)).to_str())
    size = len(llama3["model"]["vocab"])
    llama3["model"]["vocab"]["Ġquokka"] = size  # no merges form this token
    llama3["model"]["ignore_merges"] = True
    llama3 = Tokenizer.from_str(json.dumps(llama3))
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        "<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", size + 1)])])
    yield "llama3", llama3, "a?b"

    qwen2 = byte_level(splits(QWEN2))
    qwen2.normalizer = normalizers.NFC()
    qwen2.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    qwen2.add_tokens(["<tool_call>"])
    yield "qwen2", qwen2, "a?b"

    # This file has padding and truncation settings, like a file that was saved after use. They are not part
    # of the tokenizer.
    qwen35 = byte_level(splits(QWEN35))
    qwen35.normalizer = normalizers.NFC()
    qwen35.add_special_tokens(["<|endoftext|>"])
    yield "qwen35", qwen35, "a?b"
    gpt4o = byte_level(splits(GPT4O, removes=True))
    gpt4o.add_special_tokens(["<|endoftext|>"])
    yield "gpt4o", gpt4o, "a?b ?A?B?c"
    tekken = byte_level(splits(TEKKEN))
    tekken.add_special_tokens(["<s>", "</s>"])
    tekken.post_processor = processors.RobertaProcessing(("</s>", tekken.token_to_id("</s>")), ("<s>", tekken.token_to_id("<s>")))
    yield "tekken", tekken, "a?b ?A?B?c"

    deepseek3 = byte_level(splits(*DEEPSEEK3))
    deepseek3.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    yield "deepseek3", deepseek3, "a?b"

    digits = [pre_tokenizers.Digits(individual_digits=True)]
    yield "deepseek", byte_level(splits(*DEEPSEEK, more=digits)), "a?b ?1?2  ?'s?\n ?? x?  "
    yield "deepseek_coder", byte_level(splits(*DEEPSEEK_CODER, more=digits)), "a?b ?1?2  ?'s?\n ?? x?  "
    yield "smollm", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                        pre_tokenizers.ByteLevel(add_prefix_space=False)])), "a?b"
    yield "prefix_space", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), 500), ""

    llama2 = on_characters(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None)
    yield "llama2", llama2, "a?b"
    yield "sentencepiece", as_sentencepiece(llama2), ""
    for scheme, split in (("first", False), ("always", True)):
        yield f"metaspace_{scheme}", on_characters(None, pre_tokenizers.Metaspace("▁", scheme, split)), ""

    added = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 400)
    added.normalizer = normalizers.NFC()
    added.add_tokens([AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
                      AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("<", normalized=False),
                      AddedToken("word", single_word=True, normalized=False), AddedToken("cafe\u0301", normalized=True),
                      AddedToken("caf", normalized=False, special=True), AddedToken("  ", normalized=True),
                      AddedToken("<l><r>", normalized=False), AddedToken(" tail", rstrip=True, normalized=True)])
    yield "added", added, "?word word? ?<l>? <r>?"


# Uses all assigned code points and some others. compare_tokenizers.py tests all code points.
CODE_POINTS = [*range(0xD800), *range(0xE000, 0x33000), *range(0xE0000, 0xE1000)]


def with_every_code_point(template):
    return [template.replace("?", chr(c)) for c in CODE_POINTS]


def checksum(numbers):
    """Returns the FNV-1a hash of numbers instead of bytes."""
    value = 0xCBF29CE484222325
    for number in numbers:
        value = ((value ^ number) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def ids_of(tokenizer, template):
    texts = with_every_code_point(template)
    for first in range(0, len(texts), 0x4000):
        for encoding in tokenizer.encode_batch(texts[first:first + 0x4000], add_special_tokens=False):
            yield from encoding.ids


def word_ends(pre_tokenizer):
    for text in with_every_code_point("a?b ?1?2345  ?'s?\n? ??  ?x"):
        at = 0
        for piece, _ in pre_tokenizer.pre_tokenize_str(text):
            at += len(piece.encode())
            yield at


def write_checksums(path):
    rules = {"gpt2": GPT2, "llama3": LLAMA3, "qwen2": QWEN2, "qwen35": QWEN35, "gpt4o": GPT4O, "tekken": TEKKEN, "deepseek_digits": DEEPSEEK3[0], "deepseek_ideographs": DEEPSEEK3[1],
             "deepseek_words": DEEPSEEK3[2]}
    made = {name: checksum(word_ends(pre_tokenizers.Split(Regex(pattern), "isolated"))) for name, pattern in rules.items()}
    made["each_digit"] = checksum(word_ends(pre_tokenizers.Digits(individual_digits=True)))
    made["digits"] = checksum(word_ends(pre_tokenizers.Digits(individual_digits=False)))
    nfc = normalizers.NFC()
    made["nfc"] = checksum(byte for text in with_every_code_point("?a?\u0334 \u0345? ?\u0327 ?\u0301\u11a8")
                           for byte in nfc.normalize_str(text).encode())
    path.write_text(json.dumps(made, indent=1) + "\n")


def texts(name, tokenizer):
    yield from [*tokenizer_strings.HARD, "a quokka Quokka quokkas"]
    yield from tokenizer_strings.random_strings(tokenizer, 300, 1)
    if name == "added":
        pieces = ["<l>", "<r>", "<lr>", "<", "word", "café", "cafe\u0301", "caf", "  ", " ", "\n", "a", "_", "1", "\u0301", ".", " tail", "\u2003"]
        for a in pieces:
            for b in pieces:
                for c in ("", "<l>", " word", "<r> "):
                    yield a + b + c


if __name__ == "__main__":
    only = sys.argv[1:]  # names of tokenizers; default: all
    if not only:
        write_checksums(ROOT / "tests/io/tokenizers/checksums.json")
    for name, tokenizer, template in tokenizers():
        if only and name not in only:
            continue
        folder = ROOT / "tests/io/tokenizers" / name
        folder.mkdir(parents=True, exist_ok=True)
        file = json.loads(tokenizer.to_str())
        if name == "qwen35":
            file.update(truncation=dict(direction="Right", max_length=5, strategy="LongestFirst", stride=0),
                        padding=dict(strategy=dict(Fixed=64), direction="Right", pad_to_multiple_of=None, pad_id=0, pad_type_id=0, pad_token="!"))
        (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")
        lines = []
        for text in texts(name, tokenizer):
            case = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids,
                    "whole": tokenizer.encode(text).ids}
            case["decoded"] = tokenizer.decode(case["ids"], skip_special_tokens=False)
            if case["whole"] == case["ids"]:
                del case["whole"]
            if case["decoded"] == text:
                del case["decoded"]
            lines.append(json.dumps(case, ensure_ascii=True, separators=(",", ":")))
        code_points = json.dumps(checksum(ids_of(tokenizer, template)) if template else "")
        (folder / "cases.json").write_text('{"template":' + json.dumps(template) + ',"code_points":' + code_points + ',"cases":[\n' + ",\n".join(lines) + "\n]}\n")
        print(name, tokenizer.get_vocab_size(), len(lines), (folder / "cases.json").stat().st_size)
