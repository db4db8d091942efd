"""What a step of the emulated accelerator costs: modelled, each figure with its origin.

- *quoted*: taken from a publication as it stands;
- *fitted*: chosen so that the emulated service reproduces a published result;
- *assumed*: no source; the reason is given.

Sources: AWS ML blog, April 2026 (Qwen3-32B + Qwen3-1.7B, 7 speculative tokens, fused, batch 4, TP 32 on
Trn2): structured prompts about 45 -> 15 ms per token (the 45 is inferred), open-ended about 45 -> 45, TTFT unchanged; 5
to 15 tokens were tried, 15 hurt. AWS Neuron SDK, speculative decoding tutorial (Qwen3-32B + Qwen3-0.6B):
TTFT 48.3 ms without and 47.4 ms with speculation.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Seconds that the device is busy, the same for 1 sequence in the batch and for `max_num_seqs` (assumed:
    reading the weights dominates, and the graph is compiled for the full batch)."""

    prefill_s: float = 0.048
    """One prompt, whatever its length (quoted, 48.3 and 47.4 ms in the tutorial). Serial, because the
    context graph is compiled for one sequence; equal in both arms (blog: TTFT unchanged). A request that
    arrives during a decode step still waits for that step to end, and a speculative step is the longer
    one."""
    decode_step_s: float = 0.045
    """Plain decoding, one token for every sequence (fitted: about 45 ms per token in the blog)."""
    draft_pass_s: float = 0.0068
    """One pass of the draft model (fitted, together with `verify_s` and the acceptance of open-ended
    prompts, so that 7 passes and a verification about double the plain step). A smaller draft is charged
    the same (assumed)."""
    verify_s: float = 0.045
    """The target's pass over the first position of a window (fitted: the same pass as a plain step)."""
    verify_position_s: float = 0.0003
    """Each further position of the window (assumed: small while decoding is bound by memory, yet not
    nothing)."""

    def step_s(self, speculative_tokens: int) -> float:
        """Seconds of one decode step; 0 speculative tokens is plain decoding.

        Fused speculation with k tokens makes k draft passes (the last one only fills the draft's KV cache)
        and one verification of k positions (NxD Inference, `NeuronFusedSpecModel`): 94.4 ms for k = 7.
        """
        k = speculative_tokens
        if k == 0:
            return self.decode_step_s
        return k * self.draft_pass_s + self.verify_s + (k - 1) * self.verify_position_s

    def scaled(self, time_scale: float) -> StepCosts:
        """The same machine with time running slower (above 1) or faster (below 1)."""
        return StepCosts(**{field.name: getattr(self, field.name) * time_scale for field in fields(self)})
