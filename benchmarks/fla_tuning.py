"""What programs that run fla share."""
import math

FEW_TOKENS = 33  # chunk_gla has chunks of 16, 32 or 64 tokens, the same for this length as for a larger one


def seconds_of(torch, call, calls=1):
    """Seconds of one of so many calls in a row, between two events."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3 / calls


def time_briefly(call, quantiles):
    """What tuning takes for the time of a kernel, for tune_briefly()."""
    import torch

    call()
    return [min(seconds_of(torch, call) for _ in range(3))] * len(quantiles)


def only_compile(call, quantiles):
    """The same where kernels are only to be compiled."""
    call()
    return [0] * len(quantiles)


def choose(candidates, most):
    """At most so many candidates for a kernel: first those with four warps and three stages, or close to it; of equals the smallest
    and the largest blocks, then those between."""

    def unusual(candidate):
        return abs(math.log2(candidate.num_warps / 4)), abs(candidate.num_stages - 3)

    ranked = sorted(candidates, key=unusual)
    equals = sum(unusual(x) == unusual(ranked[0]) for x in ranked)
    ranked = ranked[: max(most, equals)]
    most = min(most, len(ranked))
    return [ranked[round(i * (len(ranked) - 1) / max(most - 1, 1))] for i in range(most)]


def tune_briefly(most, bench):
    """Lets Triton tune each kernel, fla's own tuner included, over at most so many candidates (0: all) by bench(call, quantiles), which
    returns seconds. Results of earlier processes do not count. To be called before fla is imported; returns a function that makes all
    kernels tune again."""
    from triton.runtime.autotuner import Autotuner

    tuners, make = [], Autotuner.__init__

    def initialize(self, function, names, candidates, *arguments, **options):
        options.update(do_bench=bench, cache_results=False)
        make(self, function, names, choose(candidates, most) if most and candidates else candidates, *arguments, **options)
        tuners.append(self)

    Autotuner.__init__ = initialize

    def forget():
        for tuner in tuners:
            tuner.cache.clear()

    return forget
