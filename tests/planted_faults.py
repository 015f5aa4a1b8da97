"""Plants faults in what all scripts share, one by one, and runs the tests that should see each.

    python tests/planted_faults.py                  # all
    python tests/planted_faults.py --only 3 17      # by number
    python tests/planted_faults.py -k average       # by name
    python tests/planted_faults.py --of save_checkpoint         # those in a function or class
    python tests/planted_faults.py --of save_checkpoint --list  # which tests see them
    python tests/planted_faults.py --times          # all, and the processor time that each takes

Each is planted in all imagenet_*.py, all text_*.py or both, in a module of trainparts/, or in a
program beside them, wherever its text stands, of a copy of this repository; each worker has a copy
of its own. A fault that no test sees is printed as NOT SEEN, and makes the exit status 1. At the
end, the slow tests that have seen faults must pass without one; of the others, `make test` says so.

Libraries for mutation testing do not fit: mutmut and cosmic-ray change one module at a time, which
tests import, by rules for operators. Here equal copies change together, run as processes of
their own, and what matters are a person's mistakes, such as averages every 31 steps.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import gc
import importlib
import io
import itertools
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import forked
import psutil

ROOT = Path(__file__).parents[1]
OUTSIDE = {".git", ".venv", "logs", "figures", "runs", "demo_data"}  # of what is copied

FLOAT8 = "_nd.py", "_ddp.py", "_fsdp.py"  # ends of the names of scripts that have it

# What pytest is to run, and below it: name, a text that each script of a task or of both has once,
# or that trainparts/ or a program of tools/ has once, and another instead.
FAULTS = r"""
tests/test_reference.py -k step
  warm-up from above 0 => return peak * progress / warmup => return peak * (progress + 1) / (warmup + 1)
  warm-up too short => if progress < warmup: => if progress < warmup / 2:
  default warm-up not scaled => args.epochs * few / many if => few / many if
  a cut at the wrong epoch => (30, 60, 80) => (30, 65, 80)
  cuts not scaled with --epochs => progress > args.epochs * cut / 90 => progress > cut
  a fifth in place of a tenth => return peak * 0.1 ** => return peak * 0.2 **
  rate of a step's beginning => peak, epoch + (step + 0.5) / data.steps) => peak, epoch + step / data.steps)
  logged rate is the peak => {"Lr": rate} => {"Lr": peak}
  averages every 31 steps => if done > 32 and done % 32: => if done > 32 and done % 31:
  averages from step 16 on => if done > 32 and done % 32: => if done > 16 and done % 32:
  steps counted from 0 for averages => done = run.epoch * run.data.steps + run.step => done = run.epoch * run.data.steps + run.step - 1
  averages move the wrong share => tensor.to(average.dtype), 1 - decay) => tensor.to(average.dtype), decay)
  model validated in place of averages => tensor.copy_(average) => tensor.copy_(tensor)
  no smoothing of cross-entropy => "label_smoothing": smoothing => "label_smoothing": 0
  sum over a batch in place of the mean => return losses.sum() / len(target), measure => return losses.sum(), measure
  logged loss of an image too few => {"Loss": sums["loss"] / images, => {"Loss": sums["loss"] / max(1, images - 1),
  accuracies as fractions => 100 * sums[f"top{n}"] / images for => sums[f"top{n}"] / images for
  top-5's sum for top-1 => sums[f"top{n}"] / images => sums["top5"] / images
  top-4 => output.topk(min(5, output.shape[1])) => output.topk(min(4, output.shape[1]))
  top-2 for top-1 => totals = losses.sum(), top5[:, 0].sum(), => totals = losses.sum(), top5[:, :2].sum(),
  smoothed loss in validation => validate_step(run.model, criterion, => validate_step(run.model, functools.partial(criterion, args=run.args),
  weights not from the seed => torch.manual_seed(args.seed) => torch.manual_seed(0)
  order the same each epoch => manual_seed(devices.seed_from(args.seed, epoch)) => manual_seed(devices.seed_from(args.seed, 0))
  crop's area => area = height * width * rng.uniform(least, most) => area = height * width * rng.uniform(least, most) ** 0.9
  crop's ratio => math.exp(rng.uniform(-math.log(longest), math.log(longest))) => rng.uniform(1 / longest, longest)
  crop from the top half => return rng.randint(0, height - h), => return rng.randint(0, height - h) // 2,
  mirrored too often => mirrored = rng.random() < 0.5 => mirrored = rng.random() < 0.6
  centre off by a pixel => round((side - len(out)) / 2) for side => round((side - len(out)) / 2) + 1 for side
  resized side rounded up => [data.val_resize * s // n for => [-(-data.val_resize * s // n) for
  normalised by 256 => 1 / (255 * std) => 1 / (256 * std)
tests/test_reference.py -k cosine
  best is the first of equals => if val[monitor] == run.best[monitor]: => is_best = val[monitor] == run.best[monitor] != getattr(run, "before", None)\n        run.before = run.best[monitor]\n        if is_best:
  cosine's shape => (1 - math.cos(math.pi * left)) / 2 => math.sin(math.pi * left / 2)
  decay from warm-up's beginning => / (args.epochs - warmup) => / args.epochs
  scaling by the root => "sqrt": scale**0.5 => "sqrt": scale
  scaling by a device's batch => scale = global_batch / 256 => scale = args.batch_size / 256
  --norm-wd for matrices too => exempt = weight.ndim < 2 or any => exempt = weight.ndim < 5 or any
  decays swapped => decay = args.norm_wd if exempt else args.wd => decay = args.wd if exempt or args.norm_wd is None else args.norm_wd
  nesterov off => nesterov=nesterov) => nesterov=False)
  momentum as by default => momentum=args.momentum, nesterov => momentum=0.9, nesterov
  small gradients scaled up => (limit / norm).clamp(max=1) => (limit / norm)
  norm of the largest gradient => norms.square().sum() => norms.square().max()
  share of mixing uniform => blend = 1 - rng.betavariate(alpha, alpha) => blend = 1 - rng.random()
  box of the wrong sides => math.sqrt(area) / 2 => area / 2
  share of the box before its cut => blend = (bottom - top) * (right - left) / (height * width) => blend += 0
  shares of a mixed loss swapped => return share * cross_entropy(label.long()) + => return (1 - share) * cross_entropy(label.long()) +
  neighbours in a ring, not pairs => device=target.device) ^ 1 => device=target.device).roll(1)
  mixup more often than CutMix => cut = rng.random() < 0.5 if => cut = rng.random() < 0.4 if
  the same mixing each step => seed = f"{args.seed} {epoch} {step}" + => seed = f"{args.seed} {epoch}" +
  size grows an epoch early => 5 * epoch // args.epochs - 1 => 5 * (epoch + 1) // args.epochs - 1
  not all of a step's micro-batches => micro_batches = (next_batch(run, "train", epoch) for _ in range(accumulation)) => micro_batches = [next_batch(run, "train", epoch) for _ in range(data.accumulation_steps)][:1] * 2
tests/test_reference.py -k linear
  no copy in warm-up => early = done <= 32 or run.epoch < warmup_epochs(run.args) => early = done <= 32
  linear's shape => return peak * left\n => return peak * left**2\n
  --lr scaled after all => "none": 1} => "none": scale}
  smoothing of binary cross-entropy => wanted * (1 - smoothing) + smoothing / classes => wanted * (1 - smoothing) + smoothing
  sum over classes => wanted, reduction="none").mean(dim=1) => wanted, reduction="none").sum(dim=1)
  targets rounded up at a higher share => (wanted > threshold) => (wanted > 2 * threshold)
  repeats mixed alike => mix_group = args.mix_group or global_batch // args.repeated_aug => mix_group = args.mix_group or global_batch
  repeats are one crop => [items + len(order) * n for n in => [items for n in
  sides alternate by three => != bool(epoch % 2) => != bool(epoch % 3)
  erased too often => if rng.random() < args.random_erase => if rng.random() < 1.2 * args.random_erase
  erased area => rng, 0.02, 0.33, 3.3) => rng, 0.02, 0.4, 3.3)
  erased in black => left : left + width] = mean => left : left + width] = 0
  policy drawn from the seed alone => seed=rng.getrandbits(63) => seed=args.seed
tests/test_reference.py -k base
  groups mixed alike => + f" {group}" * bool(group) => + ""
  groups counted from each batch => step, first = divmod(position, data.global_batch) => step, first = position // data.global_batch, 0
  --base-lr for 256 images => args.base_lr * global_batch / args.batch_size => args.base_lr * global_batch / 256
  --flip off still mirrors => if mirrored and args.flip != "off": => if mirrored:
  best by the largest loss => ("best_loss", math.inf, 0.0) => ("best_loss", 0.0, math.inf)
  best and worst loss swapped => ("best_loss", math.inf, 0.0) => ("best_loss", 0.0, min)
  best loss not saved => **{name: run.best[tag] for tag, (name, *_) in => **{name: worst if tag == "Loss" else run.best[tag] for tag, (name, worst, _) in
tests/test_reference.py -k two
  statistics of the last rank => if run.place.data_rank:\n => if run.place.data_rank + 1 < run.place.data_ranks:\n
  dropout the same on all ranks => seed_from(args.seed, epoch, step, run.place.rank) => seed_from(args.seed, epoch, step, 0)
  ranks interleaved, not sliced => keys[first : first + at_once] => keys[place.data_rank :: place.data_ranks][first % mine :][:at_once]
tests/test_data.py -k "whoever or epochs or every_image or distributed"
  central crop's side, where no draw fits => min(width, round(height * longest)) => min(width, height)
  steps share images => items = order[step * distinct : (step + 1) * distinct] => items = order[step : step + distinct]
  epochs are resumed at their beginning => for step in range(first_step, data.steps): => for step in range(data.steps):
  too few validation batches => math.ceil(len(data.val.target) / place.data_ranks => math.floor(len(data.val.target) / place.data_ranks
tests/test_recipe.py -k "freeze and one_device"
  --freeze trains all => if updated.requires_grad:\n            by_pair => if True:\n            by_pair
  --freeze moves statistics => module.eval().train = lambda mode=True, module=module: module => module.eval()
tests/test_recipe.py -k "losses or best_in"
  best not validated weights => {"state_dict": saved["ema"], "trained" => {"state_dict": saved["state_dict"], "trained"
tests/test_training.py -k counters
  steps of an epoch not loaded => steps=run.step, state=run.partial => steps=0, state=run.partial
  best loss not loaded => {tag: metadata.get(name, worst) for tag, (name, => {tag: worst if tag == "Loss" else metadata.get(name, worst) for tag, (name,
  seconds of a run not loaded => - (metadata["seconds"] if metadata else 0) => - 0
  budget in minutes => 3600 * (args.budget_hours or => 60 * (args.budget_hours or
tests/test_training.py -k several
  partial sums not saved => "partial": run.meter.state => "partial": None
  saved step one behind => divmod(run.epoch * run.data.steps + run.step, => divmod(run.epoch * run.data.steps + run.step - 1,
tests/test_training.py -k says
  saved epoch one ahead => divmod(run.epoch * run.data.steps + run.step, => divmod((run.epoch + 1) * run.data.steps + run.step,
  best accuracy not saved => **{name: run.best[tag] for tag, (name, *_) in => **{name: worst if tag == "Top1" else run.best[tag] for tag, (name, worst, _) in
tests/test_training.py -k "counters_go_on"
  best accuracies not loaded => {tag: metadata.get(name, worst) for tag, (name, => {tag: metadata.get(name, worst) if tag == "Loss" else worst for tag, (name,
tests/test_folder.py -k other_data
  another set of data is the same run => {"data": digest, => {"data": "other",
  other images are validated => "val_data": val_digest} => "val_data": ""}
tests/test_best.py -k "images and imagenet_ddp.py"
  statistics not synced => sync_statistics(run)\n    rank, device = => rank, device =
tests/test_training.py -k flags
  waits of all ranks => waited = sum(run.data_waits) / run.place.ranks => waited = sum(run.data_waits)
  saved every second => 0 < 60 * run.args.checkpoint_minutes < => 0 < run.args.checkpoint_minutes <
tests/test_training.py -k keeps_its_time
  an epoch whose steps are done is timed again => run.meter.bar.close()\n    return => run.meter.read_clock()\n    return
tests/test_data.py -k noise
  noise of the wrong split => data.image_size if split == "train" else data.val_size => data.val_size if split == "train" else data.image_size
tests/test_text_reference.py -k tied
  a target is its own input => inputs, target = tokens[:, :-1].clip(min=0), tokens[:, 1:] => inputs, target = tokens[:, :-1].clip(min=0), tokens[:, :-1]
  attention to what comes => "is_causal": True => "is_causal": False
  queries and values swapped => q, k, v = x.unflatten => v, k, q = x.unflatten
  heads and queries swapped => x.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4) => x.unflatten(2, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)
  GELU by tanh => nn.GELU() => nn.GELU("tanh")
  network not added to what it is given => return x + self.mlp(x) => return self.mlp(x)
  no last norm => return self.head(self.norm(self.blocks(x))) => return self.head(self.blocks(x))
  no positions => self.token(tokens) + self.position[: tokens.shape[1]] => self.token(tokens) + 0 * self.position[: tokens.shape[1]]
  tied weights parted => self.head.weight = self.token.weight => self.head.weight.data = self.token.weight.data
  --beta2 passed over => AdamW(groups, args.lr, betas=(0.9, args.beta2)) => AdamW(groups, args.lr, betas=(0.9, 0.999))
  loss of a sequence, not of a token => return losses.sum() / target.numel(), measure => return losses.sum() / len(target), measure
  perplexity by another base => math.inf if loss > 709 else math.exp(loss) => math.inf if loss > 709 else 2**loss
tests/test_text_reference.py -k begin
  last layers of branches as large as the others => weight.data /= math.sqrt(2 * layers) => weight.data /= 1
  all layers small => nn.init.normal_(weight, std=0.02) => nn.init.normal_(weight, std=0.01)
tests/test_text.py -k once
  a ragged block is trained on => (False, True), strict => (True, True), strict
  a ragged block is not validated => (False, True), strict => (False, False), strict
  padding is a target => source.tokens[at].astype(np.int64), -1) => source.tokens[at].astype(np.int64), 0)
tests/test_text.py -k torchmetrics
  F1 without its 2 => max(1, 2 * tp + fp + fn) => max(1, tp + fp + fn)
  F1 of the other class => 100 * 2 * tp / max(1, 2 * tp + => 100 * 2 * tn / max(1, 2 * tn +
  MCC without the square root => / math.sqrt(product or 1) => / (product or 1)
  MCC's sign => (tp * tn - fp * fn) => (fp * fn - tp * tn)
  MCC of three classes => if output.shape[1] == 2: => if output.shape[1] <= 3:
  padding counts as tokens => counts[0] = (target >= 0).sum() => counts[0] = target.numel()
  loss of a sequence is logged => max(1, sums["tokens"] or sums["sequences"]) => max(1, sums["sequences"])
  accuracy of one batch is off => counts[1] = (guess == target).sum() => counts[1] = (guess >= target).sum()
tests/test_text.py -k encoders
  padding is not masked => attention_mask=mask.long() => attention_mask=torch.ones_like(tokens)
  the second segment begins a token late => (mask.cumsum(dim=1) > second) => (mask.cumsum(dim=1) > second + 1)
  random weights in place of FOLDER's => if args.arch in ARCHS or args.from_scratch or not load: => if load:
tests/test_text.py -k another_dropout
  dropout of attention in validation => self.dropout * self.training => self.dropout
  no dropout of attention => "dropout_p": self.dropout * self.training => "dropout_p": 0.0
  no dropout of branches => last, nn.Dropout(dropout)) => last, nn.Dropout(0.0))
tests/test_text.py -k classifier
  validated in batches of all ranks => val_keys = range(place.data_rank, len(data.val.target), place.data_ranks) => val_keys = range(len(data.val.target))
tests/test_recipe.py -k "norm_of_millions or grow_after"
  norm summed up in float32 => torch._foreach_norm(gradients, 2, dtype=dtype)) => torch._foreach_norm(gradients, 2)).to(dtype)
  sizes that grow by epochs => max(0, 5 * epoch // args.epochs - 1) => epoch // 5
tests/test_training.py -k "flags_of or scale_of or one_epoch or another_measure"
  loss scale not loaded => run.scaler.load_state_dict(scaler) => pass
  any of several --desired ends => if met and all(met): => if met and any(met):
  desired accuracy in percent => ["top1", round(100 * option_types.fraction(text), 9)] => ["top1", option_types.fraction(text)]
  desired accuracy of training => reason = judge(run, val) => reason = judge(run, values)
  best by another measure carried over => if run.monitor not in (None, monitor):  # the => if False:  # the
  best top-5 is the last => run.best[tag] = better(run.best[tag], val.get(tag, worst)) => run.best[tag] = val[tag] if tag == "Top5" else better(run.best[tag], val.get(tag, worst))
  best in the default in spite of --desired => return args.desired[0][0] if args.desired else next => return next
  --best overruled by --desired => if args.best:\n        return next => if args.best and not args.desired:\n        return next
tests/test_data.py -k crops_and_centres
  validation always bilinear => resize(region, size=sides, mode=data.interpolation, out=resized) => resize(region, sides, "bilinear", resized)
tests/test_text.py -k positions_are
  positions from the end => self.position[: tokens.shape[1]] => self.position[-tokens.shape[1] :]
tests/test_text_input.py -k "words_of_dev or rate_of_its_own"
  words of dev in the vocabulary => for row in tables[0]) => for row in tables[0] + tables[1])
  the rate of random weights for FOLDER => DEFAULTS["lr"] if value in ARCHS else FINE_TUNING => DEFAULTS["lr"]
tests/test_reference.py -k clipped
  a scaled loss is validated in float32 => with precision(args, inputs.device):\n        return objective => if True:\n        return objective
tests/test_training.py -k "makes_no_state"
  an evaluation makes moments => if not run.args.evaluate: => if True:
tests/test_training.py -k "in_validation_saves or least_of or scale_of"
  own loss scale wins over the saved one => scaler = run.scaler.state_dict() | metadata["scaler"] => scaler = metadata["scaler"] | run.scaler.state_dict()
  signal in validation saves the averages => if (run.interrupted or run.save_due) and training: => if run.interrupted or run.save_due:
  worst mcc is 0 => "MCC": ("best_mcc", -1.0, 1.0) => "MCC": ("best_mcc", 0.0, 1.0)
tests/test_training.py -k "counters_go_on or without_the_script or spent_budget or log_and_output"
  spent budget skips a validation due => while run.epoch < args.epochs and (run.step or not run.no_more_steps): => while run.epoch < args.epochs and not run.no_more_steps:
  model_best.pt holds the best of before => reason = judge(run, val)\n        if val[monitor] == run.best[monitor]:  # judge() has updated the best; equal epochs count\n            save_best(run) => best = dict(run.best)\n        reason = judge(run, val)\n        if val[monitor] == run.best[monitor]:\n            now, run.best = run.best, best\n            save_best(run)\n            run.best = now
  end of the log has the last for the best => ": run.best[tag] for tag in BEST if tag in val} => ": val[tag] for tag in BEST if tag in val}
tests/test_bad_input.py -k ranks_that_differ
  validation data not compared over ranks => "val_data": val_digest} => "val_data": broadcast_object(val_digest)}
tests/test_parity.py -k replicas -m slow
  pipeline: norm summed over replicas => functools.partial(_sum, group=pipeline.stages)) => _sum)
tests/test_parallel.py -k "adds_gradients_up or sends_the_type"
  fsdp: gradients summed in bfloat16 => param_dtype=torch.bfloat16, reduce_dtype=torch.float32) => param_dtype=torch.bfloat16)
  exchange: ddp sends bfloat16 for float16 => "float16": hooks.fp16_compress_hook => "float16": hooks.bf16_compress_hook
tests/test_text.py -k torchmetrics
  tokens of number 0 are not counted => counts[0] = (target >= 0).sum() => counts[0] = (target > 0).sum()
tests/test_text.py -k encoders
  token 0 is masked as padding => mask = tokens >= 0 => mask = tokens > 0
tests/test_training.py -k "patience or half_as"
  an equal epoch is a better one => 0 if run.best[monitor] != before else => 0 if run.best[monitor] == val[monitor] else
  epochs waited are not saved => "stale_epochs": run.stale_epochs, => "stale_epochs": 0,
  advice under --base-lr trains at another rate => base_lr=args.base_lr and args.base_lr * batch / args.batch_size, => base_lr=args.base_lr,
  advice of evaluation is of training => if args.evaluate:\n        return f"add -b => if False:\n        return f"add -b
tests/test_training.py -k counted_when
  a save that was due is due in each step => run.save_due = False\n    if run.interrupted: => if run.interrupted:
  flags read in another order => "waited", "interrupted", "save_due", "budget_spent") => "waited", "save_due", "interrupted", "budget_spent")
  the newest step is counted first => run.pending.pop(0) => run.pending.pop()
  each step is waited for => if len(run.pending) > 1: => if run.pending:
  time of a hang counts from an epoch's beginning => count_queued_steps(run, meter)\n    endings.arm_timeout(run.args.timeout, compiles=run.args.compile) => count_queued_steps(run, meter)
  saved before the newest step is counted => while run.pending:\n        count_oldest_step => while len(run.pending) > 1:\n        count_oldest_step
tests/test_training.py -k patience
  a whole run ends for its budget => if done < run.args.epochs else "all epochs => if done <= run.args.epochs else "all epochs
tests/test_training.py -k "flags_of or minutes_anew"
  a budget is not spent in validation => spent = time.perf_counter() > run.deadline => spent = training and time.perf_counter() > run.deadline
  a signal in validation is not heard => stop = bool(run.signals) => stop = training and bool(run.signals)
  saved again in validation => save = training and 0 < => save = 0 <
  after the first save each step is saved => run.saved_at = time.monotonic()\n    checkpoint => checkpoint
tests/test_scripts.py -k apexs_default
  saved at the first step => run.saved_at = time.monotonic()\n    run.started => run.started
tests/test_parallel.py -k hybrid_has
  replicas and shards swapped => (place.ranks // args.hybrid, args.hybrid), ("replicas" => (args.hybrid, place.ranks // args.hybrid), ("replicas"
tests/test_apex_levels.py -k either_type
  the last type's overflow alone => for dtype in {gradient.dtype for gradient in gradients}:\n => for dtype in {gradient.dtype for gradient in gradients}:\n            overflow = torch.zeros(1, device=gradients[0].device)\n
tests/test_folder.py -k "restarts_need or resume_alone"
  evaluation under restarts needs a folder => and not (args.output_dir or args.evaluate):\n            needs => and not args.output_dir:\n            needs
  --resume FILE splits as typed => args.global_batch or (metadata["global_batch"] if resumes else None) => args.global_batch
tests/test_folder.py -k going_back
  --start-epoch goes back in place => if args.start_epoch is None or metadata["in_place"]: => if args.start_epoch is None:
tests/test_folder.py -k steps_alone
  steps of a killed start stay in the log => if in_place else 0\n        run.log => if in_place else None\n        run.log
tests/test_folder.py -k test_evaluate
  evaluation needs the global batch => resumes = metadata is not None and not args.evaluate => resumes = metadata is not None
tests/test_folder.py -k "logged_once or one_step or replaces or its_best"
  a measure typed for a moment counts => "monitor": run.monitor or monitor_of(run.args) => "monitor": monitor_of(run.args)
  an epoch that is judged again counts => saved["stale_epochs"] = -1 => pass
  an epoch is logged again => if trained or math.ceil(done) not in run.epochs_logged: => if True:
  what TensorBoard drops is not logged again => for epoch in logged if epoch < purge] => for epoch in logged]
  the best is replaced in silence => if run.monitor != monitor and run.place.rank == 0: => if False:
  the rate of a resumed epoch is the new schedule's => {"Lr": rate} => {"Lr": learning_rate(args, peak, epoch + (run.step - 0.5) / data.steps)}
tests/test_parallel.py -k "pipelines_that or launch"
  the line does not name --microbatches => if micro > 1 or args.microbatches == 1: => if True:
  each rank's --local-rank must be the same => "dist_backend", "local_rank" => "dist_backend"
tests/test_training.py -k costs_no_copy
  a checkpoint is kept through validation => save_checkpoint(run)\n        val = validate(run) => save_checkpoint(run)\n        kept = full_state(run)\n        val = validate(run)\n        del kept
  the best epoch is not judged again =>     saved["stale_epochs"] = -1 =>     pass
tests/test_text_input.py -k data_is_counted
  sequences of training are counted twice => {len(validation.target):,} validation sequences" => {len(training.target):,} validation sequences"
tests/test_weights.py -k sizes_mean
  mean of the file is not believed => mean=tuple(about.get("mean", preset.mean)), => mean=tuple(preset.mean),
  mean of the file is not saved => "mean": list(data.mean), => "mean": list(architectures.preset_of(args.arch).mean),
tests/test_weights.py -k published_file_says
  sizes of the file are trained => theirs: architectures.About = about if args.evaluate else {} => theirs = about
  interpolation of the file is not believed => interpolation=theirs.get("interpolation", preset.interpolation), => interpolation=preset.interpolation,
tests/test_weights.py -k deeper
  a size is asked of training, too => size = data.val_size if args.evaluate else None => size = data.val_size
tests/test_weights.py -k "by_name or alone or index"
  other classes are fine-tuned in silence => elif not args.dummy and about.get("classes", data.train.classes) != data.train.classes: => elif False:
tests/test_text.py -k float64
  text's losses summed in float32 => losses.sum(dtype=dtype) => losses.sum().to(dtype)
tests/test_weights.py -k "averages or program or to_type or other_weights or finite"
  an evaluation without its loss => , "Loss": "loss {0:.{2}f}"}\n    return => }\n    return
tests/test_timm.py -k "of_validation or measured"
  a squashed image is cut to 4:1 => longest = 10**6 if squash else 20 => longest = 4
  a model of training's size is evaluated => built_for = val_size if args.evaluate else image_size => built_for = image_size
tests/test_timm.py -k undecayed
  what a model names is decayed => patterns = getattr(model, "no_weight_decay", tuple)() => patterns = ()
  patterns are names => any(fnmatch.fnmatch(name, each) for each in patterns) => name in patterns
  masters are left out => masters or model.parameters(),\n => model.parameters(),\n
tests/test_text_folders.py -k by_their_names
  outputs are the task's in any order => order = [labels.index(name) for name in names] => order = [*range(len(names))]
  the order is the other way round => order = [labels.index(name) for name in names] => order = [names.index(name) for name in labels]
tests/test_text_folders.py -k other_names
  other names are evaluated => if args.evaluate and not args.weights:\n        raise => if False:\n        raise
tests/test_text_folders.py -k saved_names
  names of a checkpoint are not believed => theirs = about.get("labels") or names => theirs = names
tests/test_text_folders.py -k other_names
  other names are trained in silence => lines.append(f"{line}: its last layer starts from theirs") => pass
tests/test_text_folders.py -k order_of
  a checkpoint names the task's order => "labels": data.labels, => "labels": GLUE[args.task][2] if data.labels else None,
tests/test_text_folders.py -k worst
  0 % is not printed => for tag in forms if tag in values => for tag in forms if values.get(tag, BEST[tag][1]) != BEST[tag][1]
tests/test_text_folders.py -k "capitals or same_size or sample"
  a script keeps capitals in silence => tokenizing.load_tokenizer(name, tell=print_once) => tokenizing.load_tokenizer(name)
  a language model keeps capitals in silence => texts[:1], tell=print_once) => texts[:1])
  a checkpoint's tokenizer is not compared => vocabulary words tokenizer max_length" => vocabulary words max_length"
tests/test_text_folders.py -k "dropout or positions or with_the_name or padding"
  a folder of this name is passed over in silence => if name in (*ARCHS, *OURS) and os.path.isdir(name): => if False:
tests/test_text_folders.py -k weights_are
  averages are taken in silence => if held == "ema": => if False:
tests/test_text_folders.py -k same_size
  weights of another model => if "model_options" in saved: => if False:
tests/test_text_folders.py -k classifier_goes_on
  a head of another task is measured => if not args.evaluate:\n        free |= {"task"} => if True:\n        free |= {"task"}
  a folder's weights are read for nothing => build_encoder(args, data, load and not args.weights), order) => build_encoder(args, data, load), order)
tests/test_text_folders.py -k nothing_left
  nothing is left to train, in silence => if resumes and not metadata["in_place"]:\n            checkpointing.check_epochs_left => if False:\n            checkpointing.check_epochs_left
tests/test_own_model.py -k "that_a_scale_skipped"
  a scale that grew is a skip => float(scale < 0.9 * run.scale) => float(scale > 1.1 * run.scale)
  a rounded scale is a skip => float(scale < 0.9 * run.scale) => float(scale < run.scale)
  the scale of before is not kept => run.scale = scale\n => pass\n
  ranks' scales are added up => step.pop("scale") / run.place.ranks => step.pop("scale")
  a static scale below 1 ends the run => if skipped and run.scale < 1: => if run.scale < 1:
  a scale of 1 ends the run => if skipped and run.scale < 1: => if skipped and run.scale <= 1:
  a scale may fall to 0 => if skipped and run.scale < 1: => if False:
tests/test_own_model.py -k "collapses"
  an epoch does not say what it skipped => steps skipped  " if skipped else "" => steps skipped  " if False else ""
  stages without the loss have no scale => scaler.scale(torch.zeros(1, device=place.device)) => pass
tests/test_own_model.py -k "stage_without"
  a rank without gradients does not clip => gradients = gradients or [torch.zeros(1, device=device)] => pass
  a rank without gradients has no scale => found.setdefault(device, torch.zeros(1, device=device)) => pass
tests/test_own_model.py -k "ways and (pipeline or ddp)"
  the pipeline trains what is frozen => nn.Parameter(kept, tensor.requires_grad) => nn.Parameter(kept)
  DDP waits for weights that are not used => unused = not _uses_all(model, args, data, place) => unused = False
tests/test_apex_levels.py -k "not_used or reference or rests"
  gradients of O2's masters stay => optimizer.zero_grad()  # of O2's masters => pass
  Apex unscales gradients that are not there => if getattr(each, "weight", each).grad is not None => if each.requires_grad
tests/test_reference.py -k "layers or two"
  dropout the same in each step => seed_from(args.seed, epoch, step, run.place.rank) => seed_from(args.seed, epoch, 0, run.place.rank)
  groups have one rate => rate * group.get("lr_scale", 1) => rate
  the rate of the first group is logged => {"Lr": rate} => {"Lr": run.optimizer.param_groups[0]["lr"]}
  layers have the rate of all => shares.get(weight, 1.0) => 1.0
  layers without their own decay => by_pair.setdefault((exempt, share), []) => by_pair.setdefault((False, share), [])
  the trial changes the model's statistics => buffer.copy_(before) => pass
tests/test_timm.py -k "rates or does_not_say"
  layers by timm's fallback => if not (hasattr(model, "group_matcher") or hasattr(model, "pretrained_cfg")): => if False:
tests/test_text.py -k embeddings_are
  positions are no embedding => "stem": "token|position" => "stem": "token"
  embeddings are the last layer => (?:emb|wte|wpe) => (?:wte|wpe)
tests/test_look.py -k "table or unequal"
  images at the top of a folder alone => for name in sorted(names)) => for name in sorted(names) if folder == path)
  other files of a folder are read => if pair[1].lower().endswith(IMAGES)] => ]
  suffixes in capitals are passed over => if pair[1].lower().endswith(IMAGES)] => if pair[1].endswith(IMAGES)]
  a folder in the file system's order => walked.sort() => walked.sort(reverse=True)
  all images in one batch => batch_size=max(1, 64 // max(1, pictures.size // 224) ** 2) => batch_size=len(paths)
  probabilities are rounded => name, *chances.numpy()]) => name, *chances.numpy().round(4)])
  the least likely class is predicted => trained.classes[chances.argmax()] => trained.classes[chances.argmin()]
  columns in another order => table.writerow(["file", "class", *columns(trained, "file", "class")]) => table.writerow(["file", "class", *sorted(trained.classes)[::-1]])
  images are numbered by batch => table.writerow([paths[number], => table.writerow([paths[number % 64],
  commas are not quoted => yield csv.writer(file => yield csv.writer(file, quoting=csv.QUOTE_NONE, escapechar="|"
  a link is replaced by a table => target = Path(os.path.realpath(path)) => target = path
  a picture is replaced by a table => if path.suffix.lower() in (*CHECKPOINTS, *IMAGES): => if False:
  the matrix is turned => zip(trained.classes, matrix.tolist(), strict=True) => zip(trained.classes, matrix.T.tolist(), strict=True)
  top-5 of four classes => if len(names) > 5: => if True:
  top-5 of six classes is left out => if len(names) > 5: => if len(names) > 6:
tests/test_own_tags.py -k "measures"
  an output beside --csv is a probability => (logits if args.outputs else logits.softmax(dim=1)) => logits.softmax(dim=1)
tests/test_launcher.py -k under_srun
  what is typed under srun is passed over => elif tasks != "1" and not by_hand: => elif tasks != "1":
tests/test_look.py -k "changes_no_model"
  look.py compiles => channels_last=False, compile=False) => channels_last=False)
tests/test_look.py -k "another_package"
  a log's package is not compared => same and {*own} <= {*modules} => same
tests/test_look.py -k script_s_code
  a changed build_model is passed over => nd.build_model(args, data, load=False) => architectures.make_model(arch, num_classes=count, **options)
  a checkpoint's options are passed over => if name in args and isinstance(value, => if False and isinstance(value,
  a checkpoint's options are of any type => isinstance(value, str | int | float | None): => True:
  normalised by this repository => return nd.finish_batch( => return importlib.import_module("imagenet_nd").finish_batch(
  modules beside a script are not found => sys.path.insert(0, str(path.resolve().parent)) => pass
tests/test_look.py -k "no_script and SystemExit"
  a script ends the program => except (Exception, SystemExit) as error:  # whatever => except Exception as error:  # whatever
tests/test_look.py -k "no_script and lacks"
  names that a script lacks are not looked for => for name in used if not hasattr(module, name)) => for name in used if False)
tests/test_look.py -k another_script
  another script is passed over => if "model_options" in saved and (line := other_script(path)): => if False and (line := other_script(path)):
  the whole scripts are compared => return found[0] if found else text => return text
  the first start counts => sorted(folder.glob("*tfevents*"), reverse=True) => sorted(folder.glob("*tfevents*"))
  compared with this repository's script => mine = Path(nd.__file__).read_text() => mine = Path(importlib.import_module("imagenet_nd").__file__).read_text()
  a log sends a terminal commands => name = shown(shlex.split( => name = str(shlex.split(
tests/test_training.py -k "cores_are_shared or moments_begin or spent_budget"
  the hour budget begins anew with each start => time.perf_counter() - (metadata["seconds"] if metadata else 0) => time.perf_counter()
  the cores of a node for all nodes' ranks => share_cores(place.device, place.local_ranks) => share_cores(place.device, place.ranks)
  loader processes share the cores of a node among all ranks => cores_per_rank(place.local_ranks) => cores_per_rank(place.ranks)
  what timm's optimizers count is not resumed => for name in metadata["group"].keys() & group.keys(): => for name in ():
  moments begin after a step => for _, moment in state_trees.leaves(optimizer.state):\n        moment.zero_() => pass
tests/test_data.py -k "to_the_pixel or from_the_image"
  corners of central crops are rounded down => top, left = (round((side - len(out)) / 2) for => top, left = (int((side - len(out)) / 2) for
tests/test_parallel.py -k "drop_other or averaged_over"
  all devices drop the same units => generator.manual_seed(torch.initial_seed() + number) => generator.manual_seed(torch.initial_seed())
  gradients are averaged over all ranks => _average(gradients, pipeline.replicas) => _average(gradients, dist.group.WORLD)
tests/test_reference.py -k linear
  averages begin an epoch late => early = done <= 32 or run.epoch < warmup_epochs(run.args) => early = done <= 32 or run.epoch <= warmup_epochs(run.args)
tests/test_apex_levels.py -k frozen
  masters of frozen weights train => nn.Parameter(weight.detach().clone(), weight.requires_grad) => nn.Parameter(weight.detach().clone())
tests/test_look.py -k "unequal or confus or worst or classes"
  shares of what was answered => matrix.sum(axis=1)[there, None] => matrix.sum(axis=0)[None, there]
tests/test_training.py -k spent_budget
  hours before --resume are forgotten => (metadata["seconds"] if metadata else 0) => (metadata["seconds"] if metadata and metadata["in_place"] else 0)
tests/test_training.py -k computes_as
  validation in float32 whatever --amp says => with precision(args, inputs.device):\n        return objective(model(inputs), target)[1] => return objective(model(inputs), target)[1]
tests/test_training.py -k rank_0s_statistics
  each rank validates its own statistics under --ema => tensor.copy_(average)\n    sync_statistics(run) => tensor.copy_(average)\n    if not run.ema:\n        sync_statistics(run)
tests/test_training.py -k flags_of
  waits divided by slices of data => waited = sum(run.data_waits) / run.place.ranks => waited = sum(run.data_waits) / run.place.data_ranks
tests/test_training.py -k seed_of_its
  a replica's stages drop the same units => seed_from(args.seed, epoch, step, run.place.rank) => seed_from(args.seed, epoch, step, run.place.data_rank)
tests/test_own_model.py -k that_a_scale_skipped
  the scale that skips are told by never rises => run.scale = scale\n    run.interrupted |= => run.scale = min(run.scale, scale)\n    run.interrupted |=
tests/test_own_model.py -k "collapses and pipeline"
  an overflow stays in its stage => dist.all_reduce(each) => dist.all_reduce(each, group=pipeline.replicas)
tests/test_parallel.py -k "adds_gradients_up or every_exchange or norm_of_a_hybrid or so_many_shards or averaged_over"
  sums of shards in 16 bits => reduce_dtype=torch.float32) => reduce_dtype=torch.bfloat16)
  divided after the exchange in 16 bits => torch._foreach_div_(gradients, dist.get_world_size())  # first, or 16 bits might overflow\n    sent = [gradient.to(getattr(torch, args.exchange_dtype)).contiguous() for gradient in gradients]\n    EXCHANGES[args.exchange](sent, args)\n    torch._foreach_copy_(gradients, sent) => sent = [gradient.to(getattr(torch, args.exchange_dtype)).contiguous() for gradient in gradients]\n    EXCHANGES[args.exchange](sent, args)\n    torch._foreach_copy_(gradients, sent)\n    torch._foreach_div_(gradients, dist.get_world_size())
  norms of a hybrid divided by the other dimension => dist.get_world_size() // sharded[0].device_mesh.size(-1) => dist.get_world_size() // sharded[0].device_mesh.size(0)
  --hybrid N makes N replicas => sizes, names = (place.ranks // args.hybrid, args.hybrid), ("replicas", "shards") => sizes, names = (args.hybrid, place.ranks // args.hybrid), ("replicas", "shards")
  a pipeline's norm is of all replicas => clip_gradients(gradients, args.clip_grad, functools.partial(_sum, group=pipeline.stages)) => clip_gradients(gradients, args.clip_grad, _sum)
tests/test_recipe.py -k norm_of_millions
  norms in the gradients' own dtype => dtype = devices.exact_dtype(gradients[0].device)\n    norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=dtype)) => norms = torch.stack(torch._foreach_norm(gradients, 2))
tests/test_reference.py -k step
  --ema counts steps from each epoch's start => done = run.epoch * run.data.steps + run.step => done = run.step
tests/test_text.py -k encoders
  batches as wide as the nearest multiple of 8 => width = min(most, (length.max(initial=1) + 7) // 8 * 8) => width = min(most, max(8, round(length.max(initial=1) / 8) * 8))
  a first sentence's last token is of the second => mask & (mask.cumsum(dim=1) > second) => mask & (mask.cumsum(dim=1) >= second)
tests/test_tools.py -k index_of_tars
  images and labels of a tar paired by their order => rows = np.array([[*images[key], targets[key]] for key in images], np.int64).reshape(-1, 3) => pairs = zip(images.values(), targets.values(), strict=True)\n    rows = np.array([[*image, label] for image, label in pairs], np.int64).reshape(-1, 3)
tests/test_folder.py -k from_its_best
  the best epoch judged again counts as stale => saved["stale_epochs"] = -1 => saved["stale_epochs"] = 0
tests/test_training.py -k counters_go_on
  the last values as the best ones => end |= {f"best_{tag.lower()}": run.best[tag] for tag in BEST if tag in val} => end |= {f"best_{tag.lower()}": val[tag] for tag in BEST if tag in val}
tests/test_look.py -k "unequal or average_is"
  worst by the number of errors => sorted(there, key=lambda label: right[label] / images[label]) => sorted(there, key=lambda label: right[label] - images[label])
tests/test_results.py -k "went_on_with or goes_on_from"
  hours of the last start => starts[0].get("resumed") if starts else None => starts[-1].get("resumed") if starts else None
  an epoch that others began counts => before.get("epoch", 0) + bool(before.get("step")) => before.get("epoch", 0)
tests/test_results.py -k is_the_headline
  the best epoch in a figure's title => tops, whole = [final(run) for run in cluster], => tops, whole = [findings.best(run) for run in cluster],
  the first epoch for the last => return float(run.values(tag)[-1]) => return float(run.values(tag)[0])
  the best is the last => return float(run.values(tag).max()) => return float(run.values(tag)[-1])
tests/test_results.py -k headlines_compare
  another layout is called equal => " --amp bfloat16 --channels-last", => " --amp bfloat16",
tests/test_results.py -k figure_compares
  the peer's bar has the ratio => in (ours, f"  ({compared})"), (theirs, ""): => in (ours, ""), (theirs, f"  ({compared})"):
  nvImageCodec's ratio called Pillow's => beside(benchmark, f"{OURS}, Pillow", [PYTORCH]) => beside(benchmark, OURS, [PYTORCH])
tests/test_results.py -k in_a_sentence
  a peer that was not measured leaves a hole => return "; ".join(filter(None, parts)) => return "; ".join(parts)
tests/test_results.py -k caption_stands
  a caption lies over the panels => figure.supxlabel(lines, fontsize=9, color=GREY) => figure.text(0.5, 0.01, lines)
tests/test_results.py -k said_whose
  only the page's own figures say whose runs => shown[files[name]] = studies[name] => pass
tests/test_results.py -k say_whose_it_is
  one figure does not say whose runs => "scaling", "model", "io"} & => "scaling", "model"} &
tests/test_results.py -k said_whose
  the address is left out => source and f"({source})"] => ""]
  logs of today are called another's => return text if run.about else => return text if not run.about else
tests/test_results.py -k several_people
  one is named for all => names[whose(run)].append(run.name) => names[whose(runs[0])].append(run.name)
tests/test_results.py -k scripts_claim
  others' runs are claimed => if not run.facts.get("by")] => if run]
tests/test_results.py -k study_json
  a study.json further up is not read => in above[: max(2, above.index(root) + 1)]] => in above[1:2]]
  a study.json above one run is not read => max(2, above.index(root) + 1) => above.index(root) + 1
  what study.json says besides refuses it => for name in FACTS if content.get(name) is not None => for name in content if content[name] is not None
tests/test_training.py -k trained_again
  the first step that is trained again is logged twice => purge = max(run.epoch + 1, run.epoch * data.steps + run.step) if in_place else 0 => purge = max(run.epoch + 1, run.epoch * data.steps + run.step + 1) if in_place else 0
tests/test_weights.py -k "averages_of_others or that_no_library or not_finite or names_of_classes or odd_files or none_of_images"
  outputs that are no numbers are shares => if not logits.isfinite().all(): => if False:
  classes named as ImageNet's => if not ("classes" in trained.about or trained.about["published"]): => if False:
  advice for training of an evaluation => why = "these weights do not give numbers" => pass
tests/test_data.py -k long_images
  long images are cut to 4:1 first => longest = 10**6 if squash else 20 => longest = 10**6 if squash else 4
tests/test_folder.py -k other_data
  other images are validated in a run => "val_data": val_digest} => "val_data": "any"}
tests/test_package.py -k "digest or goes_on or other_packages or log_has or look_for"
  ranks of other packages train together => {"device": place.device.type, "trainparts": package_digest.IDENTITY} => {"device": place.device.type}
  a checkpoint that does not say its package => "trainparts": package_digest.IDENTITY,\n        "args" => "args"
  each version fits => VERSION.rpartition(".")[0] != PARTS => not VERSION
tests/test_sync_copies.py -k "package or one_line_tells"
  errors may import => if first := sorted(used.get(f"{PACKAGE}/errors.py", [])): => if first := []:
  parameters may hide names => bound = each.is_parameter() or each => bound = each
  imports within functions may hide names => or each.is_imported()\n            if bound => \n            if bound
  attributes hide names => if table.get_type() != "function": => if False:
  circles are allowed => complaints.append(f"imports in a circle => str(f"imports in a circle
  folders import each other => (Path(PACKAGE), Path(path).parent): => (Path(PACKAGE), Path(path).parent, Path(other).parent):
  two may define a name => and len(places) > 1: => and len(places) > 2:
  names of the package are refused in users' tasks => if path in modules or task_and_strategy(path)[0] in ("imagenet", "text"): => if path:
  names may be imported => elif first == PACKAGE and name != f"{PACKAGE}.VERSION": => elif False:
  the package may train => for words in BACKENDS, IMAGES, TRAINING: => for words in BACKENDS, IMAGES:
  folders of the package are not read => sorted(folder.rglob("*.py")) => sorted(folder.glob("*.py"))
tests/test_one_file.py -k another_thing_is_refused
  a parameter hides a name in one file => names.add(each.arg) => pass
  what is called so hides a name in one file => elif each is not node and isinstance(getattr(each, "name", None), str): => elif False:
  a global of another file => self.top |= {*node.names} if isinstance(node, ast.Global) else set() => pass
  an import that is another thing later => if both := sorted(again & bound): => if both := []:
  a pattern that becomes a name => or node in patterns: => :
  a builtin that a script replaces => other = first if first != part.path else builtin.get(name) => other = first if first != part.path else None
  the text of an f-string is shortened => if not alike or any(old in str(each) for each in texts): => if False:
  an f-string that shows its code => if not alike or any(old in str(each) for each in texts): => if not alike:
  a string that names a module => if strange.fullmatch(each.value) or => if
  an import below other code => if any(not isinstance(each, ast.Try) for each in self.statements): => if False:
tests/test_one_file.py -k names_of_a_users_own
  modules stand below what needs them at once => return bool(others or found & script.modules.keys()) => return bool(others)
tests/test_one_file.py -k below_its_imports
  modules stand below what they may read => others += [one for one in targets if => others += [one for one in () if
tests/test_one_file.py -k names_of_a_users_own
  modules stand below what is called at once => todo += more => pass
tests/test_one_file.py -k beside_the_script
  one file of another package => folder = folder if folder.is_dir() else ROOT / PACKAGE => folder = ROOT / PACKAGE
  one file of a package that does not fit => if script.parts not in (None, version.rpartition(".")[0]): => if not version.startswith(script.parts or ""):
  a module that reads a file beside it => if node.id in OWN and part.name: => if False:
tests/test_one_file.py -k another_thing_is_refused
  a module as a value => if not isinstance(parent, ast.Attribute) or not isinstance(parent.ctx, ast.Load): => if not isinstance(parent, ast.Attribute):
  evaluated annotations => if getattr(node, "annotation", None) or getattr(node, "returns", None): => if False:
tests/test_one_file.py -k guard
  a guard with more in it => return body == wanted and not node.orelse and not node.finalbody => return body == wanted
tests/test_one_file.py -k what_it_needs
  packages of text alone => listed += re.search( => listed = re.search(
tests/test_one_file.py -k are_constants
  an id that no line has by itself => {ids.read_text()} => {ids.read_text().strip()}
tests/test_one_file.py -k utf_8
  written as the terminal is => sys.stdout.buffer.write(write(args.script).encode()) => sys.stdout.write(write(args.script))
tests/test_look.py -k one_file
  each module is one of images/ => text.startswith("# ==== trainparts/images/") => text.startswith("# ==== trainparts/")
tests/test_sync_copies.py -k "are_mended or which_scripts"
  scripts are checked as they were => whole = {name: text for name, text in scripts.items() if split(text)}\n    complaints => complaints
tests/test_standard_streams.py -k script_saves
  a script waits for its reader => standard_streams.never_wait() => pass
tests/test_one_gpu.py -k hangs_is_ended
  a stage has no end => return process.wait(max(0, until - GRACE - time.monotonic())) => return process.wait()
  what a stage has started stays => os.killpg(process.pid, signal.SIGKILL) => process.kill()
  a stage that was cut is complete => complete = all(row["status"] == "0" for row in rows) => complete = True
  the other stages are left out, too => complete = complete and not bad => return 1
  failed stages pass => return 0 if complete else 1 => return 0
tests/test_one_gpu.py -k before_stay
  a rehearsal counts as done => facts["complete"] and facts["rehearsal"] == rehearsal => facts["complete"]
tests/test_one_gpu.py -k "hangs_is_ended or before_stay"
  older logs are replaced => while (file := out => if (file := out
  a stage is renewed for ever => name not in args.renew and is_complete( => is_complete(
tests/test_one_gpu.py -k wheels_are
  wheels stand below what is installed => sys.path.insert(0, str(folder)) => sys.path.append(str(folder))
  the stages have no wheels => paths = [str(folder), os.environ.get("PYTHONPATH")] => paths = [os.environ.get("PYTHONPATH")]
tests/test_one_gpu.py -k "not rehearsal and not ghost and not decoder and not operators_are"
  further stages begin without time => if left < (limit if name in MORE else 2 * GRACE): => if left < 2 * GRACE:
  a stage takes more than is left => scratch, about, min(limit, left)) => scratch, about, limit)
tests/test_one_gpu.py -k lacks_is_said
  data that are missing are no reason => files = [f"{name} is not in --data" for name in stage.data if not (data / name).is_file()] => files = []
  packages that are missing are no reason => [f"no {name}" for name in stage.packages if not versions[name]] => []
tests/test_one_gpu.py -k command_that_fails
  paths of the machine are in a log => .replace(f"{scratch}/", "")\n                    print( => \n                    print(
tests/test_one_gpu.py -k "not rehearsal and not ghost and not decoder and not operators_are"
  no GPU is no reason => if not ("accelerator" in about or args.rehearse): => if False:
  an operator counts in one column alone => max(each.get(name, 0) for each in profiles.values()) => next(iter(profiles.values())).get(name, 0)
  all others are all => sum(each.values()) - sum(parts.values()) => sum(each.values())
  differences are signed => apart = np.abs(image.astype(np.int16) - wanted) => apart = image.astype(np.int16) - wanted
  the share of images that differ => return 100 * differing / numbers, => return 100 * differing / len(images),
  a core loads seconds => row[used] / 1e3 * synthetic[0] => row[used] * synthetic[0]
  fewest processes count => found[row["name"].rpartition(", -j ")[0]] = => found.setdefault(row["name"].rpartition(", -j ")[0], 0); found[row["name"]] =
  attention takes half => 6 * weights + 12 * layers => 6 * weights + 6 * layers
  the output layer is left out => 12 * layers * width**2 + vocabulary * width => 12 * layers * width**2
  every machine is a sandbox => re.search(r"-fc-|^Linux-4\.4\.0-", str( => re.search("", str(
tests/test_scripts.py -k hour_of_a_compilation
  no hour for a compilation in validation => endings.arm_timeout(run.args.timeout, compiles=run.args.compile)\n    for _ in range(val_steps => endings.arm_timeout(run.args.timeout)\n    for _ in range(val_steps
  no hour for a compilation where ranks meet => + 3600 * args.compile) => )
tests/test_folder.py -k "base_lr_is_refused"
  whose global batch it is is not said => whose = ", the checkpoint's" if metadata and not args.global_batch else "" => whose = ""
  the rate of --base-lr that keeps a run is not said => base_batch=args.batch_size if args.base_lr else None, => base_batch=None,
tests/test_text_input.py
  a header of cola's is a row => header = "source label star sentence".split() if task == "cola" else None => header = None
  cut rows of qqp end the start => some_are_cut=task == "qqp" => some_are_cut=False
tests/test_text.py -k "once"
  training has a block that is not whole => (False, True), strict=True => (True, True), strict=True
tests/test_training.py -k one_run_through
  epoch and step of the marker are swapped => run_folder.mark_preempted(run.folder, why, run.epoch, run.step) => run_folder.mark_preempted(run.folder, why, run.step, run.epoch)
tests/images/test_architectures.py
  evaluated with another resize => side or about.get("val_resize") => side or None
  evaluated at the checkpoint's size in spite of another => if crop == about.get("image_size"): => if about:
  options of a file are not believed => theirs = about.get("model_options", {}) => theirs = {}
  a resize of the file is not believed => side = side or about.get("val_resize") => pass
  a fixed model keeps its size => options = {**timm_size(arch, image_size)} => options = {}
  a model that cannot be called is built => model = make_model(arch, False, **options).eval()\n                model(torch.zeros(1, 3, image_size, image_size)) => make_model(arch, False, **options)
  a test at the crop of training => config.test_crop_pct or share => share
  a resize is rounded up => math.floor(shape[1] / share), => math.ceil(shape[1] / share),
  nothing is squashed => squash=config.crop_mode == "squash", => squash=False,
  a size that is not square => or shape[1] != shape[2] or config.crop_mode => or config.crop_mode
  images that would be padded are cut => config.crop_mode not in ("center", "squash"): => config.crop_mode not in ("center", "squash", "border"):
tests/images/test_augmentation_policies.py
  policies by the nearest pixel => (interpolation=InterpolationMode(mode)) => ()
  augmenting moves dropout's generator => with torch.random.fork_rng(devices=[]): => with torch.enable_grad():
  timm's policies fill with their own grey => {"img_mean": mean_colour} => {}
  numpy's generator is not seeded => np.random.seed(seed % 2**32) => pass
  Python's generator is not seeded => random.seed(seed)\n => pass\n
tests/images/test_class_names.py
  training is counted as validation => {len(val.target):,} validation images" => {len(train.target):,} validation images"
  empty classes of training alone are named => else []), *val.gaps()] => else [])]
  classes of the file are not believed => if "classes" in about:\n        return about["classes"] => if False:\n        return about["classes"]
  strange classes of train are taken => for each in (train, val))\n    return train, val, outputs => for each in (train._replace(classes=classes), val))\n    return train, val, outputs
  outputs without names are measured => if outputs != len(found): => if False:
  other outputs than a file's are typed => if theirs and outputs != theirs: => if False:
  outputs of a file are not believed => outputs = typed or theirs or len(train.classes) or 1000 => outputs = typed or len(train.classes) or 1000
  numbers are text for published weights => if {*found} == {*numbers}: => if False:
  some numbers are ImageNet's => if {*found} == {*numbers}: => if {*found} <= {*numbers}:
  ImageNet's classes are those of all weights => if outputs == 1000 and about["published"]: => if outputs == 1000:
  published classes of any name => if name[:9] in folders or name[:9] not in IMAGENET: => if name[:9] in folders:
  ids of some are outputs of their own => return [folders.get(name, name) for name in IMAGENET] => return found
  two folders of a class => if name[:9] in folders or name[:9] not in IMAGENET: => if name[:9] not in IMAGENET:
  a word follows an underscore alone => folders[name[:9]] = name => folders[name.partition("_")[0]] = name
  a model without classifier has 0 outputs => outputs = typed or theirs or len(train.classes) or 1000 => outputs = typed or (theirs if theirs is not None else len(train.classes) or 1000)
  no line on the order of numbers => if not all(map(str.isdecimal, classes)) or => if True or
  some classes are counted from the first => return [folders.get(name, name) for name in IMAGENET] => return found + IMAGENET[len(found) :]
tests/images/test_decoding.py
  OpenCV decodes what libjpeg refuses => {"OPENCV_IO_MAX_IMAGE_PIXELS": "0"} => {"OPENCV_IO_MAX_IMAGE_PIXELS": "9999999"}
  a region that libjpeg warns of is used => if decoded is None or warnings_of_c or any => if decoded is None or any
  libjpeg's warnings are printed => stderr.value = kept => stderr.value = shown
  C libraries print nothing any more => stderr.value = shown\n        if libc and shown => stderr.value = kept\n        if libc and shown
  after one warning Pillow reads all => libc.rewind(kept) => pass
  libtiff's warnings are printed => with hushed(), warnings.catch_warnings(): => with warnings.catch_warnings():
  no image without glibc => except (ValueError, AttributeError, TypeError):  # not glibc => except ValueError:  # not glibc
  OpenCV has the limit in all of the process => for name, value in before.items():  # for OpenCV elsewhere => for name, value in ():
  a user's limit of OpenCV is lost => os.environ[name] = value\n => pass\n
  another region is drawn for Pillow => choose = functools.cache(choose) => pass
  Pillow's warnings are printed => warnings.simplefilter("ignore")  # Pillow's => pass  # Pillow's
  a copy of an image that is used as a whole => image if box == (0, 0, *image.size) else image.crop(box) => image.convert("RGBA").crop(box)
  all of a huge image becomes an array => region if region.mode == "RGB" else region.convert("RGB")) => image.convert("RGB"))[top : top + height, left : left + width]
  16 bits of a PNG are cut => deep = image.format == "PNG" and ";16" in str(image.tile) => deep = False
  16 bits of a BMP's pixel are taken for a channel's => deep = image.format == "PNG" and ";16" => deep = ";16"
  16 bits of a TIFF are cut => max(tags.get(258, [1])) > 8 => max(tags.get(258, [1])) > 16
  one deep channel is clipped => if deep or image.mode[0] in "IF": => if deep or image.mode == "F":
  a region of the wrong sides => box = left, top, left + width, top + height => box = left, top, width, height
  AVIF is not read => FORMATS += ["AVIF"] => FORMATS += []
  no line says what format it is => return f"it is {image.format}, not one of {', '.join(FORMATS)}" => pass
  lists of files of any size => max(math.prod(sides), len(encoded) / 3) => math.prod(sides)
  an error of choose() is one of nvImageCodec => except RuntimeError:\n        return None\n    if max => except RuntimeError:\n        return None\n    with contextlib.suppress(RuntimeError):\n        choose(*sides)\n    if max
  an error of choose() is an image's => top, left, height, width = choose(image.height, image.width)\n => with as_bad_input(encoded):\n        top, left, height, width = choose(image.height, image.width)\n
tests/images/test_image_files.py
  a class that cannot be listed is empty => onerror=fail, followlinks => followlinks
  an image that cannot be found is left out of the digest => hashed.update(b"%d " % os.path.getsize(self.path(index))) => hashed.update(b"0")
  labels of validation keep their own numbers => target = positions[self.target] => target = self.target
  a class of validation that is not trained => raise errors.BadInput(f"{self.folder}: {what}, as {name}; known are {known}") => pass
  a trained class may be empty => if not names or (empty and not allow_empty): => if not names:
  a name breaks the line => c if c.isprintable() else ascii(c)[1:-1] => c
  kinds are left out in silence => several.append(f"{other:,} of other kinds") => pass
  an index of other classes => if not labels or not labels <= {*range(len(source.classes))}: => if not labels:
  hidden files are counted => if "/." not in f"/{below}/{file}": => if True:
  images beside the classes are not counted => sum(map(is_read, files)) => 0
  a suffix in capitals is another => os.path.splitext(file)[1].lower() => os.path.splitext(file)[1]
  what is not read is another set of data => for array in self[2:-1]: => for array in (*self[2:-1], self.not_read.encode()):
  train lists its images in an evaluation => train = val._replace(**nothing, not_read="") => train = val._replace(not_read="")
  train names no class in an evaluation => train = train._replace(folder=str(folder / "train"), classes=names) => pass
  an unmounted train is a missing one => if isinstance(error, FileNotFoundError) and not os.path.islink(folder): => if isinstance(error, FileNotFoundError):
  a missing train ends an evaluation => if isinstance(error, FileNotFoundError) and not os.path.islink(folder): => if False:
  images stay open => with open(self.path(index), "rb", buffering=0) as file:\n                return file.read() => if True:\n                return os.pread(open_shard(self.path(index)).fileno(), 2**30, 0)
  several classes keep their own columns => target[:, positions] = self.target => target[:, range(len(self.classes))] = self.target
  an own reader does not name an evaluation's classes => if names := name_part(folder / "train"): => if names := name_classes(folder / "train"):
  a digest without the images' classes => for array in self[2:-1]: => for array in self[2:-2]:
  a shard that has grown is accepted => if os.path.getsize(folder / os.fsdecode(name)) != size: => if os.path.getsize(folder / os.fsdecode(name)) < size:
  folders within a class unsorted => for path, _, files in sorted(os.walk(folder / name, onerror=fail, followlinks=True)): => for path, _, files in os.walk(folder / name, onerror=fail, followlinks=True):
  a digest without the names of files => for array in self[2:-1]: => for array in self[3:-1]:
  an index of shards names no classes => with open_index(folder) as index:\n                return index["classes"].tolist() => return []
  numbers of a table are sorted as text => if not np.issubdtype(named.dtype, np.number): => if True:
  a table of odd objects is no text => named = named.astype(str)\n => pass\n
tests/images/test_image_loading.py -k "not program_ends"
  bytes are read as often as a file => error = again\n            break => error = again
  a damaged image is a fault => {errors.first_line(error)}") from None\n    raise errors.storage_error(what, error) from None => {errors.first_line(error)}") from None\n    raise errors.Fault(what) from None
  an error of a network is the user's mistake => if isinstance(error, OSError) and error.errno is None: => if False:
  a crop that ends too early ends the batches => except StopIteration:  # it => except GeneratorExit:  # it
  an image read again is read again for an error of its crop => except OSError as again:\n            if encoded is not None: => except OSError as again:\n            if False:
  a damaged image is passed over => raise target => continue
  large images in lists => LISTED, LISTED_PIXELS = 32, 2**19 => LISTED, LISTED_PIXELS = 32, 2**29
  what a list cannot decode stays as it was => write.send(decoding.decode_by_pillow(encoded, choose) if image is None else image) => image is None or write.send(image)
  images of a list in another order => zip(listed, decoded, strict=True): => zip(listed, decoded[::-1], strict=True):
  an image that cannot be used is left as it is => except errors.BadInput as error:\n                load_again(source, index, begin, error) => except errors.BadInput as error:\n                pass
tests/images/test_weight_files.py
  a published file is somebody's training => theirs = [files[name] for name in names if name in files] => theirs = []
  a published file is known by its path => names = os.path.basename(path), os.path => names = str(path), os.path
  a link has no published name => os.path.basename(os.path.realpath(path)) => os.path.basename(path)
  the first published file stands for all => os.path.basename(weights.url): weights for weights in several => os.path.basename(weights.url): [*several][0] for weights in several
  nothing is assumed aloud => options.get(option, theirs[option]) != theirs[option] => False
  own inputs are assumed, too => theirs = architectures.model_options(arch, None, about | {"published": True}) => theirs = architectures.model_options(arch, None, {"published": True})
  another mean is believed in silence => if about.get(name, usual) != usual: => if False:
  a mean of one number => good = scale.shape == (2, 3) and => good =
  a prefix is cut from the middle => ways = [weights] => ways = [{name.replace("module.", ""): weights[name] for name in weights}]
  torch.compile's prefix stays => name.replace("_orig_mod.", "") => name
  one wrapper alone => for _ in range(3):  # "module." => for _ in range(1):  # "module."
  what stands beside the model stays => for name in way if name.startswith(prefix)} => for name in way}
  names of 2017 are no names => re.sub(old, r"\1", name) => name
  versions of layers are the present ones => state._metadata = {"": own._metadata[""]} => state._metadata = own._metadata
  a random weight is measured => if output_needs(model, missing, size): => if False:
  a model that is refused keeps the weights of the file => tensor.copy_(before)\n        raise => pass\n        raise
  a trial that fails leaves NaN => finally:  # also where the model cannot => except KeyboardInterrupt:  # also where the model cannot
  a path of weights is no text => what = os.fsdecode(what)\n => pass\n
  tables that are computed are needed => for name, each in model.named_buffers() if "running_" in name => for name, each in model.named_buffers()
  the trial leaves NaN => tensor.copy_(before)\n            model.train => pass\n            model.train
  the trial leaves the model in evaluation mode => model.train(training)\n    return bool => pass\n    return bool
  another model is measured => if other:\n                raise => if False:\n                raise
  an auxiliary head is of another model => if "aux" not in each.lower() => if True
  weights of another shape are loaded => if not safe_files.weight_fits(weights[each], own[each])} => if False}
  outputs of a file are not counted => about["num_classes"] = outputs => pass
  files that say their architecture are not counted => if path and evaluate and "num_classes" not in about: => if path and evaluate and "arch" not in about:
  averages of others are left => AVERAGES = ("ema", "state_dict_ema", "model_ema") => AVERAGES = ("ema",)
  averages are taken in silence => if name in AVERAGES and "model_options" not in saved: => if False:
  the others are the averages => if name not in AVERAGES and has_tensors(saved.get(name))] => if has_tensors(saved.get(name))]
  net is no name of weights => "model", "net", "model_state_dict") => "model", "model_state_dict")
  the line names nothing of the file => {', '.join(map(str, holds[:4]))} => nothing
  code of the hub's cache is run => before, os.environ[force] = os.environ.get(force), "1" => before, os.environ[force] = os.environ.get(force), "0"
  own architectures are timm's, too => if "model_options" not in about and arch == f"timm/{theirs}": => if arch == f"timm/{theirs}":
  an entry of another kind has the weights => isinstance(found, dict) and any(map(torch.is_tensor, found.values())) => isinstance(found, dict)
  NaN is loaded => if not all(each.isfinite().all() for each in dense if not each.is_quantized): => if False:
  a test at the size of training => preset_of(arch, test=True).about() => preset_of(arch).about()
  the line does not say what is squashed => how = interpolation + ", squashed" * architectures.preset_of(arch).squash => how = interpolation
  averages called ema are taken in silence => if name in AVERAGES and "model_options" not in saved: => if name in AVERAGES[1:]:
  any architecture is believed => if not timm or timm.is_model(name): => if True:
  the others' command finds no package => {str(Path(loader).parents[1])!r} => {str(Path(loader).parent)!r}
tests/launch/test_local_processes.py
  srun: rank of all for rank on the node => "0" if alone else env["SLURM_LOCALID"] => "0" if alone else env["SLURM_PROCID"]
  stopped rank is sent alarm, not kill => signal.SIGKILL if again or signum == signal.SIGALRM else signum => signal.SIGKILL if again else signum
  ranks killed at the end count as crashes => crashed = [status for status in failed if => crashed = [status for status in statuses if
  the launcher kills at a second signal => again = signum == signal.SIGINT and came[-1] => again = came[-1]
  restarts without a folder begin from scratch => ("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT") => ("TORCHELASTIC_RESTART_COUNT",)
  ranks of a killed launcher stay => A killed launcher would leave its processes behind.\n        endings.end_with_parent(signal.SIGTERM) => A killed launcher would leave its processes behind.\n        endings.end_with_parent(signal.SIGCONT)
  a rank trains on without its launcher => if own and launched != f"process {os.getppid()}": => if False:
  an empty variable is a launcher => (os.environ.get(name) or "1") != "1" => os.environ.get(name, "1") != "1"
  a rank that is gone counts more than a mistake => for known in (2, 1) if known in statuses => for known in (1, 2) if known in statuses
  a signal while a rank starts is lost => if came[before:]:  # while => if False:  # while
tests/launch/test_rendezvous.py
  restart keeps the port first read => port = int(launchers.get("port")) if launchers else port => port = port or int(launchers.get("port"))
  a group that has formed is ended => finally:\n        timer.cancel() => finally:\n        pass
  gloo listens where others cannot reach it => os.environ.setdefault("GLOO_SOCKET_IFNAME", name) => pass
  rank 0's machine does not learn its address => store.set("address", at_rank_0) => pass
  an export does not count => os.environ.setdefault("GLOO_SOCKET_IFNAME", name) => os.environ["GLOO_SOCKET_IFNAME"] = name
  gloo waits for ever => timer.start() => pass
  ranks of one start wait for half a second => seconds = 0.01 => seconds = longest
  ranks look ever more rarely => seconds = min(2 * seconds, longest) => seconds = 2 * seconds
  no rank is missing => ", ".join(name for name in every if not store.check([name])) => ""
tests/launch/test_store_broadcast.py
  told, all ends pass by themselves => (errors.BadInput if wrong else errors.Fault)(sent["error"]) => errors.Fault(sent["error"])
  told what ends rank 0, all are wrong => (errors.BadInput if wrong else errors.Fault)(sent["error"]) => errors.BadInput(sent["error"])
  late ranks find no store => for each in others) and time.monotonic() < until: => for each in others) and False:
tests/runs/test_checkpointing.py
  resumed ema best trains on the averages => tensors |= {"ema": tensors["state_dict"], "state_dict": trained} => tensors |= {"ema": tensors["state_dict"]}
  rotation links in the wrong order => for older, newer in (third, second), (second, newest): => for older, newer in (second, newest), (third, second):
  no epoch is kept => and checkpoint["epoch"] % keep_every == 0: => and checkpoint["epoch"] % keep_every == -1:
  --resume counts before the folder => if output_dir and not (evaluate and resume): => if output_dir and not resume:
  other options are only printed => if found and metadata["in_place"]: => if False:
  the rate is not compared => rate: peak} => rate: metadata["peak_lr"]}
  the value of --base-lr is of the typed batch => same = metadata["peak_lr"] * base_batch / metadata["global_batch"] => same = metadata["peak_lr"]
  a run from --start-epoch cannot resume => not in (None, saved["args"].get("start_epoch")): => is not None:
  the newest of the first kind => return max(found, key=lambda each: (each[1].get("epoch", 0), each[1].get("step", 0))) => return found[0]
  epoch-9.pt is newer than epoch-10.pt => kept.sort(key=lambda name: -int(name[6:-3])) => kept.sort(reverse=True)
  all damaged: a new run => if damaged and not found: => if False:
  a log without checkpoints is written on => if foreign:  # of finished => if False:  # of finished
  a run begins over the log of another program => if foreign:  # of finished => if epochs:  # of finished
  a folder is read before it is locked => may be saving.\n            run_folder.open_folder(folder, option="--output-dir") => may be saving.\n            pass
  evaluation takes the folder's lock => if not evaluate:\n            # Locked => if True:\n            # Locked
  a checkpoint that needs too many files is passed over => except errors.Damaged as error: => except errors.BadInput as error:
  a folder that cannot be listed is empty => raise errors.storage_error(what, error, typed=wrong) from None => there = []
  large weights are not finite => elif not (numbers.sum().isfinite() or numbers.isfinite().all()): => elif not numbers.sum().isfinite():
  weights that are not finite are saved => elif not (numbers.sum().isfinite() or numbers.isfinite().all()): => if False:
  weights in lists are not looked at => check_checkpoint(each, *path, number) => pass
  the best is saved with what cannot be read => check_checkpoint(checkpoint)\n    save = => save =
  a subclass of a dict is saved, and cannot be read => if isinstance(value, dict) and kind in CONTAINERS: => if isinstance(value, dict):
  keys are saved that cannot be read => check_checkpoint(name, *path, name)\n => pass\n
  a class that the process allows is refused => elif kind not in VALUES and kind not in serialization.get_safe_globals(): => elif kind not in VALUES:
  a loop's own checkpoint needs the scripts' names => needs: Collection[str] = (), option => needs: Collection[str] = NEEDS, option
  weights are evaluated, not their averages => tensors["state_dict"] = {name: each.to(dtypes[name]) for name, each in averaged} => pass
  no architecture to type => advice = f": type -a {arch}" if arch != mine.get("arch") else "" => advice = ""
  a step in mid-epoch is kept as an epoch => if keep_every and checkpoint["step"] == 0 and => if keep_every and
  steps rescaled by the inverse => math.ceil(metadata["step"] * metadata["global_batch"] / global_batch) => math.ceil(metadata["step"] * global_batch / metadata["global_batch"])
  a folder below is an older state => and not begin.is_dir() => and True
  what began the run is going back => and resume != saved["args"].get("resume") => and True
  an option that the file lacks => theirs |= dict.fromkeys(typed.keys() - theirs.keys()) => pass
  an option that this script lacks => mine |= dict.fromkeys(metadata.get("not_default", {}).keys() - mine.keys()) => pass
  nothing to type where --resume cannot be => other += f", or --weights {weights} from its weights alone" => pass
  the old name goes before there is a link => link.unlink(missing_ok=True)\n            os.link( => older.unlink(missing_ok=True)\n            os.link(
  a link of one file with itself stays => link.unlink(missing_ok=True)  # nothing => pass  # nothing
  checkpoints of another task are compared => if own and not own & metadata.keys(): => if False:
  averages in a file are not taken => (tensors["ema"] or tensors["state_dict"]) if averages else None => None
  a step beyond the epoch => return metadata["epoch"], min(step, steps) => return metadata["epoch"], step
tests/runs/test_event_log.py
  an end that is no table is taken => end = found if isinstance(found, dict) else {} => end = found
  an end that is no JSON is a traceback => with contextlib.suppress(ValueError, IndexError, RecursionError): => with contextlib.suppress(IndexError, RecursionError):
  an empty end is a traceback => with contextlib.suppress(ValueError, IndexError, RecursionError): => with contextlib.suppress(ValueError, RecursionError):
  an epoch is several records => log.file_writer.add_summary(Summary(value=scalars), epoch) => [log.file_writer.add_summary(Summary(value=[each]), epoch) for each in scalars]
  an epoch is not flushed => log.file_writer.add_summary(Summary(value=scalars), epoch)\n    log.flush() => log.file_writer.add_summary(Summary(value=scalars), epoch)
  a log that cannot be looked at is absent => os.stat(folder / name)  # TensorBoard => pass  # TensorBoard
  a log that cannot be read is a bug => raise errors.storage_error(f"the log in {folder} cannot be read", error) from None => raise ValueError
  TensorBoard's thread prints a traceback => threading.excepthook = print_exception_of_thread => pass
  names of packages for their versions => found.setdefault(fields["Name"], fields["Version"]) => found.setdefault(fields["Version"], fields["Name"])
  a log by the name of a file => f"{folder}{os.sep}", size => str(folder), size
  a name that is no text ends in a traceback => except (OSError, UnicodeError) as error:\n        raise errors.storage_error(f"the log => except OSError as error:\n        raise errors.storage_error(f"the log
  a clock may be behind => time.sleep(max(0, behind)) => pass
  a clock of another day is waited for => if behind > 60: => if behind > 600:
  a log that does not say its package => "trainparts": package_digest.IDENTITY,\n    } => }
  data is logged => if name.endswith(".py")) => if name)
tests/runs/test_run_folder.py
  folders above are made => each.mkdir(exist_ok=not => each.mkdir(parents=True, exist_ok=not
  a link to a missing disk is the user's mistake => if os.path.islink(error.filename): => if False:
  two runs in one folder => fcntl.LOCK_EX | fcntl.LOCK_NB => fcntl.LOCK_SH | fcntl.LOCK_NB
  a folder that is held is asked for a second => until = time.monotonic() + 60\n    while True => until = time.monotonic() + 1\n    while True
  a loader worker holds the lock => os.register_at_fork(after_in_child=lock.close) => pass
  a lock follows links => os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW => os.O_RDWR | os.O_CREAT
  no training without locks => errors.LOG.warning("%s: start no other run there", cannot) => raise errors.Fault("no locks")
  a disk that fails has no locks => if errors.system_name(error) in ("EIO", => if errors.system_name(error) in ("EXIO",
  no line says that there is no lock => errors.LOG.warning("%s: start no other run there", cannot) => pass
tests/runs/test_run_messages.py
  advice beside --accumulation is refused => if accumulation != 1: => if False:
  a run is never over => if end.get("until") == until and end["epochs"] == done: => if False:
  a run of more epochs is over as well => if metadata["in_place"] and epoch >= epochs: => if False:
  a run is over whatever would train it on => if end.get("until") == until and => if end and
  a run goes on with another package in silence => if saved_by != package_digest.IDENTITY: => if False:
  checkpoints of before have another package => metadata.get("trainparts", package_digest.IDENTITY) => metadata.get("trainparts")
  a usual rate for any optimizer in silence => (usual_optimizer in family) == (optimizer in family) => True
  a typed rate is said to be meant for another => lr != usual_lr or (usual => (usual
  a rate of six digits => --base-lr {base_lr!r}" => --base-lr {base_lr:g}"
tests/runs/test_state_trees.py
  moments that a file lacks are ones => saved.setdefault(path, torch.zeros(tensor.shape)) => saved.setdefault(path, torch.ones(tensor.shape))
  another optimizer's moments are asked for => if path in own or path[0] != "optimizer": => if True:
  no line on another optimizer's weights => if all(path[0] == "optimizer" for path in wrong): => if False:
tests/test_batch_plan.py
  smallest batch of a device => range(min(batch, in_step), 0, -1) => range(1, min(batch, in_step))
  half of a batch that is odd => return device_batch // 2 // multiple * multiple => return device_batch // 2
tests/test_devices.py
  epoch 0 of seed 1 as epoch 1 of seed 0 => np.random.SeedSequence(numbers) => np.random.SeedSequence(sum(numbers))
  sums in float32 => return torch.float64 if => return torch.float32 if
  a device's generators are not seeded => if device.type != "cpu":\n        kind => if False:\n        kind
  one device's generator is seeded => getattr(kind, "manual_seed_all", kind.manual_seed)(seed) => kind.manual_seed(seed)
  the CPU's generator is not seeded => torch.default_generator.manual_seed(seed)\n    if => if
tests/test_endings.py
  echo of ctrl-c ends at once => any(now > at + 1 for each => any(True for each
  a second signal of any kind ends at once => if name == "SIGINT" and any( => if any(
  a first ctrl-c after another signal ends at once => for each, at in signals if each == name => for each, at in signals
  a time-out of 0 leaves a timer => faulthandler.cancel_dump_traceback_later()\n => pass\n
  a cancelled timer stays cancelled for a second => start_timer.cache_clear() => pass
  a terminal that closes kills => signal.SIGUSR1, signal.SIGHUP) => signal.SIGUSR1)
  nohup is overridden => if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN: => if True:
  the timer starts in each step => 0), int(time.monotonic())) => 0), time.monotonic())
  the timer starts once => 0), int(time.monotonic())) => 0), 0)
  SIGUSR1 is not handled => signal.SIGINT, signal.SIGUSR1, => signal.SIGINT,
  the timer starts again once a minute => 0), int(time.monotonic())) => 0), int(time.monotonic() // 60))
  a process ends with lines kept => standard_streams.deliver()\n    # A normal exit => # A normal exit
  no hour more where a graph compiles => (3600 if compiles else 0) => 0
tests/test_errors.py
  a name breaks the line of an exception => return printable(super().__str__()) => return super().__str__()
  all of storage passes => or name in (None, *LIMITS) or (typed and name in WRONG_PATH): => or name is None:
  limits of the system pass => or name in (None, *LIMITS) or => or name is None or
  all of storage is the user's mistake => return Fault(f"{what}: {why}") => return BadInput(f"{what}: {why}")
  a path that cannot be looked at is absent => raise failed from None => return None
  an error of a file is a bug => if isinstance(error, OSError) and name not in (None, *LIMITS): => if False:
  an error of an open file is a bug => if isinstance(error, OSError) and name not in (None, *LIMITS): => if getattr(error, "filename", None):
  nobody is told what ends rank 0 => tell_others(told, status) => told
  a bug of rank 0 is told as None => told = line or f"rank {rank}: {first_line(error)}" => told = line
  other ranks tell, too => if rank == "0":\n        tell_others => if True:\n        tell_others
  timm's lines on a size are a bug => r"doesn't match model|divisible by (patch|window)": (2, SMALL), => r"doesn't match models": (2, SMALL),
  Python's own error of memory => MemoryError|(out => (out
  oneDNN's error of memory => r"could not create a primitive(?! desc)" => r"xxx"
  oneDNN's other errors are of memory => could not create a primitive(?! desc) => could not create a primitive
  names of files break the line => error: {printable(line)}" => error: {line}"
tests/test_package_digest.py
  data is in no digest => in (".py", ".txt") and => in (".py",) and
  a digest of names alone => repr(sorted(texts.items())) => repr(sorted(texts))
  a digest of texts without their names => repr(sorted(texts.items())) => repr(sorted(texts.values()))
tests/test_progress_meter.py
  throughput of right answers => "Throughput": sums[self.items] / seconds, => "Throughput": sums["top5"] / seconds,
  partial sums not loaded => collections.Counter(self.state["sums"]) => collections.Counter()
  seconds of an epoch not loaded => time.perf_counter() - self.state["seconds"] => time.perf_counter() - 0
  waits of a step, not of a second => "Data/wait": sums["waited"] / seconds, => "Data/wait": sums["waited"] / steps,
  resumed epoch forgets its seconds => self.started = time.perf_counter() - self.state["seconds"] => self.started = time.perf_counter()
  packets in place of bytes => psutil.net_io_counters()[:2] => psutil.net_io_counters()[2:4]
  received bytes as sent ones => psutil.net_io_counters()[:2] => psutil.net_io_counters()[1::-1]
  bytes before an interruption are lost => self.before = traffic(device) - np.array(self.state["traffic"]) => self.before = traffic(device)
tests/test_run_options.py
  only the last --desired counts => for each in args.desired: => for each in args.desired[-1:]:
  all options are as typed => if each != defaults.get(name, each)} => if True}
tests/test_safe_files.py
  no flush before fsync => file.flush() => pass
  a part of a file stays on a full disk => temporary.unlink(missing_ok=True)\n\n => pass\n\n
  a file called .tmp is written in place => ".tmp.tmp" if path.suffix == ".tmp" else ".tmp" => ".tmp"
  a file that needs too much memory is damaged => if isinstance(error, MemoryError) or "allocate memory" in str(error): => if False:
  a file is read bit by bit => content = io.BytesIO(Path(path).read_bytes())\n    except => content = open(path, "rb")\n    except
  what saving fails with is lost => failed = error if isinstance(error, OSError) else error.__context__ => failed = error
  a program is a damaged file => if any(name.endswith("/constants.pkl") for name in archive.namelist()): => if False:
  a file that was packed again is damaged => if each.external_attr & 0x10) => if each.external_attr)
  PyTorch's warnings before the line => warnings.simplefilter("ignore")\n                return => return
  whole numbers are taken for weights => return weight.shape == own.shape and real and => return weight.shape == own.shape and
  sparse weights are loaded => and real and weight.layout == torch.strided => and real
tests/test_standard_streams.py -k "not script_saves"
  a stderr is needed => sys.stderr = sys.stderr or open(os.devnull, "w") => pass
  what the reader does not take is lost => except BlockingIOError:\n            pass => except BlockingIOError:\n            self.kept.clear()
  stderr overtakes stdout => reader = readers.setdefault(key, Reader(stream.fileno())) => reader = Reader(stream.fileno())
  no process waits for the pipe any more => self.own = os.open(f"/proc/self/fd/{descriptor}", flags) => os.set_blocking(descriptor, False)
  a terminal is taken for a file => stat.S_ISSOCK(status.st_mode) or stream.isatty() => stat.S_ISSOCK(status.st_mode)
  a socket is taken for a file => stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) => stat.S_ISFIFO(status.st_mode)
  a socket is waited for => self.socket.send(piece, socket.MSG_DONTWAIT) => self.socket.send(piece)
  nothing is left to launchers => fcntl.F_GETPIPE_SZ) * 3 // 4 => fcntl.F_GETPIPE_SZ)
  pieces end within lines => , 0, select.PIPE_BUF) + 1 => , 0, 0) + 1
  all is kept for ever => if self.kept and len(self.kept) + len(written) > KEPT: => if False:
  lines between lost ones are kept => if self.kept and len(self.kept) + len(written) > KEPT:\n            self.full = True => self.full = len(self.kept) + len(written) > KEPT
  what was left out ends the output => if self.full and not self.kept: => if False:
  a fork writes what is kept, too => os.register_at_fork(after_in_child=self.kept.clear) => pass
  an exit loses what is kept => atexit.register(deliver) => pass
  the timer waits for its reader => return reader.own if reader else sys.stderr.fileno() => return sys.stderr.fileno()
  what is not buffered is => if not stream.write_through: => if True:
  another encoding => how = stream.encoding, => how = "utf-8",
tests/text/test_hf_folders.py
  numbers are names => if numbered(plain):\n        return names => if False:\n        return names
  numbers in any order are the task's => re.fullmatch(f"(label_)?{n}", name.lower()) for n, name in enumerate(some) => re.match("label_", name.lower()) for name in some
  dropout of modules keeps its rate => module.p = rate => pass
  dropout by other names keeps its rate => rates = re.compile("dropout|pdrop") => rates = re.compile("^dropout")
  dropout that is not reached => if dropout is not None and not rates.found <= {dropout}: => if False:
  a model without dropout => if dropout and not rates.found: => if False:
  dropout of attention is not seen => if "attention" in name and named.get("dropout_p"): => if False:
  a model stays as it was tried => buffers[name] = tensor => pass
  padding that matters is passed over in silence => if (alone - padded).abs().max() > 1e-3 * alone.abs().max(): => if False:
  padding on the left is done on the right => if source.pads_left: => if False:
  positions are not tried => why = fails(max_length) => why = None
  the number of positions is the config's => if not fails(length)), 0) => if True), 0)
tests/text/test_text_corpus.py
  blocks overlap by a token => offset = length * np.arange => offset = (length - 1) * np.arange
  the first token of the next block is no target => np.minimum(length + 1, len(tokens) - offset) => np.minimum(length, len(tokens) - offset)
  classes reversed => classes.index(row[label]) => 1 - classes.index(row[label])
  files of tokens have no digest => int(about["vocabulary"]), about.get("tokenizer") => int(about["vocabulary"]), None
  a vocabulary that does not fit => if not 0 < vocabulary <= 256**size: => if not 0 < vocabulary:
  no vocabulary => if not 0 < vocabulary <= 256**size: => if not vocabulary <= 256**size:
  fewer words than the vocabulary => if words and len(words) != vocabulary: => if False:
  files of uint32 are read as uint16 => if dtype == "<u2" and vocabulary > 1 and => if False and
  rows without a label are a mistake => elif row[label] == "-": => elif False:
  no count of rows without a label => if unlabeled: => if False:
  quotes are read in silence => if quoted: => if False:
  a token cut in two => if cut := [str(path) => if cut := [][:0] and [str(path)
  a column named twice is the last => if counted[name] > 1] => if False]
tests/text/test_text_weights.py
  the line names nothing of a text's file => holds = ", ".join(map(str, [*(weights or content or ())][:4])) => holds = ""
  averages come last => WEIGHT_NAMES = ("ema", "state_dict", "model", "model_state_dict") => WEIGHT_NAMES = ("state_dict", "ema", "model", "model_state_dict")
  weights that are left out are measured => if left and evaluate:\n        raise errors.BadInput(f"{line}: {', '.join(left[:4])}; without => if False:\n        raise errors.BadInput(f"{line}: {', '.join(left[:4])}; without
  weights of parallel training do not fit => .removeprefix("module.") => .removeprefix("none.")
  NaN is loaded => if not all(weight.isfinite().all() for weight in fitting.values()): => if False:
  the last positions are taken => weights[name] = weights[name][: len(own[name])] => weights[name] = weights[name][-len(own[name]) :]
  weights of more layers are left out in silence => left = sorted((own.keys() | weights.keys()) - fitting.keys()) => left = sorted(own.keys() - fitting.keys())
tests/text/test_tokenizing.py
  the first sentence alone => found = tokenizer(*columns, => found = tokenizer(columns[0],
  what is too long is not cut => {"truncation": True, "max_length": max_length} => {"truncation": True, "max_length": max_length + 8}
  a folder without a tokenizer => if len(tokenizer) < len(tokenizer.all_special_ids) + 3: => if False:
  capitals are lowered => if not (says or made) and lowers_cased(tokenizer): => if False:
  what a folder says of capitals is not heard => if not (says or made) and lowers_cased(tokenizer): => if not made and lowers_cased(tokenizer):
  small letters alone are capitals => return same and capitals > len(vocabulary) / 100 => return same
  capitals are kept in silence => tell(f'{line}, write => str(f'{line}, write
  a digest of the vocabulary's size => content = sorted(tokenizer.get_vocab().items()), tokens => content = len(tokenizer), tokens
  a digest of the vocabulary alone => content = sorted(tokenizer.get_vocab().items()), tokens => content = sorted(tokenizer.get_vocab().items())
  a text is cut where tokens join => bool(alone) and joined[: len(alone)] == alone => True
  what is before is forgotten => before, text = text[max(0, at - near) : at], text[at:] => before, text = "", text[at:]
  tokens of what is before come twice => yield from (ids[len(seen) :] for => yield from (ids for
  the rest of a text is lost => yield before, text\n\n => yield before, ""\n\n
  words in lower case => " <eos> ").split() => " <eos> ").lower().split()
  one sentence is a second one => row.index(1) if 1 in row else len(row) for row => row.index(1) if 1 in row else 0 for row
tests/test_results.py -k "bars_stand or curves_have or spans_notes or one_axis or ticks_of or asked_of_axes or seen_on_white or two_by_two or caption_of_any or its_fingerprint or left_over"
  the lightest curve is invisible => np.linspace(0, 0.85, max(2, count)) => np.linspace(0, 1, max(2, count))
  a fingerprint without names => [(name, text(each)) for name, each in value.items()] => [text(each) for each in value.values()]
  another's PNG without a description ends it => image.info.get("Description") => image.info["Description"]
  the caption of the first panel alone => for each in panels if each.get("caption")), "") => for each in panels[:1] if each.get("caption")), "")
  the first bar at the bottom => ylim=(len(names) - 0.5, -0.5) => ylim=(-0.5, len(names) - 0.5)
  a single epoch is a line of no length => "o" if len(each) == 1 and style == "-" else style => style
  ticks below 1 are 0 => f"{x:,.0f}" if x >= 1 else f"{x:g}" => f"{x:,.0f}"
  half a step on an axis => if panel["xlabel"] in ("epoch", "step"): => if panel["xlabel"] == "epoch":
tests/test_results.py -k "names_its_curves or each_curve_is or counters_of or figure_of_a or one_global or a_cluster_s or told_apart"
  a figure's minutes are seconds => series.seconds / unit if unit else series.step => series.seconds if unit else series.step
  a study's curves are named by what all share => if len({each[place] for each in words}) > 1] => if len({each[place] for each in words}) >= 1]
  losses of --dummy are drawn => if each[1].learns or tag.startswith(("Data", "IO")) => if True
  a bar has the colour of another run => "colors": [each[2] for each in fast]} => "colors": shades(len(fast))}
  a missing minute hides the most read => return np.nanmax(read) / 1e9 => return np.max(read) / 1e9
  ideal scaling begins at one device => ideal, errors = y[0] * x / x[0], => ideal, errors = y[0] * x,
  too high is called low => 'high' if errors[-1] > 0 else 'low' => 'low' if errors[-1] > 0 else 'high'
  a band of one spare run => if model.spare > 1: => if model.spare >= 1:
  a run cut short is the quickest => first, last = whole[0], whole[-1] => first, last = cluster[0], cluster[-1]
  it is not said which run was cut short => for run in cluster if run not in whole] => for run in cluster if run in whole]
tests/test_results.py -k "the_figure_of or exchanging or figure_compares"
  BatchNorm's differences in the title => [row["largest"] for row in rows if not row["batchnorm"]] => [row["largest"] for row in rows]
  gains by the best seed => key=lambda added: np.mean(gains[added])) => key=lambda added: np.max(gains[added]))
  most images a class in the title => least, colours = min(transfer.few), => least, colours = max(transfer.few),
  smaller images beside full-size ones => if re.search("pixels|raw", row["name"]): => if re.search("pixels", row["name"]):
  float32 is said of bfloat16 => precision = "" if "bfloat16" in row["name"] => precision = "" if "bfloat16" not in row["name"]
  the bubble of a stage too many => idle = 100 * (stages - 1) / (x + stages - 1) => idle = 100 * (stages - 1) / (x + stages)
tests/test_results.py -k "sandbox or cores_are or of_the_peak or lowest_loss or with_most_gpus or parity_are or learning_rates or ways_of_transfer or trained_most or five_rounds or largest_difference or not_tried or exchanging"
  the highest of final accuracies => return float(np.mean([final(run) for run in runs])) => return float(np.max([final(run) for run in runs]))
  Firecracker is no sandbox => re.search(r"-fc-|^Linux-4\.4\.0-" => re.search(r"^Linux-4\.4\.0-"
  cores of the fewest loader processes => key=lambda row: int(row["name"].rpartition(" ")[2])): => key=lambda row: row["name"].rpartition(" ")[2]):
  the last loss is the best => return float(run.values("Loss/val").min()) => return float(run.values("Loss/val")[-1])
  sequences counted as tokens => return peaks.share_of_peak(run.rate * length, => return peaks.share_of_peak(run.rate,
  most runs are the largest cluster => if len(each) > 2), key=max, => if len(each) > 2), key=len,
  differences relative to the other run => (losses - reference).abs() / reference.abs() => (losses - reference).abs() / losses.abs()
  a pipeline's stages share no batch => (ranks * place["devices"] if ranks else run.devices) * batch => run.devices * batch
  the worst learning rate counts => key=lambda each: mean_final(each[1])): => key=lambda each: -mean_final(each[1])):
  frozen is called fine-tuned => way = 2 if run.options.get("freeze") else 1 if => way = 1 if run.options.get("freeze") else 2 if
  runs with --dummy are claimed => and run.measure and run.learns => and run.measure
  four rounds of five are ahead => scipy.special.bdtrc(wins - 1, len(signs), 0.5) < 0.05 => scipy.special.bdtrc(wins, len(signs), 0.5) < 0.05
  5 % in one direction alone => if abs(ratio - 1) <= 0.05 and not ahead: => if ratio - 1 <= 0.05 and not ahead:
  below a formula is no error => max(100 * abs(row["median"] / row["by formula, MB"] - 1) for => max(100 * (row["median"] / row["by formula, MB"] - 1) for
  a trial that was not tried failed => [row[2] for row in rows if row[2] is not None] => [row[2] for row in rows]
  tried for passed => f"{held} of {tried}" => f"{tried} of {held}"
  part of a name is a card => if re.fullmatch(name, device)), None) => if re.match(name, device)), None)
  the embedding is multiplied with twice => 12 * layers * width**2 + vocabulary * width => 12 * layers * width**2 + 2 * vocabulary * width
tests/test_lessons.py -k counted_from
  a lesson's losses counted from 0 => .value[step - 1] => .value[step]
  differences relative to the last lesson => np.ptp(losses, axis=0) / losses[0])) => np.ptp(losses, axis=0) / losses[-1]))
tests/test_lessons.py -k ring_that_is_drawn
  the last sum of a ring lacks its own share => summed = min(turn + 1, ranks) => summed = min(turn + 1, ranks - 1)
tests/test_results.py -k "is_visible or as_large_as or folders_show or half_precision or first_epoch_is or by_their_folder or logged_twice or has_ended or same_names or of_their_numbers or is_a_fact or rows_have or minute_missing or separators"
  JSON's lists are not made visible => return [clean(value) for value in each] => return each
  a run in two folders of LOGS counts twice => (real := os.path.realpath(root / name)) not in seen => (real := root / name) not in seen
  half precision of a CPU is float16 => ("bfloat16" if self.on_cpu else "float16") => "float16"
  a single epoch has no images/s => rates[1:] if len(rates) > 1 else rates => rates[1:]
  a table of text is named by its file => path.suffix in (".tsv", ".txt", ".bin") => path.suffix in (".txt", ".bin")
  the first of a step's values counts => each[np.append(each[1:, 0] != each[:-1, 0], True)] => each[np.append(True, each[1:, 0] != each[:-1, 0])]
  a pause counts as training => before = np.fmax(np.append(np.nan, np.maximum.accumulate(wall)[:-1]), began) => before = np.append(began[:1], np.maximum.accumulate(wall)[:-1])
  a resumed run has ended => end = content if tag == "end" else {} => end = content if tag == "end" else end
  test.json of text ends the run => for name in ("top1", "top5", "loss")} => for name in ("top1", "top5")}
  two runs of one name => if names[run.name] > 1} => if names[run.name] > 2}
  a number in study.json is refused => type(facts[name]) not in (str, int)] => type(facts[name]) is not str]
  a median of infinity => all(abs(value) < LARGEST_VALUE for value in row["values"]) => all(value < LARGEST_VALUE for value in row["values"])
  a time without reads ends it => frame.read.replace(["", "null", "undefined"], None) => frame.read.replace(["", "null"], None)
tests/test_results.py -k "rows_follow or like_names or several_precisions or file_name or terms or made_of or two_thirds or what_may_be"
  rows of a table with blank lines between => (?m)^(?!([|-] ) => (?m)^(?!([|] )
  two studies share a figure => while files[name] in drawn: => if False:
  a study of one precision is one of precisions => if len({run.arch for run in same}) == 1 < len({run.precision for run in same}) => if len({run.arch for run in same}) == 1
  a figure's text is markup => return escape(value) if isinstance(value, str) else value => return value
  a file's name is too long => .encode()[:140].decode(errors="ignore") => [:140]
  volume and latency swapped => np.stack([images + 0 * devices, hops / devices, hops], axis=1) => np.stack([images + 0 * devices, hops, hops / devices], axis=1)
  half of the sizes are fitted => sizes[math.ceil(2 * len(sizes) / 3) - 1] => sizes[math.ceil(len(sizes) / 2) - 1]
  runs that share cores are fitted => and run.global_batch and not run.crowded] => and run.global_batch]
  efficiency against the slowest => key=lambda each: (each.devices, -each.rate)) => key=lambda each: (each.devices, each.rate))
  errors of what was measured => return rates / [run.rate for run in runs] - 1 => return 1 - rates / [run.rate for run in runs]
tests/test_results.py -k "shown_as_text or three_digits or called_what or table_and_grid or in_full or what_may_be or tables_of"
  a line that begins as a list is one => return Markdown(re.sub(r"^(\d*)([-+=.)])(?=\s|[-=\s]*$)", r"\1\\\2", text)) => return Markdown(text)
  11 ranks have no plural => plural = r"(?<![\w.,-])1 (core| => plural = r"1 (core|
  a process is a GPU => "process" if True in kinds else "GPU" => "process" if False in kinds else "GPU"
  items of a sort => kinds.pop() if len(kinds) == 1 else 'items' => kinds.pop()
  a range of one value => if values[1:] else "–" => if values else "–"
  the ratio upside down => digits(median and base and median / base, 2) => digits(median and base and base / median, 2)
  a grid of other parts of a name => ", ".join(parts[:-columns]), ", ".join(parts[-columns:]) => ", ".join(parts[:columns]), ", ".join(parts[columns:])
  the highest perplexity is the best => "Accuracy": max, "Perplexity": min} => "Accuracy": max, "Perplexity": max}
  a term that is nothing is shown => known if limit < vars(each)[name] else "not identified" => known if limit > vars(each)[name] else "not identified"
  a NaN is shown => .map("{:.6g}".format).replace("nan", "–") => .map("{:.6g}".format)
tests/test_results.py -k "up_to_1 or page_again or left_over or in_docstrings or cannot_be_written or is_one_line"
  an accuracy of 0 is taken => not 0 < args.desired_acc <= 1: => not 0 <= args.desired_acc <= 1:
  warnings of benchmarks are lost => for warning in warnings + more] => for warning in warnings]
  a script that claims twice => if there != wanted: => if there[:1] != wanted:
  figures that nobody has any more stay => for path in left_over:\n            path.unlink() => for path in []:\n            path.unlink()
  another's PNG is deleted => .glob("*.png") if read_fingerprint(path)] => .glob("*.png")]
  results of other logs are overwritten => if before and not args.out and code(command) not in before: => if before and args.out and code(command) not in before:
  a left-over figure is not stale => for path in [*stale, *left_over]]: => for path in [*stale]]:
  a full disk is a traceback => except OSError as error:\n        parser.error(f"--out => except ValueError as error:\n        parser.error(f"--out
tests/test_look.py -k "a_file_does_not_say"
  a crop of another size is cut from the usual resize => resize = round(size * usual["val_resize"] / usual["image_size"]) => resize = max(size, usual["val_resize"])
  a crop as large as the resize is refused => if resize < size:\n            raise ValueError(f"its images => if resize <= size:\n            raise ValueError(f"its images
  some names are enough for all classes => [str(each) for each in range(len(classes), count)] => [str(each) for each in range(count - len(classes))]
  a file's own interpolation is passed over => about.get("interpolation", usual["interpolation"]) => usual["interpolation"]
  mean and deviation of what is written are swapped => {"mean": [*data.mean], "std": [*data.std]} => {"mean": [*data.std], "std": [*data.mean]}
tests/test_look.py -k "words_beside or five_likeliest or no_table_takes or not_finite_are"
  words of ImageNet for its classes by any number => named = len(trained.classes) == 1000 and re.fullmatch => named = re.fullmatch
  a picture in capitals is replaced by a table => if path.suffix.lower() in (*CHECKPOINTS, *IMAGES): => if path.suffix in (*CHECKPOINTS, *IMAGES):
  outputs without bound are predictions => if not logits.isfinite().all(): => if logits.isnan().any():
  the four likeliest classes => chances.topk(min(5, len(chances))) => chances.topk(min(4, len(chances)))
tests/test_look.py -k "of_test_alone or go_with_a_table or labels_of_a_part"
  outputs without a table are probabilities => if args.outputs and not args.csv: => if False:
  accuracy of the validation part is saved => if args.save and args.part != "test": => if args.save and args.part == "val":
  classes of a part for those of train/ => image_files.name_classes(args.dir / "train") or source.classes => source.classes
tests/test_look.py -k "confused_most"
  nine pairs confused => kind="stable")[:10]: => kind="stable")[:9]:
  of the images of the class it was taken for => {number} of {images[label]}" => {number} of {images[other]}"
tests/test_look.py -k "drawn_of_a_matrix or numbers_while"
  numbers of dark cells in black => colour = "white" if share > 50 else "black" => colour = "black" if share > 50 else "white"
  no names of fifty classes => if len(there) <= 50: => if len(there) < 50:
  no numbers of twenty classes => if len(there) <= 20: => if len(there) < 20:
  names of the first classes for those that have images => labels = [names[label] for label in there] => labels = names[: len(there)]
  axes of the matrix with each other's name => axes.set(xlabel="taken for", ylabel="class") => axes.set(xlabel="class", ylabel="taken for")
  the strongest share is the darkest whatever it is => cmap="Blues", vmin=0, vmax=100, interpolation => cmap="Blues", interpolation
tests/test_look.py -k "drawn_over"
  columns by the last folder alone => names = [shown(str(path.absolute().relative_to(above))) => names = [shown(str(path.absolute().relative_to(path.absolute().parent.parent)))
  a picture under its class in place of its name => first.set_title(path.name, fontsize=9) => first.set_title(row[0][1], fontsize=9)
  the map lies below the picture => axes.imshow(of_class, cmap="inferno", alpha=0.55) => axes.imshow(of_class, cmap="inferno", alpha=0.55, zorder=-1)
tests/test_look.py -k "program_says"
  what answers nothing finite passes => if not error < 1e-4: => if error >= 1e-4:
  mean and deviation of the line are swapped => (RGB / 255 - {[*data.mean]}) / {[*data.std]}" => (RGB / 255 - {[*data.std]}) / {[*data.mean]}"
tests/test_look.py -k "compared_with"
  the first two alone are compared => for other in others:\n        mine, theirs => for other in others[:1]:\n        mine, theirs
tests/test_look.py -k "xyz"
  maps in a format that nothing draws => if args.way in (classes, cam) and out.suffix[1:] not in PICTURES: => if args.way is classes and out.suffix[1:] not in PICTURES:
tests/test_tools.py -k "never_larger or quality_that"
  small images are enlarged => if side > size:\n => if side != size:\n
  JPEGs of Pillow's own quality => .save(file, "JPEG", quality=quality) => .save(file, "JPEG")
tests/test_tools.py -k "below_a_million or id_is_a_word"
  a class of seven digits => rb"0*\d{1,6}" => rb"0*\d{1,7}"
  a class with zeros before it => rb"0*\d{1,6}" => rb"\d{1,6}"
  ids of nine digits => (?<![A-Za-z0-9])n\d{8}(?!\d) => (?<![A-Za-z0-9])n\d{8}
tests/test_tools.py -k "ids_are_at or has_all_classes"
  a thousand classes of other ids are ImageNet's => if count == len(imagenet) and all(imagenet[label] == name for label, name in pairs): => if count == len(imagenet):
  the other part has fewer classes => if len(names) < count or names != known and any( => if names != known and any(
tests/test_tools.py -k "names_may_be_more or look_as_if or says_what_it_compared or bad_images_have"
  as many names as classes alone => len(set(classes)) < len(classes) or len(classes) < count or => len(set(classes)) < len(classes) or len(classes) != count or
  an empty tar file has class 0 => tar["target"].min(initial=MOST_CLASSES), path) => tar["target"].min(initial=0), path)
  classes from 2 are said to count from 1 => if lowest == 1 else "" => if lowest else ""
  a check without checksums says that it compared them => return "sizes and checksums" if len(sums) else => return "sizes and checksums" if True else
  bad images are numbered from their share's beginning => image {first + index} cannot => image {index} cannot
tests/test_tools.py -k "packed_by"
  zstd is unpacked by xz => b"\x28\xb5\x2f\xfd": "unzstd" => b"\x28\xb5\x2f\xfd": "unxz"
tests/test_tools.py -k "index_of_bad_tars or odd_and_does_not"
  any link is refused => if (member.issym() or member.islnk()) and matters(member.name): => if member.issym() or member.islnk():
  a tar that is cut off is whole => if tar.fileobj.read(512) != bytes(512): => if tar.fileobj.read(512).strip(b"\0"):
  folders are tar files => if path.is_file() and path.name[0] != ".") => if path.name[0] != ".")
tests/test_prepare.py -k "table_s_classes or imagenet_whole"
  further classes are accepted => if odd := sorted(made ^ classes): => if odd := sorted(classes - made):
  more images than ImageNet's are whole => if classes == CLASSES and count != IMAGES[part]: => if classes == CLASSES and count < IMAGES[part]:
tests/test_prepare.py -k "found_from_each or tells_its_form or come_before"
  ILSVRC/Data is not looked into => for below in "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC", ".": => for below in "ILSVRC/Data/CLS-LOC", "CLS-LOC", ".":
  a part's folder before the names => return sorted(path for path in tars if re.search(word, path.stem)) or sorted(below) => return sorted(below) or sorted(path for path in tars if re.search(word, path.stem))
  a val alone is not image-net.org's => for name in (TRAIN, VAL, DEVKIT)): => for name in (TRAIN, DEVKIT)):
tests/test_prepare.py -k "any_width or keys_and_suffixes or its_place_in"
  bytes of large columns are none => bytes: (large_)?binary(_view)?[,>] => bytes: binary(_view)?[,>]
  labels without a sign are no numbers => not re.match("u?int", label) => not re.match("int", label)
  a row counted over all files => f"{path}: row {number - first} has no image => f"{path}: row {number} has no image
  an empty image is copied => if not (known and image and image["bytes"]): => if not (known and image and image["bytes"] is not None):
  suffixes of parquet in capitals are .jpg => suffix = name.suffix.lower() => suffix = name.suffix
tests/test_prepare.py -k "each_once or file_to_file or another_parquet"
  keys begin again with each parquet file => first += count => pass
  one parquet file too many is accepted => if int(count) <= len(paths): => if int(count) < len(paths):
  a shard of another parquet file is kept => if len(about["target"]) != count: => if len(about["target"]) < count:
  the first class twice => classes {made.classes[0]} to {made.classes[-1]}" => classes {made.classes[0]} to {made.classes[0]}"
tests/test_prepare.py -k "links_that_were or names_the_folder"
  links that were there go with those that fail => links += [] if (folder / part / tar.name).exists() else [folder / part / tar.name] => links += [folder / part / tar.name]
  a full disk has no folder => error.filename is None  # such as a full disk => False  # such as a full disk
tests/test_prepare.py -k "bad_input_ends and kaggle"
  two classes for all images => has two classes for {len(pairs) - len(images)} images => has two classes for {len(pairs)} images
  the table two folders above alone => above = [data, *data.resolve().parents[:3]] => above = [data, *data.resolve().parents[:2]]
tests/test_prepare.py -k "has_emptied"
  a file of another size is whole => if not path.exists() or path.stat().st_size != member.size: => if not path.exists():
  an empty image of val is whole => if all(path.exists() and path.stat().st_size for path in made): => if all(path.exists() for path in made):
tests/test_prepare.py -k "interrupted_unpacking"
  validation images are counted from 0 => for at, n in enumerate(truth, 1)} => for at, n in enumerate(truth)}
tests/test_text_tools.py -k "before_valid or line_of_its_own"
  a mark of byte order is text => raw[3 * raw[:3].tobytes().startswith(codecs.BOM_UTF8) :] => raw
  val.txt gives way to valid.txt => val = next(filter(Path.exists, vals), vals[0]) => val = next(filter(Path.exists, vals[::-1]), vals[0])
  each file has two ends of line => if raw[-1:].tobytes() != b => if True or raw[-1:].tobytes() != b
tests/test_text_tools.py -k "the_checkpoint_s or of_256"
  a tokenizer of another digest is taken => other = saved.get("tokenizer") not in (None, tokenizing.digest_of(tokenizer)) => other = False
  a model of any size takes bytes => if size != 256:\n => if size < 256:\n
tests/test_text_tools.py -k "alone_are_drawn or before_it_at_most"
  as many likeliest as the vocabulary at least => logits.topk(min(args.top_k, len(logits))) => logits.topk(args.top_k)
  a high temperature is sharp => torch.softmax(logits / args.temperature, dim=0) => torch.softmax(logits * args.temperature, dim=0)
tests/test_text_tools.py -k "terminal_no_commands"
  a text commands the terminal => print(text[len(before) :].translate(CONTROL), end="", flush=True) => print(text[len(before) :], end="", flush=True)
  the rest of a text commands the terminal => print(decode(seen[shown:])[len(decode(seen[shown:read])) :].translate(CONTROL)) => print(decode(seen[shown:])[len(decode(seen[shown:read])) :])
tests/test_text_tools.py -k "bad_parquet or stays_in_its_cell"
  the last shard is not looked for => for number in range(int(last))] => for number in range(int(last) - 1)]
  each changed sentence counts => changed += clean != texts => changed += sum(a != b for a, b in zip(clean, texts, strict=True))
tests/test_benchmarks.py -k "tenth_is or to_warm_up or steps_of_the_epoch"
  what is loaded ahead is measured => work(run, WARM_UP + 2 * run.data.workers) => work(run, WARM_UP)
  images of the last step alone => return steps * run.data.global_batch / ( => return run.data.global_batch / (
  no loader process divides by zero => each = loader / min(max(1, workers), cores) => each = loader / min(workers, cores)
  a loader barely faster is enough => if loader > 1.1 * model: => if loader > model:
  as many processes as cores are too many => if enough <= cores:\n => if enough < cores:\n
  loaded steps are not counted => run.step += steps => pass
tests/test_benchmarks.py -k "long_enough or a_step_at_least"
  loader and both are swapped => both, loader = (images_per_second => loader, both = (images_per_second
  an epoch of as many steps as are needed is refused => if there < needed: => if there <= needed:
  no --steps at all => if args.steps < 1: => if args.steps < 0:
tests/test_tools.py -k "after_the_first_of or known_by_their"
  a profile at the end of a run's last epoch => left = run.data.steps - begun if epoch < run.args.epochs else 0 => left = run.data.steps - begun
  epochs' checkpoints are none => r"epoch-\d+\.pt"]) => r"epoch-\d\.pt"])
tests/test_tools.py -k "a_terminal_a_command or one_line_whatever"
  a carriage return is sent to the terminal => *range(11, 32), *range(127, 160) => *range(11, 13), *range(14, 32), *range(127, 160)
  the last control codes are sent to the terminal => *range(127, 160)) => *range(127, 159))
  a Fault ends with 2 => status = getattr(error, "status", 2) => status = 2
  an error of storage without a number ends with 1 => if isinstance(error, OSError) and error.errno: => if isinstance(error, OSError):
  an error without a text has no line => text = text or str(error).strip() or type(error).__name__ => text = text or str(error).strip()
  a first line that is empty is printed => text = text or str(error).strip() or type(error).__name__ => text = text or str(error) or type(error).__name__
  the last line of an error is printed => {text.splitlines()[0].translate(CONTROL)} => {text.splitlines()[-1].translate(CONTROL)}
  Ctrl-C is a success => raise SystemExit(130) from None => raise SystemExit(0) from None
tests/test_tools.py -k "does_not_fit_is or program_s_or_whole"
  modules that are missing are one => and lacks {len(missing)} modules, as => and lacks 1 modules, as
  the program's own package beside a script starts it again => if not there.is_dir() or there.samefile(mine): => if not there.is_dir():
  a package's first line that is empty ends it => (str(error).splitlines() or [''])[0] => str(error).splitlines()[0]
tests/test_run_options.py -k "goal or desired or short_form"
  a goal as a fraction of 1 is taken for a percentage => if unit and value < 1 and isinstance(goal, str): => if unit and value < 0.01 and isinstance(goal, str):
  a goal of --desired-acc below 1 % is refused => if unit and value < 1 and isinstance(goal, str): => if unit and value < 1:
  a goal that cannot be reached is waited for => number_between(float, least, most)(goal) => number_between(float, least, 1e12)(goal)
  a goal that is reached at once is taken => number_between(float, least, most)(goal) => number_between(float, -1e12, most)(goal)
tests/test_run_options.py -k file
  a byte-order mark is an option => read_text("utf-8-sig").splitlines() => read_text("utf-8").splitlines()
  lines of an option file are counted from 0 => in enumerate(lines, 1):\n            try: => in enumerate(lines):\n            try:
  a file of options that contains itself is read without end => if path in within: => if False:
tests/test_training.py -k "goals_are or least_of"
  goals are printed as fractions => goals = format_metrics(dict(args.desired), 3) => goals = format_metrics({tag: goal / 100 for tag, goal in args.desired}, 3)
  a goal of two digits is rounded => goals = format_metrics(dict(args.desired), 3) => goals = format_metrics(dict(args.desired))
tests/test_devices.py
  a container's limit is not looked at => cores = min(cores or 1, limit // period) => cores = cores or 1
  a container's limit replaces the cores that there are => cores = min(cores or 1, limit // period) => cores = limit // period
tests/launch/test_rendezvous.py -k variables
  an address that lacks is one of None => if "WORLD_SIZE" in os.environ and lacking: => if "WORLD_SIZE" in os.environ and len(lacking) > 1:
tests/launch/test_local_processes.py -k crashed
  a crash of a library is called one of memory => why = CRASHES.get(name, => why = CRASHES.get("SIGKILL",
tests/images/test_weight_files.py -k "negative or fetched or hubs_cache"
  a negative variance is taken => (state[each] < 0).any(): => (state[each] < -1).any():
  the first variance alone is looked at => (state[each] < 0).any(): => (state[each][0] < 0).any():
  the file that is damaged is not named => cure = f"; if {' or '.join(there)} is => cure = f"; if {cache} is
tests/test_safe_files.py -k "lfs or link"
  a pointer of Git LFS is called damaged => if pointer := errors.lfs_pointer(content.getvalue()): => if pointer := errors.lfs_pointer(content.read(3)):
  a link in the place of a temporary file is followed => temporary.unlink(missing_ok=True)  # what => temporary.exists()  # what
tests/runs/test_state_trees.py
  the checkpoint's shape is called the model's => for tree in (mine, theirs))\n => for tree in (theirs, mine))\n
tests/images/test_image_files.py -k would_be_classes
  a run's folder becomes a class of val/ => os.path.join(folder, part)) for part in ("train", "val")) => os.path.join(folder, part)) for part in ("train",))
  a folder beside train/ is refused for its name => return any(os.path.commonpath([there, part]) == part for part in parts) => return any(there.startswith(part) for part in parts)
tests/test_bad_input.py -k is_no_class
  a run's folder becomes a class => and image_files.is_in_part(args.output_dir or "runs", args.dir), => and image_files.is_in_part("runs", args.dir),
tests/test_text.py -k diverged
  a perplexity has 304 digits => math.inf if loss > 709 else math.exp(loss) => math.exp(min(loss, 700))
tests/runs/test_state_trees.py
  only the first group's moments are resumed =>     updated = [weight for group in optimizer.param_groups for weight in group["params"]]\n    moments = =>     updated = [*optimizer.param_groups[0]["params"]]\n    moments =
tests/test_parallel.py -k "hold_stages or values_of_the_whole or float32_buffers"
  one rank is told of stages in place of ranks =>     if ranks == 1:\n        raise errors.BadInput(\n            "a pipeline needs two ranks =>     if width == 1:\n        raise errors.BadInput(\n            "a pipeline needs two ranks
  BatchNorm's statistics are refused under --param-dtype => if any(buffer.is_floating_point() for buffer in others): => if any(buffer.is_floating_point() for buffer in model.buffers()):
  integer buffers are not given to shards =>         _fill(tensor.detach(), value, place) =>         if tensor.is_floating_point():\n            _fill(tensor.detach(), value, place)
tests/test_benchmarks.py -k "one_line and evaluate"
  steps of an evaluation are measured =>     if args.evaluate:\n        raise errors.BadInput("--evaluate trains no steps") =>     if args.evaluate and not args.resume:\n        raise errors.BadInput("--evaluate trains no steps")
tests/test_text_input.py -k null
  a file is taken for a tokenizer's folder =>     lost = named and not (errors.look_at(named) and os.path.isdir(named)) =>     lost = named and not errors.look_at(named)
tests/test_bad_input.py -k adasum
  adasum is refused with bfloat16 =>     if args.use_adasum and args.precision == "float16": =>     if args.use_adasum and args.precision != "float32":
tests/test_results.py -k bytes_and_reads
  bytes are drawn as reads => read_io_csv(each, each.with_name("iops.csv")) for each in found => read_io_csv(each.with_name("iops.csv"), each) for each in found
tests/test_standard_streams.py -k in_parts
  what a terminal did not take is lost =>                 del self.kept[: self.put(self.piece())] =>                 piece = self.piece()\n                self.put(piece)\n                del self.kept[: len(piece)]
tests/test_training.py -k minute_longer
  horovod's time-out comes after its start =>     os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(int(min(args.timeout or 1e8, 1e8)) + 60)\n    hvd.init() =>     hvd.init()\n    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(int(min(args.timeout or 1e8, 1e8)) + 60)
tests/test_tools.py -k worker_ends
  worker processes of a killed program stay => signal.signal(signal.SIGTERM, signal.SIG_DFL)\n    endings.end_with_parent(signal.SIGKILL) => signal.signal(signal.SIGTERM, signal.SIG_DFL)\n    endings.end_with_parent(signal.SIGINT)
tests/test_prepare.py -k numbered_on
  images of a third parquet file have numbers of the second =>             first += count\n =>             first = count\n
tests/test_prepare_folder.py -k "table_becomes or column_of_coco or several_folders or says_the_part or without_a_name or header_says or table_of_val"
  the whole table says what separates its columns => "delimiter": max(SEPARATORS, key=header.count) => "delimiter": max(SEPARATORS, key=text.count)
  val's table is divided by its column => "--split": None if part else args.split, => "--split": args.split,
  a table's mark is part of its first column => text = path.read_text("utf-8-sig")\n        if pointer => text = path.read_text("utf-8")\n        if pointer
  commas alone separate columns => "delimiter": max(SEPARATORS, key=header.count) => "delimiter": ","
  values keep their blanks => lines = [(number, [*map(str.strip, line)]) for number => lines = [(number, line) for number
  a path needs its suffix => pairs = [(key, there)] if there else self.stems.get((folder, key), []) => pairs = [(key, there)] if there else []
  paths of Windows are not found => {name, name.replace("\\", "/")}): => {name}):
  an annotation has the first image's category => categories[each["category_id"]] => categories[min(categories)]
  the first folder of images alone => itertools.product(self.folders, {name, => itertools.product(self.folders[:1], {name,
  a row of dev is tested => "val": ("val", "valid", "validation", "dev"), => "val": ("val", "valid", "validation"),
  pandas' index is a column => {name: value for name, value in pairs if name}))  # pandas => dict(pairs)))  # pandas
tests/test_prepare_folder.py -k "that_is_printed or no_file_at_all or may_be_several"
  images are counted as files => columns[part] = [f"{len(images[part, name]):,}" for name in names] => columns[part] = [f"{files[part, name]:,}" for name in names]
  rows that name an image again are not said => again.append(image.where) => pass
  a dry run makes DIR =>         if not args.dry_run:\n =>         if True:\n
  classes that val lacks are not said => if without := [name for name in names if not files["val", name]]: => if without := []:
  a table of which no row is left is well => if missing == len(rows): => if missing > len(rows):
  all images of one class are well => if len({*labels["train"], *labels["val"]}) == 1 and not args.source => if False and not args.source
tests/test_prepare_folder.py -k "label_that or labels_that"
  labels of one folder meet => elif other := labels.get(name): => elif other := None:
  hidden folders are classes => if not name or name[0] == "." or => if not name or name in (".", "..") or
  a label that is a path makes folders => name = label.replace("/", "_") => name = label
  names of 256 bytes => len(os.fsencode(name)) > 255: => len(name) > 255:
tests/test_prepare_folder.py -k "each_mistake or may_be_left_out or is_no_table or one_hot_rows or is_no_json or several_labels or file_that_is_no or hint_names"
  the last label of an image wins => if first.label != image.label: => if False:
  an image is in two parts => elif first.part != image.part: => elif False:
  rows are numbered from the header => enumerate(reader, 1)] => enumerate(reader, 0)]
  an open quote takes the rest => key=header.count), "strict": True} => key=header.count)}
  two columns of one name => if double := next((name for name, count in counts.items() if count > 1), None): => if double := None:
  a row without a class is of the first => if len(ones := [tag for tag in tags if row[tag][0] == "1"]) != 1: => if len(ones := [tag for tag in tags if row[tag][0] == "1"] or tags) > 2:
  lines of JSON are numbered from 0 => raise ValueError(f"line {number} is no JSON: => raise ValueError(f"line {number - 1} is no JSON:
  a list is a class => if not isinstance(row[column], str): => if row[column] is None:
  a scan is an image => if not is_image(path) and not is_image_inside(path): => if False:
  the hint names any file of that name => if other := next(filter(None, found), None): => if other := None:
  a row without a label is of the class None => if not label:\n        raise => if label is None:\n        raise
tests/test_prepare_folder.py -k "stays_in_its or is_divided or in_one_part or group_in_two or keeps_an_image or divides_train"
  images are divided by their order => share_of(group or image.key) < args.val: => share_of(str(len(divided))) < args.val:
  a group is divided => share_of(group or image.key) < args.val: => share_of(image.key) < args.val:
  a group in two parts passes => if first.part != image.part:\n            what = f"group => if False:\n            what = f"group
  the whole match is the group => group = found and found[min(1, args.group.groups)] => group = found and found[0]
  hidden files are images => return name[0] != "." and name != "__MACOSX" => return name != "__MACOSX"
  links to an image are other images => first = found.setdefault(os.path.realpath(image.path, strict=True), image) => first = found.setdefault(os.path.abspath(image.path), image)
  a class is in val alone => return keep_in_train(divided) if args.val else divided => return divided
  a group is divided for a class => if image.part == "val" and not image.group => if image.part == "val"
  test is divided with train => if args.val and part == "train" and share_of => if args.val and share_of
tests/test_prepare_folder.py -k "other_names or test_alone or called_train or something_else or go_together or left_out or one_class or beside_the_classes or lie_in_source or never_in_the_way or to_nothing"
  a folder of classes is a class of train/ => elif len(labels) == 1 and part in ("", "train"): => elif len(labels) == 1 and not part:
  a class called Train is a part => if not parts or (len(found) == 1 and len(parts) < len(names)): => if not parts:
  test is in val and in test => if not (args.val_from and is_same(folder / name, args.val_from)): => if True:
  images of unknown classes are tested => if image.part != "test" or image.label not in strange] => if image.label is not None]
  DIR is a class => return [name for name in names if not is_same(folder / name, without)] => return [*names]
  val of one class is refused => elif len(labels) == 1 and part in ("", "train"): => elif len(labels) == 1:
  images beside the classes are not counted => = sum(map(is_image, beside)) => = 0
  images of SOURCE are replaced => if any(source.startswith(inside) for source in sources): => if False:
tests/test_prepare_folder.py -k "balance or interrupted or other_options or links_and_copies or beside_the_table or other_classes or whole_part or behind_a_link"
  links of a DIR behind a link lead to nothing => start = os.path.realpath(path.parent) => start = os.path.abspath(path.parent)
  a part that was whole keeps its unfinished name =>         if unfinished.exists():\n            os.rename(unfinished, whole) =>         if todo and unfinished.exists():\n            os.rename(unfinished, whole)
  rare classes have a link too few => for number in range(most[part] if part in balance else len(some)): => for number in range(most[part] - (len(some) < most[part]) if part in balance else len(some)):
  val is balanced with train => most[part] if part in balance else => most[part] if balance else
  a second link replaces an image of its name => while again and path in plan:  # an image => while False:  # an image
  a part has its name before it is whole =>             unfinished.mkdir(parents=True, exist_ok=True)\n            with ThreadPool() as pool: =>             unfinished = whole\n            unfinished.mkdir(parents=True, exist_ok=True)\n            with ThreadPool() as pool:
  what is there is made again => if todo := [job for job in every if not job.is_made(there)]: => if todo := every:
  images of an earlier division stay => if not (job := known.get(path)): => if not (job := known.get(path, jobs[0])):
  classes of an earlier table stay => if name not in classes and is_visible(name): => if False:
  a file of the user is replaced => elif job.kind != "turned copy" and not os.path.islink(path) and not job.is_made(there): => elif False:
  links are absolute => os.symlink(os.path.relpath(os.path.realpath(self.source), start), unfinished) => os.symlink(os.path.realpath(self.source), unfinished)
  copies are links => jobs, kind = {part: [] for part in PARTS}, "copy" if args.copy else "link" => jobs, kind = {part: [] for part in PARTS}, "link"
tests/test_prepare_folder.py -k "upright or turned"
  a photo is turned and stays marked => PIL.ImageOps.exif_transpose(image).save( => image.copy().save(
  photos of one part are counted => turned += decoding.orientation(io.BytesIO(encoded)) != 1 => turned = decoding.orientation(io.BytesIO(encoded)) != 1
  turned photos are made again => return made.st_mtime >= before.st_mtime and is_upright(path) => return False
  a copy that is not turned is kept => return made.st_mtime >= before.st_mtime and is_upright(path) => return made.st_mtime >= before.st_mtime
  a photo that was replaced is not turned => return made.st_mtime >= before.st_mtime and is_upright(path) => return is_upright(path)
  a damaged photo is left out => elif self.kind == "copy" or not turn_upright(self.source, unfinished):\n            shutil.copyfile(self.source, unfinished) => elif self.kind == "copy" or not turn_upright(self.source, unfinished):\n            unfinished.touch()
tests/test_prepare_folder.py -k "path_of_no_file or have_a_backslash"
  a row that names its folder is a bug => .parts[1:]  # one was not => .parts[1:] or [][0]  # one was not
  a backslash is a separator alone => {name, name.replace("\\", "/")}): => {name.replace("\\", "/")}):
tests/images/test_decoding.py
  damaged EXIF data end the run => with contextlib.suppress(Exception), hushed(), warnings.catch_warnings():\n        warnings.simplefilter("ignore")\n        with PIL.Image.open(file => with contextlib.suppress(OSError), hushed(), warnings.catch_warnings():\n        warnings.simplefilter("ignore")\n        with PIL.Image.open(file
  a TIFF is said to be on its side => return found if image.format != "TIFF" and found in range(2, 9) else 1 => return found if found in range(2, 9) else 1
  mirrored photos are upright => found in range(2, 9) else 1 => found in (3, 6, 8) else 1
tests/test_look.py -k taken_for_another
  a class called file has the column of paths => while column in others or (column != name and column in taken): => while False:
  a class called class has a column of another class => while column in others or (column != name and column in taken): => while column in others:
tests/test_tools.py -k index_of_tars
  names of classes keep blanks at their ends => classes = [line.strip() for line in lines] => classes = lines
tests/runs/test_checkpointing.py -k one_s_own
  a checkpoint that lacks a name is taken => if not isinstance(saved, dict) or not {*needs} <= saved.keys(): => if not isinstance(saved, dict) or not {*needs} & saved.keys():
  what is skipped is not logged => errors.LOG.warning("%s skips %s", what, error) => pass
tests/test_endings.py -k nohup
  PyTorch's handler of SIGCHLD stays => signal.signal(signal.SIGCHLD, signal.SIG_DFL)\n    for signum in SIGNALS: => for signum in SIGNALS:
tests/test_public_parts.py -k nothing_of_the_process
  the codec's variables stay => for name, value in before.items():  # for OpenCV elsewhere\n            del os.environ[name] => for name, value in before.items():  # for OpenCV elsewhere\n            os.environ.pop("", None)
tests/images/test_weight_files.py -k output_needs_ends
  scripts do not print what is logged => LOG.handlers[:], LOG.propagate = [_Printer()], False => pass
tests/test_check_script.py -k twice
  a script is compared with itself alone => if not own:\n        compare(one, => if own:\n        compare(one,
tests/test_check_script.py -m slow -k dropped
  validation is not compared => or not all(near): => or not any(near):
tests/test_check_script.py -k momentum
  a killed run is compared with nothing => if differing or one.keys() != other.keys(): => if one.keys() != other.keys():
tests/test_check_script.py -m slow -k forgotten
  a copy that forgets the epoch is taken as resuming => if saved["epoch"] and saved["step"]: => if saved["step"]:
tests/test_check_script.py -k sessions
  ranks of a launcher are not killed => for each in [process, *process.children(recursive=True)]: => for each in [process]:
tests/test_check_script.py -k missing
  a missing Horovod is a bug => strategy == "horovod" and not HOROVODRUN.exists(): => strategy == "horovod" and not HOROVODRUN:
tests/test_check_script.py -m slow -k drawn
  other data are not noticed => if not abs(one - other) <= SAME * abs(other): => if abs(one - other) > SAME * 1e6:
tests/test_activation_checkpointing.py -k "not trains_the_same"
  statistics count a batch twice => setattr(each, name, buffer.clone()) => pass
  statistics of the copies stay => setattr(each, name, buffer)\n => pass\n
  a stage is one block => if len(kinds) > len(set(kinds)):\n => if False:\n
  a block's rows are blocks => if len(kinds) > len(set(kinds)):\n => if kinds:\n
  a list of heads is a stage => if isinstance(row, ROWS) and 2 * _size(row) > _size(module): => if isinstance(row, ROWS):
  all is kept => return checkpoint(own, *inputs, use_reentrant=False, context_fn=lambda: of_calls) => return own(*inputs)
  an object has another forward => module.__class__ = _recomputed(type(module)) => module.forward = functools.partial(_recomputed(type(module)).forward, module)
  a model without blocks is taken => if not has_blocks(model):\n => if False:\n
tests/test_model_flops.py
  depthwise convolutions are dense => with FlopCounterMode(display=False, custom_mapping=gradients) => with FlopCounterMode(display=False)
  frozen weights have gradients => for weight in model.parameters() if weight.requires_grad]\n    with Flop => for weight in model.parameters()]\n    with Flop
  two images count as one => model_flops.count_training(model, images) / len(images) => model_flops.count_training(model, images)
  a share that is unknown is logged => if math.isfinite(run.peak_share): => if True:
tests/runs/test_run_messages.py
  a folder is not named beside --checkpoint-activations => words.append(f"--output-dir {shlex.quote(str(folder))}")\n    same = "the run resumes on the same curve, slower => pass\n    same = "the run resumes on the same curve, slower
tests/test_training.py -k micro_batches
  what is on is advised => if not args.checkpoint_activations and activation_checkpointing.has_blocks(run.model): => if activation_checkpointing.has_blocks(run.model):
tests/test_training.py -k half_as_large
  what a model has not is advised => if not args.checkpoint_activations and activation_checkpointing.has_blocks(run.model): => if not args.checkpoint_activations:
tests/test_export.py -k "predict_as_look_does or images_are_resized"
  classes go without their names => config["label_names"] = trained.classes => config["label_names"] = sorted(trained.classes, reverse=True)
  a folder's model_args are timm's own => config["model_args"].pop("num_classes", None) => pass
  a folder has timm's own mean => for name in ("interpolation", "mean", "std")} => for name in ("interpolation",)}
tests/test_export.py -k "libraries_names"
  ImageNet's classes are their ids => if trained.classes not in imagenet_names(): => if True:
  a thousand classes are ImageNet's => if trained.classes not in imagenet_names(): => if len(trained.classes) != 1000:
tests/test_export.py -k "onnx_runtime or a_checkpoint"
  safetensors forget the classes => {"classes": trained.about.get("classes", [])} => {"classes": []}
tests/test_export.py -k "nothing_is_overwritten or when_all_is_written"
  a link to nothing is taken for free => if os.path.lexists(out): => if os.path.exists(out):
  what comes meanwhile is overwritten => check_out(out.with_name(path.name), [path.suffix]) => pass
tests/test_export.py -k "raises_is_one_line"
  others cannot read the weights => path.write_bytes(safetensors.save(copies, metadata))  # => safetensors.save_file(copies, path, metadata)  #
  a library's error is a traceback => except Exception as error:\n            why = f"{type(error).__name__}: {errors.first_line(error)}"\n            raise errors.Fault(f"{out} => except KeyError as error:\n            why = f"{type(error).__name__}: {errors.first_line(error)}"\n            raise errors.Fault(f"{out}
tests/test_export.py -k "asked_for or without_a_log"
  a card has switches with True => "" if value is True else f" {value}" => f" {value}"
tests/test_export.py -k "comes_back or what_trained or something_else"
  a measure that one of two files shares is enough => same and all(same) => any(same)
tests/test_export.py -k transformers_classifies
  a second sentence is not marked => names = ["input_ids", *marks, "attention_mask"] => names = ["input_ids", "attention_mask"]
  a classifier's weights are random => text_weights.load_fitting(encoder, weights, => text_weights.load_fitting(hf_folders.new_encoder(options.arch, config), weights,
tests/test_export.py -k "in_their_order or must_be_those"
  a folder that has moved is made anew => if not os.path.isdir(options.arch): => if False:
  any table's words will do => if saved["tokenizer"] != tokenizing.digest_of(tokenizer): => if False:
  --data is not read => options.dir = args.data or options.dir => options.dir = options.dir or args.data
tests/test_export.py -k "goes_on_as or checkpoint_s"
  GPT-2 goes on beyond its positions => gpt2.generation_config.max_length = saved["max_length"]  # => pass  #
tests/text/test_gpt2_names.py
  layers are not transposed => tensor.T.contiguous() if inside else tensor => tensor
  biases are dropped => if any(weights[name].any() for name in biases): => if False:
  a tied weight is missing => found.setdefault("head.weight", found["token.weight"]) => pass
  unknown weights are left out => if other is None:\n            return None => if other is None:\n            continue
tests/text/test_tokenizing.py -k "each_byte or as_split_words"
  a blank is added before the text => ByteLevel(add_prefix_space=False) => ByteLevel(add_prefix_space=True)
tests/test_safe_files.py -k safetensors
  what a file says overwrites its tensors => return about | {"state_dict": tensors} => return {"state_dict": tensors} | about
  any metadata is a checkpoint's => if isinstance(about, dict) and "model_options" in about: => if isinstance(about, dict):
tests/test_export.py -k as_a_folder_alone
  --script is not heard of text => if args.out.suffix or args.script: => if args.out.suffix:
tests/test_float8_support.py
  the CPU's emulation counts => if device.type != "cuda":\n        return False => if device.type == "mps":\n        return False
  Ampere has float8 => LEAST = (8, 9) => LEAST = (8, 0)
  only the forward pass is tried => torch.autograd.grad(output.sum(), [inputs, *layer.parameters()])\n    except => pass\n    except
  subclasses are converted => if type(layer) is nn.Linear} => if isinstance(layer, nn.Linear)}
  shapes are compiled => with torch.no_grad(), torch.compiler.set_stance("force_eager"): => with torch.no_grad():
  hooks stay => hook.remove()\n    return called => pass\n    return called
  no layer of a model that needs values => return layers\n    finally: => return called\n    finally:
  an unfit version is a bug => except Exception as error:  # whatever one => except ImportError as error:  # whatever one
tests/test_float8.py -k "blocks_are or layers_of or models_without or configurations or beside"
  what is not called is converted => for layer in called.intersection(block.modules()) => for layer in {each for each in block.modules() if isinstance(each, nn.Linear)}
  the last layer is converted => for block in activation_checkpointing.blocks(model)\n        for layer in called => for block in [model]\n        for layer in called
  sides of any size => if layer.in_features % 16 == layer.out_features % 16 == 0 => if layer.in_features
  one side is looked at => if layer.in_features % 16 == layer.out_features % 16 == 0 => if layer.in_features % 16 == 0
  nothing is converted, and no word of it => if not chosen:\n => if False:\n
  no batch is padded => pad = data.device_batch % 16 > 0 => pad = False
  each batch is padded => pad = data.device_batch % 16 > 0 => pad = True
  the scaling is ignored => from_recipe_name(args.float8_scaling)\n    # A => from_recipe_name("tensorwise")\n    # A
  float16 beside float8 => if args.precision == "float16" else torch.bfloat16  # also => if args.precision != "bfloat16" else torch.bfloat16  # also
  float32 beside float8 => if args.precision == "float32":\n        return contextlib.nullcontext()\n    half => if args.precision in ("float32", "float8"):\n        return contextlib.nullcontext()\n    half
  only a copy is converted => torchao.convert_to_float8_training(\n        model, config => torchao.convert_to_float8_training(\n        __import__("copy").deepcopy(model), config
tests/test_float8.py -k "to_gather or gathering or other_scripts"
  gathering is ignored => enable_fsdp_float8_all_gather=gather) => enable_fsdp_float8_all_gather=False)
  the option to gather is ignored => _to_float8(model, args, place, data, args.float8_gather) => _to_float8(model, args, place, data)
  all gather in float8 => _to_float8(model, args, place, data, args.float8_gather) => _to_float8(model, args, place, data, True)
  gathering with any scaling => if args.float8_gather and (args.precision, args.float8_scaling) != ("float8", "tensorwise"): => if args.float8_gather and args.precision != "float8":
  others do not say who has it => message += "; --amp float8 is for scripts => "; --amp float8 is for scripts
tests/test_one_gpu.py -k float8
  float8 on any GPU => torch.cuda.get_device_capability() >= (8, 9) => torch.cuda.get_device_capability() >= (8, 0)
  a stage without its device => files += ["no float8 on this device"] * (stage.float8 and not float8) => files += []
tests/test_devices.py -k processor
  PyTorch 2.10 is refused => known = getattr(torch.cpu, "get_capabilities", dict)() => known = torch.cpu.get_capabilities()
tests/test_look.py -k test_a_folder_as_a_table
  folders above are entered by a link => below.remove(name)  # a link => pass  # a link
tests/test_look.py -k test_tables_are_whole
  a table half written stays => out.unlink(missing_ok=True) => pass
  a table is written over what was there => out = path if at_once else target.with_name(f"{target.name}.tmp") => out = path
tests/test_look.py -k test_classes_of_unequal_size
  balanced accuracy is the median => float((matrix.diagonal()[there] / images[there]).mean()) => float(np.median(matrix.diagonal()[there] / images[there]))
  balanced accuracy counts absent classes => there = images > 0 => there = images >= 0
  the worst class is that of fewest right answers => key=lambda label: right[label] / images[label]) => key=lambda label: right[label])
tests/test_look.py -k test_a_log_with_another_script
  bare weights beside a log are believed its own => if "model_options" in saved and (line := => if (line :=
  a linked checkpoint has no log => last_start(checkpoint.resolve().parent) => last_start(checkpoint.parent)
  a damaged log ends the program => with contextlib.suppress(Exception):  # of files => with contextlib.suppress(ValueError):  # of files
tests/test_look.py -k test_average_is_the_mean
  an average with the first file's statistics => if tensor.is_floating_point():  # and counts are the first's => if tensor.is_floating_point() and "running_" not in name:  # and counts are the first's
tests/images/test_architectures.py -k test_sizes_are_what_is_typed_then_the_files_then_the_usual
  val_resize's default => round(crop * preset.val_resize / preset.image_size) => crop
  evaluated at the architecture's own size => about.get("image_size") or usual_size => usual_size
tests/images/test_architectures.py -k test_a_preset_is_what_the_library_publishes
  timm's models have 1,000 outputs => config.num_classes,\n => 1000,\n
tests/images/test_architectures.py -k test_other_models_are_built_as_they_are
  all models are built for a size => for options in ({}, {"img_size": image_size})[: 1 + preset.fixed]: => for options in ({"img_size": image_size}, {}):
tests/images/test_image_loading.py -k test_a_read_that_fails_is_tried_again
  a read is tried once less => for seconds in 1, 5, 20: => for seconds in 1, 5:
tests/images/test_image_loading.py -k test_damaged_images_of_a_list_are_named
  bytes are read once => for seconds in 1, 5, 20: => for seconds in () if isinstance(error, errors.BadInput) else (1, 5, 20):
  a loader's traceback => except (errors.BadInput, errors.Fault) as error:\n            # Raised => except KeyboardInterrupt as error:\n            # Raised
tests/images/test_image_loading.py -k test_an_error_of_a_crop_keeps_its_type
  an image is read again for an error of its crop => if isinstance(error, OSError) and encoded is not None: => if False:
tests/images/test_image_loading.py -k test_lists_are_as_long_as_memory_allows
  lists as long as two => LISTED, LISTED_PIXELS = 32, 2**19 => LISTED, LISTED_PIXELS = 64, 2**19
  images one by one => LISTED, LISTED_PIXELS = 32, 2**19 => LISTED, LISTED_PIXELS = 1, 2**19
tests/images/test_image_loading.py -k test_batches_are_those_of_the_schedule
  classes of a list in another order => return source.target[indices].tolist() => return sorted(source.target[indices].tolist())
  a second attempt is of the last image => functools.partial(crop, *one, epoch) for one in zip(out, keys, strict=True)] => functools.partial(crop, out[-1], keys[-1], epoch) for _ in keys]
tests/images/test_image_loading.py -k test_a_region_is_chosen_once_though_two_decoders_try
  a region is chosen by each decoder => choose = functools.cache(cast(decoding.Choose, next(write))) => choose = next(write)
tests/images/test_image_loading.py -k test_a_shard_that_was_replaced_is_read_anew_for_another_attempt
  an old shard stays open => image_files.open_shard.cache_clear()  # a shard => pass  # a shard
tests/images/test_image_loading.py -k test_the_last_batch_of_synthetic_images_is_as_long_as_its_keys
  synthetic classes beyond the last batch => (0, split, epoch, position, classes[: len(keys)]) => (0, split, epoch, position, classes)
tests/images/test_weight_files.py -k test_lines_on_an_evaluation_name_the_sizes_and_other_ones_of_the_weights
  another size is typed in silence => return lines + [f"Its own are {text.format(*own)}"] * (own != sizes) => return lines
  another resize alone is not said => (own != sizes) => (own[0] != sizes[0])
tests/images/test_weight_files.py -k test_of_another_projects_file_the_architecture_alone_is_believed
  numbers of another project are believed => if "model_options" not in saved: => if not saved.keys() & ABOUT.keys():
  timm's architecture is torchvision's => about["arch"] = f"timm/{name}" => about["arch"] = name
tests/images/test_weight_files.py -k test_two_models_in_a_file
  one of two models is taken => if other and fitting(way) == fitting(best): => if False:
tests/images/test_weight_files.py -k test_the_output_needs_what_it_is_computed_from
  random statistics are measured => if "running_" in name} => if "mean_" in name}
tests/images/test_weight_files.py -k test_outputs_of_a_file_are_counted_in_an_evaluation
  outputs are rows of any layer => reversed([*architectures.classifier(model).modules()]) => reversed([*model.modules()][:5])
tests/images/test_weight_files.py -k test_a_published_file_says_its_preprocessing
  a published name has 1,000 outputs => del about["num_classes"]  # => pass  #
tests/images/test_weight_files.py -k test_what_is_no_layer_has_no_outputs
  a scalar has outputs => if weight is not None and weight.ndim: => if weight is not None:
tests/images/test_weight_files.py -k test_other_ranks_than_the_first_say_nothing
  every rank says so => if os.environ.get("RANK", "0") == "0":\n        if left: => if True:\n        if left:
tests/images/test_weight_files.py -k test_no_code_of_the_hubs_cache_is_run
  advice to trust the file => if "Weights only" in str(error):  # PyTorch's => if False:  # PyTorch's
tests/images/test_weight_files.py -k test_a_checkpoint_is_called_by_its_path_and_epoch
  another architecture is measured => if evaluate and theirs not in same: => if False:
tests/images/test_weight_files.py -k test_the_lines_command_writes_what_is_beside_averages
  advice overwrites a file => open({out!r}, 'xb'))"\n    )\n    command => open({out!r}, 'wb'))"\n    )\n    command
  averages of others by a program that reads no numbers => torch.save(load({path!r}) => torch.save(torch.load({path!r})
tests/images/test_weight_files.py -k test_timm_resamples_positions_for_images_of_another_size
  positions are not resampled => return architectures.make_model(arch, pretrained=True, **sizes).state_dict() => return architectures.make_model(arch, pretrained=True).state_dict()
tests/images/test_weight_files.py -k test_a_checkpoint_of_another_task_is_refused
  a text's checkpoint is one of images => if "task" in saved:  # of => if False:  # of
tests/runs/test_checkpointing.py -k test_which_weights_are_taken
  averages not loaded => (tensors["ema"] or tensors["state_dict"]) if => tensors["state_dict"] if
  a best model's own weights for its averages => if averages and trained: => if trained:
tests/runs/test_checkpointing.py -k test_an_older_state_of_the_run_needs_another_folder
  an older file of the folder is passed over => if inside and begin.resolve() not in newest and => if False and
tests/runs/test_checkpointing.py -k test_which_checkpoint_counts
  evaluation prefers the run to --resume => if output_dir and not (evaluate and resume): => if output_dir:
tests/runs/test_checkpointing.py -k test_a_disk_that_does_not_answer_is_no_damage
  a checkpoint that cannot be read is passed over => except errors.Damaged as error: => except (errors.BadInput, errors.Fault) as error:
  no access in the folder is the user's mistake => read_checkpoint(folder / name, typed=False, needs=needs) => read_checkpoint(folder / name, needs=needs)
tests/runs/test_checkpointing.py -k test_a_run_resumes_at_the_images_that_follow
  steps not converted to another batch => math.ceil(metadata["step"] * metadata["global_batch"] / global_batch) => metadata["step"]
tests/runs/test_checkpointing.py -k test_what_began_the_run_may_be_typed_again
  what began the run may not be typed again => if start_epoch not in (None, saved["args"].get("start_epoch")): => if start_epoch is not None:
tests/text/test_hf_folders.py -k test_a_classifier_that_is_new_is_said_and_not_evaluated
  a new classifier is measured => if left and evaluate:\n        raise errors.BadInput(f"{line}: its answers => if False:\n        raise errors.BadInput(f"{line}: its answers
tests/text/test_hf_folders.py -k test_classes_are_matched_by_their_names_in_any_spelling
  spelling counts => re.sub("[^a-z0-9]+", "_", name.lower()) => name
  names of Hugging Face's GLUE are other names => for known in names, given: => for known in (given,):
tests/text/test_hf_folders.py -k test_names_are_read_of_either_table
  names in label2id alone are not read => found = numbers => pass
tests/text/test_hf_folders.py -k test_two_orders_in_one_configuration_are_refused
  two orders in one config => elif numbers != found and not numbered(numbers): => elif False:
tests/text/test_hf_folders.py -k test_layers_that_config_json_does_not_have_are_not_evaluated
  layers that config.json lacks are left out => if layers and evaluate: => if False:
tests/text/test_hf_folders.py -k test_whatever_a_library_raises_is_one_line
  advice to trust a file => if "weights_only" in str(error): => if False:
tests/images/test_image_loading.py -k test_a_program_ends_though_batches_are_left
  loader workers keep a program from ending =>     for worker in workers:\n        worker.kill() =>     pass
tests/test_model_flops.py -k test_an_image_of_a_script
  growing images have a share of the peak => if args.start_size:\n        return None => if False:\n        return None
tests/test_model_flops.py -k test_a_share_of_the_peak_is_that_of_all_devices
  a share of the peak is one device's => flops / (1e12 * peak * place.ranks * place.devices) => flops / (1e12 * peak)
  a model that cannot be counted ends the run => except Exception as error:  # whatever an own model does where tensors => except KeyError as error:  # whatever an own model does where tensors
tests/test_model_flops.py -k test_an_epoch_s_line_and_its_values_have_it
  a share of the peak is of validation => 100 * training["Throughput"] * run.peak_share => 100 * val["Throughput"] * run.peak_share
tests/test_export.py -k test_timm_and_transformers_predict_as_look_does
  a folder's model has its published size => config.get("model_args", {}) | options => {}
  timm resizes to a pixel less => if math.floor(crop / share) == resize else => if True else
  squashed images are cropped => "squash" if architectures.preset_of(arch).squash else "center" => "center"
  a folder has its published size of images => "input_size": [3, data.val_size, data.val_size], => "input_size": [3, 224, 224],
  a folder's weights say nothing to the scripts => "model.safetensors", model.state_dict(), for_scripts(trained, about)) => "model.safetensors", model.state_dict(), {})
tests/test_export.py -k test_a_folder_says_how_images_are_resized
  a folder has timm's own interpolation => for name in ("interpolation", "mean", "std")} => for name in ("mean", "std")}
tests/test_export.py -k test_onnx_runtime_predicts_as_look_does
  ONNX without its metadata => program.model.metadata_props["about"] = json.dumps(about) => pass
tests/test_export.py -k test_nothing_is_overwritten
  other answers are written => if not error < 1e-4: => if False:
tests/test_export.py -k test_what_timm_has_not_is_one_line
  Inception's normalisation is lost => or trained.data.model_options.get("transform_input"): => or False:
  torchvision's options are given to timm => if arch.startswith("timm/") else {}  # torchvision's are others => or {}
tests/test_export.py -k test_averages_are_exported_unless_trained_weights_are_asked_for
  --trained takes model_best's averages => saved.get("trained", saved.get("state_dict")) => saved.get("state_dict")
  --trained is not heard => return saved | {"ema": {}, "state_dict" => return saved | {"state_dict"
  --trained of what has one kind => if not (isinstance(saved, dict) and saved.get("ema")): => if not isinstance(saved, dict):
tests/test_export.py -k test_a_card_without_a_log_has_what_the_checkpoint_says
  a card has whole paths => value = os.path.basename(value) if isinstance(value, str) else value => pass
  a seed of 0 is none => if value not in (None, "") => if value
tests/test_export.py -k test_a_run_leaves_and_comes_back
  a card's measures are the best => .get(saved["epoch"]) => .get(saved["epoch"], found and max(found))
  a fraction is no share in % => unit = " %" if perfect == 100 else => unit = " %" if perfect == 1 else
  the least accuracy is the best => choose = min if worst > perfect else max => choose = max if worst > perfect else min
tests/test_export.py -k test_a_measure_of_something_else_is_not_in_a_card
  a card's measures are of another run => if run.about and same and all(same): => if run.about:
  a checkpoint before its first validation is of any log => if saved[best[tag][0]] != best[tag][1]] => if True]
  measures of an epoch that has not ended => if not run or saved.get("step") or (trained => if not run or (trained
  measures of averages beside trained weights => or (trained and option(saved, "ema")): => or False:
tests/test_export.py -k test_a_card_has_the_epoch_s_measures_and_what_trained
  a card's text is Markdown of the log's => {tables.escape(logs.visible(str(value)))} => {value}
tests/test_export.py -k test_transformers_goes_on_as_sample_does
  another GELU => "activation_function": "gelu"} => "activation_function": "gelu_new"}
  a text's length is forgotten => tokenizer.model_max_length = saved["max_length"] => pass
tests/test_export.py -k test_a_tokenizer_must_be_the_checkpoint_s
  any tokenizer is exported where no digest is known => if len(tokenizer) != size or words or other: => if words or other:
"""  # noqa: E501


def faults():
    """Yields (number, tests, name, old, new) of each fault in the list."""
    number, tests = 0, None
    for line in FAULTS.strip().splitlines():
        if line.startswith("  "):
            number += 1
            name, old, new = line.replace("\\n", "\n").strip(" ").split(" => ")
            yield number, tests, name, old, new
        else:
            tests = line


def stale(tests):
    """Returns the words behind -k that the file of these tests does not have, as after a test got
    another name: those that the other words find might not see the faults."""
    file, *options = shlex.split(tests)
    expression = options[options.index("-k") + 1] if "-k" in options else ""
    words = {*re.findall(r"\w+", expression)} - {"and", "or", "not"}
    return [word for word in words if word.lower() not in (ROOT / file).read_text().lower()]


def outside(folder, names):
    """Returns the names in a folder that the copy lacks: caches anywhere, and what lies beside the
    scripts and is not theirs. A folder of that name elsewhere, as trainparts/runs, is copied."""
    here = OUTSIDE if Path(folder) == ROOT else set()
    return [name for name in names if name in here or "cache" in name]


def misplaced(old, package, counts):
    """Returns whether a text, by {file: how often it stands there}, is not once in each script that
    should have it, nor once in the package, or in a program beside them, and nowhere else."""
    # All scripts share what the package has once. A text in two of its modules, or in it and in a
    # script, would be two faults, and the test that sees one would hide that none sees the other.
    if any(old in text for text in package.values()):
        return sum(counts.values()) != 1
    # So it is with the programs beside the scripts, which are no copies of one another.
    if not any(re.match("(imagenet|text)_", name) for name in counts if counts[name]):
        return sum(counts.values()) != 1
    # What one device's script lacks is of a way's step or launch, and not in every script; a
    # pipeline validates in a way of its own.
    shared = any(counts.get(script) for script in ("imagenet_nd.py", "text_nd.py"))
    where = {counts[name] for name in counts if counts[name] or "pipeline" not in name}
    if {name for name in counts if counts[name]} == {x for x in counts if x.endswith(FLOAT8)}:
        return where != {0, 1}
    return not counts or bool(where - ({1} if shared else {0, 1}))


def around(old, text):
    """Returns what stands between two pairs of blank lines around `old` in a script: a function or
    a class. A script as a whole takes ten times longer to parse."""
    at = text.find(old)
    end = text.find("\n\n\n", at + len(old))
    return text[text.rfind("\n\n\n", 0, at) + 1 : end if end > 0 else None] if at >= 0 else ""


def names_around(old, text):
    """Returns the names of the function or class that `old` stands in, and of the last one within
    that which begins before it, such as a method; none if it stands in neither."""
    block = around(old, text)
    found = re.findall(r"^ *(?:def|class) (\w+)", block[: block.find(old) + len(old)], re.M)
    return {found[0], found[-1]} if found else set()


def warm_up():
    """Imports what takes seconds in each start of pytest: be_pytest() is a fork of this process."""
    sys.path.append(str(ROOT / "tests" / "small_models"))
    with mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"):  # as in a server of forked.py
        for name in (*forked.PRELOADED, "pytest", "matplotlib.pyplot"):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("horovod.torch")
    with contextlib.redirect_stdout(io.StringIO()):
        sys.modules["pytest"].main(["--version", "--noconftest"])  # imports its plugins
    gc.freeze()  # collections in forks pass over all of this


class Report:
    """Has pytest begin with a test, and come to those before it at the end: what has seen a fault
    is likely to see the next, or what follows it in the file is. Writes which test fails."""

    def __init__(self, first):
        self.first, self.path = first, Path("failed").absolute()

    def pytest_collection_modifyitems(self, items):
        numbers = [n for n, item in enumerate(items) if item.nodeid == self.first]
        for number in numbers:
            items[:] = items[number:] + items[:number]

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.path.write_text(report.nodeid)


def be_pytest(words, first):
    """The process: it runs tests of the copy in this folder, with its output in a file there, and
    ends."""
    forked.keep_server()
    sys.dont_write_bytecode = False  # what is compiled here serves the next runs of this copy
    for descriptor in 1, 2:
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.truncate("output", 0)
    sys.path[0] = os.getcwd()
    unused = [word for name in ("cacheprovider", "anyio") for word in ("-p", f"no:{name}")]
    words = ["-x", "-q", "-n", "0", *unused, *words]
    os._exit(importlib.import_module("pytest").main(words, [Report(first)]))


class Worker:
    """What a process has that plants faults."""

    last = None, None  # words of pytest, and the test that has seen the last fault here


def begin_worker(folder, numbers):
    """The process begins, in a copy of this repository: other workers have other folders for
    temporary files, other ports, and other servers that scripts are forks of."""
    number = numbers.get()
    copy, temporary = Path(folder) / f"copy{number}", Path(folder) / f"temporary{number}"
    shutil.copytree(ROOT, copy, ignore=outside)
    (copy / "logs").symlink_to(ROOT / "logs")
    temporary.mkdir()
    os.environ |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    os.environ["PYTEST_XDIST_WORKER"] = f"gw{2 + number}"  # `make test` may run beside: gw0, gw1
    os.environ["REFERENCES"] = folder  # to test_reference.py
    os.chdir(copy)
    small = {"PYTHONPATH": str(copy / "tests" / "small_models"), "PYTHONDONTWRITEBYTECODE": "1"}
    forked.start_server(os.environ | small)


def run_tests(words, planted=(), number=0):
    """Runs tests, by words of pytest, in a worker's copy with the texts of `planted`, {path: text};
    returns the test that failed, or None where all passed, and the seconds of processor time."""
    before, whole = processor_time(), {}
    Path("failed").write_text("")
    for path, text in dict(planted).items():
        whole[path] = Path(path).read_text(), os.stat(path).st_mtime
        Path(path).write_text(text)
        # What Python has compiled is known by the file's time, in whole seconds, and its size.
        os.utime(path, times=2 * (whole[path][1] + number,))
    of, seen = Worker.last
    if not (pid := os.fork()):
        be_pytest(words, seen if of == words else None)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for path, (text, when) in whole.items():
        Path(path).write_text(text)
        os.utime(path, times=(when, when))
    failed = Path("failed").read_text()
    if bool(failed) != (ended == 1) or ended not in (0, 1):
        sys.exit(f"pytest {shlex.join(words)} ended with {ended}:\n{Path('output').read_text()}")
    Worker.last = words, failed
    return failed, processor_time() - before


def processor_time():
    """Returns the seconds of user and system of all processes that this one's tests have had."""
    server = psutil.Process(forkserver._forkserver._forkserver_pid).cpu_times()[:4]
    return sum(server) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def main():
    """Plants the chosen faults and prints what saw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, nargs="+", help="these numbers")
    parser.add_argument("-k", default="", metavar="TEXT", help="those with this text in the name")
    parser.add_argument("--of", metavar="NAME", help="those in a function or class of this name")
    parser.add_argument("--list", action="store_true", help="print their tests, plant none")
    parser.add_argument("--times", action="store_true", help="print seconds of processor time")
    most = os.cpu_count() * 3 // 2  # for a quarter of their time tests wait
    parser.add_argument("-n", type=int, default=most, help="workers (%(default)s)")
    args = parser.parse_args()
    # What stands in one of the first four and in the others is not the same thing there.
    names = "imagenet_*.py text_*.py tools/look.py trainparts/**/*.py".split()
    names += "tools/[!l]*.py reporting/*.py make_results.py".split()  # look.py is above
    names += "benchmarks/one_gpu.py benchmarks/gpu*.py".split()
    families = [ROOT.glob(name) for name in names]
    families = [
        {str(path.relative_to(ROOT)): path.read_text() for path in paths} for paths in families
    ]
    for tests in {tests: None for _, tests, *_ in faults()}:
        if words := stale(tests):
            sys.exit(f"{tests}: no test has {words[0]} in its name")
    chosen = []
    for number, tests, name, old, new in faults():
        having = [each for each in families if any(old in text for text in each.values())]
        about = [each for each in having if each in families[:4]] or having
        counts = {name: text.count(old) for each in about for name, text in each.items()}
        if misplaced(old, families[3], counts):
            sys.exit(f"{number}, {name}: not once where it should stand, but {counts}: {old}")
        within = [names_around(old, text) for each in about for text in each.values()]
        if args.of and args.of not in itertools.chain(*within):
            continue
        if args.k in name and number in (args.only or [number]):
            for block in {around(old, text) for each in about for text in each.values()}:
                ast.parse(block.replace(old, new))  # or any test would see it
            chosen.append((number, tests, name, old, new, about))
    if args.list:
        for number, tests, name, *_ in chosen:
            print(f"{number:3}  {name:42}  {tests}")
        return
    # One after the other those that have the same tests.
    first = {tests: number for number, tests, *_ in reversed(chosen)}
    chosen.sort(key=lambda each: (first[each[1]], each[0]))
    planted = [
        {
            path: text.replace(old, new)
            for each in about
            for path, text in each.items()
            if old in text
        }
        for *_, old, new, about in chosen
    ]
    began, total, unseen, context = time.monotonic(), 0, 0, multiprocessing.get_context("fork")
    saw = {}  # {file: {test: None}}
    with tempfile.TemporaryDirectory() as folder:
        warm_up()
        numbers, workers = context.SimpleQueue(), max(1, min(args.n, len(chosen)))
        for number in range(workers):
            numbers.put(number)
        pool = concurrent.futures.ProcessPoolExecutor(
            workers, context, begin_worker, (folder, numbers)
        )

        def line(number, seconds, what, seen):
            taken = f"{seconds:6.1f}  " if args.times else ""
            print(f"{number:4}  {taken}{what:42}  {seen.removeprefix('tests/')}", flush=True)

        try:
            of, by = ([each[n] for each in chosen] for n in (0, 1))
            results = pool.map(run_tests, map(shlex.split, by), planted, of)
            for (number, tests, name, *_), (seen, seconds) in zip(chosen, results, strict=True):
                line(number, seconds, name, seen or "NOT SEEN")
                total += seconds
                unseen += not seen
                if seen and "-m slow" in tests:
                    saw.setdefault(seen.partition("::")[0], {})[seen] = None
            results = pool.map(run_tests, [["-m", "", *tests] for tests in saw.values()])
            for (file, tests), (failed, seconds) in zip(saw.items(), results, strict=True):
                total += seconds
                if failed:
                    sys.exit(f"{failed} fails without a fault")
                if args.times:
                    line("", seconds, f"none: {len(tests)} tests pass", file)
        finally:
            pool.shutdown(cancel_futures=True)
    if args.times:
        took = time.monotonic() - began
        print(f"{took:.0f} s, of {workers} workers; {total:.0f} s of processor time")
    print(f"{len(chosen) - unseen} of {len(chosen)} faults are seen")
    sys.exit(bool(unseen))


if __name__ == "__main__":
    main()
