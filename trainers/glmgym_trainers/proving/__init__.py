"""The proving ground: small controlled experiments that show what the trainers' mathematics does, paired over seeds.

A policy of 86 thousand parameters plays games of a few words; everything that learns is the trainers' own code
(``Learner``, the algorithms, the losses, the credit). Each experiment states its claims before it runs and reports
whether they held. ``glmgym prove`` is the command.
"""
