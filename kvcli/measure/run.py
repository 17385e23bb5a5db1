"""One measured generation: the transformer runs, the plan stands beside it, and both end in one record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvcli.dtypes import DType, KvTypes
from kvcli.errors import BadInput, CannotRunHere
from kvcli.hardware.accelerators import Accelerator
from kvcli.measure.bandwidth import ReadRate
from kvcli.measure.devices import device_clock, free_bytes, is_out_of_memory, peak_memory
from kvcli.measure.environment import environment
from kvcli.model.layers import read_bytes
from kvcli.model.spec import ModelSpec
from kvcli.plan.build import build
from kvcli.plan.document import plan_document
from kvcli.plan.floors import decode_flops, floor_terms, forward_flops
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.kvcli import BuiltIn
from kvcli.plan.workload import Workload
from kvcli.records import Record
from kvcli.runtime.caches import Cache
from kvcli.runtime.generate import Clock, Generation, decode, generate, prefill
from kvcli.runtime.sampling import Sampler
from kvcli.runtime.transformer import Transformer
from kvcli.units import exact_bytes, format_bytes

#: Tokens of the prompt that are run once beforehand, so that first-use costs are not counted.
WARM_UP_TOKENS = 16

#: The error of a record whose run was ended by Ctrl-C.
INTERRUPTED = {"code": "interrupted", "message": "interrupted", "hint": ""}

DEFINITIONS = {
    "ttft_s": "prefill of the whole prompt and choice of the first token, after a warm-up pass that is not counted",
    "tpot_s": "mean time of the decode steps, each a forward pass and the choice of its token; text output is outside",
    "decode_tokens_per_s": "1 / tpot_s",
    "prefill_tokens_per_s": "prompt tokens / ttft_s",
    "mbu": "mean bytes of weights and cache read by a decode step / tpot_s / nominal bandwidth of the part",
    "mfu": "FLOPs of the prefill as run / ttft_s / dense peak of the part",
    "mean_read_bytes_per_step": "weights and visible cache that a decode step reads, mean over the steps",
    "tpot_floor_s": "mean over the decode steps of the floor at each step's context",
    "measured_over_floor": "tpot_s / tpot_floor_s",
    "measured_over_reference": "tpot_s / (mean bytes read by a decode step / read rate measured in this process)",
    "memory": "peaks: requested from, allocated by and reserved by the allocator, and in use on the device (CPU: resident set)",
}


def run_plan(spec: ModelSpec, dtype: DType, cache: str, prompt_tokens: int, total_tokens: int, part: Accelerator | None) -> Plan:
    """The plan of one sequence that the built-in transformer is about to run."""
    workload = Workload(context_tokens=total_tokens, batch_size=1, prompt_tokens=prompt_tokens)
    return build(PlanRequest(spec, workload, BuiltIn(cache), kv=KvTypes(dtype, dtype), weights=dtype, device=part))


def check_length(spec: ModelSpec, prompt_tokens: int, new_tokens: int) -> None:
    """Raises BadInput before anything runs where the model has no position for the last token."""
    limit = spec.max_context_tokens
    if prompt_tokens + new_tokens > limit:
        room = limit - prompt_tokens
        raise BadInput(
            f"the prompt has {prompt_tokens} tokens, and with {new_tokens} new ones it exceeds the {limit} positions of {spec.name}",
            hint=f"--max-new-tokens {room}" if room > 0 else "shorten the prompt",
            code="prompt_too_long",
        )


def check_memory(plan: Plan, device: torch.device) -> None:
    """Raises CannotRunHere where weights and cache exceed what is free now."""
    free = free_bytes(device)
    if free is not None and plan.total_bytes > free:
        raise out_of_memory(plan, free)


def out_of_memory(plan: Plan, free: int | None) -> CannotRunHere:
    """The planned need beside what was free."""
    had = f"{format_bytes(free)} ({exact_bytes(free)}) are free" if free is not None else "the device has less"
    weights, cache = format_bytes(plan.weights.resident_bytes), format_bytes(plan.cache.stored_bytes)
    total = f"{format_bytes(plan.total_bytes)} ({exact_bytes(plan.total_bytes)})"
    return CannotRunHere(
        f"out of memory: {plan.spec.name} needs {total}, {weights} of weights and {cache} of cache, but {had}",
        hint="cut its depth with --layers, use a smaller --dtype, or choose a smaller model",
        code="out_of_memory",
    )


@dataclass(frozen=True, slots=True)
class Runner:
    """A loaded model and how to measure it. `weights` says what they are: a file's, or random."""

    model: Transformer
    dtype: DType
    cache: str
    weights: str
    part: Accelerator | None
    clock: Clock | None = None

    def measure(
        self,
        prompt_ids: Sequence[int],
        sampler: Sampler,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        on_token: Callable[[int], None] | None = None,
    ) -> tuple[Record, Generation]:
        """Generates once. An interrupt ends it early, and the record says so.

        Raises CannotRunHere on running out of memory, with the planned need.
        """
        total = len(prompt_ids) + max_new_tokens
        plan = run_plan(self.model.spec, self.dtype, self.cache, len(prompt_ids), total, self.part)
        device = self.model.device
        generation = Generation(len(prompt_ids))
        error = None
        free = free_bytes(device)
        try:
            self._warm_up(prompt_ids)
            cache = self._new_cache(total)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            clock = self.clock or device_clock(device)
            generate(self.model, prompt_ids, cache, sampler, max_new_tokens, stop_ids, clock, on_token, generation)
        except KeyboardInterrupt:
            error = INTERRUPTED
            generation.stopped = "interrupted"
        except Exception as failure:
            if is_out_of_memory(failure):
                raise out_of_memory(plan, free) from None
            raise
        record = self._record(plan, generation)
        record.error = error
        return record, generation

    def _new_cache(self, tokens: int) -> Cache:
        return self.model.new_cache(self.cache, 1, tokens)

    def _warm_up(self, prompt_ids: Sequence[int]) -> None:
        few = torch.tensor([list(prompt_ids[:WARM_UP_TOKENS])], device=self.model.device)
        cache = self._new_cache(few.shape[1] + 1)
        prefill(self.model, few, cache)
        decode(self.model, few[:, :1], cache)

    def _record(self, plan: Plan, generation: Generation) -> Record:
        spec, prompt, steps = self.model.spec, generation.prompt_tokens, generation.step_ns
        record = Record(
            kind="run",
            plan=plan_document(plan),
            environment=environment(self.model.device),
            samples={"prefill_ns": [generation.prefill_ns], "decode_step_ns": [steps]},
            memory=peak_memory(self.model.device),
            prompt_token_count=prompt,
            output_token_count=len(generation.token_ids),
            stopped=generation.stopped,
            output_token_ids_sha256=hashlib.sha256(",".join(map(str, generation.token_ids)).encode()).hexdigest(),
            weights=self.weights,
            definitions=DEFINITIONS,
        )
        if generation.prefill_ns:
            record.ttft_s = generation.prefill_ns / 1e9
            record.prefill_tokens_per_s = prompt / record.ttft_s
            if self.part is not None and (peak := self.part.peak(*plan.weights.multiply_units)):
                record.mfu = forward_flops(spec, 0, prompt) / record.ttft_s / peak
        if steps:
            record.tpot_s = sum(steps) / len(steps) / 1e9
            record.decode_tokens_per_s = 1 / record.tpot_s
            if self.cache != "none":
                self._compare(record, plan, [prompt + step for step in range(1, len(steps) + 1)])
        return record

    def _compare(self, record: Record, plan: Plan, contexts: Sequence[int]) -> None:
        """Measured against the floor, both as means over the contexts of the steps that were run."""
        tpot_s = record.tpot_s
        if not tpot_s:
            return
        spec, weights = plan.spec, plan.weights
        read = [weights.read_bytes_per_step + read_bytes(spec.groups, context, plan.cache.kv) for context in contexts]
        record.mean_read_bytes_per_step = sum(read) / len(read)
        if self.part is not None:
            floors = [
                max(floor_terms(moved, decode_flops(spec, Workload(context)), self.part, weights.multiply_units))
                for moved, context in zip(read, contexts, strict=True)
            ]
            record.tpot_floor_s = sum(floors) / len(floors)
            record.measured_over_floor = tpot_s / record.tpot_floor_s if record.tpot_floor_s else None
            record.mbu = record.mean_read_bytes_per_step / tpot_s / self.part.bandwidth_bytes_per_s


def attach_reference(record: Record, rate: ReadRate | None) -> None:
    """Holds a record against a read rate of this machine, measured after the run so that its memory is not the run's."""
    if rate is None or not record.tpot_s or not record.mean_read_bytes_per_step:
        return
    record.reference = rate.document()
    record.measured_over_reference = record.tpot_s / (record.mean_read_bytes_per_step / rate.bytes_per_s)
