"""A quantised model and what is known about it: artefact, tokenizer, shapes, and model facts."""
