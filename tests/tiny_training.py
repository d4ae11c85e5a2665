"""A training of seconds: a model of one layer on each side that learns to copy a little, with dropout, accumulation and
several validations and states."""

from model.architecture_config import EncoderDecoderConfig
from model.config import TrainConfig

MODEL = EncoderDecoderConfig(
    d_model=16,
    num_heads=2,
    d_ff=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout=0.2,
    max_source_len=16,
    max_target_len=16,
)
TRAIN = TrainConfig(
    tokenizer="words",
    vocab_size=40,
    batch_tokens=128,
    accumulate=2,
    steps=24,
    warmup_steps=5,
    save_every_steps=5,
    validate_every_steps=6,
    log_every_steps=4,
    average_checkpoints=2,
    validation_size=20,
    bf16=False,
)
