"""Images: their files and shards, decoding, loader processes; architectures, weights, classes.

Use it to read an ImageNet folder as fast as the scripts do, and to build and load their models.
"""
