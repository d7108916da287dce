"""How fast semel is, beside what the same machine can do at best, and beside others.

`python -m benchmarks` asks every question of `benchmarks/questions`; `python -m benchmarks.report`
makes the page from the answers.
"""
