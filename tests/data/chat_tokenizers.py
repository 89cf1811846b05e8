"""The small tokenizers with which make_chats.py and the test that compares with it make tokens of conversations."""

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
# By the template's name: the tokenizer of tokenizers/, and the special tokens that it gets.
TOKENIZERS = {
    "chatml": ("qwen2", ["<|im_start|>", "<|im_end|>"]),
    "llama3": ("llama3", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "gemma": ("gemma", ["<bos>", "<start_of_turn>", "<end_of_turn>"]),
    "llama2": ("llama2", ["<s>", "</s>"]),
    "mistral": ("mistral", ["<s>", "</s>", "[INST]", "[/INST]"]),
    "phi3": ("llama2", ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"]),
}


def tokenizer_json(name):
    """A tokenizer.json of tokenizers/ with the special tokens of a template."""
    kind, special = TOKENIZERS[name]
    content = json.loads((HERE / "tokenizers" / f"{kind}.json").read_text())
    known = {token["content"]: token for token in content["added_tokens"]}
    vocab = content["model"]["vocab"]
    ids = (vocab.values() if isinstance(vocab, dict) else range(len(vocab)))
    free = max([*ids, *(token["id"] for token in content["added_tokens"])]) + 1
    for text in special:
        if text in known:
            known[text]["special"] = True
            continue
        number = vocab.get(text) if isinstance(vocab, dict) else None
        content["added_tokens"].append({"id": free if number is None else number, "content": text,
                                        "single_word": False, "lstrip": False, "rstrip": False,
                                        "normalized": False, "special": True})
        free += number is None
    content["added_tokens"].sort(key=lambda token: token["id"])
    return content
