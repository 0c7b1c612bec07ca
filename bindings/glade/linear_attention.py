"""Which kernels compute a gated recurrence.

>>> import glade
>>> q, k, v, gk = (glade.zeros(1, 64, 2, 32) for _ in range(4))
>>> print(glade.linear_attention.plan(q, k, v, gk=gk))
forward:  cpu_recurrent: keeps_states false
"""

from glade._glade._linear_attention import Plan, plan

__all__ = ["Plan", "plan"]
