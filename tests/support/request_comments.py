"""Comments of jobs, and the elastic request in each: what is one is the same to Python, C, Lua and a real Slurm."""

from __future__ import annotations

REQUEST = "elastic:gpus=2-8,batch=64"
COMMENTS: tuple[tuple[str, str | None], ...] = (
    (REQUEST, REQUEST),
    (f"run 7 {REQUEST};owner=me", REQUEST),
    ("ELASTIC:gpus=2-8,batch=64", "ELASTIC:gpus=2-8,batch=64"),
    ("note;Elastic:gpus=2-8,batch=64", "Elastic:gpus=2-8,batch=64"),
    (f" {REQUEST}", REQUEST),
    (f"\t{REQUEST}\tmore", REQUEST),
    (f"a\v{REQUEST}\fmore", REQUEST),
    (f"\u00a0 {REQUEST}", REQUEST),
    ("inelastic:gpus=2", None),
    ("an elastic band", None),
    ("", None),
    ("selastic:companion-of=7;resize=1", None),
    *((f"{space}{REQUEST}", None) for space in "\u00a0\u1680\u2003\u2009\u202f\u205f\u3000\u2028\x85\u200b\ufeff"),
    *((f"note{space}{REQUEST}", None) for space in "\u00a0\u3000\x85\x1c\x1d\x1e\x1f,|"),
    (f"{REQUEST}\u00a0", f"{REQUEST}\u00a0"),
    ("ela\u017ftic:gpus=2-8,batch=64", None),
)
"""Words are separated by ASCII's white space and by semicolons, and by nothing else."""
