"""Tokenizers in C: what a model's tokenizer.json says, as constant tables and portable code."""
