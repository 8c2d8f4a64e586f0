"""Record small vocabularies as llama.cpp would store them, and their own tokenizers' ids.

Writes engine/src/hub/gguf/fixtures/tokenizers.json. Each entry has the `tokenizer.ggml.*` metadata
of one small tokenizer, trained here, and the ids that it gives to varied strings:

- SentencePiece vocabularies: trained and encoded by the sentencepiece library, which knows nothing
  of merges, so the recovered merges are checked against an independent implementation.
- byte-level vocabularies: trained and encoded by the tokenizers library with each family's own
  rules (the ones in the tokenizer.json of GPT-2, SmolLM2, Llama 3 and Qwen 2).

Run with sentencepiece and tokenizers: python goldens/generate/gguf_tokenizers.py
"""

import io
import json
import random
from pathlib import Path

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TARGET = Path(__file__).resolve().parents[2] / "engine/src/hub/gguf/fixtures/tokenizers.json"

CORPUS = """
The engine keeps a batch of rows and lets a new row join between two steps of the others.
A row that is done leaves the batch, and the rows that stay do not wait for the one that came.
When the bytes of the cache run out, the row waits; when they are free again, it goes on.
for row in rows:
    if row.done:
        batch.remove(row)
    else:
        batch.step(row, tokens=128)
In 1987 there were 365 days, 52 weeks and 12 months; 3.14159 is not 22/7, and 1000000 is 10^6.
It's what they've said: we'll see, I'm sure, you're right, he'd know, don't ask.
Der Zug fährt über die Brücke, während die Glocken läuten. Où est la bibliothèque, café à côté?
Русский текст тоже здесь. 日本語の文章もあります。
"""

CASES = [
    "", " ", "  ", "   three", "trailing  ", "Hello, world!", "the rows that stay", "The engine's batch",
    "for row in rows:\n    if row.done:\n        batch.step(row)", "1987 365 10 1000000 3.14159", "a1b22c333d4444",
    "I'll we've don't IT'S", "über die Brücke", "café cafe\u0301", "Русский текст", "日本語 かな", "안녕하세요",
    "👩‍👩‍👧‍👦 😀 🇫🇷", "\t\ttab\r\nline\n\n\nlines", "<tool>call</tool>", "<tool> call", "<s>not special?</s>",
    "\u2581 literal \u2581\u2581", "\u00a0nbsp\u2028sep", "\x00\x01\x7f", "x" * 40, " " * 9 + "y", "½ ² ٣ ④ 五",
    "http://host:8080/v1?x=1&y=[2]", "{\"rows\": [1, 2.5, null]}", "MiXeD CaSe WORDS", "...!!!???", "ﬁ Ａ Å",
]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def cases(rng, extra):
    alphabet = list("abdehnorstw THE  \n0123.,;:'-<>üé漢😀") + [" the", " row", "batch", "    "] + extra
    return CASES + ["".join(rng.choices(alphabet, k=rng.randint(1, 30))) for _ in range(60)]


def sentence_piece(prefixed, runs):
    defined = ["<tool>", "</tool>"] + ["\u2581" * length for length in runs]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=620,
        byte_fallback=True,
        character_coverage=0.98,
        add_dummy_prefix=prefixed,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=defined,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.vocab_size())

    def kind(id):
        if processor.is_unknown(id):
            return UNKNOWN
        if processor.is_control(id):
            return CONTROL
        if processor.is_byte(id):
            return BYTE
        return USER_DEFINED if processor.id_to_piece(id) in defined else NORMAL

    def spelled(id):
        # llama.cpp's converter writes user-defined pieces with real spaces.
        piece = processor.id_to_piece(id)
        return piece.replace("\u2581", " ") if kind(id) == USER_DEFINED else piece

    return {
        "model": "llama",
        "pre": "default",
        "tokens": [spelled(id) for id in ids],
        "scores": [processor.get_score(id) for id in ids],
        "token_type": [kind(id) for id in ids],
        "add_space_prefix": prefixed,
        "bos_token_id": processor.bos_id(),
        "eos_token_id": processor.eos_id(),
        "unknown_token_id": processor.unk_id(),
    }, processor.encode


def byte_level(pre):
    def gpt2(use_regex):
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)

    def split(pattern):
        return pre_tokenizers.Split(Regex(pattern), behavior="isolated")

    rules = {
        "gpt-2": gpt2(True),
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2(True)]),
        "llama-bpe": pre_tokenizers.Sequence([split(LLAMA3), gpt2(False)]),
        "qwen2": pre_tokenizers.Sequence([split(QWEN2), gpt2(False)]),
    }
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = rules[pre]
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special + ["<tool>", "</tool>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    kinds = {"<s>": CONTROL, "</s>": CONTROL, "<tool>": USER_DEFINED, "</tool>": USER_DEFINED}
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [kinds.get(token, NORMAL) for token in tokens],
        "merges": [" ".join(merge) for merge in merges],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }, lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def entry(name, metadata, encode, texts):
    return {"name": name, "metadata": metadata, "cases": [{"text": text, "ids": encode(text)} for text in texts]}


def main():
    rng = random.Random(11)
    entries = []
    for name, prefixed, runs in [("prefixed", True, []), ("plain", False, [2, 3, 4])]:
        metadata, encode = sentence_piece(prefixed, runs)
        # SentencePiece never reads a control token from text, while tokenizers do.
        texts = [text for text in cases(rng, ["<tool>"]) if "<s>" not in text]
        # It takes the longest run first, while Gemma's own tokenizer.json pairs runs up.
        texts = [text for text in texts if "     " not in text]
        if prefixed:
            # llama.cpp and tokenizers prefix each stretch between user-defined tokens.
            texts = [text for text in texts if "<tool>" not in text and text != ""]
        entries.append(entry(f"sentencepiece-{name}", metadata, encode, texts))
    for pre in ["gpt-2", "smollm", "llama-bpe", "qwen2"]:
        metadata, encode = byte_level(pre)
        entries.append(entry(pre, metadata, encode, cases(rng, ["<tool>", "</s>"])))
    TARGET.write_text("[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]\n")


if __name__ == "__main__":
    main()
