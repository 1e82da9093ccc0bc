#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/tokenizers: small tokenizers and the ids that `tokenizers` and `tiktoken` give to texts.

pip install tokenizers==0.23.3 tiktoken==0.14.0; then run this script. It trains on files of this repository and on the
texts below, so no download is needed.
"""

import base64
import json
import pathlib
import random
import sys
import unicodedata

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "golden" / "tokenizers"
MARK = "\u2581"

PROSE = [
    "The quick brown fox jumps over the lazy dog. It's 2024, isn't it? They'll say we'd've known; I'M SURE.",
    "Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Äpfel; 3,14 und 1.000.000 €.",
    "Le cœur a ses raisons que la raison ne connaît point. L'été, à Noël, où ça ? Çà et là, naïve.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний.",
    "Ο ήλιος έδυε πίσω από τα βουνά, και η θάλασσα ήταν ήρεμη. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。カタカナ、ひらがな。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. ١٢٣٤٥٦٧٨٩٠",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
]
CODE = [
    "for (int i = 0; i < 1000000; ++i) {\n\tif (a[i] != b[i]) return -1;  // differs\n}\n",
    "def f(x: int) -> str:\n    return f\"{x:>10.3f}\\n\" if x else ''\n\n\n    # end   \n",
    "{\"key\": [1, 22, 333, 4444, 55555], \"nested\": {\"a\": null}}\r\n\r\n<div class='x'>&nbsp;</div>",
]
EDGES = [
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n\n",
    " \n \n",
    "\t\t a",
    "a ",
    " a",
    "a  b",
    "a   b  ",
    "\r\n\r\n x",
    "end\n  ",
    "\u00a0\u2003x\u3000y\u200bz\u180ew\u2028q\u0085r",
    "don't DON'T don\u2019t '\u017f 'S '\u212a",
    "1234567 12 1 \u00bd\u2167\u0663",
    "e\u0301 \u00e9 \u1ebf e\u0302\u0301 \u0344 \u1100\u1161\u11a8 \ud55c\u0301 \u2126 \ufb01 \u00b2 a\u0338>\u0338",
    "\U0001f642\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0010ffff \ue000 \u0378",
    "\u0000\u0001\u007f\u0080\ufeff\ufffd",
    MARK + "a " + MARK + MARK + "b" + MARK,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|endoftext|>",
    "a<|endoftext|>b",
    "<|endoftext|><|endoftext|> x",
    " <|im_start|> user\n<|im_end|>\n",
    "<|im_start",
    "<|im_start|>\u0338",
    "<s>x</s>",
    " <s> y </s> z",
    MARK + "<s>",
    "<unk>",
    "[INST] hi [/INST]there",
    "x  <mask>  y",
    "<mask>",
    " <mask>\n\n<mask> ",
    "<tool>",
    "tool <tool> <tool>s",
    "<0x41>",
    "a<0x0A>b",
    "\n" * 50 + "x",
    " " * 70,
    "- " * 40,
    "ab" * 45,
]


def normalized_alike(c):
    """False for characters that are younger than the Unicode version of the library's normalizers."""
    forms = ("NFC", normalizers.NFC()), ("NFKD", normalizers.NFKD())
    texts = chr(c), f"a\u0315{chr(c)}\u0323", f"{chr(c)}\u0323"
    return all(unicodedata.normalize(form, text) == ours.normalize_str(text) for form, ours in forms for text in texts)


def adversarial():
    """Random text of characters that the libraries class alike, in spite of their different versions of Unicode."""
    known = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn") and c < 0x31350]
    known = [c for c in known if c not in range(0x0870, 0x08A0) and normalized_alike(c)]
    rng = random.Random(7)
    pools = [
        known,
        list(range(0x20, 0x7F)),
        [0x20, 0x0A, 0x09, 0x0D, 0xA0, 0x3000, 0x2581],
        [c for c in known if unicodedata.combining(chr(c))] + [0x61, 0x65, 0x6F],
        list(range(0x1100, 0x1200)) + [0xAC00],
        [c for c in known if unicodedata.decomposition(chr(c))],
        [ord(c) for c in "'sStTdDlLeErRvVmM 1\u017f"],
    ]
    return ["".join(chr(rng.choice(rng.choice(pools))) for _ in range(rng.randrange(1, 60))) for _ in range(60)]


TEXTS = PROSE + CODE + EDGES + adversarial()
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def training_texts():
    for name in ("DESIGN.md", "README.md", "docs/ARCHITECTURE.md", "engine/base/json.cpp", "scripts/run_tests.py"):
        if (ROOT / name).exists():
            yield (ROOT / name).read_text()
    for _ in range(30):
        yield from PROSE


def byte_level(split=None, normalizer=None, vocab_size=900, ignore_merges=False, prefix_space=False, extra=()):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level]) if split else level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    for token in extra:
        tokenizer.add_tokens([token])
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def sentence_piece():
    """Vocabulary and merges of characters, with the tokens of bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=1100, show_progress=False, special_tokens=special, limit_alphabet=300, initial_alphabet=[MARK]
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return model["vocab"], merges


def llama2(vocab, merges, fallback=True, normalized=False, drop=()):
    vocab = {token: i for token, i in vocab.items() if token not in drop}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=normalized) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return tokenizer


def mistral(vocab, merges, scheme, pieces):
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, scheme, pieces)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens(
        [
            AddedToken("[INST]", normalized=True),
            AddedToken("[/INST]", normalized=False),
            AddedToken("<mask>", lstrip=True, normalized=False),
        ]
    )
    return tokenizer


def tokenizers():
    chat = [
        AddedToken("<|im_start|>", special=True, normalized=False),
        AddedToken("<|im_end|>", special=True, normalized=False),
        AddedToken("<tool>", normalized=True),
        AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
    ]
    yield "gpt2", byte_level()
    yield "gpt2_prefix", byte_level(prefix_space=True, vocab_size=500, extra=chat)
    llama3 = byte_level([split(LLAMA3)], ignore_merges=True, extra=chat)
    llama3.post_processor = processors.Sequence(
        [
            processors.ByteLevel(),
            processors.TemplateProcessing(
                single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", llama3.token_to_id("<|endoftext|>"))]
            ),
        ]
    )
    yield "llama3", llama3
    yield "qwen2", byte_level([split(QWEN2)], normalizers.NFC(), extra=chat)
    yield "nfkd", byte_level(
        [split(QWEN2)], normalizers.Sequence([normalizers.NFKD(), normalizers.Replace("a", "bb")]), 400
    )
    yield "stacked", byte_level(
        [
            split(r"\p{N}{1,3}"),
            split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
            split(r"[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s+(?!\S)|\s+"),
            pre_tokenizers.Digits(individual_digits=True),
        ],
        vocab_size=600,
    )
    yield "removed", byte_level([split(r"\s+", "removed"), split(r"[^aeiou]+", "removed", True)], vocab_size=400)
    vocab, merges = sentence_piece()
    yield "llama2", llama2(vocab, merges)
    yield "llama2_normalized", llama2(vocab, merges, normalized=True)
    yield "llama2_unknown", llama2(vocab, merges, fallback=False)
    yield "mistral_first", mistral(vocab, merges, "first", False)
    yield "mistral_always", mistral(vocab, merges, "always", True)
    yield "mistral_never", mistral(vocab, merges, "never", False)


def tiktokens():
    trained = json.loads(byte_level([split(LLAMA3)], vocab_size=800).to_str())
    to_byte = {c: b for b, c in bytes_to_unicode().items()}
    ranks = {bytes(to_byte[c] for c in token): i for token, i in trained["model"]["vocab"].items()}
    for name in ("gpt2", "cl100k_base", "o200k_base"):
        patterns = __import__("tiktoken_ext.openai_public", fromlist=["*"])
        loader = patterns.load_tiktoken_bpe, patterns.data_gym_to_mergeable_bpe_ranks
        patterns.load_tiktoken_bpe = patterns.data_gym_to_mergeable_bpe_ranks = lambda *a, **k: ranks
        pattern = getattr(patterns, name)()["pat_str"]
        patterns.load_tiktoken_bpe, patterns.data_gym_to_mergeable_bpe_ranks = loader
        special = {"<|endoftext|>": 800, "<|im_start|>": 805}
        yield name, pattern, ranks, special, tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
        )


def bytes_to_unicode():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, other = {}, 0x100
    for byte in range(256):
        table[byte] = chr(byte) if byte in printable else chr(other)
        other += byte not in printable
    return table


def unless_same(decoded):
    """Null where a text comes back."""
    return [None if one == text else one for one, text in zip(decoded, TEXTS)]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    cases = {"texts": TEXTS, "ids": {}, "decoded": {}}
    for name, tokenizer in tokenizers():
        (OUT / f"{name}.tokenizer.json").write_text(
            json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":")) + "\n"
        )
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        cases["ids"][name] = ids
        cases["decoded"][name] = unless_same(tokenizer.decode(i, skip_special_tokens=False) for i in ids)
    for name, pattern, ranks, special, encoding in tiktokens():
        stem = f"{name}_ranks"
        lines = [
            f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda x: x[1])
        ]
        (OUT / f"{stem}.tiktoken").write_text("".join(lines))
        about = pattern.replace("{1,3}+", "{1,3}")  # it means the same here, because nothing follows
        (OUT / f"{stem}.json").write_text(json.dumps({"pattern": about, "special_tokens": special}) + "\n")
        ids = [encoding.encode(text, allowed_special="all") for text in TEXTS]
        cases["ids"][stem] = ids
        cases["decoded"][stem] = unless_same(encoding.decode(i) for i in ids)
    (OUT / "cases.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(f"{len(TEXTS)} texts, {len(cases['ids'])} tokenizers", file=sys.stderr)


if __name__ == "__main__":
    main()
