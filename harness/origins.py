"""Which options of algorithms their sources state; every other default is chosen, mostly so that it reduces to GRPO.

Taken from the papers and released code named by each algorithm's `source`; see the docstring of each.
"""

from __future__ import annotations

from collections.abc import Mapping

GRPO = "DeepSeekMath, arXiv 2402.03300"
DAPO = "arXiv 2503.14476"
GSPO = "arXiv 2507.18071"
PURE = "PURE, arXiv 2504.15275 and its code"
BOT = "summary of arXiv 2610.09804"
BPCO = "code QPHutu/golden_critic"

PUBLISHED_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "grpo": {"scale": GRPO, "aggregation": GRPO, "kl_estimator": GRPO},
    "bot_grpo": {
        "token_weight": BOT,
        "credit": BOT,
        "scale": BOT,
        "normalize_scope": BOT,
        "aggregation": f"{BOT}: the usual GRPO update",
    },
    "dapo": dict.fromkeys(
        ("epsilon_low", "epsilon_high", "kl_coefficient", "aggregation", "dynamic_sampling",
         "overlong_cache_share", "scale"),
        DAPO,
    ),
    "gspo": dict.fromkeys(("epsilon_low", "epsilon_high", "kl_coefficient", "form", "scale"), GSPO),
    "pure": dict.fromkeys(
        ("transform", "temperature", "kl_coefficient", "kl_estimator", "baseline", "vr_mix", "vr_coefficient",
         "adv_whiten", "epsilon_low", "epsilon_high", "ratio_guard", "aggregation"),
        PURE,
    ),
    "cort": {},
    "bpco": dict.fromkeys(
        ("gamma", "lambda_mode", "alpha", "adv_whiten", "kl_coefficient", "trust_region", "delta", "value_bound",
         "value_target", "value_clip", "critic_warmup", "critic_lr_scale", "aggregation"),
        BPCO,
    ),
}  # fmt: skip
"""Option to source, by algorithm; an option that a claim sets itself is the claim's, whatever stands here."""

REASONS: Mapping[str, str] = {
    "task.recipe": "the recipe that trained best in the tiny runs; the paper's local reward is a judge's",
    "model.revision": "the commit that public projects pin; the paper names none",
    "model.gradient_checkpointing": "memory: activations are computed again in backward",
    "train.prompts_per_step": "not in the public summaries",
    "train.group_size": "not in the public summaries; 8 is TRL's default",
    "train.horizon": "room beyond the published curves",
    "train.learning_rate": "not in the public summaries; the rate of DeepSeekMath, DAPO and TRL",
    "train.max_completion_tokens": "not in the public summaries",
    "train.temperature": "samples of the policy itself",
    "train.micro_batch_size": "memory; the gradient does not depend on it",
    "train.old_logprobs": "vLLM's bfloat16 log-probs are off by hundredths of a nat on average, by more than 1 at worst",
    "train.checkpoint_every": "a checkpoint is large; it also comes with every evaluation",
    "train.optimizer": "8-bit Adam states, so that trainer and sampler share one card",
    "train.autocast": "bfloat16 arithmetic on 32-bit weights: a step of 1e-6 vanishes in bfloat16 weights",
    "train.importance_cap": "truncated correction for the sampler's own log-probs; 2 as in TRL",
    "sampler.name": "as fast as one card allows",
    "sampler.dtype": "the precision that the sampler is fast in",
    "sampler.memory_share": "what the trainer leaves free",
    "sampler.sleep": "a small model leaves room for both",
    "evaluation.every": "resolution of the time to threshold",
    "evaluation.prompts": "standard error of a rate at most 3.5 points with 200",
    "evaluation.samples": "as many as the largest k needs, and more for precision",
    "stop.rule": "a run that has crossed has told its time",
    "stop.metric": "the claim's endpoint",
    "stop.sustain": "the claim's endpoint",
    "stop.threshold": "the claim's endpoint",
}
"""Why a setting has its value where a claim's scale says nothing of its own."""
