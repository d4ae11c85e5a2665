"""Chat templates in the manner of published ones, tokenizers with their special tokens, and chats."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """\
{%- if messages[0].role != 'system' -%}
{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
LLAMA = """\
{{- bos_token }}
{%- if tools %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('no role ' ~ message.role) }}
    {%- endif %}
    {{- '<|start|>' ~ message['role'] ~ '<|end|>\n\n' ~ message['content'] | trim ~ '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\n\n' }}
{%- endif %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate: user, assistant, user, …') }}
    {% endif %}
    {% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}
"""
MISTRAL = """\
{{ bos_token }}{% set ns = namespace(turns=0) %}{% for message in messages %}{% if message.role == 'user' %}\
{{ '[INST] ' + message.content + ' [/INST]' }}{% set ns.turns = ns.turns + 1 %}{% else %}\
{{ ' ' + message.content + eos_token }}{% endif %}{% if ns.turns > 50 %}{% break %}{% endif %}{% endfor %}
"""
PHI = """\
{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""
THINKING = """\
{% for message in messages %}{% set text = message.content %}{% if message.role == 'assistant' %}\
{% generation %}{% if '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}\
{{ '<think>\n' + (message.reasoning_content or '') + '\n</think>\n' + text + '<|im_end|>' }}{% endgeneration %}\
{% else %}{{ '<|im_start|>' + message.role + '\n' + text + '<|im_end|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

SPECIAL = {  # by the template's name: it, its special tokens, and variables of them
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"], {"eos_token": "<|im_end|>"}),
    "llama": (LLAMA, ["<|start|>", "<|end|>", "<|eot|>"], {"bos_token": "<|bos|>", "eos_token": "<|eot|>"}),
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"], {"bos_token": "<bos>", "eos_token": "<eos>"}),
    "mistral": (MISTRAL, ["[INST]", "[/INST]"], {"bos_token": "<s>", "eos_token": "</s>"}),
    "phi": (PHI, ["<|user|>", "<|system|>", "<|assistant|>", "<|end|>", "<|endoftext|>"], {"eos_token": "<|end|>"}),
    "thinking": (THINKING, ["<|im_start|>", "<|im_end|>"], {"eos_token": "<|im_end|>"}),
}
WORDS = ("user", "assistant", "system", "model", "Be kind.", "How are you today?", "I am well, thank you, and you?")
CHATS = (
    [{"role": "user", "content": "How are you?"}],
    [
        {"role": "user", "content": "  How are\n\nyou today? <b>&amp;\t"},
        {"role": "assistant", "content": "I am well 😀 — naïve ﬁ.\n"},
        {"role": "user", "content": "> and |im_end| you <"},
    ],
    [
        {"role": part, "content": f"{part} {number}" * number}
        for number in range(1, 4)
        for part in ("user", "assistant")
    ][:-1],
)


def chat_tokenizer(name, *, kind="bytes", normalized=False, lstrip=False):
    """A tokenizer of transformers with one of SPECIAL, trained on a few words. kind: how it segments text: by `bytes`,
    as SentencePiece with a blank before the `first` word, or before `every` part between special tokens, or with a
    normalizer (`legacy`)."""
    template, special, variables = SPECIAL[name]
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
        if kind == "legacy":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            scheme = {"first": "first", "every": "always"}[kind]
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    first = ["<unk>", *([] if kind == "bytes" else alphabet)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=first, initial_alphabet=alphabet if kind == "bytes" else [], show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 4, trainer)
    names = [*dict.fromkeys([*variables.values(), *special])]
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=normalized, lstrip=lstrip) for one in names])
    if name == "thinking":
        tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **variables)


def theirs(tokenizer, messages, **options):
    """The token ids of `apply_chat_template`."""
    options = {"add_generation_prompt": True, **options}
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)["input_ids"]
