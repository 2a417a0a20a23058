from hypothesis import settings

# The same examples in every run: what fails, fails again; a change is never judged by luck.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")
