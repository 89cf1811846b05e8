"""Checks that transformers loads what Tessera exports, with the same weights, bit for bit, and the
same logits as the model it was imported from.

    pip install torch transformers && python check_hf.py BUILD/tests/test_io
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import (AutoModelForCausalLM, AutoModelForMaskedLM,
                          AutoModelForSequenceClassification, AutoModelForTokenClassification)

HERE = pathlib.Path(__file__).resolve().parent / "hf"
ENCODERS = {"bert": AutoModelForMaskedLM, "roberta": AutoModelForMaskedLM,
            "bert_classes": AutoModelForSequenceClassification,
            "roberta_classes": AutoModelForSequenceClassification,
            "llama_reward": AutoModelForSequenceClassification,
            "gpt_neox_reward": AutoModelForSequenceClassification,
            "bert_tokens": AutoModelForTokenClassification,
            "roberta_tokens": AutoModelForTokenClassification}


def fold_types(state, unused):
    """A model's tensors with what we make of its tokens' types: the first is added to positions,
    those before the first that is used are zeros, and so are the types."""
    for key in [key for key in state if "token_type_embeddings" in key]:
        positions = key.replace("token_type", "position")
        state[positions] = state[positions] + state[key][0]
        state[positions][:unused] = 0
        state[key] = torch.zeros_like(state[key])
    return state


def load(path):
    kind = ENCODERS.get(path.name, AutoModelForCausalLM)
    # The usual products of experts want rows of a multiple of 16 bytes.
    model, report = kind.from_pretrained(path, output_loading_info=True,
                                         experts_implementation="eager")
    assert not any(report.values()), report
    return model.eval()


with tempfile.TemporaryDirectory() as exported:
    subprocess.run([sys.argv[1], "--gtest_filter=HfExport.KeepsDirectoriesForTheReferenceCheck"],
                   check=True, env={**os.environ, "TESSERA_EXPORT_DIRECTORY": exported})
    for path in sorted(pathlib.Path(exported).iterdir()):
        theirs, ours = load(HERE / path.name), load(path)
        assert theirs.config.id2label == ours.config.id2label
        assert theirs.dtype == ours.dtype, (path.name, theirs.dtype, ours.dtype)
        a, b = theirs.state_dict(), ours.state_dict()
        assert a.keys() == b.keys()
        folded = path.name in ENCODERS
        if folded:
            a = fold_types(a, unused=2 if "roberta" in path.name else 0)
        for key in a:
            # Norms of Gemma multiply with 1 + weight, and that is what comes through.
            one = 1 if "gemma" in path.name and "norm" in key else 0
            assert torch.equal(one + a[key], one + b[key]), (path.name, key)
        tokens = torch.arange(2, 8)[None]
        if folded:
            theirs, ours = theirs.double(), ours.double()
        difference = (theirs(tokens).logits - ours(tokens).logits).abs().max()
        assert difference <= (1e-5 if folded else 0), (path.name, difference)
        print(f"{path.name}: {len(a)} tensors and the logits agree ({ours.dtype})")
