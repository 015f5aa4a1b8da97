"""Writes text with a language model that text_*.py trained.

    python tools/sample.py runs/NAME/model_best.pt --prompt "The " --length 500
    python tools/sample.py runs/NAME/model_best.pt --temperature 0       # the likeliest
    python tools/sample.py runs/NAME/model_best.pt --tokenizer FOLDER    # that it was trained with

All else the checkpoint says itself. With --ema the averages are used, as validation does. The same
seed gives the same text.
"""

import itertools
import signal
from pathlib import Path

import torch
from commandline import CONTROL, make_parser, one_line

import text_nd as nd
from trainparts import devices, errors, option_types, safe_files
from trainparts.text import text_weights, tokenizing


def open_checkpoint(path, saved=None):
    """Returns (what the file holds, its model in evaluation mode, on the CPU). `saved` is what it
    holds, if it has been read."""
    saved = saved or safe_files.load_file(path)
    try:
        if saved["task"] != "lm":
            raise ValueError(f"its task is {saved['task']}")
        with torch.device("meta"):  # the file may name any sizes
            model = nd.GPT(saved["vocabulary"], saved["max_length"], 0.0, **saved["model_options"])
        weights = text_weights.find_weights(saved)[1]
        if not all(weight.isfinite().all() for weight in weights.values()):
            raise ValueError("its weights are not all finite")
        model.load_state_dict(weights, assign=True)
    except Exception as error:  # of a file that may hold anything
        why = f"no language model of text_*.py: {errors.first_line(error)}"
        raise errors.BadInput(f"{path} is {why}") from None
    return saved, model.float().eval()


def known_tokenizer(saved, folder):
    """Returns the tokenizer in a folder. Raises BadInput if it is not the checkpoint's."""
    size, words = saved["vocabulary"], saved["words"]
    if not Path(folder).is_dir():
        raise errors.BadInput(f"--tokenizer {folder} is no folder")
    tokenizer = tokenizing.load_tokenizer(folder, tell=errors.print_line)
    other = saved.get("tokenizer") not in (None, tokenizing.digest_of(tokenizer))
    if len(tokenizer) != size or words or other:
        has = "another vocabulary" if other else f"{size} tokens, not {len(tokenizer)}"
        has = "words of its own" if words else has
        raise errors.BadInput(f"--tokenizer {folder} is not the checkpoint's, which has {has}")
    return tokenizer


def make_codec(saved, folder):
    """Returns (a function from text to tokens, one from tokens to text) of a checkpoint."""
    size, words = saved["vocabulary"], saved["words"]
    if folder:
        tokenizer = known_tokenizer(saved, folder)
        return (
            lambda text: tokenizer.encode(text, add_special_tokens=False),
            lambda tokens: tokenizer.decode(tokens, clean_up_tokenization_spaces=False),
        )
    if words:
        index = {word: token for token, word in enumerate(words)}
        return (
            lambda text: [index.get(word, 0) for word in tokenizing.split_words(text)],
            lambda tokens: "".join("\n" if words[n] == "<eos>" else f"{words[n]} " for n in tokens),
        )
    if size != 256:
        raise errors.BadInput(f"the checkpoint has {size} tokens of a tokenizer: give --tokenizer")
    return (
        lambda text: [*text.encode(errors="surrogateescape")],
        lambda tokens: bytes(tokens).decode(errors="replace"),
    )


@torch.no_grad()
def draw(model, tokens, args, length, device):
    """Yields --length further tokens, each of which depends on `length` before it at most."""
    generator = torch.Generator().manual_seed(args.seed)
    tokens = tokens[-length:]
    for _ in range(args.length):
        # On the CPU, where the same seed draws the same on all devices. (sync point)
        logits = model(torch.tensor([tokens], device=device))[0, -1].double().cpu()
        if args.top_k:
            least = logits.topk(min(args.top_k, len(logits))).values[-1]
            logits[logits < least] = -torch.inf
        if args.temperature:
            shares = torch.softmax(logits / args.temperature, dim=0)
            token = torch.multinomial(shares, 1, generator=generator).item()
        else:
            token = logits.argmax().item()
        yield token
        tokens = [*tokens, token][-length:]


def write(tokens, decode):
    """Prints tokens as they come, which may be any bytes, without commands for a terminal. Those of
    a character that is not whole yet wait for the next."""
    seen, shown, read = [], 0, 0
    for token in tokens:
        seen.append(token)
        # Two tokens may differ from what each is alone, as by the blank between words.
        before, text = decode(seen[shown:read]), decode(seen[shown:])
        if not text.endswith("\ufffd"):
            print(text[len(before) :].translate(CONTROL), end="", flush=True)
            shown, read = read, len(seen)
    print(decode(seen[shown:])[len(decode(seen[shown:read])) :].translate(CONTROL))


def main():
    """Reads the options, writes."""
    parser = make_parser(__doc__ and __doc__.split("\n\n")[0])
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="of text_*.py --task lm")
    add("--prompt", default="\n", metavar="TEXT", help="what to go on with (the end of a line)")
    add(
        "--length",
        type=option_types.non_negative_int,
        default=500,
        help="tokens to write (%(default)s)",
    )
    sharp = "0 = the likeliest token always, 1 = as likely as the model has it (%(default)s)"
    add(
        "--temperature",
        type=option_types.number_between(float, 0, 1e3),
        default=0.8,
        metavar="T",
        help=sharp,
    )
    add(
        "--top-k",
        type=option_types.positive_int,
        metavar="N",
        help="the N likeliest tokens alone",
    )
    add("--seed", type=option_types.non_negative_int, default=0, help="(%(default)s)")
    add("--tokenizer", metavar="FOLDER", help="Hugging Face's, if it was trained with one")
    add("--no-accel", action="store_true", help="use the CPU even where there is a GPU")
    args = parser.parse_args()
    with one_line(parser, errors.BadInput, errors.Fault, OSError, RuntimeError, ValueError):
        saved, model = open_checkpoint(args.checkpoint)
        encode, decode = make_codec(saved, args.tokenizer)
        prompt = encode(args.prompt)
        if not prompt:
            raise errors.BadInput("--prompt has no token")
        device = devices.pick_device(no_accel=args.no_accel)
        new = draw(model.to(device), prompt, args, saved["max_length"], device)
        write(itertools.chain(prompt, new), decode)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    main()
