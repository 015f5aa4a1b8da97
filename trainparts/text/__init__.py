"""Text: its files and tokens, tokenizers, models in folders as Hugging Face's, weights of files.

Use it to read a corpus or a table as the scripts do, and to load and try out others' models.
"""
