"""Makes chats.json: conversations in the tokens of `transformers`' apply_chat_template, and which of them the assistant
says, for the templates of io/chat_template.cpp. The Jinja texts say what those of the models' tokenizer_config.json do, with
{% generation %} around what is learned, which changes no token. tests/run/chat_test.py compares.

    pip install transformers && python make_chats.py
"""

import json
import pathlib
import random

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import chat_tokenizers
import tokenizer_kinds

HERE = pathlib.Path(__file__).resolve().parent
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('roles must alternate') }}{% endif %}")
# By our name: begin, end and the template.
TEMPLATES = {
    "chatml": (None, "<|im_end|>",
               "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
               "{% if message['role'] == 'assistant' %}{% generation %}"
               "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
               "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>",
               "{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
               "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
               "{% if message['role'] == 'assistant' %}{% generation %}"
               "{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}"
               "{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"),
    "gemma": ("<bos>", "<end_of_turn>",
              "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
              "{% set prefix = messages[0]['content'] + '\n\n' %}{% set turns = messages[1:] %}"
              "{% else %}{% set prefix = '' %}{% set turns = messages %}{% endif %}"
              "{% for message in turns %}" + ALTERNATE +
              "{% if message['role'] == 'assistant' %}{{ '<start_of_turn>model\n' }}{% generation %}"
              "{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{{ '\n' }}"
              "{% else %}{{ '<start_of_turn>user\n' + (prefix if loop.first else '') "
              "+ message['content'] | trim + '<end_of_turn>\n' }}{% endif %}{% endfor %}"),
    "llama2": ("<s>", "</s>",
               "{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}"
               "{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
               "{% else %}{% set turns = messages %}{% set system = '' %}{% endif %}"
               "{% for message in turns %}" + ALTERNATE +
               "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + "
               "((system if loop.first else '') + message['content']) | trim + ' [/INST]' }}"
               "{% else %}{% generation %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}"
               "{% endgeneration %}{% endif %}{% endfor %}"),
    "mistral": ("<s>", "</s>",
                "{{ bos_token }}{% for message in messages %}" + ALTERNATE +
                "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
                "{% else %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
                "{% endif %}{% endfor %}"),
    "phi3": (None, "<|endoftext|>",
             "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' }}"
             "{% if message['role'] == 'assistant' %}{% generation %}"
             "{{ message['content'] + '<|end|>' }}{% endgeneration %}{% else %}"
             "{{ message['content'] + '<|end|>' }}{% endif %}{{ '\n' }}{% endfor %}{{ eos_token }}"),
}
NO_SYSTEM = {"mistral"}


def conversations(name):
    rng = random.Random(name)
    text = lambda: " ".join(rng.choice(tokenizer_kinds.SENTENCES) for _ in range(rng.randint(1, 2)))[:rng.randint(3, 90)]
    made = []
    for number in range(14):
        turns = []
        if name not in NO_SYSTEM and number % 3 == 0:
            turns.append({"role": "system", "content": text().strip()})
        for turn in range(rng.randint(1, 3)):
            said = [text(), text().lstrip()]
            if number % 4 == 3:  # with what str.strip() takes
                said[0] = "  \u00a0" + said[0] + "\u3000"
            if number % 5 == 4:
                said[1] = "\n" * rng.randint(0, 2) + said[1]
            turns += [{"role": "user", "content": said[0]}, {"role": "assistant", "content": said[1]}]
        made.append(turns)
    return made


if __name__ == "__main__":
    result = {}
    for name, (begin, end, template) in TEMPLATES.items():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(chat_tokenizers.tokenizer_json(name))), bos_token=begin, eos_token=end)
        lines = []
        for turns in conversations(name):
            made = tokenizer.apply_chat_template(turns, chat_template=template, tokenize=True, return_dict=True,
                                                 return_assistant_tokens_mask=True)
            lines.append({"messages": turns, "ids": made["input_ids"], "learned": made["assistant_masks"]})
        result[name] = lines
        print(name, len(lines), lines[1]["ids"][:12], lines[1]["learned"][:12])
    (HERE / "chats.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")
