"""Tokenizers of every family that Pagoda reads, trained on a small text with the library of PyPI."""
import base64
import glob
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
DEEPSEEK = ("\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
            "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
MARK = "\u2581"


def corpus():
    """Some 400 kB: the licences that Debian installs, and words of other scripts."""
    lines = []
    for name in ("GPL-3", "LGPL-2.1", "Artistic", "MPL-2.0", "GFDL-1.3"):
        path = f"/usr/share/common-licenses/{name}"
        if os.path.exists(path):
            lines += open(path, encoding="utf-8").read().splitlines(keepends=True)
    lines += ["def f(x):\n    return [x ** 2 for x in range(10)]\n", "{\"a\": 1.5e-3, \"b\": [true, null]}\n"] * 20
    lines += ["Привет, как дела? ", "你好，世界。今天天气很好。", "こんにちは世界、元気ですか", "안녕하세요 세계",
              "مرحبا بالعالم", "สวัสดีชาวโลก", "नमस्ते दुनिया", "café naïve Zürich Ångström", "😀👨‍👩‍👧‍👦🇫🇷"] * 50
    return lines


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_level(pattern=None, add_prefix_space=False, **model):
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=pattern is None)
    tokenizer.pre_tokenizer = level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, trainers.BpeTrainer(vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                         special_tokens=["<|bos|>", "<|end|>"], show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["model"].update(model)
    return data


def gpt2():
    return byte_level()


def llama3():
    data = byte_level(LLAMA3, ignore_merges=True)
    bos = {"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}}
    data["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "special_tokens": bos,
         "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]}]}
    return data


def qwen2():
    data = byte_level(QWEN2)
    data["normalizer"] = {"type": "NFC"}
    return data


def roberta():
    tokenizer = Tokenizer.from_str(json.dumps(byte_level(add_prefix_space=True)))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=False, normalized=False)])
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("right", rstrip=True),
                          AddedToken("Both", lstrip=True, rstrip=True, normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(("<|end|>", 1), ("<|bos|>", 0))
    return json.loads(tokenizer.to_str())


def gpt4o():
    return byte_level(GPT4O)


def bloom():
    return byte_level(BLOOM)


def gpt_neox():
    data = byte_level()
    data["normalizer"] = {"type": "NFC"}
    data["added_tokens"] += [{"id": len(data["model"]["vocab"]) + n, "content": " " * (n + 2), "single_word": False,
                              "lstrip": False, "rstrip": False, "normalized": True, "special": False}
                             for n in range(5)]
    return data


def deepseek():
    tokenizer = Tokenizer.from_str(json.dumps(byte_level()))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in DEEPSEEK] +
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return json.loads(tokenizer.to_str())


def byte_level_normalizer():
    """Bytes are spelled by the normalizer, and the model reads characters."""
    tokenizer = Tokenizer.from_str(json.dumps(byte_level()))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.ByteLevel()])
    tokenizer.pre_tokenizer = None
    return json.loads(tokenizer.to_str())


def falcon():
    tokenizer = Tokenizer.from_str(json.dumps(byte_level()))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
         pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    return json.loads(tokenizer.to_str())


def command_r():
    tokenizer = Tokenizer.from_str(json.dumps(byte_level()))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return json.loads(tokenizer.to_str())


def sentencepiece_bpe():
    """A BPE model in SentencePiece's alphabet, with byte fallback."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokenizer.pre_tokenizer = pre_tokenizers.Split(MARK, "merged_with_next")
    train(tokenizer, trainers.BpeTrainer(vocab_size=3000, special_tokens=special, limit_alphabet=300,
                                         show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:3]
    return data


def llama2():
    data = sentencepiece_bpe()
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return data


def llama2_normalized_specials():
    """As older conversions have it: control tokens are matched in normalized text."""
    data = llama2()
    for token in data["added_tokens"]:
        token["normalized"] = True
    return data


def mistral():
    data = llama2()
    data["normalizer"] = None
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    return data


def metaspace(scheme):
    data = llama2()
    data["normalizer"] = None
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": True}
    data["decoder"] = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": True}
    for token in data["model"]["vocab"]:
        assert token
    data["model"]["byte_fallback"] = False
    return data


def gemma():
    data = sentencepiece_bpe()
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                             "invert": False}
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return data


def unknown_unfused():
    """No byte fallback: every unknown character is a token."""
    data = llama2()
    data["model"].update(byte_fallback=False, fuse_unk=False)
    return data


def charsmap(rule="nmt_nfkc"):
    import io
    import sentencepiece
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line.strip() for line in corpus() if line.strip()), model_writer=out, vocab_size=2000,
        normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=2)
    from sentencepiece import sentencepiece_model_pb2 as pb
    model = pb.ModelProto()
    model.ParseFromString(out.getvalue())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def unigram(normalizer, pre_tokenizer, special):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    train(tokenizer, trainers.UnigramTrainer(vocab_size=2000, special_tokens=special, unk_token="<unk>",
                                             show_progress=False))
    return tokenizer


def precompiled(rule="nmt_nfkc"):
    return normalizers.Precompiled(base64.b64decode(charsmap(rule)))


def t5():
    tokenizer = unigram(precompiled(), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                                pre_tokenizers.Metaspace()]),
                        ["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(single=["$A", "</s>"], special_tokens=[("</s>", 1)])
    return json.loads(tokenizer.to_str())


def xlm_roberta():
    tokenizer = unigram(normalizers.Sequence([precompiled("nmt_nfkc_cf"), normalizers.Replace(Regex(" {2,}"), " ")]),
                        pre_tokenizers.Metaspace(), ["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return json.loads(tokenizer.to_str())


def albert():
    tokenizer = unigram(
        normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
                              normalizers.StripAccents(), normalizers.Lowercase(), precompiled(),
                              normalizers.Strip(), normalizers.Nmt()]),
        pre_tokenizers.Metaspace(prepend_scheme="always"), ["<pad>", "<unk>", "[CLS]", "[SEP]"])
    return json.loads(tokenizer.to_str())


def unigram_bytes():
    """As T5, but unknown characters are bytes."""
    data = t5()
    vocab = data["model"]["vocab"]
    vocab += [[f"<0x{i:02X}>", -30.0] for i in range(256)]
    data["model"]["byte_fallback"] = True
    data["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, data["decoder"]]}
    return data


def unicode_scripts():
    tokenizer = unigram(normalizers.NFKC(), pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(),
                                                                     pre_tokenizers.Metaspace()]), ["<unk>", "</s>"])
    return json.loads(tokenizer.to_str())


def word_level(pre_tokenizer, limit=3000):
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizer
    train(tokenizer, trainers.WordLevelTrainer(vocab_size=limit, special_tokens=["<unk>", "<s>"], show_progress=False))
    return json.loads(tokenizer.to_str())


def bert(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=3000, show_progress=False,
                                               special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return json.loads(tokenizer.to_str())


def split_by_words():
    tokenizer = Tokenizer.from_str(json.dumps(bert(True)))
    tokenizer.normalizer = normalizers.NFD()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = None
    data = json.loads(tokenizer.to_str())
    data["decoder"] = None
    return data


FAMILIES = {
    "gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "roberta": roberta, "falcon": falcon, "command_r": command_r,
    "gpt4o": gpt4o, "bloom": bloom, "gpt_neox": gpt_neox, "deepseek": deepseek,
    "byte_level_normalizer": byte_level_normalizer, "unicode_scripts": unicode_scripts,
    "word_level": lambda: word_level(pre_tokenizers.Whitespace()),
    "fixed_length": lambda: word_level(pre_tokenizers.FixedLength(2)),
    "llama2": llama2, "llama2_normalized_specials": llama2_normalized_specials, "mistral": mistral,
    "metaspace_first": lambda: metaspace("first"), "metaspace_always": lambda: metaspace("always"),
    "metaspace_never": lambda: metaspace("never"), "gemma": gemma, "unknown_unfused": unknown_unfused, "t5": t5,
    "xlm_roberta": xlm_roberta, "albert": albert, "unigram_bytes": unigram_bytes, "bert_uncased": lambda: bert(True),
    "bert_cased": lambda: bert(False), "split_by_words": split_by_words,
}


def conformance_families():
    """Published tokenizers, where this machine has them."""
    root = os.environ.get("PAGODA_CONFORMANCE_DIR", "../shared/conformance")
    return {"published_" + os.path.basename(os.path.dirname(path)): path
            for path in sorted(glob.glob(root + "/tokenizers/*/tokenizer.json"))}
