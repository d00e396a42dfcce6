"""What the arrangements of agents share: the task in words, the pool, rules of thumb, the way from reply to proposal.

A tuner here is an arrangement of roles. Every role is asked through `attune_lab.llm`, in one of two ways: ``scripted``,
where public rules of thumb answer from the facts of the question, offline; or ``claude``. The scripted players know
what such rules and text formulas say; they see neither the lessons of the attune agent nor, unless asked to, the cost
model. So what a table says of a scripted arrangement is about the arrangement and the rules, not about any model.
"""
