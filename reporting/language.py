"""What language models and classifiers of sentences send, gather and take, as benchmarks/text.py
has measured it."""

TITLES = {  # of the benchmarks, by the words that run them
    "exchange": "BERT on RTE by each way to average gradients",
    "traffic": "Bytes of bert-base's gradients",
    "albert": "ALBERT by batch, precision and ranks",
    "gathers": "What FSDP2 gathers in a step",
    "stages": "A language model in two stages",
    "ngrams": "The demo's text by counts alone",
}
