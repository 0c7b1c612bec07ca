"""What programs that run fla share."""


def limit_configurations(most):
    """Lets Triton tune each kernel over at most so many of its candidates, spread over the list. To be called before fla is imported."""
    import triton

    tune = triton.autotune

    def autotune(configs, *arguments, **options):
        return tune(configs[:: max(1, len(configs) // most)][:most], *arguments, **options)

    triton.autotune = autotune
