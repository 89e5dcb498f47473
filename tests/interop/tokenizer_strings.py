"""Strings for compare_tokenizers.py and make_tokenizer_golden.py. Different tokenizers give different ids for
them."""
import random

HARD = [
    "", " ", "  ", "\n", "\t", "a", "Hello world", " Hello  world ", "Hello, y'all! How are you 😁 ?", "\x1f-a", "¼-a", "Ⅵ-a",
    "a 〇b", "\ufeff//", "Cửa Việt", "\n\x0b  ", "a\xa0\xa0\x00b", "\xa0aC", "\u2029 \ua3e4", " \u2e4e", "a\u030a",
    "\u00e5 A\u030a \u212b", "\U000ac517", "<s>a", "a </s> b", "<|endoftext|>", "a<|endoftext|> b", "'RE", "'re", "'\u017f",
    "I'\u017fx I'S I'LL don't DON'T we'Ve'D 'K", "3333", "1234567 12 1", "x²y³ ½ Ⅷ 〇 ௧௨", "👨‍👩‍👧‍👦 ❤️ 🏳️‍🌈 🦙", "\r\n\r\n x", "a\r\nb\n\n\nc\n \n d",
    " \n \n", "   \n   a", "a\n b", "a \n b", ".\n\n.", "!!!\r\n\r\n!!", "नमस्ते दुनिया", "สวัสดีชาวโลก", "ព្រះរាជា", "한국어 조선말 각", "\u1100\u1161\u11a8",
    "東京都に行く。カタカナ ひらがな々〆", "中文　全角　空格", "Ελληνικά ΆΈ", "Русский текст ёЁ", "اللغة العربية", "עברית שָׁלוֹם", "Tiếng Việt rất hay",
    "naïve café cafe\u0301 Cafe\u0301 A\u0327\u0301", "e\u0301\u0327 e\u0327\u0301", "x = [1, 2, 3]; y = {'a': 0x1F}", "def f(x):\n    return x**2\n\n\t\tpass",
    "http://www.example.com/?q=a&b=c%20d", "a_b-c.d/e\\f|g~h`i^j", "—–…“”‘’«»", "$100 €200 ¥300 +−×÷=≠", "@user #tag !!! ??? ...", "\u200b\u200c\u200d\u2060x", "\x00\x01\x02abc\x7f\x85\u0085",
    "ＡＢＣ１２３！", "ĠHello Ċ č âĢĶ", "▁Hello▁▁world ▁", "<0x41><0xE2>", "a" * 300, " " * 300, "ab" * 200, "\n" * 100, "é" * 100, "1" * 100, "👍" * 50,
    "The quick brown fox jumps over the lazy dog. 0123456789", "\U0001d54f\U0001f130\u24b6", "\u0903\u0301a\u0301 1\u0301", "ǅ ʰ ª º ß ﬁ ﬆ", "a\u2028b\u2029c\u0085d",
]


def code_points(between):
    for c in range(0x110000):
        if not 0xD800 <= c <= 0xDFFF:
            yield between.replace("?", chr(c)) if between != "?" else chr(c)


def random_strings(reference, count, seed):
    draw = random.Random(seed)
    vocabulary = [t for t in (reference.decode([i], skip_special_tokens=False) for i in range(reference.get_vocab_size()))
                  if t and "\ufffd" not in t]
    added = [t.content for t in reference.get_added_tokens_decoder().values()] or ["<|x|>"]
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    signs = " \t\n\r'\"!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`0123456789"
    spaces = [chr(c) for c in (9, 10, 11, 12, 13, 28, 31, 32, 32, 32, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x2029, 0x202F, 0x3000)]
    marks = [chr(c) for c in (*range(0x300, 0x36F), 0x93F, 0x94D, 0xE31, 0x5B0, 0x1161, 0x11A8, 0x20D0, 0xFE0F, 0x1F3FB)]

    def character():
        kind = draw.randrange(8)
        if kind < 2:
            return draw.choice(letters)
        if kind == 2:
            return draw.choice(signs)
        if kind == 3:
            return draw.choice(spaces)
        if kind == 4:
            return draw.choice(marks)
        if kind == 5:
            return chr(draw.randrange(0x20, 0x3000))
        if kind == 6:
            return draw.choice("'’") + draw.choice("sStTrRvVmMlLdD\u017f") + draw.choice("eElL ")
        while 0xD800 <= (c := draw.randrange(0x323B0)) <= 0xDFFF:
            pass
        return chr(c)

    for i in range(count):
        n = draw.randrange(1, 24)
        if i % 4 < 2:
            yield "".join(character() for _ in range(n))
        elif i % 4 == 2:
            yield "".join(draw.choice(vocabulary) for _ in range(n))
        else:
            pieces = (added, vocabulary, spaces, letters, signs, ["", "a", " a", " "])
            yield "".join(draw.choice(draw.choice(pieces)) for _ in range(n))


def groups(reference, count, quick=False):
    yield "hard strings", HARD + [a + b for a in HARD for b in ("x", " x", "\n", " ", "'s", "1")]
    if not quick:
        yield "single code points", list(code_points("?"))
        yield "code points between letters", list(code_points("a?b"))
        yield "code points among spaces, digits and signs", list(code_points("x'? ?1?2345  ?'s?\n? ??"))
        yield "ASCII pairs", [" " * a + chr(c) + " " * b + chr(d) for a in range(2) for b in range(2) for c in range(128) for d in range(128)]
    vocabulary = [reference.id_to_token(i) or "" for i in range(reference.get_vocab_size())]
    yield "strings of the vocabulary", [t.replace("Ġ", " ") for t in vocabulary]
    for first in range(0, count, 100_000):
        yield f"random from {first}", list(random_strings(reference, min(100_000, count - first), first))
