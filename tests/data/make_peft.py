"""Makes hf/peft_*: adapters as PEFT saves them, beside tiny models that are there already, and beside each directory
NAME.logits.safetensors, as make_hf.py does: tokens, the logits that transformers and PEFT compute of them in fp64, and
how far these move, for each unit of relative change, when all weights change. tests/unit/train/hf_logits_test.cpp
compares.

    pip install torch transformers peft safetensors && python make_peft.py
"""

import json
import os
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

DATA = pathlib.Path(__file__).resolve().parent
HERE = DATA / "hf"


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens[None]).logits[0]


def sensitivity(model, tokens, logits, step=1e-7, draws=8):
    """How far logits move for each unit of relative change of all weights, the most of some draws."""
    most, weights = 0.0, [(p, p.detach().clone()) for p in model.parameters()]
    with torch.no_grad():
        for _ in range(draws):
            for parameter, before in weights:
                parameter.copy_(before * (1 + step * torch.randn_like(before).sign()))
            most = max(most, (logits_of(model, tokens) - logits).abs().max().item() / step)
        for parameter, before in weights:
            parameter.copy_(before)
    return torch.tensor([most])


def save(name, base, length=12, **config):
    torch.manual_seed(len(name))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
                           LoraConfig(task_type="CAUSAL_LM", **config))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.normal_(std=0.5)
    directory = HERE / name
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    said = json.loads((directory / "adapter_config.json").read_text())
    said["base_model_name_or_path"] = os.path.relpath(base, directory)
    (directory / "adapter_config.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    tokens = torch.randint(0, model.config.vocab_size, (length,))
    exact = model.double().eval()
    logits = logits_of(exact, tokens)
    save_file({"tokens": tokens.float(), "logits": logits.float().contiguous(),
               "sensitivity": sensitivity(exact, tokens, logits).float()},
              HERE / f"{name}.logits.safetensors")
    with exact.disable_adapter():
        moved = (logits_of(exact, tokens) - logits).abs().max().item()
    print(name, "logits up to", logits.abs().max().item(), "of which adapters", moved)


save("peft_llama3", HERE / "llama3", r=3, lora_alpha=4, use_rslora=True,
     target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
save("peft_ranks", HERE / "qwen2", r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "up_proj"],
     rank_pattern={"v_proj": 4}, alpha_pattern={"up_proj": 5}, layers_to_transform=[1])
save("peft_phi3", HERE / "phi3", r=2, lora_alpha=3,
     target_modules=["qkv_proj", "o_proj", "gate_up_proj"])
save("peft_neox", HERE / "gpt_neox", r=2, lora_alpha=3, target_modules=["query_key_value"])
save("peft_dora", HERE / "llama3", r=3, lora_alpha=4, use_dora=True,
     target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
save("peft_gpt2_dora", DATA / "oracle" / "gpt2", r=2, lora_alpha=3, use_dora=True, use_rslora=True,
     fan_in_fan_out=True, target_modules=["c_attn", "c_fc"])
save("peft_gpt2", DATA / "oracle" / "gpt2", r=2, lora_alpha=3, fan_in_fan_out=True,
     target_modules=["c_attn", "c_fc"])
