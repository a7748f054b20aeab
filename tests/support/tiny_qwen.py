"""Makes a model folder: a Qwen3 of two layers with weights drawn at random, and a byte-level tokenizer.

    python tiny_qwen.py FOLDER

Its answers are noise, and so that some of the noise is tool calls, a fifth of its tokens are whole ones:
the way from a model's tokens through the server's own parser to a tool is then walked for real.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = [END, TURN, TURN_END, "<tool_call>", "</tool_call>", "<think>", "</think>"]
CALLS = [
    f'<tool_call>{{"name": "email_search_emails", "arguments": {{"query": "{number}"}}}}</tool_call>'
    for number in range(64)
]
# The shape of Qwen's own: one turn a message, tools listed in the first, calls and results in tags.
TEMPLATE = """
{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ (call.function or call) | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer():
    """One token a byte, the marks, and one token a call."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=TURN_END, pad_token=END)
    wrapped.add_special_tokens({"additional_special_tokens": MARKS})
    wrapped.add_tokens(CALLS)
    wrapped.chat_template = TEMPLATE
    return wrapped


def model(words):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    # A call ends the answer, as it does for a model that waits for the result.
    ends = {
        "eos_token_id": [words.eos_token_id, *words.convert_tokens_to_ids(CALLS)],
        "pad_token_id": words.pad_token_id,
    }
    qwen = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(words), max_position_embeddings=65536, **sizes, **heads, **ends))
    qwen.generation_config = GenerationConfig(max_new_tokens=4, do_sample=True, **ends)
    return qwen


def main():
    words = tokenizer()
    words.save_pretrained(sys.argv[1])
    model(words).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
