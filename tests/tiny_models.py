"""Random models of a few thousand parameters and their tokenizer, for tests."""

from __future__ import annotations


def build_tokenizer(vocabulary: int = 300):
    """A byte-level BPE of a few merges, with pad and end tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(["the cat and the hat", "a bad cab", "write letters: é 🎉"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def build_model(family: str = "qwen2", vocabulary: int = 300, seed: int = 0):
    """A random model of about 30 k parameters; families with and without a fused forward."""
    import torch
    import transformers

    torch.manual_seed(seed)
    common = {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **common)
        return transformers.GPT2LMHeadModel(config).eval()
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    }
    if family == "qwen2":
        config = transformers.Qwen2Config(num_key_value_heads=4, tie_word_embeddings=True, **shape, **common)
        return transformers.Qwen2ForCausalLM(config).eval()
    config = transformers.LlamaConfig(num_key_value_heads=2, tie_word_embeddings=False, **shape, **common)
    return transformers.LlamaForCausalLM(config).eval()
